"""Marked tasks are found wherever they stand in the queue, which stays as it was."""

from __future__ import annotations

import math
import random
import threading
from time import monotonic
from typing import Any

import pytest
from support.common import LONG, TIMEOUT, Gate, eventually, wait_for_idle

from ebbpool import AdaptiveExecutor, spillable
from ebbpool._pool.marks import Spillable


@spillable
def marked() -> None:
    pass


class Steps:
    """A pool whose one worker takes as many tasks as the test says."""

    def __init__(self, pool: AdaptiveExecutor) -> None:
        self.pool = pool
        self._permits = threading.Semaphore(0)
        self._begun = 0
        self._open = False
        self.futures: list[Any] = [pool.submit(self.step)]
        eventually(lambda: self._begun)

    def step(self) -> None:
        self._begun += 1
        if not self._open:
            assert self._permits.acquire(timeout=3 * TIMEOUT)

    def take(self) -> None:
        """Let the worker go on to the next step, and all that stands before it."""
        waiting = [future for future in self.futures if not (future.done() or future.running())]
        if waiting:
            begun = self._begun
            self._permits.release()
            eventually(lambda: self._begun > begun)

    def end(self) -> None:
        self._open = True
        self._permits.release(len(self.futures))


def marking_pool() -> AdaptiveExecutor:
    """Return a pool with one worker that knows its marked tasks, as one with a `spill` does."""
    pool = AdaptiveExecutor(1, keep_alive=LONG)
    pool._pool.look_for(Spillable)
    return pool


def take_all(pool: Any) -> list[Any]:
    """Take marked tasks until there are none."""
    found = []
    while (call := pool.take_marked(math.inf)) is not None:
        found.append(call[0])
    return found


@pytest.mark.parametrize("seed", range(20))
def test_no_marked_task_is_passed_over(seed: int) -> None:
    chance = random.Random(seed)
    with marking_pool() as pool:
        core: Any = pool._pool
        steps = Steps(pool)
        lane, first = pool.lane("lane", limit=3), pool.lane("first", limit=3, first=True)
        ours: list[Any] = []
        in_queue: list[Any] = []
        away: list[Any] = []
        ways = (pool.submit, pool.submit, pool.submit_first, lane.submit, first.submit)
        try:
            for _ in range(chance.randrange(40, 160)):
                act = chance.random()
                if act < 0.4:
                    steps.futures.append(chance.choice(ways)(steps.step))
                elif act < 0.6:
                    way = chance.choice(ways)
                    ours.append(way(marked))
                    if way in (pool.submit, pool.submit_first):
                        in_queue.append(ours[-1])
                elif act < 0.7:
                    steps.take()
                elif act < 0.8 and len(steps.futures) > 1:
                    chance.choice(steps.futures[1:]).cancel()
                elif act < 0.84 and ours:
                    chance.choice(ours).cancel()
                elif act < 0.86:
                    for future in steps.futures[1:]:
                        if chance.random() < 0.7:
                            future.cancel()
                elif act < 0.95:
                    call = core.take_marked(math.inf)
                    if call is not None:
                        away.append(call[0])
                elif away:
                    back = away.pop()
                    core.take_back(back, steps.step, (), None)
                    # It has no mark any more.
                    in_queue[:] = [future for future in in_queue if future is not back]
            if chance.random() < 0.5:
                steps.take()
            away += take_all(core)
            # A task of a lane may be held back by the limit, and not be in the queue.
            left = [future for future in in_queue if not (future.done() or future.running())]
            assert left == []
            assert pool.stats().away == len(away)
        finally:
            for future in away:
                core.bring_home(future, None, None)
            steps.end()
        wait_for_idle(pool)
        stats = pool.stats()
        assert stats.submitted == stats.completed + stats.cancelled
        assert stats.queued == stats.away == 0


def test_tasks_are_as_old_as_their_wait_in_the_queue() -> None:
    with marking_pool() as pool, Gate() as gate:
        core: Any = pool._pool
        gate.hold(pool)
        before = monotonic()
        future = pool.submit(marked)
        pool.submit(int)
        assert not core.overdue(before - LONG)
        assert core.take_marked(before - LONG) is None
        assert core.overdue(math.inf)
        assert core.take_marked(math.inf)[0] is future
        assert not core.overdue(math.inf)
        core.bring_home(future, None, None)


def test_the_queue_is_as_it_was_but_for_what_was_taken() -> None:
    order: list[int] = []
    with marking_pool() as pool, Gate() as gate:
        core: Any = pool._pool
        gate.hold(pool)
        for number in range(500):
            pool.submit(order.append, number)
            if number % 50 == 0:
                pool.submit(marked)
        found = take_all(core)
        assert len(found) == 10
        # Slots that were left behind do not count as waiting.
        assert pool.stats().queued == 500
        for future in found:
            core.bring_home(future, None, None)
        gate.open()
        wait_for_idle(pool)
    assert order == list(range(500))


@pytest.mark.usefixtures("no_turns")
def test_what_comes_back_goes_before_the_others_in_its_turn() -> None:
    order: list[str] = []
    with marking_pool() as pool, Gate() as gate:
        core: Any = pool._pool
        gate.hold(pool)
        first = pool.lane("first", limit=5, first=True)
        put = spillable(order.append)
        pool.submit(put, "ordinary")
        first.submit(put, "first")
        found = take_all(core)
        pool.submit(order.append, "second ordinary")
        first.submit(order.append, "second first")
        for future, name in zip(found, ("ordinary", "first"), strict=True):
            core.take_back(future, order.append, (name,), None)
        gate.open()
        wait_for_idle(pool)
    assert order == ["first", "second first", "ordinary", "second ordinary"]
