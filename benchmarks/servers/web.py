"""The web servers: a static page, one that takes computing, one that waits, and small ones."""

from __future__ import annotations

import functools
import http.server
import logging
import multiprocessing
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks import processors
from benchmarks.load.serving import announce, serve_forever, wait_for
from benchmarks.peers import package
from benchmarks.servers import Kinds, main

PAGE, COMPUTING, WAITING = "/page.html", "/computing", "/waiting"
TRIVIAL, ASLEEP, WORD = "/trivial", "/asleep", b"done"
ASLEEP_SECONDS = 0.02
SMALL, UPLOAD, SMALL_PAGE = "/small", "/upload", b"<!doctype html><title>page</title><p>" + b"ebb and flow " * 64
_ADDRESS = ("127.0.0.1", 0)
BACKLOG = 1024
WAIT_SECONDS = 0.005
_TURNS = 40_000
_GUNICORN_THREADS = "64"
_ALL = str(len(processors()))
_PARAGRAPH = b"<p>A pool that ebbs and flows has as many threads as its work needs, and no more.</p>\n"


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


_MADE: dict[str, Callable[[], bytes]] = {
    COMPUTING: computed,
    WAITING: waited,
    TRIVIAL: lambda: WORD,
    ASLEEP: asleep,
    **dict.fromkeys((SMALL, UPLOAD), lambda: SMALL_PAGE),
}


class Pages(http.server.SimpleHTTPRequestHandler):
    """The files of a folder, as http.server gives them, and what `_MADE` makes."""

    protocol_version = "HTTP/1.1"
    # The head and the body are two writes, and Nagle's algorithm would hold the second one back.
    disable_nagle_algorithm = True

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

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (its name there)
        pass


class _Quiet:
    """Room for as many connections to wait as all have; what clients leave behind, when they are gone, is no news."""

    request_queue_size = BACKLOG

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


class ThreadingServer(_Quiet, http.server.ThreadingHTTPServer):
    """A thread per connection."""


def _listener() -> socket.socket:
    return socket.create_server(_ADDRESS, backlog=BACKLOG)


def _pool_server() -> Any:
    return package("ebbpool.socketserver").AdaptivePoolHTTPServer


def _threading(directory: str = ".") -> None:
    serve_forever(ThreadingServer(_ADDRESS, functools.partial(Pages, directory=directory)))


def _pool(directory: str = ".") -> None:
    server = type("Server", (_Quiet, _pool_server()), {})
    serve_forever(server(_ADDRESS, functools.partial(Pages, directory=directory)))


def _gevent() -> None:
    server = package("gevent.pywsgi").WSGIServer(_ADDRESS, _wsgi, backlog=BACKLOG, log=None, error_log=None)
    server.start()
    # What is accepted inherits it; see `Pages`.
    server.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    serve_forever(server)


def _serve_child(directory: str, child: Any) -> None:
    child.serve(_pool_server().from_socket(child.listener, functools.partial(Pages, directory=directory)))


class _Log(logging.Handler):
    """Prints the port once every child is ready; writes what is said to `path`, or else shows warnings.

    Each line begins with the time of day in seconds.
    """

    def __init__(self, path: str, processes: int, port: int) -> None:
        super().__init__(logging.INFO)
        self._file = open(path, "a", buffering=1) if path else None  # noqa: SIM115  (as long as the process)
        self._missing, self._port = processes, port

    def emit(self, record: logging.LogRecord) -> None:
        if self._file:
            self._file.write(f"{record.created:.6f} {record.getMessage()}\n")
        elif record.levelno >= logging.WARNING:
            sys.stderr.write(f"{record.getMessage()}\n")
        if getattr(record, "event", "") == "child_ready":
            self._missing -= 1
            if self._missing == 0:
                announce(self._port)


def _prefork(directory: str, log: str = "", processes: str = _ALL) -> None:
    listener = _listener()
    logging.basicConfig(level=logging.INFO, handlers=[_Log(log, int(processes), listener.getsockname()[1])])
    status = package("ebbpool.prefork").run(
        functools.partial(_serve_child, directory),
        bind=listener,
        processes=int(processes),
        backlog=BACKLOG,
        preload=True,
        graceful_timeout=10.0,
    )
    sys.exit(status)


def _wsgi(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    if environ["REQUEST_METHOD"] == "POST":
        environ["wsgi.input"].read()
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
            "benchmarks.servers.web:_wsgi",
            port=port,
            log_level="error",
            interface="wsgi",
            workers=int(processes),
            backlog=BACKLOG,
            blocking_threads=int(threads) if threads else None,
        )
        server.on_startup(threading.Thread(target=tell, daemon=True).start)
        server.serve()


KINDS: Kinds = {
    "threading": _threading,
    "pool": _pool,
    "gevent": _gevent,
    "prefork": _prefork,
    "gunicorn": _gunicorn,
    "granian": _granian,
}

if __name__ == "__main__":
    main(KINDS)
