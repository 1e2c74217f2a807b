"""The demo's FastAPI case: its rounds, its slow upstream, what is reported of them, and servers that fail."""

from __future__ import annotations

import asyncio
import itertools
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.demo import canned, ok

from benchmarks.demo import control, drills, fastapi_report, hammer, measure, plan, run, trouble, upstream
from benchmarks.demo.hammer import Mark, Round

BODY = b'{"ok":true}'
DIGESTS = {"a.py": "aa", "b/c d.py": "bb"}
TINY = plan.Scale(clients=20, rate=10.0, steady=16.0, quiet=0.0)


@pytest.mark.parametrize(
    ("received", "verdict"),
    [
        (ok(BODY), ""),
        (ok(BODY)[:20], None),
        (ok(BODY)[:-1], None),
        (b"", None),
        (ok(BODY.replace(b"true", b"null")), "wrong: "),
        (ok(BODY) + ok(BODY), "wrong: "),
        (ok(b"", "204 No Content"), "error: status 204"),
        (ok(BODY, "500 Internal Server Error"), "error: status 500"),
    ],
)
def test_judge(received: bytes, verdict: str | None) -> None:
    said = hammer.judge(received, BODY)
    assert said == verdict if not verdict else said is not None and said.startswith(verdict)


def played(replies: list[bytes], clients: int = 1, seconds: float = 0.0, patience: float = 10.0) -> list[Mark]:
    """Play a round against a server that always gives these replies."""

    async def go() -> list[Mark]:
        async with canned({"/x": replies}) as port:
            return await hammer.play(port, Round("/x", BODY.decode(), clients, seconds), patience)

    return asyncio.run(go())


def test_with_seconds_each_client_asks_again_until_they_are_over(monkeypatch: pytest.MonkeyPatch) -> None:
    # A clock that goes on by a second whenever it is looked at.
    monkeypatch.setattr(hammer, "time", SimpleNamespace(perf_counter=itertools.count(1.0).__next__))
    marks = played([ok(BODY)], clients=2, seconds=10.0)
    assert [mark.answered for mark in marks] == [3.0, 5.0, 7.0, 9.0, 11.0, 12.0]
    assert all(mark.problem == "" and 0.0 < mark.asked < mark.answered for mark in marks)


@pytest.mark.parametrize(
    ("replies", "problem"),
    [
        ([ok(b'{"ok":false}')], "wrong: "),
        ([ok(BODY, "503 Service Unavailable")], "error: status 503"),
        ([b"hello\r\n\r\n"], "error: BadResponse"),
        ([], "error: connection lost"),
    ],
)
def test_what_is_wrong_counts_as_wrong(replies: list[bytes], problem: str) -> None:
    marks = played(replies, clients=3)
    assert len(marks) == 3
    assert all(mark.problem.startswith(problem) for mark in marks)


def test_what_does_not_come_counts_as_an_error() -> None:
    marks = played([ok(BODY)[:-1]], clients=2, patience=0.1)
    assert [mark.problem for mark in marks] == ["error: not answered in time"] * 2


def test_every_side_gets_every_turn() -> None:
    sides = [run.Contender(key, key, "", ()) for key in "abc"]
    orders = ["".join(side.key for side in drills.turns(sides, number)) for number in range(6)]
    assert sorted(orders) == ["abc", "acb", "bac", "bca", "cab", "cba"]
    assert all(drill.times % 6 == 0 for drill in drills.DRILLS)


def test_a_client_waits_for_no_request_of_its_own() -> None:
    made = trouble.make_trouble(TINY, DIGESTS)
    slowest = max(upstream.delay(f"{upstream.SLOW}{n}") for n in range(len(made.requests)))
    for client in range(TINY.clients):
        times = [request.at for request in made.requests if request.client == client]
        assert all(later - at >= slowest for at, later in pairwise(times))


def marks(*answered: float, problem: str = "") -> list[Mark]:
    return [Mark(0.0, at, problem) for at in answered]


SIDE = drills.Side(
    rounds={
        drills.BURST: [marks(0.5, 0.75), marks(0.25, 0.25), marks(0.25, 0.5)],
        drills.TRIVIAL: [marks(0.5, 1.0), marks(0.25, 0.5), marks(0.25, 0.5, problem="wrong: x")],
        drills.BRIEF: [marks(1.0)],
    },
    busy=[0.25, 0.95],
    peak_threads=9,
)
OUTCOMES = [
    measure.Outcome("steady", "health", 0.0, 0.0, 0.25, 0.0, ""),
    measure.Outcome("trouble", "health", 1.0, 1.0, 2.5, 0.125, ""),
    measure.Outcome("trouble", "verify", 1.0, 1.0, 4.0, 0.0, "error: status 500"),
]
SAMPLES = [measure.Sample(0.0, 0, 1.0), measure.Sample(2.0, 8, 1.5), measure.Sample(5.5, 3, 2.0)]
RUN = measure.Run("stock", 40, OUTCOMES, SAMPLES, 0.1, 2**20)


def summary() -> fastapi_report.FastSummary:
    return fastapi_report.summarise(SIDE, RUN, plan.Scale(watch=1.0))


def test_summary() -> None:
    said = summary()
    assert (said.requests, said.problems) == (13 + 3, 2 + 1)
    assert (said.burst_size, said.burst_cold, said.burst) == (2, 0.75, 0.5)
    assert said.rates[drills.TRIVIAL] == fastapi_report.Rate(2.0, 0.25, 0.5)
    assert said.health == (0.25, 0.25)
    assert said.health_in_trouble == (1.5, 1.5)
    assert (said.health_late, said.health_checks) == (1, 2)
    assert (said.round_threads, said.peak_threads, said.threads_after) == (9, 8, 3)
    assert said.watched == 1.5
    assert (said.late, said.busy) == (0.125, 0.95)


def test_wrong_answers_are_named_by_round() -> None:
    (text,) = fastapi_report.problems([SIDE], [RUN])
    assert text.startswith("stock: 3 of 16 answers were wrong or missing:")
    assert "trivial, asked at 0.00 s: wrong: x" in text
    assert "verify, due at 1.00 s: error: status 500" in text
    right = drills.Side({drills.BURST: [marks(1.0)]}, [0.1], 1)
    run_of_right = measure.Run("stock", 40, OUTCOMES[:2], SAMPLES, 0.1, None)
    assert fastapi_report.problems([right], [run_of_right]) == []


def test_a_server_that_does_not_start_ends_the_case(tmp_path: Path) -> None:
    site = run.Site(tmp_path, tmp_path)
    made = trouble.make_trouble(TINY, DIGESTS)
    made.save(site.plan)
    told: list[tuple[str, str]] = []
    contenders = [run.Contender(key, key, "benchmarks.demo.no_such_server", ()) for key in ("one", "two")]

    def tell(contender: run.Contender, phase: str) -> None:
        told.append((contender.key, phase))

    with pytest.raises(control.ChildFailed, match=r"(?s)did not start; it printed.*no_such_server"):
        asyncio.run(run.run_all(contenders, site, made, tell))
    assert told == [("one", "starting")]


@pytest.mark.parametrize("how", ["waited for", "left"])
def test_a_server_that_goes_away_while_it_is_watched_is_noticed(how: str) -> None:
    looks = iter([(1, 0.5), (2, 0.75)])

    async def go() -> list[measure.Sample]:
        gone = asyncio.Event()

        async def look() -> tuple[int, float]:
            for seen in looks:
                return seen
            gone.set()
            raise control.ChildFailed("gone")

        watch = measure.Watch(look, "in a test")
        with pytest.raises(control.ChildFailed, match="gone"):
            async with watch:
                await (watch.until(float("inf")) if how == "waited for" else gone.wait())
        return watch.samples

    assert [sample[1:] for sample in asyncio.run(go())] == [(1, 0.5), (2, 0.75)]


@pytest.fixture
def rich() -> None:
    lacking = [name for name in ("rich", "matplotlib") if find_spec(name) is None]
    if lacking:
        pytest.skip(f"not installed: {', '.join(lacking)}")


@pytest.mark.usefixtures("rich")
def test_a_case_that_fails_does_not_end_the_demo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from rich.console import Console

    from benchmarks.demo import cli
    from benchmarks.demo.table import Report

    async def fails(*_: Any) -> Report:
        raise control.ChildFailed("no server")

    async def is_wrong(*_: Any) -> Report:
        return Report("so it is", "a table", ["one"], [("question", ["1/2"])], ["a note"], ["one: 1 of 2"], 2)

    async def is_right(*_: Any) -> Report:
        return Report("so it is", "a table", ["one"], [("question", ["2/2"])], ["a note"], [], 2)

    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path))
    out = tmp_path / "report"
    out.mkdir()
    (out / "a.json").write_text("of an earlier run")
    statuses = []
    for found in ({"a": fails, "b": is_right}, {"b": is_wrong}, {"b": is_right}):
        monkeypatch.setattr(cli, "cases", lambda console, found=found: found)
        statuses.append(cli.demo(True, out, Console()))
    assert statuses == [1, 1, 0]
    said = capsys.readouterr().out
    assert "The a case failed: no server" in said
    assert "one: 1 of 2" in said
    assert said.count("All 2 answers were right.") == 2
    assert [path.name for path in out.iterdir()] == ["b.txt"]
    assert "2/2" in (out / "b.txt").read_text(encoding="utf-8")
