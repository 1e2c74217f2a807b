"""Delayed and repeating calls under pressure: nothing early, twice or lost, and no schedule beside itself."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from stress_harness import (
    LONG_ENOUGH,
    PATIENCE,
    BoomError,
    Crew,
    Delays,
    bounded,
    bring,
    close,
    rounds,
    stuck,
)

from ebbpool import AdaptiveExecutor, ScheduledTask

NEAR = (0.0, 0.0001, 0.0005, 0.002, 0.005)
FAR = 3600.0


@pytest.fixture(autouse=True)
def failing_runs_are_not_logged() -> Iterator[None]:
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(("threads", "crowded"), [(1, False), (3, False), (2, True)])
def test_a_delayed_call_is_never_lost(threads: int, crowded: bool) -> None:
    """Each thread waits for the few calls that it made: the timekeeper sleeps, and has to be woken in time.

    In a crowd, calls that are far off are added and cancelled all the while.
    """
    pool = AdaptiveExecutor(4, "lone", keep_alive=0.001)
    delays = Delays()

    def lone(rng: random.Random) -> None:
        # Later ones first: the second has to bring the time forward at which the timekeeper wakes up.
        tickets = [delays.later(pool, delay) for delay in sorted(rng.choices(NEAR, k=rng.randint(1, 3)), reverse=True)]
        if rng.random() < 0.2:
            tickets[-1].cancel()
        for ticket in tickets:
            bring(ticket, "a delayed call", pool)

    def far(rng: random.Random) -> bool:
        tickets = [delays.later(pool, FAR + rng.random(), "far") for _ in range(rng.randint(1, 1500))]
        for ticket in rng.sample(tickets, len(tickets) * 9 // 10):
            ticket.cancel()
        return len(delays.accepted) < 20000

    crew = Crew()
    crew.repeat("lone", lone, copies=threads)
    if crowded:
        crew.repeat("far", far)
    crew.press()
    close(pool, delays, "lone")


class Beat:
    """One schedule: what was asked, and what its runs noted."""

    def __init__(self, rng: random.Random) -> None:
        self.interval = rng.choice((0.0001, 0.0005, 0.002))
        self.first = rng.choice((None, 0.0, 0.0005))
        self.seconds = rng.choice((0.0, 0.0, 0.0003, 0.003))
        self.enough = rng.randint(1, 4)
        self.failing = rng.randint(1, self.enough) if rng.random() < 0.4 else 0
        self.stops = self.failing == self.enough
        self.asked = 0.0
        self.inside: list[None] = []
        self.begun: list[float] = []
        self.over: list[bool] = []
        self.problems: list[str] = []
        self.cancel_won: list[None] = []
        self.begun_when_cancelled: list[int] = []
        self.reached = threading.Event()
        self.task: ScheduledTask | None = None

    def start(self, pool: AdaptiveExecutor) -> None:
        """Have the runs begin. Raises RuntimeError if the pool was shut down."""
        self.asked = time.monotonic()
        self.task = pool.schedule(self.interval, self.run, first=self.first, on_error="stop" if self.stops else "log")

    def due(self, beat: int) -> float:
        """When a beat is due at the earliest."""
        return self.asked + (self.interval if self.first is None else self.first) + beat * self.interval

    def run(self) -> None:
        self.inside.append(None)
        if len(self.inside) > 1:
            self.problems.append("a run beside another one")
        now = time.monotonic()
        beat = len(self.begun)
        if self.task is not None:
            beat = max(beat, self.task.runs + self.task.missed)
        if now < self.due(beat):
            self.problems.append(f"the run of beat {beat} was {self.due(beat) - now:g} s early")
        self.begun.append(now)
        failing = len(self.begun) == self.failing
        try:
            if self.seconds:
                time.sleep(self.seconds)
        finally:
            self.over.append(failing)
            self.inside.pop()
        if len(self.begun) >= self.enough:
            self.reached.set()
        if failing:
            raise BoomError

    def cancel(self) -> None:
        """End the schedule, which one alone can do; no run begins afterwards."""
        assert self.task is not None
        if self.task.cancel():
            self.cancel_won.append(None)
        self.begun_when_cancelled.append(len(self.begun))
        assert not self.task.active and self.task.next_run is None

    def check(self) -> None:
        """After its pool has gone: whether the figures agree with what the runs noted."""
        assert not self.problems, self.problems[0]
        task = self.task
        assert task is not None
        assert not task.active and task.next_run is None and not task.cancel()
        assert len(self.cancel_won) <= 1
        # One may have been taken already, and have come to its first line only then.
        most = min(self.begun_when_cancelled, default=len(self.begun)) + 1
        assert len(self.begun) <= most, "a schedule went on after cancel() had returned"
        assert not self.inside
        assert task.runs == len(self.begun) == len(self.over)
        assert task.missed >= 0
        assert self.due(task.runs + task.missed - 1) <= time.monotonic() or task.runs == 0, repr(task)
        assert isinstance(task.last_error, BoomError) is any(self.over)
        if self.stops:
            assert not any(self.over[:-1]), "a schedule went on after a run that was to stop it"


def check_beats(pool: AdaptiveExecutor, beats: list[Beat]) -> None:
    """After the pool's shutdown: every schedule has ended, and the pool's figures are the sum of theirs."""
    for beat in beats:
        beat.check()
    stats = pool.stats()
    runs = sum(len(beat.over) for beat in beats)
    failed = sum(sum(beat.over) for beat in beats)
    assert (stats.completed, stats.failed) == (runs - failed, failed)
    assert (stats.queued, stats.running, stats.delayed, stats.workers) == (0, 0, 0, 0), stats
    # What was cancelled is the run that each had ahead of it when it ended.
    assert stats.submitted - runs == stats.cancelled <= len(beats)


@pytest.mark.parametrize("settings", [{"max_workers": 1}, {"max_workers": 4, "keep_alive": 0.001}], ids=str)
def test_a_schedule_goes_on_until_it_is_ended(settings: dict[str, Any]) -> None:
    """Schedules that begin, fail and are cancelled in several threads: none stalls, overlaps or outlives its end."""
    pool = AdaptiveExecutor(thread_name_prefix="beat", **settings)
    beats: list[Beat] = []

    def keeper(rng: random.Random) -> None:
        beat = Beat(rng)
        beat.start(pool)
        beats.append(beat)
        disturbed = rng.random() < 0.2
        if not disturbed and not beat.reached.wait(PATIENCE):
            stuck(f"{beat.task!r} did not come to run {beat.enough}; {pool.stats()}")
        beat.cancel()

    def canceller(rng: random.Random) -> None:
        time.sleep(rng.random() * 0.01)
        for beat in beats[-3:]:
            if beat.reached.is_set():
                beat.cancel()

    crew = Crew()
    crew.repeat("keeper", keeper, copies=4)
    crew.repeat("canceller", canceller)
    crew.press()
    bounded("shutdown", pool.shutdown)
    check_beats(pool, beats)
    assert beats or not LONG_ENOUGH


@pytest.mark.parametrize("max_queue", [None, 1])
def test_shutdowns_race_timers(max_queue: int | None) -> None:
    """Delayed calls and schedules that meet one shutdown or two: all of them end, and none runs afterwards."""

    def play(number: int) -> None:
        pool = AdaptiveExecutor(2, "closing", max_queue=max_queue)
        delays = Delays()
        beats: list[Beat] = []
        ready = threading.Barrier(5)

        def submitter(rng: random.Random) -> bool:
            ready.wait(PATIENCE)
            try:
                for _ in range(200):
                    delays.later(pool, rng.choice((*NEAR, FAR))).add_callback()
            except RuntimeError:
                pass
            return False

        def keeper(rng: random.Random) -> bool:
            ready.wait(PATIENCE)
            try:
                for _ in range(40):
                    beat = Beat(rng)
                    beat.start(pool)
                    beats.append(beat)
            except RuntimeError:
                pass
            return False

        def closer(rng: random.Random) -> bool:
            ready.wait(PATIENCE)
            time.sleep(rng.random() * 0.003)
            pool.shutdown(wait=rng.random() < 0.5, cancel_futures=number % 2 == 0)
            return False

        crew = Crew()
        crew.repeat("submitter", submitter, copies=2)
        crew.repeat("keeper", keeper)
        crew.repeat("closer", closer, copies=2)
        crew.wait()
        bounded("shutdown", pool.shutdown)
        delays.settle()
        delays.tally()
        for beat in beats:
            beat.check()
        stats = pool.stats()
        assert (stats.queued, stats.running, stats.delayed, stats.workers) == (0, 0, 0, 0), stats

    for number in rounds():
        play(number)
