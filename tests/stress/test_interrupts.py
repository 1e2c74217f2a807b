"""Lanes whose tasks are interrupted: whatever is cancelled when, nothing else sees a `CancelledError`."""

from __future__ import annotations

import ctypes
import gc
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import Any

import pytest
from stress_harness import LONG_ENOUGH, PATIENCE, SECONDS, Crew

from ebbpool import AdaptiveExecutor, QueueTimeout

pytestmark = pytest.mark.skipif(not hasattr(ctypes, "pythonapi"), reason="only CPython interrupts threads")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """An error that arrives in a callback of the garbage collector, as hypothesis has one, is swallowed there."""
    callbacks, gc.callbacks[:] = gc.callbacks[:], []
    yield
    gc.callbacks[:] = callbacks


def compute(turns: int) -> int:
    return sum(1 for _ in range(turns))


@pytest.mark.parametrize("max_workers", [1, 3])
def test_only_what_was_cancelled_is_interrupted(max_workers: int) -> None:
    ends = {"returned": 0, "not run": 0, "interrupted": 0}
    crew = Crew()

    def submitter(rng: random.Random) -> None:
        tasks: list[tuple[Any, int, bool, threading.Event]] = []
        for _ in range(20):
            turns, late = rng.choice((0, 10, 300, 5000)), rng.random() * 0.002 + 1e-6
            target: Any = rng.choice((pool, lane, lane, lane.within(deadline=late)))
            mine = target is not pool and (target is not lane or rng.random() < 0.5)
            told = threading.Event()
            tasks.append((target.submit(compute, turns), turns, mine, told))
            tasks[-1][0].add_done_callback(lambda _, told=told: (compute(50), told.set()))
        for future, _, mine, _ in tasks:
            if mine:
                time.sleep(rng.random() * 0.0005)
                future.cancel()
        for future, turns, mine, told in tasks:
            try:
                assert future.result(PATIENCE) == turns
                ends["returned"] += 1
            except (CancelledError, QueueTimeout) as error:
                assert mine, f"one that nobody has cancelled ended with {error!r}"
                ends["not run" if future.cancelled() or isinstance(error, QueueTimeout) else "interrupted"] += 1
            assert told.wait(PATIENCE), "its callback was hit"

    def mapper(rng: random.Random) -> None:
        """Leave a map half-way, whose calls are interrupted then; the next is read to its end."""
        results: Any = lane.map(compute, [rng.choice((10, 5000))] * 30)
        next(results)
        results.close()
        assert list(lane.map(compute, range(30))) == list(range(30))

    with AdaptiveExecutor(max_workers, "aim") as pool:
        lane = pool.lane("lane", limit=2, interrupt=True)
        crew.repeat("submitter", submitter, copies=3)
        crew.repeat("mapper", mapper)
        crew.stop.wait(SECONDS)
        crew.join()
        assert pool.wait_idle(PATIENCE), pool.stats()
        stats = pool.stats()
        assert stats.started - stats.retired == stats.workers <= max_workers, stats
    assert all(ends.values()) or not LONG_ENOUGH, ends
