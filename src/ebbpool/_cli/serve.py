"""What ``python -m ebbpool serve`` runs: `http.server`'s handler of files on a pool, in one process or several."""

from __future__ import annotations

import functools
import http.server
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

from ebbpool._cli.options import OF_SERVER, Options
from ebbpool._http.server import AdaptivePoolHTTPServer
from ebbpool._prefork.bind import Listeners
from ebbpool._stdio import flush_or_discard, unhindered

if TYPE_CHECKING:
    import io

    from ebbpool.prefork import Child

BACKLOG = 1024


class FileHandler(http.server.SimpleHTTPRequestHandler):
    """`SimpleHTTPRequestHandler` that can be quiet, and lets clients of HTTP/1.0 keep their connections."""

    server: FileServer  # pyright: ignore[reportIncompatibleVariableOverride]  # no other has this handler

    def end_headers(self) -> None:
        """End the head; tell a client of HTTP/1.0 that its connection is kept, else it would wait for the end."""
        if self.request_version == "HTTP/1.0" and not self.close_connection:
            self.send_header("Connection", "keep-alive")
        super().end_headers()

    def send_head(self) -> io.BytesIO | BinaryIO | None:
        """Begin the reply; a path that cannot be the name of any file (with a NUL in it) counts as missing."""
        try:
            return super().send_head()
        except ValueError:
            self.send_error(HTTPStatus.NOT_FOUND, "File not found")
            return None

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the name is http.server's)
        """Write a line to standard error, unless the server is to be quiet; in a worker.

        The reply is sent even if the line cannot be written.
        """
        if not self.server.options.quiet and sys.stderr is not None:
            with suppress(OSError, ValueError):
                super().log_message(format, *args)


class FileServer(AdaptivePoolHTTPServer):
    """A server of the files that `options` name."""

    # Handlers that still run when `server_close` has given up must not keep the process alive.
    daemon_threads = True

    def __init__(self, *args: Any, options: Options, **kwargs: Any) -> None:
        self.options = options
        for name in OF_SERVER:
            setattr(self, name, getattr(options, name))
        super().__init__(*args, **kwargs)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report an exception of a handler, in one line if the client has left; in a worker."""
        error = sys.exception()
        if sys.stderr is None:
            return
        with suppress(OSError, ValueError):
            if not isinstance(error, ConnectionError):
                super().handle_error(request, client_address)
            elif not self.options.quiet:
                sys.stderr.write(f"{client_address[0]} left: {error}\n")


def server_on(listener: socket.socket, options: Options) -> FileServer:
    handler = type("FileHandler", (FileHandler,), {"protocol_version": options.protocol})
    return FileServer.from_socket(listener, functools.partial(handler, directory=options.directory), options=options)


def listen(options: Options) -> socket.socket:
    """Return a socket that listens where `options` say: on IPv4 and IPv6 if the address allows, as `http.server` does.

    Raises:
        OSError: The address is taken, or cannot be bound.
    """
    found = socket.getaddrinfo(options.bind, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    return socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=dual)


def serve(options: Options) -> int:
    """Serve until a signal ends it; main thread only.

    Returns:
        The exit status: 0 if all requests were finished, 1 if the server could not start or could not finish in time.
    """
    try:
        with unhindered():
            return _serve(options)
    finally:
        flush_or_discard(sys.stdout, sys.stderr)


def _serve(options: Options) -> int:
    try:
        listener = listen(options)
    except OSError as error:
        # `create_server` repeats the address in its own way.
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        return _failed(f"cannot listen on {options.bind or 'all interfaces'}, port {options.port}: {reason}")
    except UnicodeError as error:
        return _failed(f"cannot listen on {options.bind}, port {options.port}: the name cannot be encoded: {error}")
    with listener, ExitStack() as opened:
        metrics = None
        if options.metrics is not None:
            try:
                metrics = opened.enter_context(closing(Listeners(options.metrics, 64, False, "--metrics"))).of(0)
            except (OSError, ValueError) as error:
                return _failed(error.strerror if isinstance(error, OSError) and error.strerror else str(error))
        if options.processes is None:
            return _serve_here(listener, options, metrics)
        return _serve_in_children(listener, options, metrics)


def _serve_in_children(listener: socket.socket, options: Options, metrics: socket.socket | None) -> int:
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


def serve_in_child(options: Options, child: Child) -> None:
    child.serve(server_on(child.listener, options))


def _serve_here(listener: socket.socket, options: Options, metrics: socket.socket | None) -> int:
    server = server_on(listener, options)
    with _figures(metrics), _ended_by_signals(server) as received:
        _announce(listener)
        server.serve_forever()
        if signal.SIGINT in received:
            _say(sys.stdout, "\nKeyboard interrupt received, exiting.")
        try:
            server.server_close()
        except TimeoutError as error:
            return _failed(str(error))
    return 0


@contextmanager
def _figures(metrics: socket.socket | None) -> Iterator[None]:
    if metrics is None:
        yield
        return
    from ebbpool._metrics.service import endpoint
    from ebbpool._metrics.source import Source

    with endpoint(metrics, Source(None).read, histograms=False):
        yield


@contextmanager
def _ended_by_signals(server: FileServer) -> Iterator[list[int]]:
    """Have the first SIGINT or SIGTERM end `server`'s loop, and the next one the process."""
    received: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)

    def note(number: int, frame: object) -> None:
        if received:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        received.append(number)
        server._loop.tell()

    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
