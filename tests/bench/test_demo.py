"""The demo: its parts with the standard library alone, and all of it where its packages are installed."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import pytest
from support.demo import canned, ok

from benchmarks.demo import control, load, measure, plan, report
from benchmarks.demo.corpus import encode

NEEDED = ("starlette", "uvicorn", "rich", "matplotlib")


TINY = plan.Scale(clients=5, rate=10.0, steady=3.0, quiet=0.5, files=4)


class QuietLink:
    """A lead with nobody at the other end."""

    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []

    async def send(self, **message: Any) -> None:
        self.said.append(message)


def test_every_answer_is_judged() -> None:
    scale = plan.Scale(clients=2, steady=0.0, quiet=0.0, patience=30.0)
    targets = ("/right", "/wrong", "/500", "/gone", "/right")
    requests = [
        plan.Request(client, 0.0, "burst", "search", target, 0)
        for client, target in zip((0, 1, 0, 1, 0), targets, strict=True)
    ]
    body = encode({"files": ["a.py"]})
    replies = {
        "/right": [ok(body)],
        "/wrong": [ok(body.replace(b"a.py", b"b.py"))],
        "/500": [ok(body, "500 Internal Server Error")],
        "/gone": [],
    }
    link = QuietLink()

    async def go() -> list[load.Row]:
        async with canned(replies) as port:
            planned = plan.Plan(scale, requests, [body.decode()], {})
            return await load.generate(port, planned, cast(control.Link, link))

    rows = asyncio.run(go())
    assert link.said == [{"event": "started"}]
    assert [row[0] for row in rows] == [0, 1, 2, 3, 4]
    assert all(0.0 <= sent <= done and late >= 0.0 for _, sent, done, late, _ in rows)
    said = [row[4] for row in rows]
    assert said[0] == said[4] == ""
    assert said[1].startswith("wrong: ")
    assert said[2].startswith("error: status 500")
    assert said[3].startswith("error: IncompleteReadError")


def test_an_answer_that_does_not_come_is_an_error() -> None:
    async def go() -> list[load.Row]:
        async with canned({"/never": [b"HTTP/1.1 200 OK\r\n"]}) as port:
            scale = plan.Scale(clients=1, steady=0.0, quiet=0.0, patience=0.1)
            request = plan.Request(0, 0.0, "burst", "search", "/never", 0)
            planned = plan.Plan(scale, [request], ["{}"], {})
            return await load.generate(port, planned, cast(control.Link, QuietLink()))

    ((_, _, _, _, said),) = asyncio.run(go())
    assert said == "error: not answered in time"


def test_a_child_leaves_when_its_parent_is_cancelled(tmp_path: Path) -> None:
    plan.Plan(TINY, [], [], {}).save(tmp_path / "plan.json")
    arguments = ("--plan", str(tmp_path / "plan.json"), "--out", str(tmp_path / "out.json"))
    children: list[control.Child] = []

    async def go() -> None:
        async with control.child("benchmarks.demo.load", *arguments, log=tmp_path / "log") as child:
            children.append(child)
            await child.expect("its port", 30.0)
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(go())
    assert children[0]._process.returncode == 0


def test_a_child_that_does_not_start_tells_why(tmp_path: Path) -> None:
    async def go() -> None:
        async with control.child("benchmarks.demo.load", log=tmp_path / "log"):
            raise AssertionError("it started")

    with pytest.raises(control.ChildFailed, match="arguments are required"):
        asyncio.run(go())


@pytest.mark.timeout(200)
def test_the_whole_demo_in_little(tmp_path: Path) -> None:
    lacking = [name for name in NEEDED if find_spec(name) is None]
    if lacking:
        pytest.skip(f"the demo's packages are not installed: {', '.join(lacking)}")
    out, temporary = tmp_path / "report", tmp_path / "temporary"
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.demo", "--quick", "--out", str(out)],
        cwd=control.ROOT,
        env={**os.environ, "TMPDIR": str(temporary), "TEMP": str(temporary), "TMP": str(temporary)},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=190,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    cases = ["asyncio", "fastapi"] if find_spec("fastapi") else ["asyncio"]
    assert ("FastAPI is not installed here" in done.stdout) == (len(cases) == 1)
    suffixes = (".json", ".png", ".svg", ".txt")
    assert sorted(path.name for path in out.iterdir()) == [case + suffix for case in cases for suffix in suffixes]
    assert list(temporary.iterdir()) == []
    for case in cases:
        check_report(out / case, {"asyncio": POOLS, "fastapi": SIDES}[case], done.stdout)


POOLS = ["ThreadPoolExecutor()", "AdaptiveExecutor()", "ThreadPoolExecutor(256)"]
SIDES = ["stock", "256 tokens", "ebbpool.anyio.install()"]


def check_report(stem: Path, names: list[str], said: str) -> None:
    """Look at what one case left and printed."""
    contenders = json.loads(stem.with_suffix(".json").read_text(encoding="utf-8"))["contenders"]
    assert [contender["name"] for contender in contenders] == names
    asked = [[row[:3] for row in contender["requests"]["rows"]] for contender in contenders]
    assert asked[0]
    assert asked[0] == asked[1] == asked[2]
    problem = measure.Outcome._fields.index("problem")
    assert all(row[problem] == "" for contender in contenders for row in contender["requests"]["rows"])
    summaries = [contender["summary"] for contender in contenders]
    assert all(summary["peak_threads"] > 0 and summary["problems"] == 0 for summary in summaries)
    assert f"All {sum(summary['requests'] for summary in summaries):,} answers were right." in said


def test_the_spread_of_nothing_is_not_a_number() -> None:
    assert all(math.isnan(value) for value in measure.spread([]))


def outcome(phase: plan.Phase, kind: plan.Kind, due: float, done: float, problem: str = "") -> measure.Outcome:
    return measure.Outcome(phase, kind, due, due, done, 0.0, problem)


OUTCOMES = [
    outcome("steady", "search", 0.0, 0.5),
    outcome("steady", "search", 0.25, 1.0),
    outcome("steady", "verify", 0.5, 2.0),
    outcome("burst", "search", 4.0, 4.5),
    outcome("burst", "verify", 4.0, 6.0, "wrong: b'x' instead of b'y'"),
]


SAMPLES = [
    measure.Sample(-0.1, 0, 1.0),
    measure.Sample(4.2, 7, 1.5),
    measure.Sample(6.1, 5, 1.75),
    measure.Sample(8.1, 2, 2.0),
    measure.Sample(8.2, 0, 9.0),
]


RUN = measure.Run("AdaptiveExecutor()", 256, OUTCOMES, SAMPLES, 0.1, 2**20)


def test_summary() -> None:
    summary = measure.summarise(RUN, burst_at=4.0, watch=2.0)
    assert (summary.requests, summary.problems) == (5, 1)
    assert summary.rate == 4 / (2.0 + 2.0)
    assert summary.burst == 2.0
    assert (summary.p50, summary.p99) == (0.75, 2.0)
    assert summary.kinds["search"] == (0.5, 0.75)
    assert summary.burst_search == (0.5, 0.5)
    assert (summary.peak_threads, summary.threads_after) == (7, 2)
    assert summary.watched == pytest.approx(2.1)
    assert summary.cpu == 1.0


def test_wrong_answers_are_named() -> None:
    (line,) = report.problems([RUN])
    assert "1 of 5 answers were wrong or missing" in line
    assert "b'x' instead of b'y'" in line
    right = measure.Run(RUN.name, 256, OUTCOMES[:4], SAMPLES, 0.1, None)
    assert report.problems([right]) == []
