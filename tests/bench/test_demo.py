"""The demo: every answer is judged, the figures are what was seen, and all of it runs where its packages are."""

from __future__ import annotations

import asyncio
import math
import re
from itertools import pairwise
from pathlib import Path

import pytest
from support.benchmark import ROOT, answering
from support.common import python

import ebbpool
from benchmarks.demo import load
from benchmarks.demo.load import Load, Outcome, Request, Run, Sample

TINY = Load(clients=30, rate=15.0, steady_at=1.0, steady=4.0, health=0.5, burst_size=5, trouble=(2.0, 3.0))


def test_every_answer_is_judged() -> None:
    right = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    replies = [right, right.replace(b"ok", b"no"), right.replace(b"200", b"500"), b"no http\r\n\r\n", None, right]
    requests = [Request(0, at / 100, "steady", "health", "/", "ok") for at in range(len(replies))]
    with answering(lambda number: replies[number]) as port:
        _, outcomes = asyncio.run(load.play(port, requests, 30.0))
    said = [outcome.problem.partition(":")[0] for outcome in outcomes]
    assert said == ["", "wrong", "wrong", "error", "error", ""]
    assert all(outcome.latency >= 0.0 for outcome in outcomes)
    with answering(lambda number: b"") as port:
        _, (outcome,) = asyncio.run(load.play(port, requests[:1], 0.1))
    assert outcome.problem == "error: not answered in time"


def test_the_same_load_is_offered_to_all_and_waits_for_no_request_of_its_own() -> None:
    requests = load.plan(TINY)
    assert requests == load.plan(TINY)
    assert [(request.due, request.target) for request in requests[:5]] == [(0.0, "/wait/100")] * 5
    waits = [
        (request.due, int(request.target.rpartition("/")[2])) for request in requests[5:] if request.kind == "wait"
    ]
    assert {2.0 <= due < 3.0 for due, ms in waits if ms >= 1000} == {True}
    assert all(50 <= ms <= 300 for due, ms in waits if not 2.0 <= due < 3.0)
    for client in range(30):
        due = [request.due for request in requests if request.client == client and request.phase == "steady"]
        assert all(later - sooner >= load._PAUSE for sooner, later in pairwise(due))


def test_the_table_has_what_was_seen() -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.demo import report

    outcomes = [
        Outcome("burst", "wait", 0.0, 0.5, ""),
        Outcome("burst", "wait", 0.0, 0.75, "wrong: 500 b'x'"),
        Outcome("steady", "health", 1.0, 2.5, ""),
        Outcome("steady", "health", 1.0, 1.25, ""),
    ]
    samples = [Sample(-0.1, 0, 1.0), Sample(0.5, 7, 1.5), Sample(9.0, 2, 2.0)]
    run = Run("ours", outcomes, samples, ["a", "b"], 1024, "asyncio")
    rows = {question.strip(): found for question, found in report.table_rows([run], TINY)}
    assert rows["5 at once: last answer (ms)"] == "750"
    assert rows["steady: health, p50 / p99 (ms)"] == "250 / 1,500"
    assert (rows["health checks over 1 s"], rows["right answers"]) == ("1/2", "3/4")
    assert (rows["peak threads"], rows["threads 12 s later"], rows["CPU seconds"]) == ("7", "2", "1.00")
    assert report.in_ms(math.nan) == "-"
    assert run.wrong() == ["ours: 1 of 4 answers were wrong or missing:\n  wrong: 500 b'x'"]


@pytest.mark.timeout(130)
def test_the_whole_demo_in_little(tmp_path: Path) -> None:
    for name in ("fastapi", "uvicorn", "matplotlib"):
        pytest.importorskip(name)
    out = tmp_path / "report"
    done = python("-m", "benchmarks.demo", "--quick", "--out", str(out), cwd=ROOT, timeout=120.0)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"All \d+ answers were right\.", done.stdout)
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "<svg" in page and ebbpool.__version__ in page
    (rights,) = re.findall(r"right answers +(\d+)/(\d+) +(\d+)/(\d+) +(\d+)/(\d+)\n", page)
    assert len(set(rights)) == 1
    (peaks,) = re.findall(r"peak threads +(\d+) +(\d+) +(\d+)\n", page)
    assert all(map(int, peaks))
