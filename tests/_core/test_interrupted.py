"""A signal handler or a finaliser may run at each call of the plain engine, and use the pool that it interrupts."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from time import monotonic
from types import FrameType
from typing import Any

import pytest
from support import seams
from support.common import LONG, TIMEOUT, Background, Gate, eventually

from ebbpool import COMPILED, AdaptiveExecutor

pytestmark = pytest.mark.skipif(COMPILED, reason="compiled code makes no calls at which another may run")


@contextmanager
def at_call(number: int, do: Callable[[], object]) -> Iterator[list[str]]:
    """Have `do()` called as the engine begins that call of a function of its own; yield where that was."""
    places: list[str] = []
    left = count(number, -1)

    def trace(frame: FrameType, event: str, arg: object) -> None:
        if "_core" in frame.f_code.co_filename and not places and next(left) == 0:
            places.append(frame.f_code.co_qualname)
            do()

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield places
    finally:
        sys.settrace(before)


def at_each_call(play: Callable[[int], list[str]]) -> None:
    """Play a program again and again, each time with another place where it is interrupted."""
    number = 0
    while play(number):
        number += 1
    assert number > 10


OPERATIONS: dict[str, Callable[[Any, list[Any]], object]] = {
    "cancel": lambda pool, queued: queued[0].cancel(),
    "resize": lambda pool, queued: pool.resize(max_queue=3),
    "stats": lambda pool, queued: pool.stats(),
}
HANDLERS: dict[str, Callable[[Any, list[Any]], object]] = {
    "cancel the same": lambda pool, queued: queued[0].cancel(),
    "cancel": lambda pool, queued: queued[1].cancel(),
    "resize": lambda pool, queued: pool.resize(max_queue=4),
}


@pytest.mark.parametrize("handler", HANDLERS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_with_a_full_queue_each_task_still_has_one_fate(operation: str, handler: str) -> None:
    def play(number: int) -> list[str]:
        runs: Counter[str] = Counter()
        with AdaptiveExecutor(1, max_queue=2) as pool, Gate() as gate:
            gate.hold(pool)
            queued = [pool.submit(runs.update, [name]) for name in ("one", "two")]
            waiting = []
            for name in ("three", "four", "five"):
                waiting.append(Background(lambda name=name: pool.submit(runs.update, [name])))  # type: ignore[misc]
                eventually(lambda: len(seams.engine_of(pool).room.tasks) == len(waiting))
            with at_call(number, lambda: HANDLERS[handler](pool, queued)) as places:
                OPERATIONS[operation](pool, queued)
            gate.open()
            futures = [*queued, *(each.join() for each in waiting)]
            assert pool.wait_idle(TIMEOUT)
            assert all(future.done() for future in futures)
            ran = sum(not future.cancelled() for future in futures)
            assert (sum(runs.values()), max(runs.values())) == (ran, 1), places
            stats = pool.stats()
            assert (stats.queued, stats.submitted, stats.completed + stats.cancelled) == (0, 6, 6), places
        return places

    at_each_call(play)


@pytest.mark.parametrize("way", ["submit", "resize", "shutdown"])
def test_a_pool_that_shrinks_counts_each_worker_once(way: str) -> None:
    handlers: dict[str, Callable[[Any], object]] = {
        "submit": lambda pool: pool.submit(int),
        "resize": lambda pool: pool.resize(max_workers=2),
        "shutdown": lambda pool: pool.shutdown(wait=False),
    }

    def play(number: int) -> list[str]:
        with AdaptiveExecutor(4, keep_alive=LONG) as pool, Gate() as gate:
            gate.hold(pool, 4)
            gate.open()
            assert pool.wait_idle(TIMEOUT)
            with at_call(number, lambda: handlers[way](pool)) as places:
                pool.resize(max_workers=1)
            assert pool.wait_idle(TIMEOUT), places
            left = 0 if way == "shutdown" and places else 1
            eventually(lambda: pool.stats().workers <= max(left, pool._max_workers))
            with seams.engine_of(pool).mutex:
                seams.check(seams.engine_of(pool))
            assert left == 0 or pool.submit(int).result(TIMEOUT) == 0
        return places

    at_each_call(play)


def test_calls_that_turn_out_short_are_sorted_beside_what_a_finaliser_submits() -> None:
    def short() -> int:
        return 7

    async def calls(number: int) -> list[str]:
        with AdaptiveExecutor(2) as pool, Gate() as gate:
            gate.hold(pool, 2)
            awaited = [asyncio.ensure_future(pool.run(short)) for _ in range(5)]
            await asyncio.sleep(0)
            seams.know(pool, short, 1e-6, 3)
            submitted: list[Any] = []
            with at_call(number, lambda: submitted.append(pool.submit(short))) as places:
                seams.engine_of(pool).look(monotonic() + 1.0)
            gate.open()
            assert await asyncio.wait_for(asyncio.gather(*awaited), TIMEOUT) == [7] * 5
            assert [future.result(TIMEOUT) for future in submitted] == [7] * len(places), places
            assert pool.stats().queued == 0, places
        return places

    at_each_call(lambda number: asyncio.run(calls(number)))
