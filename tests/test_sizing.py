"""The rules of growth, one by one, and what holds whatever a look sees."""

from __future__ import annotations

from itertools import count, cycle
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbpool._sizing import (
    ARRIVAL,
    BUSY_PAUSE,
    BUSY_PAUSES,
    MEMORY,
    OVERTAKEN,
    QUICK_TICK,
    START_COST,
    TARGET_DELAY,
    TICK,
    WINDOW,
    Limits,
    Sample,
    Sizing,
    ceiling,
)

LIMITS = Limits(min_workers=0, max_workers=200, min_spare_workers=0)
SWITCH = 0.005

STALLED = Sample(
    queued=1000,
    taken=0,
    workers=1,
    starting=0,
    idle=0,
    blocked=0,
    oldest_wait=TICK,
    elapsed=TICK,
    late=0.0,
    cpu=0.0,
    cpus=2,
)
"""On time, no processor in use, tasks wait and none is taken: everything blocks."""

FLOWING = STALLED._replace(taken=2, workers=40, oldest_wait=2 * TARGET_DELAY)
LATE = STALLED._replace(elapsed=TICK + SWITCH, late=SWITCH, cpu=TICK + SWITCH, taken=1)
SATURATED = STALLED._replace(cpu=2 * TICK)


class Spell:
    """Looks at one pool, whose workers arrive before the next look."""

    def __init__(self, limits: Limits = LIMITS, switch_interval: float = 0.0) -> None:
        self.sizing = Sizing(switch_interval)
        self.limits = limits
        self.time = 0.0

    def look(self, sample: Sample, **changes: Any) -> int:
        sample = sample._replace(**changes)
        self.time += sample.elapsed
        return self.sizing.look(sample, self.limits)

    def until_growth(self, sample: Sample, **changes: Any) -> float:
        """Look until workers are started. Returns how long that took."""
        began = self.time
        while self.time < began + 10.0:
            if self.look(sample, **changes):
                return self.time - began
        raise AssertionError("growth stopped")

    def grow(self, looks: int, sample: Sample = STALLED) -> list[int]:
        """Look again and again; whoever is started has taken a task by the next look."""
        started: list[int] = []
        for _ in range(looks):
            came = started[-1] if started else 0
            sample = sample._replace(workers=sample.workers + came, taken=came, queued=max(0, sample.queued - came))
            started.append(self.look(sample))
        return started


def test_doubles_while_nothing_is_taken() -> None:
    assert Spell().grow(6) == [1, 2, 4, 8, 16, 32]


def test_never_starts_more_than_are_queued() -> None:
    assert Spell().grow(6, STALLED._replace(queued=10)) == [1, 2, 4, 3, 0, 0]


def test_never_lifts_the_pool_above_its_ceiling() -> None:
    assert sum(Spell(Limits(0, 20, 0)).grow(10)) == 19
    assert Spell(Limits(0, 20, 0)).look(STALLED, workers=25) == 0


def test_a_worker_blocked_on_its_own_pool_makes_room_for_another() -> None:
    assert ceiling(Limits(0, 2, 0), 3) == 5
    assert Spell(Limits(0, 2, 0)).look(STALLED, workers=2) == 0
    assert Spell(Limits(0, 2, 0)).look(STALLED, workers=2, blocked=1) == 1


def test_does_not_grow_while_enough_workers_are_idle_or_on_their_way() -> None:
    assert Spell().look(STALLED, queued=2, workers=3, idle=2) == 0
    assert Spell().look(STALLED, queued=2, workers=2, idle=1, starting=1) == 0


@pytest.mark.parametrize(
    ("sample", "patience"),
    [
        (STALLED, ARRIVAL),
        (FLOWING._replace(taken=51), ARRIVAL),
        (LATE._replace(taken=51), BUSY_PAUSES * BUSY_PAUSE),
    ],
    ids=["stalled", "flowing", "busy"],
)
def test_waits_for_idle_workers_to_take_their_part_but_not_for_ever(sample: Sample, patience: float) -> None:
    pause = Spell().until_growth(sample, workers=50, idle=1)
    assert pause == pytest.approx(patience, abs=2 * sample.elapsed)


def test_does_not_double_again_until_half_of_the_last_have_arrived() -> None:
    spell = Spell()
    spell.grow(3)
    assert spell.look(STALLED, workers=8, starting=4) == 0
    assert spell.look(STALLED, workers=8, starting=2) == 0
    assert spell.look(STALLED, workers=8, starting=1) == 8


def test_does_not_wait_for_ever_for_workers_to_arrive() -> None:
    spell = Spell()
    spell.grow(3)
    assert spell.until_growth(STALLED, workers=8, starting=4) == pytest.approx(ARRIVAL, abs=2 * TICK)


def test_the_first_tasks_of_new_workers_are_no_flow() -> None:
    spell = Spell()
    assert spell.look(STALLED, taken=1) == 1
    assert spell.look(STALLED, workers=2, taken=1) == 2
    assert spell.look(STALLED, workers=4, taken=3) == 0


def test_a_pool_that_takes_tasks_grows_when_they_wait_too_long() -> None:
    spell = Spell()
    assert spell.look(FLOWING, taken=50, oldest_wait=TARGET_DELAY) == 0
    for _ in range(50):
        assert spell.look(FLOWING, oldest_wait=TARGET_DELAY) == 0
    assert spell.until_growth(FLOWING) == pytest.approx(TICK)
    assert spell.until_growth(FLOWING, workers=46, taken=9) == pytest.approx(TARGET_DELAY, abs=TICK)
    assert spell.until_growth(FLOWING, workers=52, taken=9, starting=1) == pytest.approx(ARRIVAL, abs=TICK)


def test_a_pool_that_takes_tasks_grows_by_a_part_of_its_size_while_nothing_computes() -> None:
    for workers, cpu, started in (4, 0.0, 1), (40, 0.0, 6), (40, 0.5 * TICK, 1):
        spell = Spell()
        grown = [spell.look(FLOWING, workers=workers, taken=workers + 1, cpu=cpu) for _ in range(6)]
        assert max(grown) == started


def test_flow_halves_the_step_and_stalling_doubles_it_again() -> None:
    spell = Spell()
    spell.grow(4)
    assert spell.look(FLOWING, workers=16, taken=9, oldest_wait=TICK) == 0
    assert spell.look(STALLED, workers=16) == 8
    assert spell.look(STALLED, workers=24, taken=8) == 16


@pytest.mark.parametrize("rest", [TICK, inf])
def test_doubling_begins_anew_in_each_spell(rest: float) -> None:
    spell = Spell()
    spell.grow(5)
    spell.sizing.begin(rest, 32, 0)
    assert spell.look(STALLED, workers=32) == 1


@pytest.mark.parametrize(("rest", "pauses"), [(0.5 * MEMORY, 4), (1.5 * MEMORY, 1)])
def test_a_spell_soon_after_another_goes_on_with_its_pauses(rest: float, pauses: int) -> None:
    spell = Spell()
    for workers in range(1, 4):
        spell.until_growth(LATE, workers=workers)
    spell.sizing.begin(rest, 4, 0)
    assert spell.until_growth(LATE, workers=4) == pytest.approx(pauses * BUSY_PAUSE, abs=LATE.elapsed)


def test_a_pool_that_was_flowing_and_computes_is_not_stalled_at_once() -> None:
    spell = Spell()
    spell.sizing.begin(inf, 40, 0)
    spell.look(FLOWING, oldest_wait=TICK, cpu=TICK)
    assert spell.look(STALLED, workers=40, cpu=TICK, oldest_wait=TARGET_DELAY) == 0
    assert spell.look(STALLED, workers=40, cpu=TICK, oldest_wait=TARGET_DELAY + TICK) == 1


def test_a_pool_that_was_flowing_and_blocks_is_stalled_at_once() -> None:
    spell = Spell()
    spell.sizing.begin(inf, 40, 0)
    assert spell.look(FLOWING, oldest_wait=TICK) == 0
    assert spell.look(STALLED, workers=40) == 1


def test_what_workers_take_that_were_there_before_is_flow() -> None:
    for workers, grown in ((40, 0), (0, 1)):
        spell = Spell()
        spell.sizing.begin(inf, workers, 0)
        assert spell.look(FLOWING, taken=40, oldest_wait=TICK) == grown


@pytest.mark.parametrize("sample", [LATE, SATURATED], ids=["late", "saturated"])
def test_a_busy_processor_slows_growth_step_by_step_but_never_stops_it(sample: Sample) -> None:
    spell = Spell()
    pauses = []
    for workers in range(4, 24):
        pauses.append(spell.until_growth(sample, workers=workers) / BUSY_PAUSE)
    longest = BUSY_PAUSES
    expected = [min(number, longest) for number in range(1, 21)]
    assert pauses == pytest.approx(expected, abs=2 * sample.elapsed / BUSY_PAUSE)


def test_growth_behind_a_busy_processor_starts_one_worker_at_a_time() -> None:
    spell = Spell()
    spell.grow(5)
    workers, most = 32, 0
    for _ in range(200):
        started = spell.look(LATE, workers=workers)
        workers += started
        most = max(most, started)
    assert most == 1
    assert 32 < workers < 50


def test_a_first_look_that_is_late_starts_nothing() -> None:
    assert Spell().look(LATE) == 0


def test_a_look_made_late_by_another_process_counts_for_nothing() -> None:
    assert Spell().look(LATE, cpu=0.1 * TICK, taken=0) == 1


def test_a_late_look_counts_where_the_clock_shows_no_processor_time() -> None:
    assert Spell().look(LATE, cpu=0.0, taken=0) == 0
    assert Spell().look(STALLED, cpu=0.0) == 1


def test_looks_come_quicker_while_workers_start_under_a_gil_that_nobody_keeps() -> None:
    computing = STALLED._replace(cpu=0.5 * TICK)
    samples = [STALLED, LATE, STALLED, SATURATED, STALLED, computing]
    ticks = [QUICK_TICK, TICK, QUICK_TICK, TICK, QUICK_TICK, TICK]
    for switch_interval in SWITCH, 0.0:
        spell = Spell(switch_interval=switch_interval)
        assert spell.sizing.tick == TICK
        for workers, sample, tick in zip(count(1), samples, ticks, strict=False):
            spell.look(sample, workers=workers)
            assert spell.sizing.tick == (tick if switch_interval else TICK)
        spell.look(STALLED, queued=0)
        assert spell.sizing.tick == TICK


def test_blocked_workers_on_an_unused_processor_outweigh_a_late_look_before() -> None:
    spell = Spell()
    spell.look(LATE)
    assert spell.look(STALLED) == 1
    assert spell.look(STALLED, workers=2, taken=1) == 2


def test_late_looks_are_remembered_while_the_processor_is_in_use() -> None:
    spell = Spell()
    spell.look(LATE)
    assert spell.look(STALLED, cpu=TICK) == 0


def test_a_saturated_processor_stays_busy_until_a_good_part_of_it_is_unused() -> None:
    spell = Spell()
    for _ in range(10):
        assert spell.look(SATURATED) == 0
    workers = 4
    for _ in range(100):
        workers += spell.look(STALLED, cpu=1.5 * TICK, workers=workers)
    assert workers <= 6
    assert spell.until_growth(STALLED, cpu=1.2 * TICK, workers=workers) < WINDOW + TICK


def test_a_saturated_processor_stays_busy_while_threads_lose_it_to_others() -> None:
    contended = STALLED._replace(cpu=TICK, preempted=1)
    for switch_interval, stays in (0.0, True), (SWITCH, False):
        spell = Spell(switch_interval=switch_interval)
        for _ in range(10):
            assert spell.look(SATURATED) == 0
        workers = 4
        for _ in range(100):
            workers += spell.look(contended, workers=workers)
        assert (workers <= 6) is stays
        assert spell.look(STALLED, workers=min(workers, 100)) > 0


def test_threads_that_lose_their_processors_do_not_make_a_pool_busy() -> None:
    contended = STALLED._replace(cpu=TICK, preempted=1)
    spell = Spell()
    workers = 1
    for _ in range(30):
        workers += spell.look(contended, workers=workers)
    assert workers > 100


def test_pauses_grow_shorter_again_while_the_processor_is_not_busy() -> None:
    spell = Spell()
    for workers in range(4, 8):
        pause = spell.until_growth(LATE, workers=workers)
    assert pause > 3 * BUSY_PAUSE
    spell.look(FLOWING, oldest_wait=TICK, taken=50)
    for _ in range(200):
        assert spell.look(FLOWING, oldest_wait=TICK) == 0
    assert spell.look(STALLED, workers=40) == 1
    assert spell.until_growth(SATURATED, workers=41) == pytest.approx(BUSY_PAUSE, abs=TICK)


def test_starting_threads_is_not_mistaken_for_a_busy_processor() -> None:
    spell = Spell()
    spell.grow(7)
    cost = 64 * START_COST
    assert spell.look(STALLED, workers=128, taken=64, elapsed=TICK + cost, cpu=cost) == 72


def test_a_timekeeper_starved_while_it_started_threads_sees_a_busy_processor() -> None:
    spell = Spell()
    spell.grow(3)
    assert spell.look(STALLED, workers=8, taken=4, elapsed=0.02, cpu=0.02) == 0


def test_computing_workers_are_given_time_to_show_before_the_next_doubling() -> None:
    spell = Spell()
    computing = STALLED._replace(cpu=TICK)
    began = spell.time
    for workers, started in (1, 1), (2, 2), (4, 4):
        while not (grown := spell.look(computing, workers=workers)):
            assert spell.time < began + 0.1
        assert grown == started
    assert spell.time - began >= 2 * 0.0025
    assert Spell().grow(3) == [1, 2, 4]


def test_a_pool_that_takes_tasks_faster_than_anything_can_block_hardly_grows() -> None:
    brisk = FLOWING._replace(taken=500, workers=2)
    spell = Spell()
    assert spell.until_growth(brisk) == pytest.approx(BUSY_PAUSES * BUSY_PAUSE, abs=TICK)


FLOOD = FLOWING._replace(cpu=0.5 * TICK, workers=10, census=(0.7, 0.95))
"""Ten workers take tasks, and keep the GIL between them."""


def test_tasks_that_keep_the_gil_hardly_get_more_workers() -> None:
    spell = Spell(switch_interval=SWITCH)
    for _ in range(3):
        assert spell.until_growth(FLOOD) == pytest.approx(BUSY_PAUSES * BUSY_PAUSE, abs=2 * TICK)


@pytest.mark.parametrize(
    ("changes", "switch_interval"),
    [
        ({"census": None}, SWITCH),
        ({"census": (0.7, 0.95)}, 0.0),
        ({"census": (0.4, 0.95)}, SWITCH),
        ({"census": (0.7, 0.85)}, SWITCH),
        ({"census": (1.8, 1.9), "workers": 3}, SWITCH),
        ({"starting": 3, "idle": 3, "blocked": 3}, SWITCH),
        ({"cpu": 0.0}, SWITCH),
        ({"oldest_wait": 1.1 * OVERTAKEN}, SWITCH),
    ],
    ids=["unknown", "no GIL", "others keep it", "idle GIL", "without the GIL", "one at work", "blocking", "overtaken"],
)
def test_others_get_them_as_they_wait(changes: dict[str, Any], switch_interval: float) -> None:
    sample = FLOOD._replace(**changes)
    assert Spell(switch_interval=switch_interval).until_growth(sample) <= 2 * ARRIVAL


def test_a_census_is_asked_for_where_workers_may_be_wanted_and_could_be_too_many() -> None:
    spell = Spell(switch_interval=SWITCH)
    spell.sizing.begin(inf, 10, 0)
    assert not spell.sizing.asks
    for changes, asks in (
        ({}, True),
        ({"oldest_wait": TARGET_DELAY / 2}, False),
        ({"cpu": 0.0}, False),
        ({"taken": 0}, False),
        ({"queued": 0}, False),
    ):
        spell.look(FLOOD, **changes)
        assert spell.sizing.asks == asks, changes
    spell.look(FLOOD)
    spell.sizing.begin(TICK, 10, 0)
    assert not spell.sizing.asks


def test_workers_on_their_way_to_a_busy_processor_are_waited_for() -> None:
    spell = Spell()
    assert spell.until_growth(LATE, starting=1, workers=4) == pytest.approx(
        BUSY_PAUSES * BUSY_PAUSE, abs=2 * LATE.elapsed
    )


def test_many_blocked_workers_behind_one_computing_thread_do_not_lengthen_the_pauses() -> None:
    for switch_interval, longest in (SWITCH, 1), (0.0, BUSY_PAUSES):
        spell = Spell(switch_interval=switch_interval)
        workers = 100
        for _ in range(20):
            pause = spell.until_growth(LATE, workers=workers)
            workers += 1
        assert pause == pytest.approx(longest * BUSY_PAUSE, abs=LATE.elapsed)


def test_whose_threads_compute_is_found_out_anew_in_each_spell() -> None:
    spell = Spell(switch_interval=SWITCH)
    for workers in range(100, 120):
        spell.until_growth(LATE, workers=workers)
    spell.sizing.begin(inf, 120, 0)
    pauses = [spell.until_growth(LATE, workers=workers) for workers in (120, 121)]
    assert pauses == pytest.approx([BUSY_PAUSE, 2 * BUSY_PAUSE], abs=LATE.elapsed)


def test_computing_workers_lengthen_the_pauses_with_the_gil_too() -> None:
    late = 8 * SWITCH
    crowded = LATE._replace(late=late, elapsed=late + TICK, cpu=late + TICK)
    spell = Spell(switch_interval=SWITCH)
    for workers in range(16, 36):
        pause = spell.until_growth(crowded, workers=workers)
    assert pause == pytest.approx(BUSY_PAUSES * BUSY_PAUSE, abs=crowded.elapsed)


def test_threads_that_release_the_gil_are_not_counted_as_one() -> None:
    released = LATE._replace(cpu=1.5 * LATE.elapsed)
    spell = Spell(switch_interval=SWITCH)
    for workers in range(100, 120):
        pause = spell.until_growth(released, workers=workers)
    assert pause == pytest.approx(BUSY_PAUSES * BUSY_PAUSE, abs=released.elapsed)


def test_a_refused_thread_slows_growth_until_one_starts() -> None:
    spell = Spell()
    assert spell.look(STALLED) == 1
    pauses = [spell.until_growth(STALLED, refused=True) for _ in range(3)]
    assert pauses == pytest.approx([BUSY_PAUSE, 2 * BUSY_PAUSE, 3 * BUSY_PAUSE], abs=2 * TICK)
    assert spell.look(STALLED, workers=2, taken=1) == 1
    assert spell.look(STALLED, workers=3, taken=1) == 2


def test_keeps_the_floor_whatever_keeps_the_processor_busy() -> None:
    for sample in STALLED, LATE, SATURATED:
        assert Spell(Limits(8, 200, 0)).look(sample, workers=3) == 5
    assert Spell(Limits(8, 200, 0)).look(STALLED, queued=0, workers=3, idle=3) == 5


def test_a_task_without_any_worker_gets_one_at_once() -> None:
    for sample in STALLED, LATE, SATURATED:
        assert Spell().look(sample, workers=0, taken=0) == 1


def test_keeps_spare_workers_ahead_of_demand() -> None:
    spell = Spell(Limits(0, 200, 10))
    assert spell.look(STALLED, queued=0, workers=5, idle=2) == 8
    assert spell.look(STALLED, queued=0, workers=13, idle=2, starting=8) == 0
    assert spell.look(STALLED, queued=0, workers=13, idle=10) == 0
    assert Spell(Limits(0, 200, 10)).look(STALLED) == 10
    assert Spell(Limits(0, 12, 10)).look(STALLED, queued=0, workers=8, idle=0) == 4


def test_starts_no_spare_workers_for_tasks_that_wait_for_a_processor() -> None:
    assert Spell(Limits(0, 200, 10)).look(LATE, workers=8) == 0


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
    oldest_wait=seconds,
    elapsed=st.one_of(st.sampled_from([0.0, TICK]), seconds),
    late=st.one_of(st.just(0.0), seconds),
    cpu=st.one_of(st.just(0.0), seconds),
    cpus=st.integers(1, 64),
    refused=st.booleans(),
    preempted=st.integers(0, 3),
)
all_limits = st.tuples(counts, counts, counts).map(lambda n: Limits(min(n[0], n[1]), max(n[0], n[1], 1), n[2]))
switches = st.sampled_from([0.0, SWITCH, 1e-6])


def crowds(sample: Sample, workers: int, growing: bool, looks: int) -> list[Sample]:
    return [sample._replace(workers=workers + number * growing) for number in range(looks)]


spells = st.lists(
    st.one_of(
        samples.map(lambda sample: [sample]),
        st.builds(
            crowds,
            st.sampled_from([STALLED, FLOWING, LATE, SATURATED]),
            st.integers(1, 100),
            st.booleans(),
            st.integers(1, 50),
        ),
    ),
    max_size=8,
).map(lambda parts: [sample for part in parts for sample in part])
"""What looks may see: anything, and now and then the same for a while."""


@given(spells, st.lists(all_limits, min_size=1), switches)
def test_bounds_hold_whatever_the_looks_see(looks: list[Sample], resized: list[Limits], switch: float) -> None:
    sizing = Sizing(switch)
    for sample, limits in zip(looks, cycle(resized), strict=False):
        started = sizing.look(sample, limits)
        assert started >= 0
        assert sample.workers + started <= max(sample.workers, ceiling(limits, sample.blocked))
        waiting = sample.queued - sample.idle - sample.starting
        spare = limits.min_spare_workers - sample.idle - sample.starting
        floor = max(limits.min_workers, 1 if sample.queued else 0) - sample.workers
        assert started <= max(waiting, spare, floor, 0)


@given(spells, all_limits, switches)
def test_the_same_looks_give_the_same_answers(looks: list[Sample], limits: Limits, switch: float) -> None:
    one, other = Sizing(switch), Sizing(switch)
    assert [one.look(sample, limits) for sample in looks] == [other.look(sample, limits) for sample in looks]


@given(spells, spells, all_limits, switches)
def test_nothing_survives_the_end_of_waiting(
    before: list[Sample], after: list[Sample], limits: Limits, switch: float
) -> None:
    used, fresh = Sizing(switch), Sizing(switch)
    for sample in before:
        used.look(sample, limits)
    for sizing in (used, fresh):
        sizing.begin(inf, 5, 1)
    assert [used.look(sample, limits) for sample in after] == [fresh.look(sample, limits) for sample in after]


@given(spells, samples, st.integers(1, 100), switches)
def test_growth_never_stops_while_tasks_wait_below_the_ceiling(
    before: list[Sample], sample: Sample, waiting: int, switch: float
) -> None:
    sizing = Sizing(switch)
    for past in before:
        sizing.look(past, LIMITS)
    stuck = sample._replace(
        queued=sample.idle + sample.starting + waiting,
        workers=min(sample.workers, LIMITS.max_workers - 1),
        oldest_wait=2 * TARGET_DELAY,
        elapsed=max(sample.elapsed, TICK),
    )
    looks = 2 + round(BUSY_PAUSES * BUSY_PAUSE / stuck.elapsed)
    assert any(sizing.look(stuck, LIMITS) for _ in range(looks))


@given(st.lists(st.tuples(st.floats(0.004, 0.1), st.integers(0, 50), st.integers(1, 199)), max_size=60), switches)
def test_growth_behind_a_busy_processor_is_at_most_one_worker_a_pause(
    looks: list[tuple[float, int, int]], switch: float
) -> None:
    sizing = Sizing(switch)
    time, started = 0.0, 0
    for late, taken, workers in looks:
        elapsed = late + TICK
        time += elapsed
        started += sizing.look(
            LATE._replace(late=late, elapsed=elapsed, cpu=elapsed, taken=taken, workers=workers), LIMITS
        )
    assert started <= time / BUSY_PAUSE
