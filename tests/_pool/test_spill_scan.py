"""Marked tasks are found wherever they stand in the queue, and no task is looked at again without need."""

from __future__ import annotations

import math
import random
import threading
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


def take_all(pool: Any, most: int = 3) -> list[Any]:
    """Take marked tasks until there are none; each look goes through a few tasks only."""
    found = []
    more = True
    while more:
        call, more = pool.take_marked(Spillable, math.inf, most)
        if call is not None:
            found.append(call[0])
    return found


@pytest.mark.parametrize("seed", range(20))
def test_no_marked_task_is_passed_over(seed: int) -> None:
    chance = random.Random(seed)
    with AdaptiveExecutor(1, keep_alive=LONG) as pool:
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
                    call, _ = core.take_marked(Spillable, math.inf, chance.randrange(1, 6))
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


def test_what_has_been_looked_at_is_not_looked_at_again() -> None:
    with AdaptiveExecutor(1, keep_alive=LONG) as pool, Gate() as gate:
        core: Any = pool._pool
        gate.hold(pool)
        for _ in range(1000):
            pool.submit(int)
        assert core.overdue(Spillable, math.inf)
        looks = 0
        more = True
        while more:
            call, more = core.take_marked(Spillable, math.inf, 100)
            looks += 1
            assert call is None
        assert looks == 10
        assert not core.overdue(Spillable, math.inf)
        # From now on a look begins behind the thousand.
        future = pool.submit(marked)
        assert core.overdue(Spillable, math.inf)
        call, more = core.take_marked(Spillable, math.inf, 1)
        assert call is not None
        assert call[0] is future
        core.bring_home(future, None, None)


def test_tasks_that_go_first_are_found_from_behind() -> None:
    with AdaptiveExecutor(1, keep_alive=LONG) as pool, Gate() as gate:
        core: Any = pool._pool
        gate.hold(pool)
        future = pool.submit_first(marked)
        for _ in range(1000):
            pool.submit_first(int)
        assert core.overdue(Spillable, math.inf)
        call, _ = core.take_marked(Spillable, math.inf, 1)
        assert call is not None
        assert call[0] is future
        assert not core.overdue(Spillable, math.inf)
        core.bring_home(future, None, None)


def test_the_queue_is_as_it_was_but_for_what_was_taken() -> None:
    order: list[int] = []
    with AdaptiveExecutor(1, keep_alive=LONG) as pool, Gate() as gate:
        core: Any = pool._pool
        gate.hold(pool)
        for number in range(500):
            pool.submit(order.append, number)
            if number % 50 == 0:
                pool.submit(marked)
        found = take_all(core, 7)
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
    with AdaptiveExecutor(1, keep_alive=LONG) as pool, Gate() as gate:
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
