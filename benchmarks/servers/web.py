"""The web servers of `web_server` and `kill_child`: a static page, a page that takes computing, one that waits.

`python -m benchmarks.servers.web KIND --directory FOLDER` prints its port, and serves until its parent ends.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import processors
from benchmarks.load.serving import announce, die_with_parent, serve_forever
from benchmarks.peers import package, program

PAGE, COMPUTING, WAITING = "/page.html", "/computing", "/waiting"
BACKLOG = 1024
WAIT_SECONDS = 0.005
_TURNS = 40_000
_GUNICORN_THREADS = 64
_PARAGRAPH = b"<p>A pool that ebbs and flows has as many threads as its work needs, and no more.</p>\n"

_NGINX = """
daemon off;
{user}worker_processes auto;
pid {folder}/nginx.pid;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    default_type text/html;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port} backlog={backlog};
        root {folder};
    }}
}}
"""


def write_page(folder: Path) -> None:
    """Writes the static page of 4 kB into `folder`."""
    text = b"<!DOCTYPE html><title>A page</title>\n" + _PARAGRAPH * 47
    (folder / PAGE[1:]).write_bytes(text)


def computed() -> bytes:
    """Some milliseconds of nothing but bytecode."""
    total = 0
    for number in range(_TURNS):
        total = (total * 31 + number) % 1_000_003
    return b"%d\n" % total


def waited() -> bytes:
    """Waits, and tells which process answered."""
    time.sleep(WAIT_SECONDS)
    return b"%010d" % os.getpid()


_MADE: dict[str, Callable[[], bytes]] = {COMPUTING: computed, WAITING: waited}


class Pages(http.server.SimpleHTTPRequestHandler):
    """The files of a folder, as http.server gives them, and what `_MADE` makes."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        make = _MADE.get(self.path)
        if make is None:
            super().do_GET()
            return
        body = make()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (its name there)
        pass


class ThreadingServer(http.server.ThreadingHTTPServer):
    """A thread per connection, with room for as many connections to wait as the others have."""

    request_queue_size = BACKLOG


def _listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)


def _one_process(make: Any, directory: Path) -> None:
    with make(("127.0.0.1", 0), functools.partial(Pages, directory=str(directory))) as server:
        serve_forever(server)


def _serve_child(directory: Path, child: Any) -> None:
    server = package("ebbpool.socketserver").AdaptivePoolHTTPServer
    child.serve(server.from_socket(child.listener, functools.partial(Pages, directory=str(directory))))


class _Announcing(logging.Handler):
    """Prints the port once every child is ready; without a listener it is the one that the log names first."""

    def __init__(self, processes: int, port: int | None) -> None:
        super().__init__()
        self._missing, self._port = processes, port

    def emit(self, record: logging.LogRecord) -> None:
        if self._port is None and (address := getattr(record, "address", None)) is not None:
            self._port = int(str(address).rpartition(":")[2])
        if getattr(record, "event", "") == "child_ready":
            self._missing -= 1
            if self._missing == 0:
                announce(self._port or 0)


def _log(path: Path | None, announcing: _Announcing) -> None:
    """Has the watchdog's events written to `path`, each after the time of day in seconds; else its warnings shown."""
    logger = logging.getLogger("ebbpool.prefork")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    handler = logging.FileHandler(path) if path else logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(created).6f %(message)s"))
    handler.setLevel(logging.INFO if path else logging.WARNING)
    logger.addHandler(handler)
    logger.addHandler(announcing)


def _prefork(directory: Path, log: Path | None, processes: int, reuse_port: bool) -> None:
    listener = None if reuse_port else _listener()
    _log(log, _Announcing(processes, listener.getsockname()[1] if listener else None))
    status = package("ebbpool.prefork").run(
        functools.partial(_serve_child, directory),
        bind=listener or ("127.0.0.1", 0),
        processes=processes,
        backlog=BACKLOG,
        reuse_port=reuse_port,
        preload=True,
        graceful_timeout=10.0,
    )
    sys.exit(status)


def _wsgi(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    make = _MADE.get(environ["PATH_INFO"])
    body = make() if make else b""
    start_response("200 OK" if make else "404 Not Found", [("Content-Length", str(len(body)))])
    return [body]


def _gunicorn(log: Path | None, processes: int, worker: str) -> None:
    """Gunicorn with as many processes; its log gets the watchdog's own words for a worker that is there."""
    listener = _listener()
    announce(listener.getsockname()[1])

    def tell(worker: Any) -> None:
        if log is not None:
            with log.open("a") as file:
                file.write(f"{time.time():.6f} event=child_ready pid={worker.pid}\n")

    settings = {
        "bind": f"fd://{listener.fileno()}",
        "workers": processes,
        "worker_class": worker,
        "threads": _GUNICORN_THREADS,
        "backlog": BACKLOG,
        "keepalive": 60,
        "loglevel": "critical",
        "post_worker_init": tell,
    }

    class Application(package("gunicorn.app.base").BaseApplication):  # type: ignore[misc]  # imported when asked for
        def load_config(self) -> None:
            for name, value in settings.items():
                self.cfg.set(name, value)

        def load(self) -> Any:
            return _wsgi

    Application().run()


def _nginx(directory: Path) -> None:
    # nginx takes over a socket that is named so, as from a predecessor: no port is ever free for somebody else.
    listener = _listener()
    port = listener.getsockname()[1]
    user = "user root;\n" if os.geteuid() == 0 else ""
    conf = directory / "nginx.conf"
    conf.write_text(_NGINX.format(folder=directory, port=port, user=user, backlog=BACKLOG))
    command = [program("nginx"), "-p", str(directory), "-e", str(directory / "error.log"), "-c", str(conf)]
    inherited = os.environ | {"NGINX": f"{listener.fileno()};"}
    with subprocess.Popen(command, env=inherited, pass_fds=[listener.fileno()]) as child:
        listener.close()
        announce(port)
        status = child.wait()
        sys.stderr.write((directory / "error.log").read_text(errors="replace"))
        sys.exit(status)


def serve(argv: Sequence[str]) -> None:
    """Serves until its parent ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("threading", "pool", "prefork", "gunicorn", "nginx"))
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--processes", type=int, default=len(processors()))
    parser.add_argument("--reuse-port", action="store_true")
    parser.add_argument("--worker", default="gthread")
    asked = parser.parse_args(argv)
    die_with_parent()
    if asked.kind == "threading":
        _one_process(ThreadingServer, asked.directory)
    elif asked.kind == "pool":
        _one_process(package("ebbpool.socketserver").AdaptivePoolHTTPServer, asked.directory)
    elif asked.kind == "prefork":
        _prefork(asked.directory, asked.log, asked.processes, asked.reuse_port)
    elif asked.kind == "gunicorn":
        _gunicorn(asked.log, asked.processes, asked.worker)
    else:
        _nginx(asked.directory)


if __name__ == "__main__":
    serve(sys.argv[1:])
