"""The timekeeper: what is due when, in slices, beside its looks at pools, and how it sleeps."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.common import A_MOMENT, TIMEOUT, Background, all_end, eventually
from support.manual_time import ManualTimekeeper

from ebbpool._core.accel import Alarms
from ebbpool._core.timers import FOLD, VOID
from ebbpool._pool.sizing import TICK
from ebbpool._pool.timekeeper import FIRE, Tick, Timekeeper


class Notes:
    """A book that wants everything but what was crossed out, and notes what is fired."""

    def __init__(self) -> None:
        self.out: set[Any] = set()
        self.fired: list[Any] = []

    def wants(self, thing: Any) -> bool:
        return thing not in self.out

    def fire(self, thing: Any) -> None:
        if thing not in self.out:
            self.fired.append(thing)


class Look:
    """Something to look at every `again` seconds, which notes the ticks."""

    def __init__(self, again: float | None, fired: list[Any] | None = None) -> None:
        self.again = again
        self.begun: list[Tick] = []
        self.ticks: list[Tick] = []
        self.fired = fired if fired is not None else []
        self.seen: list[int] = []

    def begin(self, tick: Tick) -> None:
        self.begun.append(tick)

    def tick(self, tick: Tick) -> float | None:
        self.ticks.append(tick)
        self.seen.append(len(self.fired))
        return self.again


def emptied(alarms: Alarms) -> list[Any]:
    """Take everything off, in order."""
    while alarms.merge():
        pass
    taken = []
    while (entry := alarms.pop_due(inf)) is not None:
        taken.append(entry[3])
    return taken


@pytest.fixture
def keeper() -> ManualTimekeeper:
    return ManualTimekeeper()


@pytest.fixture
def living() -> Iterator[Timekeeper]:
    """A timekeeper of its own with a thread that stays, and the real clock."""
    keeper = Timekeeper()
    keeper.needed = lambda: True
    keeper.start()
    thread = keeper._thread
    yield keeper
    keeper.stop()
    assert thread is not None and all_end([thread])


def test_entries_come_off_by_time_and_ties_in_order_of_arrival() -> None:
    alarms, book = Alarms(), Notes()
    for thing, due in enumerate([3.0, 1.0, 2.0, 1.0, 3.0, 1.0]):
        alarms.add(due, book, thing)
    assert emptied(alarms) == [1, 3, 5, 2, 0, 4]


def test_things_that_cannot_be_compared_are_never_compared() -> None:
    alarms, book = Alarms(), Notes()
    things = [object() for _ in range(50)]
    for thing in things:
        alarms.add(1.0, book, thing)
    assert emptied(alarms) == things


operations = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 30)),
        st.tuples(st.just("add many"), st.integers(1, 6 * FOLD)),
        st.tuples(st.just("void"), st.integers(0, 1000)),
        st.tuples(st.just("void most"), st.integers(1, 4)),
        st.tuples(st.just("settle"), st.integers(1, 5)),
        st.tuples(st.just("pass"), st.integers(0, 10)),
        st.tuples(st.just("rest"), st.just(0)),
    ),
    max_size=40,
)


@given(operations)
def test_the_heap_against_a_list(steps: list[tuple[str, int]]) -> None:
    """Whatever is added, crossed out, folded in, swept and taken: nothing is lost, repeated, early or out of order."""
    alarms, book = Alarms(), Notes()
    waiting: dict[int, float] = {}
    numbers = iter(range(1_000_000))
    now = 0.0

    def add(delay: float) -> None:
        number = next(numbers)
        waiting[number] = now + delay
        alarms.add(now + delay, book, number)

    def cross_out(number: int) -> None:
        del waiting[number]
        book.out.add(number)
        alarms.void()

    for step, value in steps:
        if step == "add":
            add(value)
        elif step == "add many":
            for index in range(value):
                add(index * 7 % 31)
        elif step == "void" and waiting:
            cross_out(list(waiting)[value % len(waiting)])
        elif step == "void most":
            for number in list(waiting)[value:]:
                cross_out(number)
        elif step == "settle":
            for _ in range(value):
                alarms.merge()
        elif step == "pass":
            now += value
            while alarms.arrived():
                alarms.merge()
            assert alarms.next_due() <= min(waiting.values(), default=inf)
            due = sorted((when, number) for number, when in waiting.items() if when <= now)
            taken = []
            while (entry := alarms.pop_due(now)) is not None:
                assert entry[0] <= now, "early"
                if entry[3] not in book.out:
                    taken.append((entry[0], entry[3]))
            assert taken == due
            for _, number in due:
                del waiting[number]
        elif step == "rest":
            while alarms.merge():
                pass
            assert len(alarms) < max(2 * (len(waiting) + 1), len(waiting) + VOID) + 1, "void entries pile up"
    left = [number for number in emptied(alarms) if number not in book.out]
    assert left == [number for _, number in sorted((when, number) for number, when in waiting.items())]


def test_void_entries_are_swept_once_they_are_half() -> None:
    alarms, book = Alarms(), Notes()
    for thing in range(1000):
        alarms.add(float(thing), book, thing)
    while alarms.merge():
        pass
    asked = []
    for thing in range(0, 1000, 2):
        book.out.add(thing)
        asked.append(alarms.void())
    assert not any(asked[:-1])
    assert asked[-1], "now the thread has to look"
    while alarms.merge():
        pass
    assert len(alarms) == 500
    assert not alarms.merge(), "it begins again"
    assert emptied(alarms) == list(range(1, 1000, 2))


def test_what_falls_due_while_the_heap_is_swept_is_not_late() -> None:
    alarms, book = Alarms(), Notes()
    for thing in range(10 * FOLD):
        alarms.add(float(thing), book, thing)
    while alarms.merge():
        pass
    for thing in range(1, 10 * FOLD - 1):
        book.out.add(thing)
        alarms.void()
    assert alarms.merge(), "the sweep takes more than one slice"
    alarms.add(0.5, book, "new")
    assert alarms.merge()
    taken = [alarms.pop_due(now) for now in (0.0, 0.4, 0.9, 0.9)]
    assert [entry[3] if entry else None for entry in taken] == [0, None, "new", None]


@pytest.mark.parametrize("slices", range(1, 8))
def test_the_order_holds_however_far_a_sweep_has_come(slices: int) -> None:
    alarms, book, count = Alarms(), Notes(), 8 * FOLD
    for index in range(count):
        alarms.add(float(index * 389 % count), book, index * 389 % count)
    while alarms.merge():
        pass
    for thing in range(0, count, 2):
        book.out.add(thing)
        alarms.void()
    assert [alarms.merge() for _ in range(slices)] == [True] * slices
    taken = []
    while (entry := alarms.pop_due(count / 2)) is not None:
        taken.append(entry[3])
    assert taken == sorted(taken)
    assert [thing for thing in taken if thing not in book.out] == list(range(1, count // 2, 2))


def test_one_visit_folds_no_more_than_a_slice() -> None:
    alarms, book = Alarms(), Notes()
    for thing in range(3 * FOLD):
        alarms.add(1.0, book, thing)
    assert [alarms.merge() for _ in range(3)] == [True, True, False]
    assert not alarms.arrived()


def test_many_additions_ask_to_be_folded_in() -> None:
    alarms, book = Alarms(), Notes()
    assert sum(alarms.add(1e9, book, thing) for thing in range(10_000)) == 9


def test_nothing_is_fired_early(keeper: ManualTimekeeper) -> None:
    book = Notes()
    keeper.call_at(keeper.now + 5.0, book, "five")
    assert keeper.settle() == 5.0
    assert keeper.advance(4.999) == pytest.approx(0.001)
    assert book.fired == []
    keeper.now = 1005.0
    assert keeper.settle() == inf
    assert book.fired == ["five"]


def test_the_bell_is_rung_only_for_what_is_due_sooner(keeper: ManualTimekeeper) -> None:
    book = Notes()
    keeper.call_at(keeper.now + 60.0, book, 1)
    assert keeper.rings == 1, "it would sleep for ever"
    keeper.settle()
    keeper.call_at(keeper.now + 70.0, book, 2)
    keeper.call_at(keeper.now + 60.0, book, 3)
    assert keeper.rings == 1
    keeper.call_at(keeper.now + 59.0, book, 4)
    assert keeper.rings == 2
    assert keeper.settle() == 59.0


def test_what_is_added_while_a_turn_ends_is_not_slept_over(keeper: ManualTimekeeper) -> None:
    """The entry comes when the turn has taken in what was there; no bell is rung, for the last wake-up was sooner."""

    class Adds(Notes):
        def fire(self, thing: Any) -> None:
            super().fire(thing)
            if thing == "first":
                rings = keeper.rings
                keeper.call_at(keeper.now + 1.0, self, "second")
                assert keeper.rings == rings

    book = Adds()
    keeper.call_at(keeper.now + 1.0, book, "first")
    keeper.settle()
    keeper.now += 1.0
    assert keeper.turn() == -inf
    assert keeper.settle() == 1.0


def test_a_look_comes_between_slices_of_what_is_due(keeper: ManualTimekeeper) -> None:
    book = Notes()
    look = Look(TICK, book.fired)
    for thing in range(10 * FIRE):
        keeper.call_at(keeper.now, book, thing)
    while keeper._alarms.merge():
        pass
    keeper.watch(look)
    for _ in range(10):
        keeper.now += TICK
        keeper.turn()
    # The first turn is the one that learns of the look.
    assert look.seen == [FIRE * turn for turn in range(1, 10)]
    assert book.fired == list(range(10 * FIRE))


def test_a_look_comes_between_slices_of_what_was_added(keeper: ManualTimekeeper) -> None:
    book = Notes()
    for thing in range(10 * FOLD):
        keeper.call_at(keeper.now + 100.0, book, thing)
    look = Look(TICK)
    keeper.watch(look)
    for _ in range(5):
        keeper.turn()
        keeper.now += TICK
    assert len(look.ticks) == 4
    assert keeper._alarms.arrived()


def test_looks_do_not_keep_what_is_due_waiting(keeper: ManualTimekeeper) -> None:
    book, look = Notes(), Look(TICK)
    keeper.watch(look)
    keeper.settle()
    keeper.call_at(keeper.now + TICK, book, "due")
    keeper.advance(TICK)
    assert len(look.ticks) == 1 and book.fired == ["due"]


def test_a_look_is_told_how_late_it_is(keeper: ManualTimekeeper) -> None:
    look = Look(0.05)
    keeper.watch(look)
    assert keeper.settle() == pytest.approx(TICK)
    keeper.advance(TICK + 0.25)
    assert look.ticks[0].late == pytest.approx(0.25)
    assert look.ticks[0].now == keeper.now
    assert keeper.advance(0.0) == pytest.approx(0.05)


def test_what_is_looked_at_is_told_when_that_begins(keeper: ManualTimekeeper) -> None:
    look = Look(TICK)
    for count in (1, 2):
        began = keeper.now
        keeper.watch(look)
        keeper.settle()
        keeper.advance(TICK)
        assert [tick.now for tick in look.begun][count - 1 :] == [began]
        assert look.begun[-1].cpu <= look.ticks[-1].cpu


def test_what_wants_no_other_look_is_left_alone(keeper: ManualTimekeeper) -> None:
    look = Look(None)
    keeper.watch(look)
    keeper.settle()
    assert keeper.advance(1.0) == inf
    assert keeper.advance(1.0) == inf
    assert len(look.ticks) == 1


def test_an_error_while_firing_is_logged_and_the_rest_is_fired(
    keeper: ManualTimekeeper, caplog: pytest.LogCaptureFixture
) -> None:
    class Breaks(Notes):
        def fire(self, thing: Any) -> None:
            if thing == 1:
                raise OSError("broken")
            super().fire(thing)

    book = Breaks()
    for thing in range(3):
        keeper.call_at(keeper.now, book, thing)
    with caplog.at_level(logging.CRITICAL, "concurrent.futures"):
        keeper.settle()
    assert book.fired == [0, 2]
    assert "broken" in caplog.text


def test_a_forked_child_begins_with_nothing(keeper: ManualTimekeeper) -> None:
    book = Notes()
    keeper.call_at(keeper.now, book, 1)
    keeper.renew()
    assert keeper.settle() == inf
    assert book.fired == []
    keeper.call_at(keeper.now + 1.0, book, 2)
    assert keeper.settle() == 1.0


def test_the_thread_fires_and_is_not_early(living: Timekeeper) -> None:
    fired: list[tuple[float, float]] = []
    over = threading.Event()

    class Book(Notes):
        def fire(self, thing: Any) -> None:
            fired.append((living.clock(), thing))
            if len(fired) == 50:
                over.set()

    book, now = Book(), living.clock()
    for number in range(50):
        due = now + number * 17 % 50 * 0.001
        living.call_at(due, book, due)
    assert over.wait(TIMEOUT)
    assert all(at >= due for at, due in fired)


def test_the_thread_wakes_for_what_is_due_sooner(living: Timekeeper) -> None:
    book = Notes()
    living.call_at(living.clock() + 3600.0, book, "far")
    eventually(lambda: living._alarms.next_due() < inf)
    living.call_at(living.clock() + 0.01, book, "near")
    eventually(lambda: book.fired == ["near"])


@pytest.mark.parametrize("due", [1e300, threading.TIMEOUT_MAX * 3])
def test_the_thread_can_sleep_longer_than_a_lock_can_wait(living: Timekeeper, due: float) -> None:
    living.call_at(due, Notes(), "some day")
    eventually(lambda: len(living._alarms) == 1 and not living._alarms.arrived())
    called = threading.Event()
    living.call_soon(called.set)
    assert called.wait(TIMEOUT)


def test_the_thread_sleeps_until_the_far_entry_is_due(living: Timekeeper) -> None:
    """It takes no turn meanwhile."""
    turns: list[float] = []
    original = living.turn

    def counted() -> float:
        turns.append(original())
        return turns[-1]

    living.turn = counted  # type: ignore[method-assign]
    due = living.clock() + 3600.0
    living.call_at(due, Notes(), "far")
    eventually(lambda: turns and turns[-1] == due)
    count = len(turns)
    threading.Event().wait(A_MOMENT)
    # Rung for an entry that it had come across already, it has taken one turn more.
    assert len(turns) <= count + 1


def test_every_entry_of_racing_threads_is_fired_once(living: Timekeeper) -> None:
    """Each is due at once, while the thread falls asleep and wakes: a hand-over that is missed is never made up."""
    book = Notes()

    def add(first: int) -> None:
        for number in range(first, first + 2000):
            living.call_at(living.clock(), book, number)
            if number % 50 == 0:
                eventually(lambda: number in book.fired)  # noqa: B023  (used at once)

    threads = [Background(lambda first=first: add(first)) for first in range(0, 6000, 2000)]  # type: ignore[misc]
    for thread in threads:
        thread.join()
    eventually(lambda: len(book.fired) == 6000)
    assert sorted(book.fired) == list(range(6000))


def test_a_stopped_timekeeper_comes_back_with_what_it_had(living: Timekeeper) -> None:
    book = Notes()
    living.stop()
    living.call_soon(lambda: book.fired.append(0))
    assert book.fired == []
    living.call_at(living.clock(), book, 1)
    eventually(lambda: book.fired == [0, 1])
