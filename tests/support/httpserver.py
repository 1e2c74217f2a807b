"""What the tests of the HTTP server share: handlers, a client that sends what it likes, a door turned by hand."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple, Self

from ebbpool import _stdio as stdio  # noqa: F401  (for tests of what is inside)
from ebbpool._http import connection as connections
from ebbpool._http import framing as framing
from ebbpool._http import frontdoor
from ebbpool._servers import door as pollers
from ebbpool._stdio import Bell
from ebbpool._stdio import wait_for as wait_for
from ebbpool.socketserver import AdaptivePoolHTTPServer
from support.common import TIMEOUT, Background, Gate
from support.server import LOOPBACK
from support.server import serving as served

CLOSED = (ConnectionResetError, BrokenPipeError)


class Quiet(BaseHTTPRequestHandler):
    """Keeps connections alive and writes no log."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def reply(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class Echo(Quiet):
    """Answers GET and HEAD with the path, and POST with the body."""

    def do_GET(self) -> None:
        self.reply(self.path.encode())

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self.reply(self.rfile.read(int(self.headers.get("Content-Length", 0))))


def gated(gate: Gate) -> type[Echo]:
    """Return an `Echo` whose GET of /wait waits."""

    class Gated(Echo):
        def do_GET(self) -> None:
            if self.path == "/wait":
                gate()
            super().do_GET()

    return Gated


@contextmanager
def serving(handler: Any, base: type = AdaptivePoolHTTPServer, /, **attributes: Any) -> Iterator[Any]:
    """Serve in a thread of its own until the end of the block; `attributes` are those of the class."""
    made: Any = type("Server", (base,), attributes)
    with served(made(LOOPBACK, handler)) as server:
        yield server


class Response(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    """One connection: sends bytes, reads responses."""

    def __init__(self, server: Any) -> None:
        self.socket = socket.create_connection(server.server_address[:2], timeout=TIMEOUT)
        self.file = self.socket.makefile("rb")

    def send(self, data: bytes) -> Self:
        self.socket.sendall(data)
        return self

    def get(self, target: str = "/", *headers: str) -> Self:
        return self.send("\r\n".join([f"GET {target} HTTP/1.1", "Host: test", *headers, "", ""]).encode())

    def post(self, body: bytes, *headers: str) -> Self:
        lines = ["POST / HTTP/1.1", "Host: test", f"Content-Length: {len(body)}", *headers, "", ""]
        return self.send("\r\n".join(lines).encode() + body)

    def response(self, *, to_head: bool = False) -> Response:
        version, status, _ = self.file.readline().decode().split(" ", 2)
        assert version in ("HTTP/1.0", "HTTP/1.1")
        headers = {}
        while (line := self.file.readline().decode().rstrip("\r\n")) != "":
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        if to_head or status == "100":
            body = b""
        elif "content-length" in headers:
            body = self.file.read(int(headers["content-length"]))
        else:
            body = self.file.read()
        return Response(int(status), headers, body)

    def body(self) -> bytes:
        answer = self.response()
        assert answer.status == 200
        return answer.body

    def ended(self) -> bool:
        """Wait for the end of the connection, and tell whether nothing came before it."""
        try:
            return self.file.read() == b""
        except CLOSED:
            return True

    def half_close(self) -> Self:
        self.socket.shutdown(socket.SHUT_WR)
        return self

    def close(self) -> None:
        self.file.close()
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()


class Clock:
    """Seconds that pass only when they are told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Porter:
    """A server whose front door is turned by the test's own thread, by a clock of its own."""

    def __init__(self, server: Any, poller: pollers.SelectorPoller | None = None) -> None:
        self.server = server
        self.clock = Clock()
        self.door = server._door = frontdoor.FrontDoor(server, poller, self.clock)
        server.socket.setblocking(False)
        self.bell = Bell()
        self.door.open(server.fileno(), self.bell)

    def turn(self, timeout: float) -> None:
        """Do once what the loop does."""
        if self.door.turn(timeout):
            self.server._accept_ready(self.door)

    def until(self, condition: Callable[[], object]) -> None:
        """Turn the door until `condition` holds; fail after `TIMEOUT` seconds."""
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            assert time.monotonic() < deadline, "did not come true"
            self.turn(0.01)

    def during(self, call: Callable[[], object]) -> Any:
        """Turn the door until `call` returns, in another thread."""
        background = Background(call)
        self.until(background.over.is_set)
        return background.join()

    def answer(self, client: Client) -> Response:
        response: Response = self.during(client.response)
        return response

    def end(self, client: Client) -> bool:
        """Turn the door until the connection of `client` ends; tell whether nothing came before that."""
        return bool(self.during(client.ended))

    def hold(self, room: frontdoor.Room, count: int) -> None:
        """Turn the door until so many connections are in the room."""
        self.until(lambda: len(room.held) == count)

    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds
        self.turn(0)

    def oldest(self, room: frontdoor.Room) -> connections.Connection:
        return next(iter(room.held))


@contextmanager
def porter(handler: Any = Echo, poller: pollers.SelectorPoller | None = None, /, **attributes: Any) -> Iterator[Porter]:
    """A `Porter`; the server is closed at the end of the block."""
    made: Any = type("Server", (AdaptivePoolHTTPServer,), attributes)
    with made(("127.0.0.1", 0), handler) as server:
        keeper = Porter(server, poller)
        try:
            yield keeper
        finally:
            keeper.door.shut()
            keeper.bell.close()
            # Its time stands still, so nothing may wait for it.
            keeper.door.close(0)
