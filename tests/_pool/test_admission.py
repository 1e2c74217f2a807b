"""How many workers run at a time: the rule over numbers alone, and what the engine makes of it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from time import monotonic
from typing import Any
from unittest import mock

import pytest
from support import rules, seams
from support.common import TIMEOUT, Gate, eventually, wait_for_idle
from support.loops import given_up

from ebbpool import AdaptiveExecutor, QueueFull
from ebbpool._pool import crew
from ebbpool._pool import interval as intervals

CPUS = 4


class Spell:
    """Looks at a pool, a window apart, under an injected clock."""

    def __init__(self, gil: bool = True) -> None:
        self.load = rules.Load(gil)
        self.now, self.cpu, self.taken = 1000.0, 50.0, 0
        self.load.begin(rules.Tick(self.now, self.cpu, 0.0), self.taken)
        self.admission = rules.Admission(self.load)
        self.workers = rules.Workers(0, 0, 0)

    def look(self, used: float = 0.0, wait: float = 0.0, after: float = 0.0, taken: int = 1) -> int:
        """Let `after` seconds pass in which so many processors were `used`; this look has to `wait` for so long."""
        self.now += after
        self.cpu += used * after
        self.taken += taken
        self.load.see(rules.Tick(self.now, self.cpu, wait), CPUS, self.taken)
        return self.admission.decide(lambda: self.workers)

    def window(self, used: float = 0.0, wait: float = 0.0, times: int = 1, taken: int = 1) -> int:
        allowed = seams.ALL
        for _ in range(times):
            allowed = self.look(used, wait, 1.01 * rules.WINDOW, taken)
        return allowed

    def compute(self, running: int, long: int = 0, asleep: int = 0) -> None:
        self.workers = rules.Workers(running, long, asleep)


@pytest.fixture
def spell() -> Spell:
    return Spell()


QUEUED = 1.2 * rules.QUEUE
"""What looks wait where threads queue."""
SHORT = 2, 1.0, QUEUED, 1, 1
"""One of two that compute may run."""
SENTENCES: dict[str, list[tuple[int, float, float, int, int]]] = {
    "nobody is held back while looks are punctual": [
        (6, 1.0, 0.0, 5, seams.ALL),
        (6, 1.0, 0.9 * rules.QUEUE, 5, seams.ALL),
        (6, 0.2, QUEUED, 5, seams.ALL),
    ],
    "where threads queue for the GIL fewer run from window to window": [
        (8, 1.0, QUEUED, 1, 4),
        (4, 1.0, QUEUED, 1, 2),
        (2, 1.0, QUEUED, 1, 1),
        (1, 1.0, QUEUED, 1, 1),
    ],
    "long waits show a short GIL though others have the processors": [
        (8, 0.5, 0.9 * rules.TURN, 1, seams.ALL),
        (8, 0.3, 1.1 * rules.TURN, 1, seams.ALL),
        (8, 0.5, 1.1 * rules.TURN, 1, 4),
    ],
    "where the GIL is let go as many run as there are processors": [
        (0, CPUS, 0.0, 1, seams.ALL),
        (8, CPUS, QUEUED, 1, 4),
        (4, CPUS, QUEUED, 1, 4),
        (2, 1.0, QUEUED, 1, 1),
        (2, CPUS, QUEUED, 1, CPUS),
    ],
    "an idle GIL lets more run until nobody is held back": [
        SHORT,
        (2, 0.7, QUEUED, 1, 2),
        (2, 0.7, QUEUED, 1, 3),
        (2, 0.3, 0.0, 7, 10),
        (2, 0.3, 0.0, 1, seams.ALL),
    ],
    "room on the processors lets more run where the GIL is free": [
        SHORT,
        (2, 1.0, 1.2 * rules.PUNCTUAL, 1, 1),
        (2, 1.0, 0.8 * rules.PUNCTUAL, 1, 2),
        (2, 0.9 * CPUS, 0.8 * rules.PUNCTUAL, 1, 2),
    ],
    "fewer are not tried again for a while where they left the GIL idle": [
        SHORT,
        (2, 0.7, 0.0, 1, 2),
        (2, 1.0, QUEUED, int(rules.RETRY / rules.WINDOW) - 2, 2),
        (2, 1.0, QUEUED, 3, 1),
    ],
    "what slept and now computes is not kept at as many": [
        SHORT,
        (2, 0.1, 0.0, 10, seams.ALL),
        (8, 1.0, QUEUED, 1, 4),
    ],
    "a GIL that is just busy enough changes nothing": [(4, 1.0, QUEUED, 1, 2), (4, 1.0, 0.9 * rules.QUEUE, 5, 2)],
    "a GIL that looks wait for is not idle": [
        SHORT,
        (2, 0.7, 1.2 * rules.TURN, 5, 1),
        (2, 0.7, 0.8 * rules.TURN, 1, 2),
    ],
}
"""What is seen: how many compute, how many processors are used, and for how long looks wait, in so many windows; and
how many may run then."""


@pytest.mark.parametrize("steps", SENTENCES.values(), ids=SENTENCES)
def test_the_rule(spell: Spell, steps: list[tuple[int, float, float, int, int]]) -> None:
    for running, used, wait, windows, allowed in steps:
        spell.compute(running)
        assert spell.window(used, wait, windows) == allowed


def test_no_gil_is_short_where_there_is_none() -> None:
    for gil, allowed in ((True, 4), (False, seams.ALL)):
        spell = Spell(gil)
        spell.compute(8)
        assert spell.window(1.0, QUEUED) == allowed


def test_those_that_sleep_or_run_for_long_do_not_count(spell: Spell) -> None:
    spell.compute(2, asleep=40)
    assert spell.window(used=1.0, wait=QUEUED) == 1 + 40
    spell.compute(0, long=1)
    assert spell.look() == CPUS + 1, "no fewer than processors: they queue for the GIL in any case"
    spell.compute(0, long=30, asleep=5)
    assert spell.look() == CPUS + rules.CREW + 5
    # Where nothing is taken for long, one more may run each pause.
    spell.compute(1, long=30)
    assert spell.look(after=rules.STALL - 0.01, used=0.95, wait=QUEUED, taken=0) == CPUS + rules.CREW
    assert spell.look(after=0.02, used=0.95, wait=QUEUED, taken=0) == 31 + 1
    assert spell.look(after=rules.STALL, used=0.95, wait=QUEUED, taken=0) == 31 + 2
    assert spell.look(taken=1) == CPUS + rules.CREW
    # What others compute keeps few of the pool's own back.
    spell.compute(0, asleep=3)
    assert spell.window(used=1.0, wait=QUEUED) == CPUS + rules.CREW + 3
    spell.admission.rest()
    assert spell.look() == seams.ALL, "the next spell holds nobody back"


@pytest.fixture
def pool() -> Iterator[AdaptiveExecutor]:
    """A pool of up to three workers at which only the test looks."""
    with seams.watched_by(seams.Nobody()), AdaptiveExecutor(4, min_workers=3) as pool:
        yield pool


@contextmanager
def one_of_three(pool: AdaptiveExecutor) -> Iterator[Gate]:
    """Three tasks at a gate, of which one runs: it alone is allowed, and two workers have parked."""
    with Gate() as first, Gate() as second:
        first.hold(pool, 3)
        for _ in range(3):
            pool.submit(second)
        seams.engine_of(pool).admit(1)
        first.open()
        second.await_begun()
        eventually(lambda: pool.stats().idle == 2)
        yield second


def test_workers_beyond_those_allowed_park_as_their_tasks_end_until_more_are(pool: AdaptiveExecutor) -> None:
    with one_of_three(pool) as second:
        assert second.nobody_begins(pool)
        assert (pool.stats().running, pool.stats().queued, second.peak) == (1, 2, 1)
        seams.engine_of(pool).admit(2)
        second.await_begun()
        assert second.nobody_begins(pool)
        seams.engine_of(pool).admit(seams.ALL)
        second.await_begun()


def warm(pool: AdaptiveExecutor, count: int = 3) -> None:
    """Have so many workers parked."""
    with Gate() as gate:
        gate.hold(pool, count)
    wait_for_idle(pool)
    eventually(lambda: pool.stats().idle == count)


def test_a_task_that_is_submitted_wakes_nobody_who_is_held_back_unless_one_waits_for_its_own_pool(
    pool: AdaptiveExecutor,
) -> None:
    warm(pool)
    seams.engine_of(pool).admit(1)
    with Gate() as gate:
        gate.hold(pool)
        pool.submit(gate)
        assert gate.nobody_begins(pool)
        assert pool.stats().idle == 2
    wait_for_idle(pool)
    assert pool.submit(lambda: pool.submit(lambda: pool.submit(int).result()).result()).result(60.0) == 0


def test_a_call_that_nobody_waits_for_is_none_of_those_allowed(pool: AdaptiveExecutor) -> None:
    warm(pool)
    with Gate() as gate, Gate() as others:
        given_up(gate.hold(pool))
        seams.engine_of(pool).admit(1)
        others.hold(pool)
        pool.submit(others)
        assert others.nobody_begins(pool)
        gate.open()


def test_a_closed_pool_holds_nobody_back(pool: AdaptiveExecutor) -> None:
    with one_of_three(pool) as second:
        pool.shutdown(wait=False)
        seams.engine_of(pool).admit(1)
        second.await_begun(2)


def test_what_is_held_back_does_not_count_as_room_in_a_bounded_queue() -> None:
    with seams.watched_by(seams.Nobody()), AdaptiveExecutor(3, min_workers=3, max_queue=1, when_full="reject") as pool:
        warm(pool)
        assert [future.result(TIMEOUT) for future in [pool.submit(int) for _ in range(4)]] == [0] * 4
        wait_for_idle(pool)
        seams.engine_of(pool).admit(1)
        with Gate() as gate:
            gate.hold(pool)
            pool.submit(gate)
            with pytest.raises(QueueFull):
                pool.submit(gate)


class OneAtATime(rules.Admission):
    def decide(self, *_: object) -> int:
        self._gil = True
        self.quick = 1
        return 1


@pytest.mark.asyncio
async def test_a_short_call_runs_beside_workers_that_are_held_back() -> None:
    with (
        seams.watched_by(seams.Nobody()),
        AdaptiveExecutor(8, min_workers=3) as pool,
        Gate() as three,
        Gate() as gate,
        Gate() as others,
    ):
        three.hold(pool, 3)
        three.open()
        eventually(lambda: pool.stats().idle == 3)
        gate.hold(pool)
        seams.engine_of(pool).admit(1)
        seams.know(pool, others.__call__, 1.0)

        async def begin(fn: Any) -> Any:
            return await pool.run(fn)

        held = [asyncio.ensure_future(asyncio.wrap_future(pool.submit(others)))]
        held += [asyncio.ensure_future(begin(others.__call__)) for _ in range(2)]
        await asyncio.sleep(0)
        # Short, as nothing is known of it.
        await pool.run(int)
        assert pool.stats().queued == 3
        gate.open()
        others.open()
        await asyncio.gather(*held)


def test_a_decision_says_why_workers_are_held_back_and_a_look_wakes_no_more(pool: AdaptiveExecutor) -> None:
    seams.follow(pool, admission=OneAtATime(seams.load_of(pool)))
    with Gate() as first, Gate() as second:
        first.hold(pool, 3)
        for _ in range(3):
            pool.submit(second)
        seams.begin_looks(pool, 1000.0, 1.0)
        seams.look_at(pool, 1000.1, 1.0)
        first.open()
        second.await_begun()
        eventually(lambda: pool.stats().idle == 2)
        seams.look_at(pool, 1000.2, 1.0)
        assert second.nobody_begins(pool)
        assert pool.stats().last_decision == "stayed at 3: 2 waiting, the GIL is the bottleneck: 1 may run at a time"
        assert seams.look_at(pool, 1000.3, 1.0) == rules.TURN, "a look takes the GIL from those that compute"
        pool.resize(max_queue=0)
        seams.look_at(pool, 1000.4, 1.4)
        assert seams.engine_of(pool).staff.allowed == seams.ALL, "its tasks must not wait"


def test_others_have_the_gil_sooner_while_tasks_keep_it_and_are_held_back(spell: Spell) -> None:
    spell.compute(2)
    spell.window(1.0, QUEUED)
    assert spell.admission.shorter_turns(), "one task took more than a turn"
    spell.window(1.0, QUEUED, taken=15)
    assert not spell.admission.shorter_turns(), "a task that ends gives the GIL to others anyway"
    spell.window(1.0, QUEUED)
    assert spell.admission.shorter_turns()
    spell.compute(0)
    assert spell.window(0.3, 0.0, 12) == seams.ALL
    assert not spell.admission.shorter_turns()
    processors = Spell(gil=False)
    processors.compute(CPUS)
    processors.window(CPUS, QUEUED)
    assert not processors.admission.shorter_turns()


@pytest.fixture
def interval(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the switch interval was set to, the last value at the end; it begins as 5 ms, and nobody is held back."""
    values = [0.005]
    monkeypatch.setattr(sys, "getswitchinterval", lambda: values[-1])
    monkeypatch.setattr(sys, "setswitchinterval", values.append)
    monkeypatch.setattr(crew, "interval", intervals.SwitchInterval())
    return values


@pytest.fixture
def keeping() -> Iterator[Callable[[], AdaptiveExecutor]]:
    """Make pools that are held back, each with a task in hand and one that waits."""
    with seams.watched_by(seams.Nobody()), ExitStack() as stack:

        def make() -> AdaptiveExecutor:
            pool = stack.enter_context(AdaptiveExecutor(1))
            seams.follow(pool, admission=Keeping(seams.load_of(pool)))
            stack.enter_context(Gate()).hold(pool)
            pool.submit(int)
            seams.begin_looks(pool, 1000.0, 1.0)
            return pool

        yield make


class Keeping(OneAtATime):
    def shorter_turns(self) -> bool:
        return self.quick != seams.ALL


def test_the_switch_interval_is_short_for_as_long_as_a_pool_is_held_back(
    keeping: Callable[[], AdaptiveExecutor], interval: list[float]
) -> None:
    first, second = keeping(), keeping()
    assert interval == [0.005]
    assert seams.look_at(first, 1000.1, 1.1) == rules.HORIZON, "looks that are less late would come more often"
    seams.look_at(second, 1000.1, 1.1)
    seams.look_at(first, 1000.2, 1.2)
    assert interval == [0.005, intervals.SHORT]
    second.shutdown(wait=False, cancel_futures=True)
    assert seams.look_at(second, 1000.3, 1.3) is None
    assert interval == [0.005, intervals.SHORT]
    first.resize(max_queue=0)
    seams.follow(first, admission=rules.Admission(seams.load_of(first)))
    seams.look_at(first, 1000.4, 1.4)
    assert interval == [0.005, intervals.SHORT, 0.005]


def test_the_switch_interval_is_put_back_if_the_last_worker_leaves_before_the_next_look(
    interval: list[float],
) -> None:
    with seams.watched_by(seams.Nobody()), AdaptiveExecutor(1) as pool, Gate() as gate:
        seams.follow(pool, admission=Keeping(seams.load_of(pool)))
        gate.hold(pool)
        pool.submit(int)
        seams.begin_looks(pool, 1000.0, 1.0)
        seams.look_at(pool, 1000.1, 1.1)
        assert interval == [0.005, intervals.SHORT]
        pool.shutdown(wait=False, cancel_futures=True)
        gate.open()
        eventually(lambda: pool.stats().workers == 0)
        seams.begin_looks(pool, 1000.2, 1.2)
        assert interval == [0.005, intervals.SHORT, 0.005]


@pytest.mark.parametrize("others", [0.001, 0.02])
def test_a_switch_interval_that_somebody_else_has_set_stays(
    keeping: Callable[[], AdaptiveExecutor], interval: list[float], others: float
) -> None:
    pool = keeping()
    seams.look_at(pool, 1000.1, 1.0)
    sys.setswitchinterval(others)
    pool.shutdown(wait=False, cancel_futures=True)
    assert seams.look_at(pool, 1000.2, 1.2) is None
    assert interval == [0.005, intervals.SHORT, others]
    if others < intervals.SHORT:
        seams.look_at(keeping(), 1000.1, 1.1)
        assert interval == [0.005, intervals.SHORT, others], "it is shorter already"


@pytest.fixture(autouse=True)
def two_are_many() -> Iterator[None]:
    with seams.setting(crew=2 - seams.processors()):
        yield


@contextmanager
def watched(workers: int) -> Iterator[tuple[AdaptiveExecutor, mock.Mock]]:
    """A pool with so many parked workers, at which nobody looks yet, and what is called to have it looked at."""
    keeper = seams.Nobody()
    with (
        mock.patch.object(keeper, "watch") as watch,
        seams.watched_by(keeper),
        AdaptiveExecutor(8, min_workers=workers) as pool,
    ):
        warm(pool, workers)
        seams.look_at(pool, 900.0, 1.0)
        watch.reset_mock()
        yield pool, watch


def test_many_that_run_are_looked_at_though_no_task_waits() -> None:
    with watched(4) as (pool, watch), Gate() as gate:
        gate.hold(pool, 2)
        assert watch.call_count == 0
        gate.hold(pool)
        assert watch.call_count == 1
        gate.hold(pool)
        assert watch.call_count == 1, "it looks already"
        seams.begin_looks(pool, 1000.0, 1.0)
        seams.follow(pool, admission=OneAtATime(seams.load_of(pool)))
        assert seams.look_at(pool, 1000.1, 1.2) == rules.HORIZON
        pool.submit(gate)
        assert watch.call_count == 2, "once a task waits it is called all the same"
        assert seams.engine_of(pool).staff.allowed == 1


def test_many_that_sleep_are_left_alone() -> None:
    with watched(4) as (pool, watch), Gate() as gate:
        gate.hold(pool, 3)
        assert watch.call_count == 1
        seams.follow(pool, admission=rules.Admission(seams.load_of(pool)))
        seams.begin_looks(pool, 1000.0, 1.0)
        assert seams.look_at(pool, 1000.0 + rules.TICK, 1.0) == rules.HORIZON
        assert seams.look_at(pool, 1000.1, 1.0) is None
        gate.hold(pool)
        assert watch.call_count == 2, "and looked at again when another one runs"


def test_what_was_found_out_is_kept_for_a_moment() -> None:
    with watched(2) as (pool, _):
        seams.follow(pool, admission=OneAtATime(seams.load_of(pool)))
        with Gate() as gate:
            gate.hold(pool, 2)
            pool.submit(gate)
            seams.begin_looks(pool, 1000.0, 1.0)
            seams.look_at(pool, 1000.0 + rules.TICK, 1.0)
        wait_for_idle(pool)
        assert seams.look_at(pool, 1000.0 + 2 * rules.TICK, 1.0) is None
        seams.begin_looks(pool, 1000.0 + rules.MEMORY, 1.0)
        assert seams.engine_of(pool).staff.allowed == 1
        seams.begin_looks(pool, 1000.0 + 3 * rules.TICK + rules.MEMORY, 1.0)
        assert seams.engine_of(pool).staff.allowed == seams.ALL


# Under overload: as few as end soon, and all of them where each one counts.

WORKERS = 256


class Load:
    """A pool with a standing queue, whose tasks take `each` seconds in one of so many `places`."""

    def __init__(self, places: int, each: float, max_wait: float = 1.0) -> None:
        self.places, self.each, self.max_wait = places, each, max_wait
        self.overload = rules.Overload()
        self.now = 1000.0
        self.ended = 0.0
        self.seen: list[int] = []
        self.used = float(WORKERS)
        self.held = 0.0

    def go_on(self, seconds: float) -> int:
        """Let time pass; return how many workers may be used then."""
        for _ in range(round(seconds / 0.01)):
            ended = 0.01 * min(self.places, self.used) / self.each
            self.ended += ended
            # A worker that is held back ends the task in hand first.
            self.used = max(float(min(WORKERS, self.overload.most)), self.used - ended)
            most = self.overload.decide(self.now, int(self.ended), int(self.used), self.max_wait)
            self.held += 0.01 * (most != seams.ALL)
            if self.seen[-1:] != [most]:
                self.seen.append(most)
            self.now += 0.01
        return self.overload.most


@pytest.mark.parametrize(
    ("load", "seen"),
    [
        (Load(8, 0.05), [seams.ALL, 20]),
        (Load(8, 0.05, 0.5), [seams.ALL, 10]),
        (Load(1, 0.007, 0.05), [seams.ALL, 1]),
        (Load(8, 0.05, 4.0), [seams.ALL]),
        (Load(WORKERS, 0.45), [seams.ALL]),
        (Load(WORKERS, 10.0), [seams.ALL]),
        (Load(100, 0.5), [seams.ALL, 25, seams.ALL]),
    ],
    ids=[
        "few",
        "fewer, for a shorter max_wait",
        "one",
        "all are in time",
        "quick",
        "for long",
        "they just take long",
    ],
)
def test_where_tasks_wait_for_one_another_few_run(load: Load, seen: list[int]) -> None:
    load.go_on(30.0)
    assert load.seen == pytest.approx(seen, abs=1)


def test_where_each_one_counts_few_run_for_two_of_sixty_seconds_at_most() -> None:
    load = Load(WORKERS, 0.6)
    load.go_on(600.0)
    assert load.seen.count(seams.ALL) in (10, 11)
    assert 0.0 < load.held < 2.0 / 60.0 * 600.0


@pytest.mark.parametrize("few", [False, True], ids=["while those beyond it end", "later"])
def test_where_nothing_ends_any_more_all_run(few: bool) -> None:
    load = Load(8, 0.05)
    while load.overload.most == seams.ALL or (few and load.used > load.overload.most):
        load.go_on(0.01)
    load.places = 0
    assert load.go_on(0.5) != seams.ALL
    assert load.go_on(rules.LENGTHY) == seams.ALL


def test_more_run_once_there_are_more_places() -> None:
    load = Load(8, 0.05)
    assert load.go_on(5.0) == pytest.approx(20, abs=1)
    load.places = 64
    assert load.go_on(10.0) == pytest.approx(160, abs=2)
    load.overload.rest()
    assert load.overload.most == seams.ALL


class Two(rules.Overload):
    def decide(self, now: float, ended: int, used: int, max_wait: float) -> int:
        self.most = 2
        return 2


def test_a_standing_queue_holds_workers_back_and_its_end_lets_all_work(pool: AdaptiveExecutor) -> None:
    pool.resize(min_workers=4, max_wait=1.0)
    seams.follow(pool, overload=Two())
    # On a busy machine a thread may come later than `max_wait`.
    patient = pool.within(100.0)
    with Gate() as gate:
        gate.hold(patient, 4)
        waiting = patient.submit(gate)
        now = monotonic()
        seams.begin_looks(pool, now, 1.0)
        seams.look_at(pool, now + 0.2, 1.1)
        assert seams.engine_of(pool).staff.allowed == seams.ALL, "late, and not for long enough"
        seams.look_at(pool, now + 0.4, 1.2)
        assert seams.engine_of(pool).staff.allowed == 2
        assert "tasks wait for one another: 2 may run at a time" in pool.stats().last_decision
        assert not waiting.done()
    waiting.result()
    with Gate() as gate:
        gate.hold(patient, 2)
        patient.submit(gate)
        assert gate.nobody_begins(pool)
        seams.look_at(pool, now, 1.3)
        assert seams.engine_of(pool).staff.allowed == seams.ALL
        gate.await_begun()
