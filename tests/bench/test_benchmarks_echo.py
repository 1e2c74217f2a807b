"""The echo of `benchmarks/`: every server is right about every byte, and the clients find out who is not."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from support.benchmark import importable, talking
from support.common import A_MOMENT, TIMEOUT, Background

from benchmarks import echo
from benchmarks.engine.model import Settings
from benchmarks.load import echo as echo_clients
from benchmarks.load.echo import EchoClients, WrongEcho
from benchmarks.peers.table import BY_NAME, PEERS
from benchmarks.servers.serving import serving

ECHOING = [peer.name for peer in PEERS if "echo" in peer.listens]
Answer = Callable[[bytes], bytes]


@contextmanager
def answering(answer: Answer, at_the_end: Callable[[socket.socket], object] = lambda connection: None) -> Iterator[int]:
    """Yield the port of a server that sends `answer(data)` for what came."""

    def talk(connection: socket.socket) -> None:
        with connection, suppress(ConnectionError):
            while data := connection.recv(1 << 20):
                if not (text := answer(data)):
                    return
                connection.sendall(text)
            at_the_end(connection)

    with talking(talk) as port:
        yield port


def test_a_right_echo_is_counted() -> None:
    watched = iter((1.0, 3.5))
    with answering(bytes) as port, EchoClients(port, 3, 1000) as clients:
        echoed = clients.load(0.0, 0.5, lambda: next(watched))
    assert echoed.messages >= 3
    assert echoed.messages % 3 == 0
    assert echoed.seconds >= 0.5
    assert echoed.watched_seconds == 2.5


class Stale:
    """Sends once more what came first."""

    def __init__(self) -> None:
        self._first = b""

    def __call__(self, data: bytes) -> bytes:
        self._first = self._first or data
        return self._first


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (lambda data: data.ljust(4096, b"\0"), "is wrong|more came back"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "byte 999 of 1000 is wrong"),
        (Stale(), "byte 0 of 1000 is wrong"),
        (lambda data: b"", "0 of 1000 bytes came back"),
    ],
    ids=["whole buffer", "last byte", "stale", "hangs up"],
)
def test_a_wrong_echo_is_found_out(answer: Answer, complaint: str) -> None:
    with (
        answering(answer) as port,
        EchoClients(port, 1, 1000) as clients,
        pytest.raises((WrongEcho, ConnectionError), match=complaint),
    ):
        clients.load(0.0, TIMEOUT)


def test_too_much_at_the_end_is_found_out() -> None:
    with (
        answering(bytes, lambda connection: connection.sendall(b"!")) as port,
        EchoClients(port, 1, 10) as clients,
        pytest.raises(WrongEcho, match="more came back than was sent"),
    ):
        clients.load(0.0, 0.0)


def test_a_server_that_does_not_notice_the_end_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, end = threading.Event(), echo_clients._Client.end

    def impatient(client: echo_clients._Client) -> None:
        echo_clients._bound_waits(client.socket, A_MOMENT)
        end(client)

    monkeypatch.setattr(echo_clients._Client, "end", impatient)
    with answering(bytes, lambda connection: seen.wait(TIMEOUT)) as port, EchoClients(port, 1, 10) as clients:
        with pytest.raises(WrongEcho, match="does not stop at the end of file"):
            clients.load(0.0, 0.0)
        seen.set()


def test_a_silent_server_does_not_hold_the_clients_up() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        EchoClients(listener.getsockname()[1], 2, 10, timeout=A_MOMENT) as clients,
        pytest.raises((WrongEcho, BlockingIOError)),
    ):
        clients.load(0.0, TIMEOUT)


def flood(port: int, data: bytes) -> bytes:
    """Return what comes back if nobody reads until nothing more can be sent."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        client.settimeout(TIMEOUT)
        client.connect(("127.0.0.1", port))

        def send() -> None:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)

        sending = Background(send)
        sending.over.wait(A_MOMENT)
        received = bytearray()
        while part := client.recv(1 << 20):
            received += part
        sending.join()
    return bytes(received)


@pytest.mark.parametrize("name", ECHOING)
def test_every_server_is_a_right_echo(name: str) -> None:
    importable(BY_NAME[name])
    data = os.urandom(10 << 20)
    with serving(BY_NAME[name], "echo") as server:
        assert flood(server.port, data) == data
        with EchoClients(server.port, 3, 70_000) as clients:
            assert clients.load(0.0, 0.5).messages >= 3


@pytest.mark.parametrize("placement", ["free", "apart"])
def test_placement(placement: str) -> None:
    peer = BY_NAME["echo-threading"]
    cells = echo.variants(peer, Settings())
    cell = {"size": 1000, "placement": placement}
    if cell not in cells:
        pytest.skip("one processor, or nobody to ask for it")
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    samples = echo.measure(peer, cell | {"clients": 2, "warm_up": 0.0, "seconds": 0.5})
    assert samples["rate"][0] > 0
    if allowed:
        assert os.sched_getaffinity(0) == allowed
