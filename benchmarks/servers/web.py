"""The web servers of `web_server` and `kill_child`: a static page, one that takes computing, and one that waits."""

from __future__ import annotations

import functools
import http.server
import logging
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks import processors
from benchmarks.load.serving import announce, serve_forever, wait_for
from benchmarks.peers import package, program
from benchmarks.servers import Kinds, main

PAGE, COMPUTING, WAITING = "/page.html", "/computing", "/waiting"
TRIVIAL, ASLEEP, WORD = "/trivial", "/asleep", b"done"
ASLEEP_SECONDS = 0.02
BACKLOG = 1024
WAIT_SECONDS = 0.005
_TURNS = 40_000
_GUNICORN_THREADS = "64"
_ALL = str(len(processors()))
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


def asleep() -> bytes:
    time.sleep(ASLEEP_SECONDS)
    return WORD


_MADE: dict[str, Callable[[], bytes]] = {COMPUTING: computed, WAITING: waited, TRIVIAL: lambda: WORD, ASLEEP: asleep}


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


def _one_process(make: Any, directory: str) -> None:
    serve_forever(make(("127.0.0.1", 0), functools.partial(Pages, directory=directory)))


def _pool_server() -> Any:
    return package("ebbpool.socketserver").AdaptivePoolHTTPServer


def _serve_child(directory: str, child: Any) -> None:
    child.serve(_pool_server().from_socket(child.listener, functools.partial(Pages, directory=directory)))


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


def _log(path: str, announcing: _Announcing) -> None:
    """Has the watchdog's events written to `path`, each after the time of day in seconds; else its warnings shown."""
    logger = logging.getLogger("ebbpool.prefork")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    handler = logging.FileHandler(path) if path else logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(created).6f %(message)s"))
    handler.setLevel(logging.INFO if path else logging.WARNING)
    logger.addHandler(handler)
    logger.addHandler(announcing)


def _prefork(directory: str, log: str = "", processes: str = _ALL, reuse_port: bool = False) -> None:
    listener = None if reuse_port else _listener()
    _log(log, _Announcing(int(processes), listener.getsockname()[1] if listener else None))
    status = package("ebbpool.prefork").run(
        functools.partial(_serve_child, directory),
        bind=listener or ("127.0.0.1", 0),
        processes=int(processes),
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


def _gunicorn(
    directory: str, log: str = "", processes: str = _ALL, worker: str = "gthread", threads: str = _GUNICORN_THREADS
) -> None:
    """Gunicorn with as many processes; its log gets the watchdog's own words for a worker that is there."""
    listener = _listener()
    announce(listener.getsockname()[1])

    def tell(worker: Any) -> None:
        if log:
            with open(log, "a") as file:
                file.write(f"{time.time():.6f} event=child_ready pid={worker.pid}\n")

    settings = {
        "bind": f"fd://{listener.fileno()}",
        "workers": int(processes),
        "worker_class": worker,
        "threads": int(threads),
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


def _granian(directory: str, processes: str = _ALL, threads: str = "") -> None:
    """Granian with as many processes; the port is told once something listens there.

    It takes a port and no listener: a socket that does not listen keeps that port from everybody else.
    """
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.bind(("127.0.0.1", 0))
        port = kept.getsockname()[1]

        def listens() -> bool:
            with socket.socket() as asking:
                return asking.connect_ex(("127.0.0.1", port)) == 0

        def tell() -> None:
            wait_for(listens, 30.0, "granian listens")
            announce(port)

        # A fork would take the lock of stdin along, which the thread that reads there holds.
        multiprocessing.set_start_method("spawn")
        server = package("granian").Granian(
            "benchmarks.servers.web:_wsgi", port=port, log_level="error", interface="wsgi", workers=int(processes),
            backlog=BACKLOG, blocking_threads=int(threads) if threads else None,
        )  # fmt: skip
        server.on_startup(threading.Thread(target=tell, daemon=True).start)
        server.serve()


def _nginx(directory: str) -> None:
    # nginx takes over a socket that is named so, as from a predecessor: no port is ever free for somebody else.
    listener = _listener()
    port = listener.getsockname()[1]
    user = "user root;\n" if os.geteuid() == 0 else ""
    conf, errors = Path(directory) / "nginx.conf", Path(directory) / "error.log"
    conf.write_text(_NGINX.format(folder=directory, port=port, user=user, backlog=BACKLOG))
    command = [program("nginx"), "-p", directory, "-e", str(errors), "-c", str(conf)]
    inherited = os.environ | {"NGINX": f"{listener.fileno()};"}
    with subprocess.Popen(command, env=inherited, pass_fds=[listener.fileno()]) as child:
        listener.close()
        announce(port)
        status = child.wait()
        sys.stderr.write(errors.read_text(errors="replace"))
        sys.exit(status)


KINDS: Kinds = {
    "threading": functools.partial(_one_process, ThreadingServer),
    "pool": lambda **options: _one_process(_pool_server(), **options),
    "prefork": _prefork,
    "prefork-reuse-port": functools.partial(_prefork, reuse_port=True),
    "gunicorn": _gunicorn,
    "granian": _granian,
    "nginx": _nginx,
}

if __name__ == "__main__":
    main(KINDS)
