"""What ``python -m ebbpool serve`` runs: `http.server`'s handler of files on a pool, in one process or several."""

from __future__ import annotations

import argparse
import functools
import http.server
import logging
import signal
import socket
import sys
from contextlib import ExitStack, closing, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

from ebbpool._prefork.bind import Bind, Listeners
from ebbpool._stdio import flush_or_discard
from ebbpool.socketserver import AdaptivePoolHTTPServer

if TYPE_CHECKING:
    import io

    from ebbpool.prefork import Child

BACKLOG = 1024
OF_POOL = ("max_workers", "min_workers", "min_spare_workers", "keep_alive", "max_queue")
TIMES = ("header_timeout", "idle_timeout", "request_timeout", "shutdown_timeout")


class FileHandler(http.server.SimpleHTTPRequestHandler):
    """`SimpleHTTPRequestHandler` that can be quiet, and lets clients of HTTP/1.0 keep their connections."""

    server: FileServer  # pyright: ignore[reportIncompatibleVariableOverride]  # no other has this handler

    def end_headers(self) -> None:
        # Else a client of HTTP/1.0 would wait for the end of its connection.
        if self.request_version == "HTTP/1.0" and not self.close_connection:
            self.send_header("Connection", "keep-alive")
        super().end_headers()

    def send_head(self) -> io.BytesIO | BinaryIO | None:
        try:
            return super().send_head()
        except ValueError:
            # The path cannot be the name of any file: there is a NUL in it.
            self.send_error(HTTPStatus.NOT_FOUND, "File not found")
            return None

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the name is http.server's)
        """Write a line to standard error, in a worker; the reply is sent even if that fails."""
        if not self.server.options.quiet and sys.stderr is not None:
            with suppress(OSError, ValueError):
                super().log_message(format, *args)


class FileServer(AdaptivePoolHTTPServer):
    # Handlers that still run when `server_close` has given up must not keep the process alive.
    daemon_threads = True

    def __init__(self, *args: Any, options: argparse.Namespace, **kwargs: Any) -> None:
        self.options = options
        for name in OF_POOL + TIMES:
            setattr(self, name, getattr(options, name))
        super().__init__(*args, **kwargs)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        if sys.stderr is None:
            return
        with suppress(OSError, ValueError):
            if not isinstance(error, ConnectionError):
                super().handle_error(request, client_address)
            elif not self.options.quiet:
                sys.stderr.write(f"{client_address[0]} left: {error}\n")


def server_on(listener: socket.socket, options: argparse.Namespace) -> FileServer:
    handler = type("FileHandler", (FileHandler,), {"protocol_version": options.protocol})
    return FileServer.from_socket(listener, functools.partial(handler, directory=options.directory), options=options)


def serve(options: argparse.Namespace) -> int:
    """Serve until a signal ends it, in the main thread; return 0 if all requests were finished, else 1."""
    with ExitStack() as opened:
        opened.callback(lambda: flush_or_discard(sys.stdout, sys.stderr))

        def listening(address: Bind, name: str) -> socket.socket:
            return opened.enter_context(closing(Listeners(address, BACKLOG, False, name))).of(0)

        try:
            listener = listening((options.bind or "", options.port), "--bind")
            metrics = None if options.metrics is None else listening(options.metrics, "--metrics")
        except (OSError, ValueError) as error:
            return _failed(error.strerror if isinstance(error, OSError) and error.strerror else str(error))
        if options.processes is None:
            return _serve_here(listener, options, metrics)
        return _serve_in_children(listener, options, metrics)


def _serve_in_children(listener: socket.socket, options: argparse.Namespace, metrics: socket.socket | None) -> int:
    from ebbpool import prefork

    _announce(listener)
    logging.basicConfig(format="%(message)s")
    logging.getLogger("ebbpool.prefork").setLevel(logging.WARNING if options.quiet else logging.INFO)
    return prefork.run(
        functools.partial(serve_in_child, options),
        bind=listener,
        processes=options.processes,
        backlog=BACKLOG,
        preload=True,
        graceful_timeout=options.shutdown_timeout,
        metrics=metrics,
    )


def serve_in_child(options: argparse.Namespace, child: Child) -> None:
    child.serve(server_on(child.listener, options))


def _serve_here(listener: socket.socket, options: argparse.Namespace, metrics: socket.socket | None) -> int:
    server = server_on(listener, options)
    received: list[int] = []

    def note(number: int, frame: object) -> None:
        # The second signal ends the process.
        if received:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        received.append(number)
        server._loop.tell()

    with ExitStack() as stack:
        if metrics is not None:
            from ebbpool._metrics.service import endpoint
            from ebbpool._metrics.source import Source

            stack.enter_context(endpoint(metrics, Source(None).read, histograms=False))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, note)
        _announce(listener)
        server.serve_forever()
        if signal.SIGINT in received:
            _say(sys.stdout, "\nKeyboard interrupt received, exiting.")
        try:
            server.server_close()
        except TimeoutError as error:
            return _failed(str(error))
    return 0


def _announce(listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    _say(sys.stdout, f"Serving HTTP on {host} port {port} (http://{shown}:{port}/) ...")


def _failed(reason: str) -> int:
    _say(sys.stderr, f"python -m ebbpool serve: error: {reason}")
    return 1


def _say(stream: TextIO | None, line: str) -> None:
    """Print a line; ignore errors if the stream is closed or not there."""
    if stream is not None:
        with suppress(OSError, ValueError):
            print(line, file=stream, flush=True)
