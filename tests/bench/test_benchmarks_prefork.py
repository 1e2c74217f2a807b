"""The web servers of `benchmarks/` under `ab`, and what is counted while their processes die."""

from __future__ import annotations

import math
import shutil
import socket
from pathlib import Path

import pytest
from support.benchmark import answering, importable
from support.common import A_MOMENT, TIMEOUT

from benchmarks import kill_child, web_server
from benchmarks.engine.model import Settings
from benchmarks.load.steady import SteadyClients, Tally
from benchmarks.peers import Unavailable
from benchmarks.peers.table import BY_NAME, PEERS
from benchmarks.servers import web

WEB = [peer.name for peer in PEERS if "web_server" in peer.listens]
KILLED = [peer.name for peer in PEERS if "kill_child" in peer.listens]
RIGHT = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n042"


def ask(port: int, timeout: float = TIMEOUT) -> Tally:
    return SteadyClients(port, "/", fresh=100.0, kept=2, kept_rate=50.0).run(0.5, timeout)


def test_steady_clients_count_right_answers() -> None:
    with answering(lambda number: RIGHT) as port:
        tally = ask(port)
    assert len(tally.latencies) >= 2
    assert (tally.refused, tally.lost, tally.wrong, tally.unanswered, tally.dropped) == (0, [], 0, 0, 0)
    assert list(tally.servers) == [42]
    assert 0 < min(tally.latencies) <= max(tally.latencies) < TIMEOUT


def test_refused_connections_are_counted() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        tally = ask(bound.getsockname()[1])
    assert tally.refused >= 2
    assert (tally.latencies, tally.lost, tally.wrong, tally.unanswered) == ([], [], 0, 0)


def test_lost_requests_are_counted() -> None:
    with answering(lambda number: None) as port:
        tally = ask(port)
    assert len(tally.lost) >= 2
    assert (tally.latencies, tally.refused, tally.wrong, tally.unanswered) == ([], 0, 0, 0)


@pytest.mark.parametrize(
    "text", [RIGHT.replace(b"200", b"503"), RIGHT.replace(b"042", b"hey"), RIGHT + b"x", b"\r\n" * 2]
)
def test_wrong_answers_are_counted(text: bytes) -> None:
    with answering(lambda number: text) as port:
        tally = ask(port)
    assert tally.wrong >= 2
    assert (tally.latencies, tally.refused, tally.lost) == ([], 0, [])


def test_what_is_never_answered_is_counted() -> None:
    with answering(lambda number: b"") as port:
        tally = ask(port, timeout=A_MOMENT)
    assert tally.unanswered >= 2
    assert (tally.latencies, tally.refused, tally.lost, tally.wrong) == ([], 0, [], 0)


@pytest.mark.parametrize("name", KILLED)
def test_children_are_killed_and_replaced(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kill_child, "_DEATH_SECONDS", TIMEOUT)
    peer = BY_NAME[name]
    importable(peer)
    variants = kill_child.variants(peer, Settings())
    if isinstance(variants, str):
        pytest.skip(variants)
    tiny = {"period": 2.0, "kills": 1, "fresh": 50.0, "kept": 2, "kept rate": 20.0}
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
        peer.needs()
    except Unavailable as reason:
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
    write = web.write_page

    def spoilt(folder: Path) -> None:
        write(folder)
        monkeypatch.setattr(web_server, "computed", lambda: b"something else\n")

    monkeypatch.setattr(web_server, "write_page", spoilt)
    with pytest.raises(RuntimeError, match="a wrong page at /computing"):
        web_server.measure(BY_NAME["web-threading"], {"page": "computing", "requests": 2, "at a time": 1, "divisor": 1})
