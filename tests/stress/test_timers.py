"""Delayed and repeating calls under pressure: nothing early, twice or lost, and no schedule beside itself."""

from __future__ import annotations

import functools
import itertools
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from stress_harness import (
    LONG_ENOUGH,
    PATIENCE,
    SEED,
    BoomError,
    Crew,
    Ledger,
    Ticket,
    bounded,
    bring,
    check_closed,
    close,
    each_round,
    rounds,
    storms,
    stuck,
)

from ebbpool import AdaptiveExecutor, ScheduledTask

SETTINGS: dict[str, dict[str, Any]] = {
    "wide": {"max_workers": 8, "keep_alive": 0.001},
    "narrow": {"max_workers": 1},
    "block": {"max_workers": 3, "max_queue": 2, "when_full": "block"},
    "block, hand to hand": {"max_workers": 3, "max_queue": 0, "when_full": "block", "keep_alive": 0.001},
    "reject": {"max_workers": 3, "max_queue": 2, "when_full": "reject"},
    "caller runs": {"max_workers": 3, "max_queue": 2, "when_full": "caller_runs"},
}
NEAR = (0.0, 0.0001, 0.0005, 0.002, 0.005)
FAR = 3600.0
ENDINGS = ("idle", "wait", "cancel", "no wait", "two at once")
NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def failing_runs_are_not_logged() -> Iterator[None]:
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


class Delays(Ledger):
    """Every delayed call of one pool. Each notes it when it runs before its time."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies["far"] = self._quick
        self.bodies = {kind: functools.partial(self._due, body) for kind, body in self.bodies.items()}

    def _due(self, body: Callable[..., object], ticket: Ticket, due: float, *args: Any) -> object:
        early = due - time.monotonic()
        if early > 0:
            self.problems.append(f"a call ran {early:g} s too early")
        return body(ticket, *args)

    def later(self, pool: AdaptiveExecutor, delay: float, kind: str = "quick", *args: Any) -> Ticket:
        """Submit one delayed call. Raises RuntimeError if the pool was shut down."""
        due = time.monotonic() + delay
        ticket = self.hand_in(Ticket(kind), functools.partial(pool.submit_later, delay), due, *args)
        assert ticket is not None
        return ticket

    def cancel_far(self) -> None:
        for ticket in list(self.accepted):
            if ticket.kind == "far":
                ticket.cancel()


class Storm:
    """One pool, its plain and its delayed calls, and what each member of the crew does in one step."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.prefix = f"timers{next(NUMBERS)}"
        self.pool = AdaptiveExecutor(thread_name_prefix=self.prefix, **settings)
        self.bounded = settings.get("max_queue") is not None
        self.plain, self.delays = Ledger(), Delays()

    def near(self, rng: random.Random) -> bool:
        try:
            kind = rng.choice(("quick", "quick", "boom", "sleepy"))
            tickets = [self.delays.later(self.pool, rng.choice(NEAR), kind) for _ in range(rng.randint(1, 10))]
        except RuntimeError:
            return False
        for ticket in tickets:
            if rng.random() < 0.3:
                ticket.add_callback()
            if rng.random() < 0.2:
                ticket.cancel()
        bring(tickets[-1], "a delayed call", self.pool)
        return True

    def far(self, rng: random.Random) -> bool:
        """Add so many that they are folded in, and cancel so many that they are swept out."""
        if len(self.delays.accepted) > 5000:
            return False
        try:
            tickets = [self.delays.later(self.pool, FAR + rng.random(), "far") for _ in range(rng.randint(1, 300))]
        except RuntimeError:
            return False
        for ticket in rng.sample(tickets, len(tickets) * 4 // 5):
            ticket.cancel()
        return True

    def submitter(self, rng: random.Random) -> bool:
        try:
            ticket = self.plain.submit(self.pool, rng.choice(("quick", "sleepy")))
        except RuntimeError:
            return False
        if ticket is not None and rng.random() < 0.3 and not ticket.read(PATIENCE):
            stuck(f"a plain task beside delayed ones: {ticket.future!r}; {self.pool.stats()}")
        return True

    def canceller(self, rng: random.Random) -> None:
        for ticket in self.delays.recent(rng, 3, window=20):
            ticket.cancel()
        time.sleep(rng.random() * 0.0005)

    def resizer(self, rng: random.Random) -> None:
        if self.bounded:
            self.pool.resize(max_queue=rng.randint(0, 5))
        self.pool.resize(max_workers=rng.randint(1, 5))
        time.sleep(rng.random() * 0.002)

    def end(self, ending: str) -> None:
        if ending == "cancel":
            bounded("shutdown(cancel_futures=True)", self.pool.shutdown, cancel_futures=True)
        elif ending == "no wait":
            self.pool.shutdown(wait=False)
        elif ending == "two at once":
            crew = Crew()
            crew.repeat("closer", lambda rng: self.pool.shutdown(wait=rng.random() < 0.5) or False, copies=2)
            crew.wait()
        bounded("the last shutdown()", self.pool.shutdown)


def rage(storm: Storm, ending: str, rng: random.Random) -> None:
    """Let one storm rage for a moment, end it, and settle the accounts."""
    crew = Crew()
    crew.repeat("near", storm.near, copies=3)
    crew.repeat("far", storm.far)
    crew.repeat("submitter", storm.submitter)
    crew.repeat("canceller", storm.canceller)
    crew.repeat("resizer", storm.resizer)
    crew.stop.wait(0.02 + rng.random() * 0.3)
    if ending == "idle":
        crew.join()
        storm.delays.cancel_far()
        storm.plain.settle()
        storm.delays.settle()
        assert storm.pool.wait_idle(PATIENCE), storm.pool.stats()
        assert storm.pool.stats().delayed == 0
    storm.end(ending)
    crew.join()
    check_closed(storm.pool, storm.plain, storm.prefix, storm.delays)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_every_delayed_call_has_one_fate(settings: dict[str, Any]) -> None:
    """Whatever happens at once, a delayed call runs once, and not too early, or it is cancelled; figures add up."""
    for storm in storms(lambda: Storm(settings), rage, ENDINGS):
        assert storm.delays.refusals <= {"cannot schedule new futures after shutdown"}


@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
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


def test_calls_with_the_same_delay_keep_their_order() -> None:
    """With one worker, a thread's calls that are due one after another run in that order, among thousands of others."""
    pool = AdaptiveExecutor(1, "order")
    delays = Delays()
    order: list[tuple[str, int]] = []
    places = itertools.count()

    def submitter(rng: random.Random, delay: float) -> None:
        name = threading.current_thread().name
        tickets = [
            delays.later(pool, delay, "call", order.append, (name, next(places))) for _ in range(rng.randint(1, 200))
        ]
        for ticket in rng.sample(tickets, len(tickets) // 2):
            ticket.cancel()
        for ticket in tickets:
            bring(ticket, "a delayed call", pool)

    crew = Crew()
    for number, delay in enumerate((0.0, 0.001, 0.004)):
        crew.repeat(f"submitter {number}", functools.partial(submitter, delay=delay))
    crew.press()
    close(pool, delays, "order")
    for name in {name for name, _ in order}:
        own = [place for submitter, place in order if submitter == name]
        assert own == sorted(own)


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


@pytest.mark.parametrize("where", ["beside", "within"])
def test_nothing_is_left_of_a_schedule_that_was_cancelled(where: str) -> None:
    """However close cancel() comes to a run, or if a run itself calls it: when that run is over, none is to come."""
    pool = AdaptiveExecutor(1, "left", keep_alive=0.001)
    rng = random.Random(SEED)
    for _ in rounds():
        for _ in range(5):
            begun: list[None] = []
            tasks: list[ScheduledTask] = []
            ended = threading.Event()
            last = rng.randint(1, 3)

            def run(
                begun: list[None] = begun,
                tasks: list[ScheduledTask] = tasks,
                ended: threading.Event = ended,
                last: int = last,
            ) -> None:
                begun.append(None)
                if len(begun) == last:
                    ended.set()
                    if where == "within" and tasks:
                        tasks[0].cancel()

            task = pool.schedule(0.0001, run, first=0.0)
            tasks.append(task)
            if not ended.wait(PATIENCE):
                stuck(f"{task!r} did not come to run {last}; {pool.stats()}")
            for _ in range(rng.randrange(400)):
                pass
            task.cancel()
            assert not task.active and task.next_run is None
            assert pool.wait_idle(PATIENCE)
            count = len(begun)
            assert pool.stats().delayed == 0, "a cancelled schedule waits for its next run"
            time.sleep(0.0003)
            assert len(begun) == count, "a run began after cancel() had returned"
    bounded("shutdown", pool.shutdown)


@pytest.mark.parametrize("max_queue", [None, 1])
def test_shutdowns_race_timers(max_queue: int | None) -> None:
    """Delayed calls and schedules that meet one shutdown or two: all of them end, and none runs afterwards."""

    @each_round
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
