"""The slow clients of `benchmarks/`, the servers they attack, and the ordinary clients beside them."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.benchmark import importable
from support.common import LONG, TIMEOUT, Background, Boom

from benchmarks import slow_clients
from benchmarks.load import trickle
from benchmarks.load.http import Client, Clients, FreshClient, take_response
from benchmarks.peers.table import BY_NAME, PEERS
from benchmarks.servers import slow
from benchmarks.servers.serving import serving

SLOW = [peer for peer in PEERS if "slow_clients" in peer.listens]
TINY = {"slow": 5, "warm_up": 0.01, "seconds": 2.0, "attacked_seconds": 2.0}
HEADS = {"trickle": "heads", "connections": "new"}


def receive(raw: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        data = raw.recv(65_536)
        assert data, f"the connection ended after {received!r}"
        received += data
    return received


def accept(listener: socket.socket, stack: ExitStack) -> socket.socket:
    raw = stack.enter_context(listener.accept()[0])
    raw.settimeout(TIMEOUT)
    return raw


@pytest.fixture
def over(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """When it is set, the time of each attack is over."""
    ended = threading.Event()
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + (2 * LONG if ended.is_set() else 0.0))
    monkeypatch.setattr(trickle, "time", clock)
    yield ended
    ended.set()


@pytest.mark.parametrize("what", trickle.WHATS)
def test_a_slow_client_begins_and_never_ends(what: str, over: threading.Event) -> None:
    beginning = trickle.beginning(what)
    assert (b"\r\n\r\n" in beginning) == (what in trickle.BODIES)
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as stack:
        attack = trickle.Attack(listener.getsockname()[1], 2, what, 0.01)
        background = Background(lambda: attack.run(LONG))
        for raw in [accept(listener, stack) for _ in range(2)]:
            assert receive(raw, len(beginning) + 3).startswith(beginning + b"aaa")
        over.set()
        background.join()
        attack.close()
    assert (attack.report.open, attack.report.dropped, attack.report.refused) == (2, 0, 0)
    assert attack.report.sent >= 6


def test_a_slow_client_comes_back(capsys: pytest.CaptureFixture[str], over: threading.Event) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as stack:
        attack = trickle.Attack(listener.getsockname()[1], 1, "heads", 0.01)
        background = Background(lambda: attack.run(LONG))
        for _ in range(2):
            accept(listener, stack).close()
        receive(accept(listener, stack), 1)
        over.set()
        background.join()
        attack.close()
    assert (attack.report.open, attack.report.dropped) == (1, 2)
    assert '"open": 1' in capsys.readouterr().out


def test_the_attack_is_a_process_that_ends_with_its_block() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as stack:
        port = listener.getsockname()[1]
        with pytest.raises(Boom), trickle.trickling(port, 2, "heads", 60.0, interval=0.01) as report:
            slow = [accept(listener, stack) for _ in range(2)]
            raise Boom
        assert report.open == 2
        for raw in slow:
            while raw.recv(65_536):
                pass


@pytest.mark.parametrize("peer", [peer.name for peer in SLOW])
def test_every_server_answers_both_kinds_of_request(peer: str) -> None:
    importable(BY_NAME[peer])
    post = b"POST /upload HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n\r\n"
    with serving(BY_NAME[peer], "slow_clients", ready=slow_clients.answers) as server:
        for kind in (Client, FreshClient):
            with Clients(server.port, 2, "/", slow.PAGE, kind) as clients:
                for _ in range(2):
                    assert clients.burst(TIMEOUT).errors == 0
        with socket.create_connection(("127.0.0.1", server.port), TIMEOUT) as raw:
            for part in (post, b"bo", b"dy"):
                raw.sendall(part)
            received = b""
            while (response := take_response(received)) is None:
                received += receive(raw, 1)
        assert response == (200, slow.PAGE, b"")


@pytest.mark.parametrize("peer", ["slow-plain-front", "slow-threads"])
def test_measures_what_its_columns_show(peer: str) -> None:
    importable(BY_NAME[peer])
    samples = slow_clients.measure(BY_NAME[peer], TINY | HEADS)
    assert set(samples) == {column.metric for column in slow_clients.QUESTION.columns}
    assert all(math.isfinite(value) for found in samples.values() for value in found)
    assert (samples["errors"], samples["dropped"], samples["open"]) == ([0], [0], [5])
    assert min(samples["rate"][0], samples["rate_attacked"][0]) > 0
    if peer == "slow-threads" and Path("/proc").exists():
        assert samples["threads_attacked"][0] >= 2


def test_clients_that_nobody_answers_count_with_their_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_clients, "_LONG_WAIT_SECONDS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = slow_clients.Server(listener.getsockname()[1], 1)
        started = time.perf_counter()
        found = slow_clients.ordinary(server, "kept", 0.01, 0.02)
    assert (found.rate, len(found.latencies)) == (0, slow_clients._CLIENTS)
    assert 0.01 < min(found.latencies) <= max(found.latencies) <= time.perf_counter() - started
