"""The demo: every answer is judged, the figures are what was seen, and all of it runs where its packages are."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.benchmark import ROOT, answering

import ebbpool
from benchmarks.demo import load
from benchmarks.demo.load import Load, Outcome, Request

NEEDED = ("starlette", "uvicorn", "rich", "matplotlib")
TINY = Load(
    clients=30, rate=15.0, steady_at=1.0, steady=4.0, mix={"health": 0.5, "verify": 0.5},
    burst_at=0.0, burst={"wait": 1.0}, burst_size=5, trouble=(2.0, 3.0),
)  # fmt: skip


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
    requests = load.plan(TINY, {"a.py": "0", "b.py": "1"})
    assert requests == load.plan(TINY, {"b.py": "1", "a.py": "0"})
    assert sum(request.phase == "burst" and request.due == 0.0 for request in requests) == 5
    slow = [request for request in requests if "slow-" in request.target]
    assert slow and all(2.0 <= request.due < 3.0 for request in slow)
    for client in range(30):
        due = [request.due for request in requests if request.client == client and request.phase == "steady"]
        assert all(later - sooner >= load._PAUSE for sooner, later in pairwise(due))


def test_the_table_has_what_was_seen() -> None:
    for name in NEEDED[:3]:
        pytest.importorskip(name)
    from benchmarks.demo import case

    outcomes = [
        Outcome("burst", "wait", 0.0, 0.5, ""),
        Outcome("burst", "wait", 0.0, 0.75, "wrong: 500 b'x'"),
        Outcome("steady", "health", 1.0, 2.5, ""),
        Outcome("steady", "health", 1.0, 1.25, ""),
    ]
    samples = [case.Sample(-0.1, 0, 1.0), case.Sample(0.5, 7, 1.5), case.Sample(9.0, 2, 2.0)]
    run = case.Run("ours", outcomes, samples, {}, ["a", "b"], 2**20)
    rows = {question.strip(): found for question, (found,) in case.table_rows([run], TINY)}
    assert rows["5 at once: last answer (ms)"] == "750"
    assert rows["steady: health, p50 / p99 (ms)"] == "250 / 1,500"
    assert (rows["health checks over 1 s"], rows["right answers"]) == ("1/2", "3/4")
    assert (rows["peak threads"], rows["threads 12 s later"], rows["CPU seconds"]) == ("7", "2", "1.00")
    assert case.in_ms(math.nan) == "-"
    (said,) = case.wrong("ours", [outcome.problem for outcome in outcomes])
    assert said == "ours: 1 of 4 answers were wrong or missing:\n  wrong: 500 b'x'"


@pytest.mark.timeout(200)
def test_the_whole_demo_in_little(tmp_path: Path) -> None:
    for name in NEEDED:
        pytest.importorskip(name)
    out, temporary = tmp_path / "report", tmp_path / "temporary"
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.demo", "--quick", "--out", str(out)],
        cwd=ROOT,
        env=os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temporary)),
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=190,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    cases = ["asyncio", "fastapi"] if find_spec("fastapi") else ["asyncio"]
    suffixes = (".json", ".png", ".svg", ".txt")
    files = sorted([*(case + suffix for case in cases for suffix in suffixes), "index.html"])
    assert sorted(path.name for path in out.iterdir()) == files
    page = (out / "index.html").read_text(encoding="utf-8")
    assert all(f"{case}.svg" in page for case in cases) and ebbpool.__version__ in page
    assert list(temporary.iterdir()) == []
    for case in cases:
        found: dict[str, Any] = json.loads((out / f"{case}.json").read_text(encoding="utf-8"))
        assert len(found["contenders"]) == 3
        asked = [[row[:3] for row in contender["requests"]] for contender in found["contenders"]]
        assert asked[0] and asked[0] == asked[1] == asked[2]
        assert all(row[-1] == "" for contender in found["contenders"] for row in contender["requests"])
        assert all(max(threads for _, threads, _ in contender["samples"]) for contender in found["contenders"])
        assert f"All {3 * len(asked[0]):,} answers were right." in done.stdout
