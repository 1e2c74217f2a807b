"""Clients under limits: waits, deadlines, cancels and resizes, and each call is accounted for."""

from __future__ import annotations

import asyncio
import functools
import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

import pytest
from stress_harness import PATIENCE, SECONDS, SEED, Crew, bounded, threads_left

from ebbpool import AdaptiveExecutor, QueueFull, QueueTimeout, cancelled, check_cancelled, on_cancel, time_left

ROUND = 40
"""How many calls are in hand at a time for each client, at most."""
SETTINGS: dict[str, dict[str, Any]] = {
    "no limits": {"max_workers": 4},
    "limits": {"max_workers": 3, "max_wait": 0.002},
    "reserve": {"max_workers": 32, "max_wait": 0.02, "keep_alive": 0.001},
    "full": {"max_workers": 4, "max_wait": 0.001, "max_queue": 20, "when_full": "reject"},
}


class Call:
    """One call: how often it ran, how often it was told that it is cancelled, and what became of it."""

    __slots__ = ("outcome", "runs", "told")

    def __init__(self) -> None:
        self.runs: list[int] = []
        self.told: list[int] = []
        self.outcome = ""

    def __call__(self, kind: str) -> Call:
        self.runs.append(1)
        if kind == "boom":
            raise LookupError
        if kind == "asks":
            with on_cancel(lambda: self.told.append(1)):
                for _ in range(20):
                    if cancelled():
                        break
                check_cancelled()
            left = time_left()
            assert left is None or left >= 0.0
        return self

    def end(self, how: Callable[[], object]) -> None:
        try:
            assert how() is self
            self.outcome = "result"
        except QueueTimeout:
            self.outcome = "expired"
        except QueueFull:
            self.outcome = "full"
        except (CancelledError, asyncio.CancelledError):
            self.outcome = "cancelled"
        except LookupError:
            self.outcome = "error"


class Overload:
    """One pool, its clients, and sums of what became of their calls."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.pool = AdaptiveExecutor(**settings)
        self.lane = self.pool.lane("narrow", limit=2, max_wait=0.001)
        self.outcomes: Counter[str] = Counter()
        self.lock = threading.Lock()

    def way(self, rng: random.Random) -> Any:
        """Return what takes a call: the pool, its lane, or either with limits for this one call."""
        target = self.pool if rng.random() < 0.8 else self.lane
        if rng.random() < 0.5:
            return target
        if rng.random() < 0.5:
            return target.within(rng.choice((0.0005, 0.01, 1.0)))
        return target.within(deadline=rng.choice((0.0005, 0.01, 1.0)))

    def audit(self, calls: list[Call]) -> None:
        """Check calls that are over."""
        for call in calls:
            assert call.outcome, "a call has no outcome"
            assert len(call.told) <= 1, "a call was told twice"
            runs = len(call.runs)
            if call.outcome in ("result", "error"):
                assert runs == 1, f"{call.outcome} of a call that ran {runs} times"
            elif call.outcome in ("expired", "full"):
                assert runs == 0, f"{call.outcome}, and the call ran"
            else:
                assert runs <= 1, f"a cancelled call ran {runs} times"
        with self.lock:
            self.outcomes.update(call.outcome for call in calls)

    def kind(self, rng: random.Random) -> str:
        return rng.choices(("quick", "asks", "boom"), (6, 3, 1))[0]

    def thread(self, rng: random.Random) -> None:
        """Submit a round from a thread, cancel some of it, and wait for all of it."""
        calls, futures = [Call() for _ in range(rng.randint(1, ROUND))], []
        for call in calls:
            try:
                futures.append((call, self.way(rng).submit(call, self.kind(rng))))
            except QueueFull:
                call.outcome = "full"
        for _, future in rng.sample(futures, len(futures) // 5):
            future.cancel()
        for call, future in futures:
            call.end(functools.partial(future.result, PATIENCE))
        self.audit(calls)

    def loop(self, rng: random.Random) -> None:
        """Have the tasks of an event loop make calls one after the other, some of which are given up."""
        asyncio.run(self._tasks(rng))

    async def _tasks(self, rng: random.Random) -> None:
        gone: list[Call] = []

        async def client() -> None:
            for _ in range(rng.randint(1, 8)):
                call = Call()
                gone.append(call)
                try:
                    ours = asyncio.ensure_future(self.way(rng).run(call, self.kind(rng)))
                except QueueFull:
                    call.outcome = "full"
                    await asyncio.sleep(0)
                    continue
                if rng.random() < 0.2:
                    await asyncio.sleep(0)
                    ours.cancel()
                await asyncio.wait([ours])
                call.end(ours.result)

        for _ in range(20):
            await asyncio.gather(*(client() for _ in range(rng.randint(1, ROUND))))
        self.audit(gone)

    def resizer(self, rng: random.Random) -> None:
        if "max_wait" in self.settings:
            self.pool.resize(max_wait=rng.choice((0.0005, 0.01, 1.0)))
        self.pool.resize(max_workers=rng.choice((1, 2, 4, 20, 40)))
        threading.Event().wait(0.002)


@pytest.mark.parametrize("settings", list(SETTINGS.values()), ids=list(SETTINGS))
def test_each_call_ends_by_one_rule_and_runs_once_or_never(settings: dict[str, Any]) -> None:
    before = threading.enumerate()
    overload, crew = Overload(settings), Crew()
    crew.repeat("thread", overload.thread, copies=2)
    crew.repeat("loop", overload.loop, copies=2)
    crew.repeat("resizer", overload.resizer)
    crew.stop.wait(SECONDS)
    crew.join()
    assert bounded("wait_idle", overload.pool.wait_idle, PATIENCE)
    stats, outcomes = overload.pool.stats(), overload.outcomes
    bounded("shutdown", overload.pool.shutdown)
    print(f"{sum(outcomes.values())} calls: {dict(outcomes)}, seed {SEED}")
    assert (stats.queued, stats.running, stats.abandoned) == (0, 0, 0)
    assert stats.submitted == stats.completed + stats.failed + stats.cancelled
    assert stats.submitted == sum(outcomes.values()) - outcomes["full"]
    assert stats.rejected == outcomes["full"]
    # A call that was given up may have expired before, and nobody has seen that.
    assert outcomes["expired"] <= stats.expired <= outcomes["expired"] + outcomes["cancelled"]
    assert threads_left(before) == []
