"""The web servers of `benchmarks/` under `ab`, and what is counted while their processes die."""

from __future__ import annotations

import math
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.benchmark import importable, talking
from support.common import A_MOMENT, TIMEOUT

from benchmarks import _steady, _web_servers, kill_child, web_server
from benchmarks._model import Settings
from benchmarks._peer import Unavailable
from benchmarks._peers import BY_NAME, PEERS
from benchmarks._serving import wait_for
from benchmarks._steady import SteadyClients, Tally

WEB = [peer.name for peer in PEERS if "web_server" in peer.listens]
KILLED = [peer.name for peer in PEERS if "kill_child" in peer.listens]
RIGHT = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n042"


@contextmanager
def answering(answer: Callable[[], bytes | None]) -> Iterator[int]:
    """Yield the port of a server that sends `answer()` to each request, says no more on b"", hangs up on None."""

    def talk(connection: socket.socket) -> None:
        with connection, suppress(ConnectionError):
            while connection.recv(65_536):
                text = answer()
                if text is None:
                    return
                connection.sendall(text)

    with talking(talk) as port:
        yield port


def ask(
    port: int,
    *,
    fresh: float = 100.0,
    kept: int = 2,
    kept_rate: float = 50.0,
    seconds: float = 0.1,
    timeout: float = TIMEOUT,
) -> Tally:
    return SteadyClients(port, "/", fresh=fresh, kept=kept, kept_rate=kept_rate).run(seconds, timeout)


def test_steady_clients_count_right_answers() -> None:
    with answering(lambda: RIGHT) as port:
        tally = ask(port)
    assert len(tally.latencies) >= 2
    assert (tally.refused, tally.lost, tally.wrong, tally.unanswered, tally.dropped) == (0, [], 0, 0, 0)
    assert list(tally.servers) == [42]
    assert 0 < min(tally.latencies) <= max(tally.latencies) < TIMEOUT


def test_steady_clients_ask_as_often_as_they_are_told() -> None:
    asked = []

    def answer() -> bytes:
        asked.append(1)
        return RIGHT

    with answering(answer) as port:
        tally = ask(port, fresh=20.0, kept=1, seconds=0.2)
    # At most: 5 new ones (0, 50, ... 200 ms), 11 from the kept one.
    assert 2 <= len(asked) == len(tally.latencies) <= 16


def test_refused_connections_are_counted() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        tally = ask(bound.getsockname()[1])
    assert tally.refused >= 2
    assert (tally.latencies, tally.lost, tally.wrong, tally.unanswered) == ([], [], 0, 0)


def test_lost_requests_are_counted() -> None:
    with answering(lambda: None) as port:
        tally = ask(port)
    assert len(tally.lost) >= 2
    assert (tally.latencies, tally.refused, tally.wrong, tally.unanswered) == ([], 0, 0, 0)


@pytest.mark.parametrize(
    "text", [RIGHT.replace(b"200", b"503"), RIGHT.replace(b"042", b"hey"), RIGHT + b"x", b"\r\n" * 2]
)
def test_wrong_answers_are_counted(text: bytes) -> None:
    with answering(lambda: text) as port:
        tally = ask(port)
    assert tally.wrong >= 2
    assert (tally.latencies, tally.refused, tally.lost) == ([], 0, [])


def test_what_is_never_answered_is_counted() -> None:
    with answering(lambda: b"") as port:
        tally = ask(port, timeout=A_MOMENT)
    assert tally.unanswered >= 2
    assert (tally.latencies, tally.refused, tally.lost, tally.wrong) == ([], 0, [], 0)


def test_kept_connections_that_end_while_idle_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    deadline = time.monotonic() + TIMEOUT

    def clock() -> float:
        """Tell the time: the next request is due when the idle connection was seen to end, the end is after that."""
        if time.monotonic() > deadline or len(tally.latencies) > 2:
            return 10.0
        return 5.0 if tally.dropped else 0.0

    monkeypatch.setattr(_steady, "time", SimpleNamespace(perf_counter=clock, time=time.time))
    with answering_once() as port:
        clients = SteadyClients(port, "/", fresh=0.01, kept=1, kept_rate=0.2)
        tally = clients._tally
        clients.run(10.0, TIMEOUT)
    assert tally.dropped >= 1
    assert len(tally.latencies) >= 2
    assert (tally.refused, tally.lost, tally.wrong, tally.unanswered) == (0, [], 0, 0)


@contextmanager
def answering_once() -> Iterator[int]:
    """Yield the port of a server that hangs up after each answer, without saying so before."""
    closing = threading.Event()

    def accept() -> None:
        while not closing.is_set():
            connection, _ = listener.accept()
            with connection:
                if connection.recv(65_536):
                    connection.sendall(RIGHT)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield listener.getsockname()[1]
        finally:
            closing.set()
            socket.create_connection(listener.getsockname()).close()
            accepting.join()


def test_ready_children_are_read_from_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert kill_child.ready_children(log) == []
    log.write_text(
        "1700000000.000001 event=child_started pid=7 number=0\n"
        "1700000000.250000 event=child_ready pid=7 number=0 seconds=0.25\n"
        "1700000001.500000 event=child_ready pid=12 number=1 seconds=0.5\n"
        "1700000002.500000 event=child_read"
    )
    assert kill_child.ready_children(log) == [(1700000000.25, 7), (1700000001.5, 12)]


@pytest.mark.parametrize("name", KILLED)
def test_children_are_killed_and_replaced(name: str) -> None:
    peer = BY_NAME[name]
    importable(peer)
    variants = kill_child.variants(peer, Settings())
    if isinstance(variants, str):
        pytest.skip(variants)
    tiny = {"period": 0.5, "kills": 1, "fresh": 50.0, "kept": 2, "kept rate": 20.0}
    samples = kill_child.measure(peer, variants[0] | tiny)
    assert samples["kills"] == [1]
    assert samples["refused"] == samples["elsewhere"] == samples["errors"] == [0]
    assert len(samples["replaced"]) == 1
    assert 0 < samples["replaced"][0] < TIMEOUT * 1e3
    assert samples["right"][0] > 0
    assert set(samples) == {column.metric for column in kill_child.QUESTION.columns}


@pytest.mark.parametrize("name", WEB)
def test_web_servers_under_ab(name: str) -> None:
    peer = BY_NAME[name]
    importable(peer)
    variants = web_server.variants(peer, Settings())
    assert not isinstance(variants, str)
    try:
        peer.check()
    except Unavailable as reason:
        if "core" not in str(reason):
            pytest.skip(str(reason))
    if shutil.which("ab") is None:
        pytest.skip("ab is not installed")
    for variant in (variants[0], variants[-1])[: len(variants) - 1]:
        samples = web_server.measure(peer, variant | {"divisor": 50})
        assert samples["errors"] == [0]
        assert samples["rate"][0] > 0
        assert {column.metric for column in web_server.QUESTION.columns} - set(samples) <= {"cpu"}
        assert all(math.isfinite(value) for values in samples.values() for value in values)


def test_a_wrong_page_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    write = _web_servers.write_page

    def spoilt(folder: Path) -> None:
        write(folder)
        monkeypatch.setattr(web_server, "computed", lambda: b"something else\n")

    monkeypatch.setattr(web_server, "write_page", spoilt)
    with pytest.raises(RuntimeError, match="a wrong page at /computing"):
        web_server.measure(BY_NAME["web-threading"], {"page": "computing", "requests": 2, "at a time": 1, "divisor": 1})


def test_waiting_has_an_end() -> None:
    with pytest.raises(RuntimeError, match=r"not within 0\.01 s: pigs fly"):
        wait_for(lambda: False, 0.01, "pigs fly")


def test_page_and_handlers(tmp_path: Path) -> None:
    _web_servers.write_page(tmp_path)
    assert 4000 <= len((tmp_path / _web_servers.PAGE[1:]).read_bytes()) <= 4096
    made: Any = _web_servers.computed()
    assert made == _web_servers.computed()
    assert _web_servers.waited().isdigit()
