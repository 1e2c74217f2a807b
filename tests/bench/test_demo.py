"""The demo: every answer is judged, the figures are what was seen, and all of it runs where its packages are."""

from __future__ import annotations

import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.benchmark import ROOT, talking
from support.common import python

import ebbpool
from benchmarks.demo.load import _WARM_UP, ALIVE, Load, Round, Sample, Side, play

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
HEALTHY = OK.replace(b"2\r\n", b"%d\r\n" % len(ALIVE)).replace(b"ok", ALIVE)
NAMES = ("stock", "256 tokens", "ebbpool")
TINY = Load("tiny", "does nothing", 5, "/nothing", b"ok", rounds=3)


def played(*replies: bytes, health: bytes = HEALTHY, warm: bytes = OK) -> Round:
    """Return what comes of a load if a server answers so after the warm-up; b"" is no answer, b"end" ends."""
    left = iter([warm] * _WARM_UP + [*replies])

    def talk(connection: socket.socket) -> None:
        while asked := connection.recv(65_536):
            reply = health if b"/health" in asked else next(left)
            if reply == b"end":
                return
            connection.sendall(reply)

    with talking(talk) as port:
        return play(port, replace(TINY, clients=len(replies), patience=30.0 if health and all(replies) else 0.5))


def test_every_answer_is_judged() -> None:
    found = played(OK, OK.replace(b"ok", b"no"), OK.replace(b"200", b"500"), b"no http\r\n\r\n", b"end", OK)
    assert (len(found.answers), found.failed, found.bad_checks) == (2, 4, 0)
    assert found.answers == sorted(found.answers) and 0.0 < found.answers[-1] <= found.seconds < 30.0
    assert found.checks and all(latency >= 0.0 for _, latency in found.checks)
    assert played(OK, health=HEALTHY.replace(b"alive", b"dying")).bad_checks > 0


def test_what_is_not_answered_in_time_counts_from_when_it_was_due() -> None:
    silent = played(b"", b"", warm=b"")
    assert (silent.answers, silent.failed, silent.seconds) == ([], 2, 0.5)
    dues = [due for due, _ in played(OK, b"").checks]
    assert len(dues) > 20 and dues == pytest.approx([0.02 * at for at in range(len(dues))])
    checks = played(OK, health=b"").checks
    assert len(checks) == 25
    assert [due + latency for due, latency in checks] == pytest.approx([0.5] * 25)


def report_of(*rivals_and_ours: list[Round]) -> tuple[list[Side], Any]:
    pytest.importorskip("matplotlib")
    from benchmarks.demo import report

    samples = [Sample(0.0, 0, 1.0), Sample(0.5, 7, 1.5), Sample(9.0, 2, 2.0)]
    sides = [Side(name, {"tiny": found}, samples, 2048) for name, found in zip(NAMES, rivals_and_ours, strict=True)]
    return sides, report.Report([TINY], sides, {"tiny": 0.0}, 12.0)


def rounds(*lasts: float, check: float = 0.05, failed: int = 0) -> list[Round]:
    """Return rounds that ended so, each with two health checks."""
    answers = ([last / (5 - at) for at in range(5 - failed)] for last in lasts)
    ended = zip(lasts, answers, strict=True)
    return [Round(found, failed, last, [(0.0, check), (0.02, 2 * check)], 0) for last, found in ended]


def cells_of(said: Any) -> dict[str, list[str]]:
    """Return each server's cells of the table, with spaces that may break."""
    return {question: [cell.replace("\u00a0", " ") for cell in cells] for question, *cells in said.table()}


def test_the_table_has_what_was_seen_and_names_a_rival_that_is_ahead() -> None:
    sides, said = report_of(rounds(0.9, 0.8, 0.7, check=0.6), rounds(0.3, 0.1, 0.2), rounds(0.2, 0.4, 0.3))
    found = cells_of(said)
    assert found["tiny: all answered"] == ["800 ms", "200 ms", "300 ms"]
    assert found["tiny: half of the clients answered"] == ["267 ms", "66.7 ms", "100 ms"]
    assert found["tiny: health check, median"] == ["600 ms", "50.0 ms", "50.0 ms"]
    assert found["tiny: health check, slowest"] == ["1.2 s", "100 ms", "100 ms"]
    assert (found["threads, most"], found["threads 12 s after the last answer"]) == (["7"] * 3, ["2"] * 3)
    assert (found["processor seconds"], found["memory, most (MiB)"]) == (["1.0"] * 3, ["2"] * 3)
    first, *rows = said.ahead()
    told = [row.replace("\u00a0", " ") for row in rows]
    assert first == "In these rows a rival is ahead, perhaps by chance if in about half of the rounds:"
    assert told[1:] == ["tiny: all answered: 200 ms (256 tokens), 300 ms (ebbpool), in 2 of 3 rounds"]
    assert told[0].startswith("tiny: half of the clients answered: 66.7 ms (256 tokens)")
    assert all(row in said.page() and row in said.text() for row in rows)
    assert not [problem for side in sides for problem in side.problems([TINY], ours=True)]


def test_unanswered_clients_are_reported_and_our_side_has_to_answer_all() -> None:
    sides, said = report_of(rounds(0.9, failed=1), rounds(0.9, failed=3), rounds(0.2))
    found = cells_of(said)
    assert found["tiny: all answered"] == ["never", "never", "200 ms"]
    assert found["tiny: half of the clients answered"][1] == "never"
    assert found["tiny: clients without an answer"] == ["1", "3", "0"]
    assert said.ahead() == ["No rival is ahead in any row."]
    assert "without an answer: 1 (stock), 3 (256 tokens), 0 (ebbpool)." in said.page()
    assert sides[1].problems([TINY], ours=False) == ["256 tokens: 3 answers wrong or missing, tiny."]
    pardoned = replace(TINY, may_fail=True)
    assert not sides[1].problems([pardoned], ours=False) and sides[1].problems([pardoned], ours=True)


@pytest.mark.timeout(130)
def test_the_whole_demo_in_little(tmp_path: Path) -> None:
    for name in ("fastapi", "uvicorn", "matplotlib", "sqlalchemy"):
        pytest.importorskip(name)
    out = tmp_path / "report"
    done = python("-m", "benchmarks.demo", "--quick", "--out", str(out), cwd=ROOT, timeout=120.0)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (out / "index.html").read_text(encoding="utf-8")
    assert page.count("data:image/svg+xml") == 7 and f"ebbpool {ebbpool.__version__}" in page
    unanswered = re.findall(r"clients without an answer +(\d+) +(\d+) +(\d+)\n", done.stdout)
    assert unanswered == [("0", "0", "0")] * 3
    (peaks,) = re.findall(r"threads, most +(\d+) +(\d+) +(\d+)\n", done.stdout)
    assert all(map(int, peaks))
