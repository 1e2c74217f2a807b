"""The lean client of `benchmarks/`, and the server it asks: a wrong response must never pass for a right one."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from support.benchmark import answering, importable
from support.common import TIMEOUT, Boom

from benchmarks.load import http
from benchmarks.peers.table import BY_NAME
from benchmarks.servers import fastapi
from benchmarks.servers.serving import serving

RIGHT = b"HTTP/1.1 200 OK\r\ndate: today\r\nContent-Length: 5\r\n\r\nright"


def test_response_is_taken_whole_or_not_at_all() -> None:
    for end in range(len(RIGHT)):
        assert http.take_response(RIGHT[:end]) is None
    assert http.take_response(RIGHT) == (200, b"right", b"")
    assert http.take_response(RIGHT + b"HTTP") == (200, b"right", b"HTTP")
    empty = b"HTTP/1.1 503 Busy\r\ncontent-length:0\r\n\r\n"
    assert http.take_response(empty) == (503, b"", b"")


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.0 200 OK\r\ncontent-length: 5",
        b"HTTP/1.1 2x0 OK\r\ncontent-length: 5",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked",
        b"HTTP/1.1 200 OK\r\nx-content-length: 5",
        b"HTTP/1.1 200 OK\r\ncontent-length: -5",
    ],
)
def test_response_that_is_not_understood(head: bytes) -> None:
    with pytest.raises(http.BadResponse):
        http.take_response(head + b"\r\n\r\nright")


def test_clients_check_every_response() -> None:
    wrong = {1: RIGHT.replace(b"right", b"wrong"), 2: RIGHT.replace(b"200", b"500"), 3: b"no http\r\n\r\n", 4: None}
    with answering(lambda number: wrong.get(number, RIGHT)) as port, http.Clients(port, 8, "/", b"right") as clients:
        answered = clients.burst(TIMEOUT)
        assert (len(answered.latencies), answered.errors) == (8, 4)
        answered = clients.burst(TIMEOUT)
        assert (len(answered.latencies), answered.errors) == (8, 0)


def test_clients_under_load() -> None:
    wrong = {0: RIGHT.replace(b"right", b"wrong"), 1: None}
    with answering(lambda number: wrong.get(number, RIGHT)) as port, http.Clients(port, 3, "/", b"right") as clients:
        answered = clients.load(0.0, 0.3)
    assert answered.errors == 2
    assert answered.latencies
    assert answered.seconds >= 0.3
    assert 0 < min(answered.latencies) <= max(answered.latencies) < TIMEOUT


def test_clients_do_not_wait_for_ever() -> None:
    with answering(lambda number: b"") as port, http.Clients(port, 2, "/", b"right") as clients:
        assert clients.burst(0.05).errors == 2


def test_the_server_is_gone_whatever_happens() -> None:
    importable(BY_NAME["fastapi"])
    with pytest.raises(Boom), serving(BY_NAME["fastapi"], "fastapi_rate", ready=fastapi.ready) as found:
        with http.Clients(found.port, 1, fastapi.target("trivial"), fastapi.BODY) as clients:
            assert clients.burst(TIMEOUT).errors == 0
        assert found.cpu_seconds() > 0 or not Path("/proc").exists()
        raise Boom
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", found.port)).close()
