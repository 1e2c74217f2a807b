"""Servers of other kinds: on a socket that listens already, UDP, Unix, TLS."""

from __future__ import annotations

import os
import socket
import socketserver
import ssl
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import support
from support.common import TIMEOUT, Background, Gate, eventually
from support.server import (
    LOOPBACK,
    Echo,
    Server,
    ask,
    closing_server,
    connect,
    handler,
    looping,
    made,
    read_all,
    serving,
)

import ebbpool.socketserver
from ebbpool.socketserver import AdaptivePoolHTTPServer, AdaptivePoolTCPServer, AdaptivePoolUDPServer

UNIX = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no Unix sockets here")
CERTIFICATE = Path(support.__file__).with_name("localhost.pem")


@pytest.mark.parametrize("base", [AdaptivePoolTCPServer, AdaptivePoolHTTPServer])
def test_a_listener_that_is_there_already_is_left_as_it_is(base: Any) -> None:
    class Listener(socket.socket):
        def listen(self, *args: Any) -> None:
            changes.append(args)
            super().listen(*args)

        def setblocking(self, flag: bool) -> None:
            changes.append(flag)
            super().setblocking(flag)

        def settimeout(self, value: float | None) -> None:
            changes.append(value)
            super().settimeout(value)

    changes: list[Any] = []
    listener = Listener()
    listener.bind(LOOPBACK)
    listener.listen(3)
    answering = handler(lambda asked: asked.request.sendall(asked.request.recv(1000)[:3]))
    with base.from_socket(listener, answering) as server, looping(server):
        assert server.server_address == listener.getsockname() and server.socket is listener
        assert ask(server, b"GET / HTTP/1.0\r\n\r\n") == b"GET"
    assert changes == [(3,), False]
    assert listener.fileno() == -1


def test_servers_that_share_a_listener_lose_no_connection_to_each_other() -> None:
    listener = socket.create_server(LOOPBACK)
    other = listener.dup()
    with serving(Server.from_socket(listener, Echo)) as one, serving(Server.from_socket(other, Echo)):
        for number in range(50):
            assert ask(one, b"%d" % number) == b"%d" % number
        # The flag belongs to the listener that both have: a loop that ends must not take it from the other.
        one.shutdown()
        assert not os.get_blocking(other.fileno())
        looping_again = looping(one)
        with looping_again:
            assert ask(one, b"again") == b"again"


def test_from_socket_takes_the_listeners_family() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 loopback here")
    with serving(Server.from_socket(listener, Echo)) as server:
        assert server.address_family == socket.AF_INET6
        with closing(socket.create_connection(server.server_address[:2], TIMEOUT)) as client:
            client.shutdown(socket.SHUT_WR)
            assert read_all(client) == b""


def test_a_udp_server_answers_each_datagram() -> None:
    class Upper(socketserver.DatagramRequestHandler):
        def handle(self) -> None:
            self.wfile.write(self.rfile.read().upper())

    with serving(AdaptivePoolUDPServer(LOOPBACK, Upper)) as server, socket.socket(type=socket.SOCK_DGRAM) as client:
        client.settimeout(TIMEOUT)
        for message in (b"one", b"two", b""):
            client.sendto(message, server.server_address)
            assert client.recv(100) == message.upper()
        assert server.join(TIMEOUT)


def test_a_udp_server_drops_what_it_has_no_room_for() -> None:
    class Narrow(AdaptivePoolUDPServer):
        max_workers = 1
        max_queue = 0

    handled: list[bytes] = []
    with Gate() as gate:

        def handle(request: socketserver.BaseRequestHandler) -> None:
            handled.append(gate(request.request[0]))

        dropped = threading.Semaphore(0)
        server = Narrow(LOOPBACK, handler(handle))
        server.close_request = lambda _: dropped.release()  # type: ignore[method-assign]
        with serving(server), socket.socket(type=socket.SOCK_DGRAM) as client:
            client.sendto(b"first", server.server_address)
            gate.await_begun()
            client.sendto(b"second", server.server_address)
            assert dropped.acquire(timeout=TIMEOUT)
            gate.open()
    assert handled == [b"first"]


@UNIX
def test_a_unix_server_serves_at_its_path(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with serving(ebbpool.socketserver.AdaptivePoolUnixStreamServer("listener", Echo)) as server:
        assert ask(server, b"hello") == b"hello"
        with pytest.raises(OSError, match="listener"):
            ebbpool.socketserver.AdaptivePoolUnixStreamServer("listener", Echo)


@UNIX
def test_a_unix_datagram_server_serves_at_its_path(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def answer(request: socketserver.BaseRequestHandler) -> None:
        data, server_socket = request.request
        server_socket.sendto(data, request.client_address)

    with (
        serving(ebbpool.socketserver.AdaptivePoolUnixDatagramServer("listener", handler(answer))),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client,
    ):
        client.settimeout(TIMEOUT)
        client.bind("client")
        client.sendto(b"hello", "listener")
        assert client.recv(100) == b"hello"


def over_tls(server: Server) -> Server:
    """Return the server with its listener wrapped, as its users do it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    return server


def tls_client(server: Server) -> ssl.SSLSocket:
    """Return a connection after its handshake."""
    context = ssl.create_default_context(cafile=CERTIFICATE)
    plain = connect(server)
    try:
        return context.wrap_socket(plain, server_hostname="localhost")
    except BaseException:
        plain.close()
        raise


def line_by_line(request: socketserver.BaseRequestHandler) -> None:
    """Send back one line."""
    request.request.sendall(request.request.recv(100))


def test_a_client_that_does_not_shake_hands_or_fails_holds_up_nobody_else() -> None:
    with serving(over_tls(made(handler(line_by_line)))) as server, closing(connect(server)) as silent:
        eventually(lambda: len(server.pool_handlers) == 1)
        with closing(connect(server)) as garbled:
            garbled.sendall(b"GET / HTTP/1.0\r\n\r\n")
            eventually(lambda: not garbled.recv(1000))
        with closing(tls_client(server)) as client:
            client.sendall(b"hello")
            assert client.recv(100) == b"hello"
        silent.close()
    assert not server.errors


def test_a_client_that_never_shakes_hands_is_dropped_by_the_clock() -> None:
    told: list[float | None] = []
    work = handler(lambda request: (told.append(request.request.gettimeout()), line_by_line(request)))
    with serving(over_tls(made(work, max_workers=1, handshake_timeout=0.05))) as server:
        with closing(connect(server)) as silent:
            assert silent.recv(1000) == b""
        server.handshake_timeout = None
        with closing(tls_client(server)) as client:
            client.sendall(b"hello")
            assert client.recv(100) == b"hello"
    assert told == [None]
    assert not server.errors


def test_handle_request_serves_a_tls_listener_too() -> None:
    with closing_server(over_tls(made(handler(line_by_line)))) as server:
        asking = Background(lambda: tls_client(server))
        server.handle_request()
        with closing(asking.join()) as client:
            client.sendall(b"hello")
            assert client.recv(100) == b"hello"


def test_a_full_queue_refuses_a_tls_client_before_its_handshake() -> None:
    with Gate() as gate, serving(over_tls(made(handler(lambda _: gate()), max_workers=1, max_queue=0))) as server:
        with closing(tls_client(server)):
            gate.await_begun()
            with pytest.raises((ssl.SSLError, ConnectionError)):
                tls_client(server)
            gate.open()
        assert server.join(TIMEOUT)
