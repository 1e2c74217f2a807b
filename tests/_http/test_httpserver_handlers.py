"""Handlers of every kind on the HTTP server, and what they may do with their connection."""

from __future__ import annotations

import functools
import http.server
import socket
import socketserver
import sys
import wsgiref.simple_server
import wsgiref.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.common import Background, Boom, eventually
from support.httpserver import Client, Echo, Quiet, serving

from ebbpool.socketserver import AdaptivePoolHTTPServer


def test_files_are_served(tmp_path: Path) -> None:
    (tmp_path / "page").write_bytes(b"x" * 300_000)

    class Files(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    with serving(functools.partial(Files, directory=str(tmp_path))) as server:
        with Client(server) as client:
            assert client.get("/page").body() == b"x" * 300_000
        with Client(server) as client:
            assert client.get("/none").response().status == 404


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

        def handle(self) -> None:
            super().handle()

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


def test_handlers_may_write_through_a_buffer_and_send_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"y" * 1_000_000)

    class Buffered(Quiet):
        wbufsize = -1

        def do_GET(self) -> None:
            self.reply(b"x" * 20)

        def do_PUT(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "1000000")
            self.end_headers()
            self.wfile.flush()
            with path.open("rb") as file:
                assert self.request.sendfile(file) == 1_000_000

    with serving(Buffered) as server, Client(server) as client:
        assert client.get().body() == b"x" * 20
        assert client.send(b"PUT / HTTP/1.1\r\n\r\n").body() == b"y" * 1_000_000
        assert client.get().body() == b"x" * 20


def test_a_large_response_to_a_client_that_reads_late() -> None:
    class Large(Quiet):
        def do_GET(self) -> None:
            self.reply(bytes(20_000_000))

    with serving(Large) as server, Client(server) as client:
        client.get()
        eventually(lambda: server.pool_handlers.executor.stats().running == 1)
        assert client.body() == bytes(20_000_000)
        assert len(client.get().body()) == 20_000_000


def test_a_client_that_never_reads_is_given_up() -> None:
    errors = []

    class Large(Quiet):
        def do_GET(self) -> None:
            try:
                self.reply(bytes(50_000_000))
            except TimeoutError as error:
                errors.append(str(error))
                raise

    with serving(Large, request_timeout=0.05) as server, Client(server) as client:
        client.get()
        eventually(lambda: errors == ["timed out"])
        with Client(server) as other:
            other.send(b"PUT / HTTP/1.1\r\n\r\n")
            assert other.response().status == 501


class Wsgi(AdaptivePoolHTTPServer, wsgiref.simple_server.WSGIServer):
    pass


class QuietWsgi(wsgiref.simple_server.WSGIRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [environ["PATH_INFO"].encode(), b" ", body, b" ", environ["SERVER_PORT"].encode()]


def test_wsgi() -> None:
    with serving(QuietWsgi, Wsgi) as server:
        server.set_app(application)
        port = str(server.server_port).encode()
        with Client(server) as client:
            assert client.get("/a").response().body == b"/a  " + port
        with Client(server) as client:
            assert client.post(b"body").response().body == b"/ body " + port


def test_wsgi_input_that_is_read_to_its_end() -> None:
    def greedy(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterator[bytes]:
        start_response("200 OK", [])
        yield b"begun "
        yield from environ["wsgi.input"]

    with serving(QuietWsgi, Wsgi) as server:
        server.set_app(greedy)
        with Client(server) as client:
            assert client.post(b"a\nb").response().body == b"begun a\nb"


def test_a_server_on_a_listener_that_is_there() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    with Wsgi.from_socket(listener, QuietWsgi) as server:
        server.set_app(application)
        assert server.server_port == listener.getsockname()[1]
        assert server.server_name
        loop = Background(server.serve_forever)
        with Client(server) as client:
            assert client.get("/b").response().body == b"/b  " + str(server.server_port).encode()
        server.shutdown()
        loop.join()
        assert not listener.getblocking()


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


def test_a_handler_may_close_or_take_the_connection() -> None:
    taken = []

    class Taking(Echo):
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
            connection.sendall(b"mine")
            assert other.file.read(4) == b"mine"
