"""What the tests of servers share: a running server, clients, reserved ports."""

from __future__ import annotations

import errno
import socket
import socketserver
import ssl
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from ebbpool._servers import door as doors  # noqa: F401  (for tests of what is inside)
from ebbpool._servers import handlers as handling  # noqa: F401  (for tests of what is inside)
from ebbpool._servers import loop_state as loop_state
from ebbpool._servers import mixin as mixin
from ebbpool.socketserver import AdaptivePoolTCPServer
from support.common import TIMEOUT, environment

LOOPBACK = ("127.0.0.1", 0)
CERTIFICATE = Path(__file__).with_name("localhost.pem")


@contextmanager
def reserved_port() -> Iterator[int]:
    """Yield a port of the loopback address that the system gives to nobody else until the end of the block.

    On Linux a server with SO_REUSEADDR can bind it beside the socket here, which does not listen. Elsewhere it cannot,
    so there the port is only one that was free a moment ago.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(LOOPBACK)
        port: int = holder.getsockname()[1]
        if sys.platform != "linux":
            holder.close()
        yield port


@contextmanager
def program(*command: str, cwd: Path, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run an interpreter with the same ebbpool for the length of the block."""
    with subprocess.Popen([sys.executable, *command], cwd=cwd, env=environment() | environ) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(3 * TIMEOUT)


@contextmanager
def looping(server: Any, poll_interval: float | None = 0.05) -> Iterator[threading.Thread]:
    """Run the server's `serve_forever` in a thread for the length of the block; the server is not closed."""
    thread = threading.Thread(target=server.serve_forever, args=(poll_interval,), name="serve_forever")
    thread.start()
    try:
        yield thread
    finally:
        server.shutdown()
        thread.join(TIMEOUT)
        assert not thread.is_alive(), "serve_forever did not end"


@contextmanager
def serving(server: Any, poll_interval: float | None = 0.05) -> Iterator[Any]:
    """Run a server for the length of the block, then close it, which waits for its handlers."""
    with server, looping(server, poll_interval):
        yield server


def connect(server: Any) -> socket.socket:
    """Return a connection to a stream server, TCP or Unix, whose operations time out."""
    client = socket.socket(server.address_family, socket.SOCK_STREAM)
    client.settimeout(TIMEOUT)
    try:
        client.connect(server.server_address)
    except BaseException:
        client.close()
        raise
    return client


def read_all(client: socket.socket) -> bytes:
    """Return what comes until the end of file."""
    parts = []
    while part := client.recv(65536):
        parts.append(part)
    return b"".join(parts)


def ask(server: Any, message: bytes = b"") -> bytes:
    """Send a message over a connection of its own, end the sending side, and return all that comes back."""
    with closing(connect(server)) as client:
        client.sendall(message)
        client.shutdown(socket.SHUT_WR)
        return read_all(client)


def reset(client: socket.socket) -> None:
    """Close a connection so that the other side gets a reset."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def handler(call: Callable[[socketserver.BaseRequestHandler], object]) -> type[socketserver.BaseRequestHandler]:
    """Return a handler class whose `handle` is the given function."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            call(self)

    return Handler


def echo(request: socketserver.BaseRequestHandler) -> None:
    """Send back what comes, until the end of file."""
    while data := request.request.recv(65536):
        request.request.sendall(data)


Echo = handler(echo)


class Server(AdaptivePoolTCPServer):
    """A server that notes its errors instead of printing them."""

    shutdown_timeout = TIMEOUT

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.errors: list[BaseException | None] = []
        super().__init__(*args, **kwargs)

    def handle_error(self, request: Any, client_address: Any) -> None:
        self.errors.append(sys.exc_info()[1])


def made(handles: Any = Echo, /, **attributes: Any) -> Server:
    """Return a server of a class of its own, with the given attributes."""
    made_class: type[Server] = type("Server", (Server,), attributes)
    return made_class(LOOPBACK, handles)


def over_tls(server: Any) -> Any:
    """Return the server with its listener wrapped, as its users do it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    return server


def tls_client(server: Any) -> ssl.SSLSocket:
    """Return a connection after its handshake."""
    context = ssl.create_default_context(cafile=CERTIFICATE)
    plain = connect(server)
    try:
        return context.wrap_socket(plain, server_hostname="localhost")
    except BaseException:
        plain.close()
        raise


def failing_to_accept(base: Any) -> Any:
    """Return a subclass that fails to accept with the given error, as often as told."""

    class Failing(base):  # type: ignore[misc]
        error = errno.EMFILE
        failures = 0
        attempts = 0

        def get_request(self) -> Any:
            self.attempts += 1
            if self.failures:
                self.failures -= 1
                raise OSError(self.error, "out of something")
            return super().get_request()

    return Failing


def noting(base: Any, *hooks: str) -> tuple[Any, list[str]]:
    """Return a subclass that notes which hooks are called, and its list; `get_request` if it has found something."""
    calls: list[str] = []

    def noted(name: str) -> Any:
        def hook(self: Any, *args: Any) -> Any:
            if args:
                calls.append(name)
            result = getattr(super(made_class, self), name)(*args)
            if not args:
                calls.append(name)
            return result

        return hook

    made_class: Any = type("Noting", (base,), {name: noted(name) for name in hooks})
    return made_class, calls
