"""Handlers of every kind on the HTTP server: what they may do with their connection, and how they read bodies."""

from __future__ import annotations

import functools
import io
import os
import socket
import socketserver
import sys
import threading
import wsgiref.simple_server
import wsgiref.util
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from support.common import TIMEOUT, Boom, Gate, eventually
from support.httpserver import Client, Clock, Echo, Quiet, connections, frontdoor, porter, served, serving
from support.server import LOOPBACK

from ebbpool.socketserver import AdaptivePoolHTTPServer


def test_handlers_may_override_handle_and_setup() -> None:
    class Own(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            first = self.rfile.readline(65537)
            while self.rfile.readline().strip():
                pass
            self.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n" + first)

    class More(Echo):
        timeout = 5
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            self.seen = self.request.gettimeout()

        def do_GET(self) -> None:
            self.reply(str(self.seen).encode())

    with serving(Own) as server, Client(server) as client:
        assert client.get("/a").body() == b"GET /a HTTP/1.1\r\n"
        assert client.ended()
    with serving(More) as server, Client(server) as client:
        assert client.get().body() == b"5.0"
        assert client.get().body() == b"5.0"


def test_handlers_may_use_the_socket_itself() -> None:
    class Raw(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            buffer = bytearray(5)
            assert self.request.recv(3, socket.MSG_PEEK) == b"GET"
            assert self.request.recv_into(buffer, nbytes=5) == 5
            rest = b""
            while not rest.endswith(b"more"):
                rest += self.request.recv(1000)
            self.request.sendall(bytes(buffer) + rest)

    with serving(Raw) as server, Client(server) as client:
        client.send(b"GET / HTTP/1.1\r\n\r\n")
        client.send(b"more")
        assert client.file.read() == b"GET / HTTP/1.1\r\n\r\nmore"


class Wsgi(AdaptivePoolHTTPServer, wsgiref.simple_server.WSGIServer):
    pass


class QuietWsgi(wsgiref.simple_server.WSGIRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [environ["PATH_INFO"].encode(), b" ", body, b" ", environ["SERVER_PORT"].encode()]


def greedy(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterator[bytes]:
    """Read the body to its end, though nobody says where that is."""
    start_response("200 OK", [])
    yield b"begun "
    yield from environ["wsgi.input"]


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="there are no Unix sockets")
def test_wsgi_on_a_unix_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    seen: dict[str, str] = {}

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        seen.update({name: environ[name] for name in ("SERVER_NAME", "SERVER_PORT", "REMOTE_ADDR")})
        start_response("200 OK", [])
        return [wsgiref.util.request_uri(environ).encode()]

    made: Any = Wsgi.from_socket(socket.create_server("s", family=socket.AF_UNIX), QuietWsgi)  # type: ignore[arg-type]
    with served(made) as server, socket.socket(socket.AF_UNIX) as client, client.makefile("rb") as file:
        server.set_app(application)
        client.settimeout(TIMEOUT)
        client.connect("s")
        client.sendall(b"GET /a HTTP/1.1\r\n\r\n")
        assert file.read().endswith(b"\r\n\r\nhttp://localhost/a")
        assert seen == {"SERVER_NAME": "localhost", "SERVER_PORT": "80", "REMOTE_ADDR": "unix"}


@pytest.mark.parametrize("there_already", [False, True])
def test_a_wsgi_application_is_served(there_already: bool) -> None:
    listener = socket.create_server(LOOPBACK)
    made: Any = Wsgi.from_socket(listener, QuietWsgi) if there_already else Wsgi(LOOPBACK, QuietWsgi)
    with listener, served(made) as server:
        assert server.server_port == server.socket.getsockname()[1] and server.server_name
        server.set_app(application)
        with Client(server) as client:
            assert client.get("/a").response().body == b"/a  %d" % server.server_port
        with Client(server) as client:
            assert client.post(b"body").response().body == b"/ body %d" % server.server_port
        server.set_app(greedy)
        with Client(server) as client:
            assert client.post(b"a\nb").response().body == b"begun a\nb"


@pytest.mark.parametrize("error", [Boom, SystemExit, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("where", ["do_PUT", "finish"])
def test_a_handler_that_raises_costs_its_connection_only(error: type[BaseException], where: str) -> None:
    class Raising(Echo):
        do_PUT = Echo.do_GET

    def fail(self: Any) -> None:
        if self.command == "PUT":
            raise error
        getattr(super(Raising, self), where)()

    seen = []

    class Noting(AdaptivePoolHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            seen.append((sys.exc_info()[0], client_address))

    setattr(Raising, where, fail)
    with serving(Raising, Noting, max_workers=1) as server, Client(server) as other, Client(server) as client:
        assert other.get().body() == b"/"
        client.send(b"PUT / HTTP/1.1\r\n\r\n")
        assert where == "do_PUT" or client.body() == b"/"
        assert client.ended()
        assert other.get().body() == b"/"
        assert seen == [(error, client.socket.getsockname())]


def test_a_response_in_parts_is_sent_at_once() -> None:
    class Telling(Quiet):
        def do_GET(self) -> None:
            self.reply(str(self.request.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)).encode())

    with serving(Telling) as server, Client(server) as client:
        assert client.get().body() != b"0"

    # A client may be there before the server.
    listener = socket.create_server(("127.0.0.1", 0))
    with socket.create_connection(listener.getsockname(), timeout=TIMEOUT) as early:
        early.sendall(b"GET / HTTP/1.1\r\nConnection: close\r\nHost: x\r\n\r\n")
        with served(AdaptivePoolHTTPServer.from_socket(listener, Telling)), early.makefile("rb") as file:
            assert file.read().rpartition(b"\r\n")[2] != b"0"


def test_a_handler_may_close_or_take_the_connection() -> None:
    taken = []

    class Taking(Echo):
        timeout = 5.0

        def do_PUT(self) -> None:
            self.reply(b"")
            self.request.close()
            self.close_connection = True

        def do_PATCH(self) -> None:
            taken.append(socket.socket(fileno=self.request.detach()))
            self.close_connection = True

    with serving(Taking) as server, Client(server) as client, Client(server) as other:
        assert client.send(b"PUT / HTTP/1.1\r\n\r\n").body() == b""
        assert client.ended()
        other.send(b"PATCH / HTTP/1.1\r\n\r\n")
        eventually(lambda: taken)
        with taken[0] as connection:
            assert os.get_blocking(connection.fileno())
            connection.sendall(b"mine")
            assert other.file.read(4) == b"mine"


# Bodies that handlers read from the socket or its descriptor, and the word that a client waits for.


class Receiving(Quiet):
    """Takes the body from the socket itself."""

    def do_POST(self) -> None:
        left = int(self.headers["Content-Length"])
        found = b""
        while left > len(found):
            into = bytearray(left - len(found))
            if self.path == "/recv":
                found += self.connection.recv(len(into))
            else:
                found += into[: self.connection.recv_into(into)]
        self.reply(found)


@pytest.mark.parametrize(("how", "rbufsize"), [(b"/recv", 0), (b"/recv", -1), (b"/recv_into", 0)])
def test_a_body_that_is_received_from_the_socket(how: bytes, rbufsize: int) -> None:
    handler = type("Handler", (Receiving,), {"rbufsize": rbufsize})
    with serving(handler, max_buffered_body=10) as server:
        for body in (b"short", b"long" * 100_000):
            with Client(server) as client:
                client.send(b"POST %b HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (how, len(body)) + body)
                assert client.body() == body
                assert client.ended()


def test_what_a_handler_may_do_with_its_socket() -> None:
    class Trying(Quiet):
        def do_GET(self) -> None:
            lent = self.connection
            buffer = bytearray(1)
            for refused in ("recvfrom", "recvfrom_into", "recvmsg", "recvmsg_into", "sendmsg", "sendto"):
                with pytest.raises(io.UnsupportedOperation):
                    getattr(lent, refused)(buffer, 1)
            with pytest.raises(io.UnsupportedOperation):
                self.rfile.fileno()
            with pytest.raises(ValueError, match="out of range"):
                lent.settimeout(-1)
            with pytest.raises(TypeError):
                lent.settimeout("1")
            lent.setblocking(False)
            assert (lent.getblocking(), lent.gettimeout()) == (False, 0)
            for call in (lambda: lent.recv(1), lambda: self.rfile.read(1)):
                with pytest.raises(BlockingIOError):
                    call()
            lent.settimeout(0.01)
            many = bytes(100_000)
            sending: Any = lambda: [lent.send(many) for _ in range(1000)]  # noqa: E731
            for call in (lambda: lent.recv(1), lambda: lent.recv_into(buffer), lambda: self.rfile.read(1), sending):
                with pytest.raises(TimeoutError, match="timed out"):
                    call()
            lent.setblocking(True)
            assert (lent.getblocking(), lent.gettimeout()) == (True, None)
            with socket.socket(fileno=lent.detach()) as plain:
                assert os.get_blocking(plain.fileno())
            done.set()

    done = threading.Event()
    with serving(Trying) as server, Client(server) as client:
        client.get("/", "Upgrade: anything")
        assert done.wait(TIMEOUT)


def test_a_word_to_go_on_is_no_response_and_no_line_of_a_body_a_request() -> None:
    class Lines(Quiet):
        def do_POST(self) -> None:
            self.reply(b"".join(self.rfile.readline(65537) for _ in range(3)))

    for rbufsize in (-1, 0):
        handler = type("Handler", (Lines,), {"rbufsize": rbufsize})
        with serving(handler) as server, Client(server) as client:
            for body in (b"one\ntwo", b"three\n"):
                client.send(b"POST / HTTP/1.1\r\nContent-Length: 8\r\nExpect: 100-continue\r\n\r\n")
                assert client.response(to_head=True).status == 100
                assert client.send(b"a\nb\n").send(b"cde\n").body() == b"a\nb\ncde\n"
                assert client.post(body).body() == body


def test_a_word_to_go_on_and_a_response_in_one_piece_are_a_response() -> None:
    class Both(Quiet):
        def do_POST(self) -> None:
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na")

    with serving(Both) as server, Client(server) as client:
        for _ in range(2):
            # The body is not taken for the next request.
            client.post(b"GET / HTTP/1.1\r\n\r\n")
            assert (client.response().status, client.body()) == (100, b"a")


def test_bodies_are_waited_for_while_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontdoor, "MOST_BUFFERED", 1000)
    with porter() as keeper, Client(keeper.server) as first, Client(keeper.server) as second:
        door = keeper.door
        first.send(b"POST / HTTP/1.1\r\nContent-Length: 2000\r\n\r\n" + b"x" * 900)
        keeper.hold(door.filling, 1)
        assert 900 < door.buffered < 1000
        second.send(b"POST / HTTP/1.1\r\nContent-Length: 2000\r\n\r\n" + b"x" * 900)
        keeper.hold(door.filling, 2)
        assert 1800 < door.buffered < 2000
        assert not keeper.server.pool_handlers
        first.send(b"x")
        # Its worker reads on.
        keeper.hold(door.filling, 1)
        assert len(keeper.server.pool_handlers) == 1
        eventually(lambda: 900 < door.buffered < 1000)
        assert keeper.answer(first.send(b"x" * 1099)).body == b"x" * 2000
        assert keeper.answer(second.send(b"x" * 1100)).body == b"x" * 2000
        assert not door.buffered


def test_bodies_that_wait_for_a_worker_take_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontdoor, "MOST_BUFFERED", 1500)
    with Gate() as gate:

        class Slow(Echo):
            def do_POST(self) -> None:
                gate()
                super().do_POST()

        with porter(Slow, max_workers=1) as keeper, ExitStack() as stack:
            door, handlers = keeper.door, keeper.server.pool_handlers
            clients = [stack.enter_context(Client(keeper.server)) for _ in range(4)]
            for count, client in enumerate(clients[:3], 1):
                client.post(b"x" * 900)
                keeper.until(lambda: len(handlers) == count)  # noqa: B023  (used at once)
                # That of the first has a worker.
                eventually(lambda: 0 <= door.buffered - 900 * (count - 1) < 100 * count)  # noqa: B023
            # There is no more room: what has come goes to the queue, and the rest stays with the client.
            clients[3].send(b"POST / HTTP/1.1\r\nContent-Length: 2000\r\n\r\nab")
            keeper.until(lambda: len(handlers) == 4)
            gate.open()
            for client in clients[:3]:
                assert keeper.answer(client).body == b"x" * 900
            assert keeper.answer(clients[3].send(b"c" * 1998)).body == b"ab" + b"c" * 1998
            assert not door.buffered


def test_bodies_that_no_worker_gets_take_no_room() -> None:
    def refuse(*_: object) -> None:
        raise Boom

    with porter(process_request=refuse, handle_error=lambda *_: None) as keeper, Client(keeper.server) as client:
        client.post(b"x" * 900)
        assert keeper.end(client)
        assert not keeper.door.buffered


@pytest.mark.parametrize(
    ("request_line", "rest", "status"),
    [
        ("GET / HTTP/1.1", "A : b\r\n\r\n", 400),
        ("GET /slow HTTP/1.1", "A: b\r\n", 408),
        ("", "x" * 70_000, 414),
        ("HEAD /a HTTP/1.1", f"A: {'x' * 70_000}\r\n\r\n", 431),
        ("GET /b HTTP/1.1", "\r\n", 503),
    ],
)
@pytest.mark.parametrize("broken", [False, True])
def test_the_handler_s_class_logs_who_was_refused_and_why(
    request_line: str, rest: str, status: int, broken: bool, caplog: pytest.LogCaptureFixture
) -> None:
    lines = []

    class Logging(BaseHTTPRequestHandler):
        def __init__(self, mark: str, *args: Any) -> None:
            raise AssertionError("nothing is handled")

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            if broken:
                raise Boom
            lines.append((self.address_string(), self.headers.get("A"), format % args))

    settings = {"submit": lambda *_: False} if status == 503 else {}
    handler = functools.partial(functools.partial(Logging), "mark")
    with porter(handler, header_timeout=5) as keeper, Client(keeper.server) as client:
        for name, value in settings.items():
            setattr(keeper.server.pool_handlers, name, value)
        client.send(f"{request_line}\r\n{rest}".encode() if request_line else rest.encode())
        if status == 408:
            keeper.until(lambda: any(held.data for held in keeper.door.reading.held))
            keeper.pass_time(6)
        response = keeper.during(lambda: client.response(to_head=True))
        assert response.status == status
    phrase = HTTPStatus(status).phrase
    if broken:
        assert f"without a handler: {status} {phrase}" in caplog.text
        return
    assert lines == [
        ("127.0.0.1", None, f"code {status}, message {phrase}"),
        ("127.0.0.1", None, f'"{request_line}" {status} -'),
    ]


@pytest.mark.parametrize("how", ["time-out", "end"])
@pytest.mark.parametrize("rbufsize", [0, -1])
def test_a_body_that_comes_short_is_no_whole_body(how: str, rbufsize: int) -> None:
    class Late(Quiet):
        timeout = 0.01 if how == "time-out" else TIMEOUT

        def do_POST(self) -> None:
            found.append(self.rfile.read())
            self.close_connection = True

    found: list[bytes] = []
    handler = type("Handler", (Late,), {"rbufsize": rbufsize})
    with serving(handler, max_buffered_body=0) as server, Client(server) as client:
        client.send(b"POST / HTTP/1.1\r\nContent-Length: 18446744073709551616\r\n\r\nab")
        if how == "end":
            client.half_close()
        assert client.ended()
    assert found == ([] if how == "time-out" else [b"ab"])


@pytest.mark.parametrize(
    ("fields", "sent", "size", "waited"),
    [
        # A byte comes each nine seconds, and the time-out of a single operation is ten.
        (b"Content-Length: 100", 0, 100, 18),
        (b"Content-Length: 100\r\nUpgrade: a", 0, 100, 18),
        (b"Transfer-Encoding: chunked\r\nUpgrade: a", 0, 100, 18),
        # What is worth the wait is waited for, and what follows an upgrade may take its time.
        (b"Content-Length: 120020", 120_000, 120_020, 180),
        (b"Upgrade: a", 0, 20, 180),
    ],
)
def test_a_client_that_trickles_a_body_to_a_worker_is_given_up(
    fields: bytes, sent: int, size: int, waited: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    begun = clock.now

    class Patient(Quiet):
        def do_POST(self) -> None:
            assert self.rfile.read(sent) == bytes(sent)
            self.close_connection = True
            monkeypatch.setattr(connections, "wait_for", waiting)
            monkeypatch.setattr(connections, "monotonic", clock)
            try:
                read.append(len(self.rfile.read(size - sent)))
            finally:
                monkeypatch.undo()

    def waiting(*_: object) -> bool:
        clock.now += 9
        client.send(b"x")
        return True

    read: list[int] = []
    with serving(Patient, request_timeout=10, max_buffered_body=0) as server, Client(server) as client:
        client.send(b"POST / HTTP/1.1\r\n%b\r\n\r\n%b" % (fields, bytes(sent)))
        assert client.ended()
    assert read == ([20] if waited == 180 else [])
    assert clock.now == begun + waited
