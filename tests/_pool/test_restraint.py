"""An overloaded pool uses as few workers as get as much done, and all of them where each one counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic

import pytest
from support.common import Gate

from ebbpool import AdaptiveExecutor
from ebbpool._testing import seams
from ebbpool._testing.rules import HOLD, WATCH, Restraint

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
        self.used = WORKERS
        self.held = 0.0

    def go_on(self, seconds: float) -> int:
        """Let time pass; return how many workers are used then."""
        for _ in range(round(seconds / 0.01)):
            self.used = min(WORKERS, self.restraint.most)
            self.ended += 0.01 * self.rate(self.used)
            full = self.used == WORKERS
            most = self.restraint.decide(self.now, int(self.ended), self.used, full, self.max_wait)
            self.held += 0.01 * (most != ALL)
            if self.seen[-1:] != [most]:
                self.seen.append(most)
            self.now += 0.01
        return self.used


@pytest.mark.parametrize(
    ("places", "each", "max_wait", "seen"),
    [
        (8, 0.05, 1.0, [ALL, 64, 16]),
        (8, 0.05, 0.2, [ALL, 64, 16, 4, 8]),
        (100, 0.5, 1.0, [ALL, 64, 128]),
    ],
    ids=["few", "too few are given back", "half, where a quarter get less done"],
)
def test_where_more_get_no_more_done_few_are_used(places: int, each: float, max_wait: float, seen: list[int]) -> None:
    pool = Overload(lambda workers: min(places, workers) / each, max_wait)
    assert pool.go_on(5.0) == seen[-1]
    assert pool.seen == seen


@pytest.mark.parametrize(
    ("seconds", "max_wait", "stands"),
    [(0.5, 60.0, WATCH), (10.0, 1.0, WATCH), (0.5, 1.0, WATCH / 2)],
    ids=["short tasks", "few tasks", "a moment"],
)
def test_nothing_is_tried_where_nothing_is_to_be_gained_or_seen(seconds: float, max_wait: float, stands: float) -> None:
    pool = Overload(lambda workers: workers / seconds, max_wait)
    for _ in range(30):
        pool.go_on(stands)
        if stands < WATCH:
            pool.restraint.rest(pool.now)
    assert pool.seen == [ALL]


def test_where_each_one_counts_all_are_used_and_few_are_tried_ever_more_seldom() -> None:
    pool = Overload(lambda workers: workers / 0.5)
    pool.go_on(600.0)
    assert pool.seen.count(64) in range(10, 15)
    assert pool.held < 0.02 * 600.0


def test_the_rest_after_a_trial_outlasts_a_queue_that_stands_no_longer() -> None:
    pool = Overload(lambda workers: workers / 0.5)
    for _ in range(100):
        pool.go_on(WATCH + 0.3)
        pool.restraint.rest(pool.now)
    assert pool.seen.count(64) < 10, "a trial that nobody has judged has not paid"


def test_what_begins_and_ends_at_the_same_moments_is_counted_for_long_enough() -> None:
    pool = Overload(lambda workers: 0)
    for beat in range(200):
        # All of them end together, and wait for a while again.
        pool.ended += min(WORKERS, pool.restraint.most)
        pool.go_on(0.2)
        assert pool.restraint.most >= 64, beat


@pytest.mark.parametrize("at", [64, 16])
def test_where_those_left_wait_for_those_held_back_all_are_used_at_once(at: int) -> None:
    pool = Overload(lambda workers: 130 if workers > at else 0)
    while pool.restraint.most != at:
        pool.go_on(0.01)
    pool.go_on(0.3)
    assert pool.restraint.most == ALL


@pytest.mark.parametrize("left", [0, 1, 4])
def test_where_most_of_the_few_hang_all_are_used(left: int) -> None:
    hung = 0
    pool = Overload(lambda workers: max(0, min(8, workers - hung)) / 0.05)
    pool.go_on(5.0)
    hung = 16 - left
    pool.go_on(3.0)
    assert (pool.restraint.most == ALL) is (left < 4)


def test_workers_that_do_not_come_free_end_a_trial() -> None:
    pool = Overload(lambda workers: 160)
    while pool.restraint.most == ALL:
        pool.go_on(0.01)
    for _ in range(500):
        pool.ended += 1
        pool.now += 0.01
        pool.restraint.decide(pool.now, int(pool.ended), WORKERS, True, 1.0)
    assert pool.restraint.most == ALL


@pytest.mark.parametrize(
    ("rate", "most"),
    [(lambda workers: min(100, workers) / 0.05, 128), (lambda workers: workers / 0.2, WORKERS)],
    ids=["more places", "each one counts, though all get half as much done as before"],
)
def test_more_are_used_once_they_get_more_done(rate: Callable[[int], float], most: int) -> None:
    pool = Overload(lambda workers: min(8, workers) / 0.05)
    assert pool.go_on(5.0) == 16
    pool.rate = rate
    assert pool.go_on(2.0 * HOLD) == most


def test_a_look_without_a_worker_in_use_does_no_harm() -> None:
    pool = Overload(lambda workers: min(8, workers) / 0.05)
    pool.go_on(5.0)
    for _ in range(1000):
        pool.now += 0.01
        pool.ended += 2
        assert pool.restraint.decide(pool.now, int(pool.ended), 0, True, 1.0) >= 16


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
