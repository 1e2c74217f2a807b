"""An overloaded pool uses as few workers as get as much done, and all of them where each one counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic

import pytest
from support.common import Gate

from ebbpool import AdaptiveExecutor
from ebbpool._pool.restraint import ENOUGH, HOLD, Restraint
from ebbpool._testing import seams

WORKERS = 256
ALL = seams.ALL


class Overload:
    """A pool with a standing queue, at whose tasks `rate(workers)` tasks a second end."""

    def __init__(self, rate: Callable[[int], float], max_wait: float = 1.0) -> None:
        self.rate, self.max_wait = rate, max_wait
        self.restraint = Restraint()
        self.now = 1000.0
        self.ended = 0.0
        self.seen: list[int] = []

    def go_on(self, seconds: float) -> int:
        """Let time pass; return how many workers are used then."""
        used = WORKERS
        for _ in range(int(seconds / 0.01)):
            used = min(WORKERS, self.restraint.most)
            self.ended += 0.01 * self.rate(used)
            most = self.restraint.decide(self.now, int(self.ended), used, used == WORKERS, self.max_wait)
            if self.seen[-1:] != [most]:
                self.seen.append(most)
            self.now += 0.01
        return used


def test_where_more_get_no_more_done_few_are_used() -> None:
    pool = Overload(lambda workers: min(8, workers) / 0.05)
    assert pool.go_on(6.0) == 16
    assert pool.seen == [ALL, 64, 16]


def test_too_few_are_given_back() -> None:
    pool = Overload(lambda workers: min(8, workers) / 0.05, 0.2)
    assert pool.go_on(6.0) == 8
    assert pool.seen == [ALL, 64, 16, 4, 8]


def test_where_tasks_are_short_all_are_used() -> None:
    pool = Overload(lambda workers: min(8, workers) / 0.05, 60.0)
    pool.go_on(10.0)
    assert pool.seen == [ALL]


def test_where_each_one_counts_all_are_used_and_few_are_tried_ever_more_seldom() -> None:
    pool = Overload(lambda workers: workers / 0.5)
    pool.go_on(120.0)
    assert set(pool.seen) == {ALL, 64}
    assert pool.seen.count(64) == 5


def test_half_are_used_where_a_quarter_get_less_done() -> None:
    pool = Overload(lambda workers: min(100, workers) / 0.5)
    assert pool.go_on(10.0) == 128
    assert pool.seen == [ALL, 64, 128, 256, 128]


def test_what_begins_and_ends_at_the_same_moments_is_counted_for_long_enough() -> None:
    pool = Overload(lambda workers: 0)
    for beat in range(60):
        # All of them end together, and wait for half a second again.
        pool.ended += min(WORKERS, pool.restraint.most)
        pool.go_on(0.5)
        assert pool.restraint.most >= 64, beat


def test_where_those_left_wait_for_those_held_back_all_are_used() -> None:
    pool = Overload(lambda workers: 100 if workers > 20 else 0)
    pool.go_on(6.0)
    assert pool.seen[:3] == [ALL, 64, 16]
    assert pool.seen[-1] == ALL


def test_more_are_used_once_they_get_more_done() -> None:
    places = 8
    pool = Overload(lambda workers: min(places, workers) / 0.05)
    assert pool.go_on(6.0) == 16
    places = 100
    assert pool.go_on(2.0 * HOLD) == 128


def test_a_queue_that_does_not_stand_leaves_all_workers() -> None:
    pool = Overload(lambda workers: min(8, workers) / 0.05)
    pool.go_on(6.0)
    pool.restraint.rest()
    assert pool.restraint.decide(pool.now, 0, WORKERS, True, 1.0) == ALL


def test_few_tasks_say_nothing() -> None:
    pool = Overload(lambda workers: (ENOUGH - 1) / 10)
    pool.go_on(10.0)
    assert pool.seen == [ALL]


@pytest.fixture
def pool() -> Iterator[AdaptiveExecutor]:
    with seams.watched_by(seams.Nobody()), AdaptiveExecutor(4, min_workers=4, max_wait=1.0) as pool:
        yield pool


class Half(Restraint):
    def decide(self, now: float, ended: int, used: int, full: bool, max_wait: float) -> int:
        self.most = 2
        return 2


def test_a_standing_queue_asks_for_restraint_and_its_end_lets_all_work(pool: AdaptiveExecutor) -> None:
    seams.follow(pool, restraint=Half())
    with Gate() as gate:
        gate.hold(pool, 4)
        waiting = pool.within(100.0).submit(gate)
        now = monotonic()
        seams.begin_looks(pool, now, 1.0)
        seams.look_at(pool, now + 0.2, 1.1)
        assert seams.allowed(pool) == ALL, "late, and not for long enough"
        seams.look_at(pool, now + 0.4, 1.2)
        assert seams.allowed(pool) == 2
        assert "more workers got no more done: 2 may be used" in pool.stats().last_decision
        assert not waiting.done()
    waiting.result()
    with Gate() as gate:
        gate.hold(pool, 2)
        pool.submit(gate)
        assert gate.nobody_begins()
        seams.look_at(pool, now, 1.3)
        assert seams.allowed(pool) == ALL
        gate.await_begun()
