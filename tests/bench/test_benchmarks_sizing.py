"""`benchmarks sizing`: that each load is what it says, how threads are counted, what is called the best size."""

from __future__ import annotations

import asyncio
import math
import selectors
import threading
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.benchmark import importable
from support.common import TIMEOUT

import ebbpool
from benchmarks import sizing
from benchmarks.engine import runner
from benchmarks.engine.model import Settings
from benchmarks.load import sizing as loads
from benchmarks.load.sizing import CHILDREN, LOADS, PARENTS, USUAL, Lives, Scale, lived, most_at_once
from benchmarks.peers.table import BY_NAME
from benchmarks.report import regret, report
from benchmarks.report.regret import UNTUNED, cell
from benchmarks.servers import serving
from ebbpool._pool.timekeeper import NAME as TIMEKEEPER

OURS = "ebbpool" if ebbpool.COMPILED else "ebbpool-pure"
SCALE = Scale(share=0.1, turns=1)
BOTH = ("ebbpool", "stdlib")


class Inline(Executor):
    """Runs each call at once, and counts them."""

    def __init__(self) -> None:
        self.submitted = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.submitted += 1
        future = Future[Any]()
        future.set_result(fn(*args, **kwargs))
        return future


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[float]]:
    """What the tasks did, none of which takes time: seconds slept, turns computed, bytes compressed."""
    found: dict[str, list[float]] = {"slept": [], "computed": [], "compressed": []}
    monkeypatch.setattr(loads, "sleep", found["slept"].append)
    monkeypatch.setattr(loads, "compute", found["computed"].append)
    monkeypatch.setattr(zlib, "compress", lambda data, level: found["compressed"].append(len(data)) or b"")
    return found


@pytest.mark.parametrize(
    ("name", "submitted", "expected"),
    [
        ("tiny", 2000, {}),
        ("200 x 50 ms", 20, {"slept": [0.05] * 20}),
        ("0.5 ms x 8", 100, {"slept": [0.0005] * 100}),
        ("20 ms x 64", 100, {"slept": [0.02] * 100}),
        ("bimodal", 100, {"slept": [0.001] * 90 + [0.1] * 10}),
        ("nested", PARENTS // 10 * (1 + CHILDREN), {"slept": [0.01] * (PARENTS // 10 * CHILDREN)}),
        ("trickle", 100, {"slept": [0.002] * 100}),
        ("python", 20, {"computed": [1] * 20}),
        ("zlib", 15, {"compressed": [1 << 19] * 15}),
        ("half python", 20, {"slept": [0.05] * 10, "computed": [1] * 10}),
        ("half zlib", 20, {"slept": [0.05] * 10, "compressed": [1 << 19] * 10}),
        ("late computing", 12, {"slept": [0.2] * 2, "computed": [1] * 10}),
    ],
)
def test_a_load_does_what_it_says(
    name: str, submitted: int, expected: Mapping[str, list[float]], done: dict[str, list[float]]
) -> None:
    pool = Inline()
    LOADS[name].prepare(SCALE)(pool)
    assert pool.submitted == submitted
    assert {what: sorted(found) for what, found in done.items() if found} == expected


class Counting(ThreadPoolExecutor):
    """Knows how many calls were under way at most."""

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.most, self._now, self._lock = 0, 0, threading.Lock()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        future = super().submit(fn, *args, **kwargs)
        future.add_done_callback(lambda _: self._ended())
        return future

    def _ended(self) -> None:
        with self._lock:
            self._now -= 1


@pytest.mark.parametrize(("name", "in_flight"), [("1 ms x 8", 8), ("1 ms x 32", 32), ("5 ms x 64", 64)])
def test_so_many_are_in_flight_and_no_more(name: str, in_flight: int, monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(in_flight)
    monkeypatch.setattr(loads, "sleep", lambda seconds: together.wait(TIMEOUT))
    with Counting(in_flight + 4) as pool:
        LOADS[name].prepare(Scale(in_flight * 2 / 1000, 1))(pool)
        assert pool.most == in_flight


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time passes only where the loop would wait, and where a test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(Impatient(self))

    def time(self) -> float:
        return self.now


class Impatient(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._loop.now += timeout or 0.0
        return super().select(0)


@pytest.mark.parametrize(("takes", "expected"), [(0.0, 0.0), (0.01, 5.5 * 0.01)])
def test_latency_counts_from_when_a_call_is_due(takes: float, expected: float, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = VirtualLoop()

    def sleep(seconds: float) -> None:
        loop.now += takes

    monkeypatch.setattr(loads, "sleep", sleep)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        assert runner.run(loads.mean_latency(Inline(), 10)) == pytest.approx(expected, abs=0.01)


def test_overlapping_lives() -> None:
    spans = [(0.0, 10.0), (1.0, math.inf), (2.0, 3.0), (3.0, 4.0), (20.0, math.inf)]
    assert most_at_once(spans, 12.0) == 3
    assert most_at_once(spans, 1.5) == 2
    assert lived(spans, 12.0) == 10.0 + 11.0 + 1.0 + 1.0
    assert lived(spans, 1.0) == 1.0
    assert (most_at_once([], 1.0), lived([], 1.0)) == (0, 0.0)


def test_lives_of_threads_are_noted() -> None:
    gate, quick = threading.Event(), threading.Thread(target=int)
    lasting = threading.Thread(target=gate.wait, args=(TIMEOUT,))
    ignored = threading.Thread(target=int, name=TIMEKEEPER)
    before = (threading.Thread.start, threading.Thread.run)
    with Lives(TIMEKEEPER) as lives:
        for thread in (quick, ignored, lasting):
            thread.start()
        quick.join()
        first, second = lives.spans()
        assert first[0] <= first[1] < math.inf == second[1]
        assert first[0] <= second[0]
        gate.set()
        lasting.join()
        assert lives.spans()[1][1] < math.inf
    ignored.join()
    assert (threading.Thread.start, threading.Thread.run) == before


@pytest.mark.parametrize("peer", ["stdlib", OURS])
@pytest.mark.parametrize("threads", [UNTUNED, 48])
@pytest.mark.parametrize("load", USUAL)
def test_every_load_is_measured(load: str, threads: int | str, peer: str, done: dict[str, list[float]]) -> None:
    if load == "numpy":
        pytest.importorskip("numpy")
    if threads == UNTUNED and peer == "stdlib" and LOADS[load].stock_least:
        pytest.skip("deadlocks")
    params = cell(load, threads) | {"share": 0.01, "turns": 1, "repeats": 2}
    samples = sizing.measure(BY_NAME[peer], params)
    assert list(samples) == ["ms", "threads", "thread_seconds"]
    # A slow machine has no time for the second.
    assert [len(found) for found in samples.values()] in ([1, 1, 1], [2, 2, 2])
    for ms, most, seconds in zip(samples["ms"], samples["threads"], samples["thread_seconds"], strict=True):
        assert 1 <= most <= (256 + 48 if threads == UNTUNED else 48 + 48)
        assert load == "trickle" or 0.0 < seconds <= most * ms / 1e3


def test_a_fixed_size_is_reached_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(3)
    monkeypatch.setattr(loads, "sleep", lambda seconds: together.wait(TIMEOUT))
    for peer in ("stdlib", OURS):
        params = cell("200 x 50 ms", 3) | {"share": 0.03, "turns": 1, "repeats": 1}
        assert sizing.measure(BY_NAME[peer], params)["threads"] == [3]


@pytest.mark.parametrize("peer", ["stdlib", OURS])
def test_a_fixed_size_of_a_server_is_kept(peer: str) -> None:
    importable(BY_NAME["fastapi"])
    importable(BY_NAME["fastapi-installed"])
    if not Path("/proc").exists():
        pytest.skip("nobody counts the threads of another process here")
    (threads,) = sizing.measure(BY_NAME[peer], cell("FastAPI x 64", 2) | {"seconds": 0.5})["threads"]
    assert 1 <= threads <= 2


def test_the_mean_of_the_threads_of_a_server() -> None:
    counts = [4, 8, 9]

    class Scripted:
        def threads(self, *, family: bool) -> int:
            if len(counts) == 1:
                watch._over.set()
            return counts.pop(0)

        def memory(self, *, family: bool) -> int:
            return 0

    watch = serving.Watch(Scripted(), period=0.0)  # type: ignore[arg-type]
    watch._look()
    assert (watch.threads, watch.mean_threads) == (9, 7.0)


def test_sizes_that_would_deadlock_or_abort_are_not_tried() -> None:
    def fixed(load: str) -> list[Any]:
        chosen = sizing.variants(BY_NAME["stdlib"], Settings(loads=(load,)))
        assert not isinstance(chosen, str)
        return [variant["threads"] for variant in chosen]

    assert max(fixed("numpy")[1:]) == 32
    assert min(fixed("nested")) > PARENTS


Times = Mapping[int | str, tuple[float, ...]]


def outcomes_of(times: Times, peer: str = "ebbpool") -> list[runner.Outcome]:
    """Outcomes of the load "zlib": by size the milliseconds of each round; thread-seconds are size times seconds."""
    return [
        runner.Outcome(
            peer,
            cell("zlib", threads),
            number,
            "ok",
            samples={
                "ms": [ms],
                "threads": [20.0 if threads == UNTUNED else threads],
                "thread_seconds": [ms / 1e3 * (20 if threads == UNTUNED else int(threads))],
            },
        )
        for threads, rounds in times.items()
        for number, ms in enumerate(rounds)
    ]


def answers_of(outcomes: list[runner.Outcome]) -> report.Answers:
    settings = Settings(peers=BOTH, loads=("zlib",))
    return report.Answers(runner.Plan.of(sizing.QUESTION, settings), settings, outcomes)


@pytest.mark.parametrize(
    ("times", "best"),
    [
        ({2: (300,), 8: (100,), 32: (120,)}, 8),
        ({2: (103,), 8: (100,), 32: (101,)}, 2),
        ({2: (104,), 8: (102,), 32: (100,)}, 8),
        ({2: (100, 100, 300), 8: (130, 130, 130)}, 2),
        ({2: (100, 300, 300), 8: (130, 130, 130)}, 8),
        ({2: (90,), 8: (130, 130, 130), 32: (120, 140, 150)}, 8),
        ({UNTUNED: (10,), 2: (100,)}, 2),
        ({UNTUNED: (10,)}, None),
    ],
)
def test_the_best_size(times: Times, best: int | None) -> None:
    found = regret.best(answers_of(outcomes_of(times)), "ebbpool", "zlib")
    assert (found.threads if found else None) == best


def test_regret_is_to_the_best_size_of_the_same_pool() -> None:
    ours = outcomes_of({UNTUNED: (250, 240, 260), 8: (200, 180, 220), 32: (300, 300, 300)})
    stock = outcomes_of({UNTUNED: (900,), 16: (500,)}, "stdlib")
    headers, rows = regret.findings(answers_of(ours + stock))
    kept = ("ms", "best fixed", "its ms", "its thread-seconds", "x time", "x thread-seconds", "x best TPE")
    found = [dict(zip(headers, row, strict=True)) for row in rows]
    assert [[row[name] for name in kept] for row in found] == [
        ["250.0 (240.0 to 260.0)", "8", "200.0", "1.60", "1.25", "3.12", "0.50"],
        ["900.0", "16", "500.0", "8.00", "1.80", "2.25", "1.80"],
    ]


def test_a_load_that_failed_says_so() -> None:
    failed = runner.Outcome("ebbpool", cell("zlib", UNTUNED), 1, "failed", "exit status 1\nMemoryError")
    stock = outcomes_of({UNTUNED: (900,), 16: (500,)}, "stdlib")
    table = report.table(answers_of([failed, *stock]))
    assert table.rows[0] == ["zlib", "ebbpool (compiled)", "failed: MemoryError"]
    assert any(note.startswith("FAILED ebbpool load=zlib threads=untuned") for note in table.notes)


@pytest.mark.parametrize(
    ("untuned", "verdict"),
    [((229, 229, 229), "holds"), ((240, 240, 225), "within the noise"), ((240, 240, 240), "MISSED")],
)
def test_time_has_to_be_near_the_best(untuned: tuple[float, ...], verdict: str) -> None:
    answers = answers_of(outcomes_of({UNTUNED: untuned, 8: (200, 200, 200), 2: (300, 300, 300)}))
    threads, time = answers.verdicts()
    assert (time.target, time.verdict) == ("time at most 1.15 of the best fixed size's (8)", verdict)
    limit = len(runner.processors()) + 6
    assert threads.target == f"at most {limit} threads, processors + 6"
    assert threads.measured == "20"


@pytest.mark.parametrize(
    ("times", "size", "skipped"),
    [
        ({}, 256, False),
        ({256: (100,)}, 128, False),
        ({256: (100,), 128: (90,), 64: (280,)}, 32, True),
        ({256: (300,), 128: (90,)}, 64, False),
        ({256: (100,), 128: (140,)}, 128, False),
        ({256: (100,), 128: (160,)}, 128, True),
        ({256: (100,), 128: (160, 140, 120)}, 128, False),
        ({UNTUNED: (10,), 256: (100,)}, 128, False),
        ({UNTUNED: (900,), 256: (100,)}, UNTUNED, False),
    ],
)
def test_sizes_that_cannot_win_are_not_asked(times: Times, size: int | str, skipped: bool) -> None:
    others = outcomes_of({256: (1.0,), 2: (1.0,)}, "stdlib")
    reason = regret.skip([*outcomes_of(times), *others], BY_NAME["ebbpool"], cell("zlib", size))
    assert bool(reason) is skipped


def test_a_size_that_is_skipped_is_reported_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def scripted(question: object, peer: object, params: dict[str, Any], *_: object) -> dict[str, Any]:
        asked.append(params["threads"])
        ms = 100.0 if params["threads"] == UNTUNED else 3200.0 / params["threads"]
        samples = {"ms": [ms], "threads": [1.0], "thread_seconds": [1.0]}
        return {"status": "ok", "samples": samples, "version": "1", "gil": True}

    monkeypatch.setattr(runner, "run_cell", scripted)
    settings = Settings(rounds=6, peers=("ebbpool",), loads=("numpy",))
    plan = runner.Plan.of(sizing.QUESTION, settings)
    *_, (_, outcomes) = runner.run([plan], settings, lambda text: None)
    assert asked == [UNTUNED, 32, 16, 8, UNTUNED, 32]
    assert sum(found.status == "skipped" for found in outcomes) == 2 * len(plan.cells) - len(asked)
    assert not any(found.broken for found in outcomes)
    size = regret.best(report.Answers(plan, settings, outcomes), "ebbpool", "numpy")
    assert size is not None
    assert size.threads == 32
