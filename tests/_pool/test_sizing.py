"""The rule of growth, sentence by sentence, and what holds whatever a look sees."""

from __future__ import annotations

import re
import sys
from itertools import cycle
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import rules
from support.rules import CREW, TICK, Asleep, Load, Sizing, Snapshot, Tick

PAGE = Path(__file__).parents[2] / "docs/design/growth.md"
Bounds = tuple[int, int, int]
"""What a pool was given: `min_workers`, `max_workers` and `min_spare_workers`."""
BOUNDS: Bounds = (0, 200, 0)


class Sample(NamedTuple):
    """What one look at a pool sees; `taken`, `elapsed` and `cpu` since the one before."""

    queued: int
    taken: int
    workers: int
    starting: int
    idle: int
    blocked: int
    elapsed: float
    late: float
    cpu: float
    cpus: int
    refused: bool = False
    asleep: Asleep | None = None


IDLE = Sample(queued=1000, taken=0, workers=1, starting=0, idle=0, blocked=0, elapsed=TICK, late=0.0, cpu=0.0, cpus=2)
"""On time, no processor in use, tasks wait."""

FLOWING = IDLE._replace(taken=100, workers=5)
HALF = IDLE._replace(cpu=TICK)
"""One of the two processors is in use."""
FULL = IDLE._replace(cpu=2 * TICK)
LATE = IDLE._replace(elapsed=6 * TICK, late=5 * TICK, cpu=6 * TICK)
"""A thread keeps the GIL."""

LIMIT = IDLE.cpus + CREW


def awake(workers: int) -> Asleep:
    return Asleep(workers, 0, 0)


class Spell:
    """Looks at one pool, whose workers arrive before the next look."""

    def __init__(self, *bounds: int) -> None:
        self.load = Load(gil=True)
        self.sizing = Sizing(self.load)
        self.bounds = bounds or BOUNDS
        self.tick, self.taken = Tick(1000.0, 50.0, 0.0), 0
        self.begin(inf)

    @property
    def time(self) -> float:
        return self.tick.now

    def begin(self, rest: float) -> None:
        """Begin a time with waiting tasks, so long after the last one."""
        self.load.begin(self.tick, self.taken)
        if rest > rules.MEMORY:
            self.load.rest()
        self.sizing.begin(rest)

    def look(self, sample: Sample, **changes: Any) -> int:
        seen = sample._replace(**changes)
        self.tick = Tick(self.tick.now + seen.elapsed, self.tick.cpu + seen.cpu, seen.late)
        self.taken += seen.taken
        self.load.see(self.tick, seen.cpus, self.taken)
        counts = seen.queued, self.taken, seen.workers, seen.starting, seen.idle, seen.blocked, seen.blocked
        snapshot = Snapshot(True, *counts, self.bounds[1], False, False, 0, False, None)
        return self.sizing.decide(snapshot, seen.asleep, seen.refused, *self.bounds)

    def settle(self, sample: Sample) -> Spell:
        """Look for so long that nothing else is remembered; tasks are taken, and none waits."""
        for _ in range(10 + round(4 * rules.WINDOW / sample.elapsed)):
            assert not self.look(sample, queued=0, taken=1)
        return self

    def until_growth(self, sample: Sample, **changes: Any) -> float:
        """Look until workers are started. Returns how long that took."""
        began = self.time
        while self.time < began + 10.0:
            if self.look(sample, **changes):
                return self.time - began
        raise AssertionError("growth stopped")

    def grow(self, looks: int, sample: Sample = IDLE) -> list[int]:
        """Look again and again; each worker that is started has taken a task by the next look."""
        started: list[int] = []
        for _ in range(looks):
            came = started[-1] if started else 0
            sample = sample._replace(workers=sample.workers + came, taken=came, queued=max(0, sample.queued - came))
            started.append(self.look(sample))
        return started


@pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not here")
def test_the_page_has_the_figures() -> None:
    """What they ought to be is said there, and what follows from them below."""
    figures = {**vars(sys.modules[Load.__module__]), **vars(sys.modules[Sizing.__module__])}
    told: dict[str, str] = {}
    for names, values in re.findall(r"^\| (`[A-Z].*?) \| (.*?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE):
        told |= zip(re.findall(r"\w+", names), values.split(", "), strict=True)
    units = {"": 1.0, "s": 1.0, "ms": 1e-3, "µs": 1e-6}
    for name in figures.keys() & told.keys():
        number, _, unit = told[name].partition(" ")
        assert figures[name] == pytest.approx(float(number) * units[unit]), name
    assert {name for name in figures if name.isupper()} <= told.keys()


# An idle processor while tasks wait is reason enough to grow, at once.


@pytest.mark.parametrize("rest", [TICK, inf])
def test_doubles_from_look_to_look_and_begins_anew_in_each_spell(rest: float) -> None:
    spell = Spell()
    assert spell.grow(6) == [1, 2, 4, 8, 16, 32]
    spell.begin(rest)
    assert spell.look(IDLE, workers=64) == 1


FIRST_LOOKS: dict[str, list[tuple[Bounds, Sample, int]]] = {
    "a worker blocked on its own pool makes room for another": [
        ((0, 2, 0), IDLE._replace(workers=2), 0),
        ((0, 2, 0), IDLE._replace(workers=2, blocked=1), 1),
    ],
    "keeps the floor whatever keeps the processor busy": [
        *(((8, 200, 0), sample._replace(workers=3), 5) for sample in (IDLE, LATE, FULL)),
        ((8, 200, 0), IDLE._replace(queued=0, workers=3, idle=3), 5),
    ],
    "a task without any worker gets one at once, too": [
        (BOUNDS, sample._replace(workers=0), 1) for sample in (IDLE, LATE, FULL)
    ],
    "keeps spare workers ahead of demand": [
        ((0, 200, 10), IDLE._replace(queued=0, workers=5, idle=2), 8),
        ((0, 200, 10), IDLE._replace(queued=0, workers=13, idle=2, starting=8), 0),
        ((0, 200, 10), IDLE, 10),
        ((0, 12, 10), IDLE._replace(queued=0, workers=8, idle=0), 4),
    ],
    "a late look counts for little, and for nothing if another process made it late": [
        (BOUNDS, LATE, 1),
        (BOUNDS, LATE._replace(cpu=0.05 * TICK), 1),
    ],
}


@pytest.mark.parametrize("looks", FIRST_LOOKS.values(), ids=FIRST_LOOKS)
def test_what_a_first_look_starts(looks: list[tuple[Bounds, Sample, int]]) -> None:
    for bounds, sample, started in looks:
        assert Spell(*bounds).look(sample) == started, (bounds, sample)


def test_no_more_are_started_than_are_queued_or_fit_below_the_ceiling() -> None:
    assert Spell().grow(6, IDLE._replace(queued=10)) == [1, 2, 4, 3, 0, 0]
    assert sum(Spell(0, 20, 0).grow(10)) == 19


def test_waits_for_most_of_the_last_workers_before_it_doubles_again_but_not_for_ever() -> None:
    spell = Spell()
    spell.grow(4)
    assert [spell.look(IDLE, workers=16, starting=starting) for starting in (8, 4, 3)] == [0, 0, 16]
    spell = Spell()
    spell.grow(3)
    assert spell.until_growth(IDLE, workers=8, starting=4) == pytest.approx(rules.ARRIVAL, abs=2 * TICK)
    spell = Spell().settle(HALF)
    assert spell.look(HALF, workers=5, asleep=Asleep(5, outside=5, in_locks=0)) == 1
    pause = spell.until_growth(HALF, workers=6, asleep=Asleep(5, outside=5, in_locks=0))
    assert pause == pytest.approx(rules.MEMORY, abs=2 * TICK)


# A processor in use is left to those who use it: processors + CREW workers that are not blocked.


@pytest.mark.parametrize("sample", [HALF, FULL, LATE], ids=["half", "full", "late"])
def test_workers_beside_a_processor_in_use(sample: Sample) -> None:
    # Those that run get company one by one, up to the limit.
    spell = Spell().settle(sample)
    for workers in range(1, LIMIT):
        pause = spell.until_growth(sample, workers=workers, asleep=awake(workers), taken=1)
        assert pause < rules.TURN + sample.elapsed + TICK or workers == 1
    for _ in range(1000):
        assert not spell.look(sample, workers=LIMIT, asleep=awake(LIMIT), taken=1)
    # The places of those that are blocked are filled at once.
    spell = Spell().settle(sample)
    asleep = Asleep(20, outside=18, in_locks=0)
    assert spell.look(sample, workers=20, asleep=asleep) == LIMIT - 2
    assert spell.look(sample, workers=20, asleep=asleep) == 0 or sample is LATE
    # If all are blocked, the pool doubles whatever computes.
    spell = Spell().settle(sample)
    grown = [spell.look(sample, workers=5 + n, asleep=Asleep(5 + n, outside=5, in_locks=n)) for n in range(4)]
    assert grown == [1, 2, 4, 8]


def test_who_is_asleep_is_asked_for_where_it_decides() -> None:
    for sample, workers, asks in ((IDLE, 1, False), (IDLE, LIMIT, True), (HALF, 1, True), (LATE, 1, True)):
        spell = Spell().settle(sample)
        spell.look(sample, workers=workers, taken=1)
        assert spell.sizing.asks is asks, (sample, workers)


def test_the_limit_holds_beside_idle_processors_that_others_may_use() -> None:
    spell = Spell()
    assert spell.look(IDLE, workers=LIMIT, asleep=awake(LIMIT), taken=1) == 0
    assert spell.look(IDLE, workers=LIMIT, asleep=Asleep(LIMIT, 1, 0), taken=1) == 1
    assert spell.look(IDLE, workers=LIMIT + 1, asleep=Asleep(LIMIT, 1, 0), taken=1) == 2


def test_beside_idle_processors_those_that_wait_for_locks_get_company_all_the_same() -> None:
    spell = Spell()
    doubtful = Asleep(LIMIT + 5, outside=0, in_locks=0, in_doubt=LIMIT + 4)
    gaps = [spell.until_growth(IDLE, workers=LIMIT + 5, taken=1, asleep=doubtful) for _ in range(5)]
    assert gaps[1:] == pytest.approx([rules.TURN] * 4, abs=TICK)
    spell.settle(FULL)
    for _ in range(500):
        assert not spell.look(FULL, workers=LIMIT + 5, taken=1, asleep=doubtful)


@pytest.mark.parametrize(
    ("sample", "pause"),
    [(FULL, rules.STALL), (LATE, rules.STALL), (IDLE, rules.TURN)],
    ids=["full", "late", "idle"],
)
def test_enough_that_run_get_another_worker_only_if_nothing_at_all_is_taken(sample: Sample, pause: float) -> None:
    spell = Spell().settle(sample)
    workers = LIMIT + 3
    gaps = [spell.until_growth(sample, workers=workers + n, asleep=awake(workers + n)) for n in range(4)]
    assert rules.STALL - TICK < gaps[0] <= max(rules.STALL, pause) + 2 * sample.elapsed
    assert gaps[1:] == pytest.approx([pause] * 3, abs=2 * sample.elapsed)
    for _ in range(1000):
        assert not spell.look(sample, workers=workers, asleep=awake(workers), taken=1)


def test_where_the_platform_does_not_tell_who_is_blocked() -> None:
    spell = Spell().settle(HALF)
    pauses = [spell.until_growth(HALF, workers=n, taken=1) for n in range(5, 30)]
    assert pauses[1:] == pytest.approx([rules.TURN] * 24, abs=TICK), "one worker a pause"
    for sample in FULL, LATE:
        # Every worker counts as running.
        spell = Spell().settle(sample)
        assert spell.until_growth(sample, workers=LIMIT - 1, taken=1) <= rules.TURN + sample.elapsed
        for _ in range(1000):
            assert not spell.look(sample, workers=LIMIT, taken=1)
        assert spell.until_growth(sample, workers=LIMIT) == pytest.approx(rules.STALL, abs=sample.elapsed)


# How it is told that a processor is busy.


def test_what_is_short_stays_so_until_looks_are_punctual() -> None:
    spell = Spell().settle(LATE)
    for _ in range(100):
        assert not spell.look(HALF, workers=LIMIT, late=1.2 * rules.PUNCTUAL, taken=1)
    assert spell.until_growth(HALF, workers=LIMIT, taken=1) < 3 * rules.WINDOW


@pytest.mark.parametrize(("rest", "grown"), [(0.5 * rules.MEMORY, 0), (1.5 * rules.MEMORY, 1)])
def test_a_spell_soon_after_another_goes_on_with_what_was_learnt(rest: float, grown: int) -> None:
    spell = Spell().settle(FULL)
    spell.begin(rest)
    assert spell.look(IDLE, workers=LIMIT, taken=1) == grown


def test_a_refused_thread_is_tried_again_now_and_then() -> None:
    spell = Spell()
    assert spell.look(IDLE) == 1
    pauses = [spell.until_growth(IDLE, refused=True) for _ in range(3)]
    assert pauses == pytest.approx([rules.AGAIN] * 3, abs=2 * TICK)


# Whatever a look sees.

counts = st.integers(0, 300)
seconds = st.floats(0, 1, allow_subnormal=False)
samples = st.builds(
    Sample,
    queued=counts,
    taken=counts,
    workers=counts,
    starting=counts,
    idle=counts,
    blocked=counts,
    elapsed=st.one_of(st.sampled_from([0.0, TICK]), seconds),
    late=st.one_of(st.just(0.0), seconds),
    cpu=st.one_of(st.just(0.0), seconds),
    cpus=st.integers(1, 64),
    refused=st.booleans(),
    asleep=st.one_of(st.none(), st.builds(Asleep, counts, counts, counts, counts)),
)
all_bounds = st.tuples(counts, counts, counts).map(lambda n: (min(n[0], n[1]), max(n[0], n[1], 1), n[2]))


def many(sample: Sample, workers: int, growing: bool, looks: int) -> list[Sample]:
    return [sample._replace(workers=workers + number * growing) for number in range(looks)]


spells = st.lists(
    st.one_of(
        samples.map(lambda sample: [sample]),
        st.builds(
            many,
            st.sampled_from([IDLE, FLOWING, HALF, LATE, FULL]),
            st.integers(1, 100),
            st.booleans(),
            st.integers(1, 50),
        ),
    ),
    max_size=8,
).map(lambda parts: [sample for part in parts for sample in part])
"""What looks may see: anything, and now and then the same for a while."""


@given(spells, st.lists(all_bounds, min_size=1))
def test_bounds_hold_whatever_the_looks_see(looks: list[Sample], resized: list[Bounds]) -> None:
    spell = Spell()
    for sample, spell.bounds in zip(looks, cycle(resized), strict=False):
        least, most, spares = spell.bounds
        started = spell.look(sample)
        assert started >= 0
        assert sample.workers + started <= max(sample.workers, most + sample.blocked)
        waiting = sample.queued - sample.idle - sample.starting
        spare = spares - sample.idle - sample.starting
        floor = max(least, 1 if sample.queued else 0) - sample.workers
        assert started <= max(waiting, spare, floor, 0)


@given(spells, spells, all_bounds)
def test_nothing_survives_the_end_of_waiting(before: list[Sample], after: list[Sample], bounds: Bounds) -> None:
    used, fresh = Spell(*bounds), Spell(*bounds)
    for sample in before:
        used.look(sample)
    fresh.tick, fresh.taken = used.tick, used.taken
    for spell in (used, fresh):
        spell.begin(inf)
    assert [used.look(sample) for sample in after] == [fresh.look(sample) for sample in after]


@given(spells, samples, st.integers(1, 100))
def test_growth_never_stops_while_nothing_is_taken_below_the_ceiling(
    before: list[Sample], sample: Sample, waiting: int
) -> None:
    spell = Spell()
    for past in before:
        spell.look(past)
    workers = min(sample.workers, BOUNDS[1] - 1)
    stuck = sample._replace(
        queued=sample.idle + sample.starting + waiting,
        taken=0,
        workers=workers,
        elapsed=max(sample.elapsed, TICK),
        # The next count comes, and counts everybody.
        asleep=sample.asleep and sample.asleep._replace(counted=workers),
    )
    looks = 2 + round(2 * rules.STALL / stuck.elapsed)
    assert any(spell.look(stuck) for _ in range(looks))
