"""The timekeeper: what is due when, in slices, beside its looks at pools, and how it sleeps."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Sized
from math import inf
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support import seams
from support.common import LONG, TIMEOUT, Background, Gate, Thing, all_end, eventually, gone, no_thread
from support.manual_time import ManualTimekeeper, timed_pool
from support.rules import AFTER_ERROR, FIRE, FOLD, NAME, TICK, VOID, Alarms, Tick, Timekeeper

from ebbpool import AdaptiveExecutor


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

    def __init__(self, again: float | None, fired: Sized = ()) -> None:
        self.again, self.fired = again, fired
        self.begun: list[Tick] = []
        self.ticks: list[Tick] = []
        self.seen: list[int] = []

    def begin(self, tick: Tick) -> float:
        self.begun.append(tick)
        return TICK

    def tick(self, tick: Tick) -> float | None:
        self.ticks.append(tick)
        self.seen.append(len(self.fired))
        return self.again


def taken(alarms: Alarms, now: float) -> list[tuple[float, Any]]:
    """Take off what is due, in order: when it was, and the thing."""
    return [(due, thing) for due, _, _, thing in iter(lambda: alarms.pop_due(now), None)]


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
@example(
    [("add many", 134), ("rest", 0), ("void most", 1), ("add many", 123), ("settle", 2), ("void most", 1), ("rest", 0)]
)
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
            assert [entry for entry in taken(alarms, now) if entry[1] not in book.out] == due
            for _, number in due:
                del waiting[number]
        elif step == "rest":
            while alarms.merge():
                pass
            assert len(alarms) < max(2 * (len(waiting) + 1), len(waiting) + VOID) + 1, "void entries pile up"
    while alarms.merge():
        pass
    left = [entry for entry in taken(alarms, inf) if entry[1] not in book.out]
    assert left == sorted((when, number) for number, when in waiting.items())


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
    things = [thing for _, thing in taken(alarms, count / 2)]
    assert things == sorted(things)
    assert [thing for thing in things if thing not in book.out] == list(range(1, count // 2, 2))


def test_nothing_is_fired_early_and_the_bell_is_rung_only_for_what_is_due_sooner(keeper: ManualTimekeeper) -> None:
    book = Notes()
    keeper.call_at(keeper.now + 60.0, book, 60)
    assert keeper.rings == 1, "it would sleep for ever"
    keeper.settle()
    keeper.call_at(keeper.now + 70.0, book, 70)
    keeper.call_at(keeper.now + 60.0, book, 60)
    assert keeper.rings == 1
    keeper.call_at(keeper.now + 59.0, book, 59)
    assert keeper.rings == 2
    assert keeper.settle() == 59.0
    assert keeper.advance(58.999) == pytest.approx(0.001)
    assert book.fired == []
    keeper.now = 1059.0
    assert keeper.settle() == 1.0
    keeper.now = 1070.0
    assert keeper.settle() == inf
    assert book.fired == [59, 60, 60, 70]


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


def test_a_look_is_told_when_it_begins_and_how_late_it_is(keeper: ManualTimekeeper) -> None:
    look = Look(0.05)
    for count in (1, 2):
        began = keeper.now
        keeper.watch(look)
        assert keeper.settle() == pytest.approx(TICK)
        keeper.advance(TICK + 0.25)
        assert [tick.now for tick in look.begun][count - 1 :] == [began]
        assert look.begun[-1].cpu <= look.ticks[-1].cpu
        assert look.ticks[-1].late == pytest.approx(0.25)
        assert look.ticks[-1].now == keeper.now
        assert keeper.advance(0.0) == pytest.approx(0.05)


def test_an_error_is_logged_and_the_rest_is_done(keeper: ManualTimekeeper, caplog: pytest.LogCaptureFixture) -> None:
    class Breaks(Notes):
        def fire(self, thing: Any) -> None:
            if thing == 1:
                raise OSError("broken")
            super().fire(thing)

    class Fails(Look):
        def tick(self, tick: Tick) -> float | None:
            super().tick(tick)
            raise OSError("it fails")

    book, look = Breaks(), Fails(None)
    for thing in range(3):
        keeper.call_at(keeper.now, book, thing)
    keeper.watch(look)
    keeper.settle()
    assert book.fired == [0, 2]
    assert "broken" in caplog.text
    assert keeper.advance(TICK) == pytest.approx(AFTER_ERROR), "it is looked at again"
    assert "it fails" in caplog.text


def test_the_thread_can_sleep_longer_than_a_lock_can_wait_and_comes_back_with_what_it_had(living: Timekeeper) -> None:
    for number, due in enumerate([1e300, threading.TIMEOUT_MAX * 3], 1):
        living.call_at(due, Notes(), "some day")
        eventually(lambda: len(living._alarms) == number and not living._alarms.arrived())  # noqa: B023  (used at once)
        eventually(use(living, "call_soon"))
    book = Notes()
    living.stop()
    living.call_soon(lambda: book.fired.append(0))
    assert book.fired == []
    living.call_at(living.clock(), book, 1)
    eventually(lambda: book.fired == [0, 1])


# The end of the thread, and its return: nothing that comes in the moment of the end is lost.


class Interrupted(Timekeeper):
    """A timekeeper that makes a call at one of the places where its thread is about to end.

    Attributes:
        place: "asked", before the thread has said that it ends, or "announced", after that.
    """

    place = ""
    action: Callable[[], object] | None = None

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[threading.Thread] = []
        self.stays = False
        self.needed = self._asked

    def at(self, place: str, action: Callable[[], object]) -> None:
        self.place, self.action = place, action

    def _make(self) -> None:
        action, self.action = self.action, None
        if action is not None:
            action()

    def _asked(self) -> bool:
        answer = self.stays
        if self.place == "asked":
            self._make()
        return answer

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "_runs" and not value and self.place == "announced":
            self._make()
        elif name == "_thread" and value is not None and value not in self.threads:
            self.threads.append(value)


@pytest.fixture
def ending() -> Iterator[Interrupted]:
    ending = Interrupted()
    yield ending
    ending.stays = False
    ending.consider()
    assert all_end(ending.threads)
    assert not ending._runs


def use(ending: Timekeeper, way: str) -> Callable[[], bool]:
    """Queue something in the given way; the outcome tells whether it has been done."""
    book, look, called = Notes(), Look(None), threading.Event()
    if way == "watch":
        ending.watch(look)
    elif way == "call_at":
        ending.call_at(ending.clock(), book, 1)
    elif way == "call_at later":
        ending.call_at(ending.clock() + 0.01, book, 1)
    else:
        ending.call_soon(called.set)
    return lambda: bool(look.ticks) or book.fired == [1] or called.is_set()


@pytest.mark.parametrize("place", ["asked", "announced"])
@pytest.mark.parametrize("inside", [True, False], ids=["in its thread", "in another"])
@pytest.mark.parametrize("way", ["watch", "call_at", "call_at later", "call_soon"])
def test_what_comes_as_the_thread_ends_is_done(ending: Interrupted, way: str, inside: bool, place: str) -> None:
    done: list[Callable[[], bool]] = []
    used = threading.Event()

    def act() -> None:
        done.append(use(ending, way) if inside else Background(lambda: use(ending, way)).join())
        used.set()

    ending.at(place, act)
    ending.start()
    assert used.wait(TIMEOUT)
    eventually(done[0])


def test_a_caller_that_starts_it_as_it_ends_has_it(ending: Interrupted) -> None:
    """That need is new: the thread has asked before it was there."""

    def come_to_need_it() -> None:
        ending.stays = True
        ending.start()

    ending.at("asked", come_to_need_it)
    ending.start()
    eventually(lambda: ending.stays)
    eventually(use(ending, "call_soon"))
    assert len(ending.threads) == 1


def test_the_thread_stays_while_something_is_due(ending: Interrupted) -> None:
    book = Notes()
    ending.stays = True
    ending.call_at(ending.clock() + LONG, book, 1)
    ending.stays = False
    ending.dismiss()
    assert ending.threads[0].is_alive()
    # Void, it is nothing to wait for.
    book.out.add(1)
    ending.void()
    ending.dismiss(TIMEOUT)
    assert not ending.threads[0].is_alive()


def test_a_caller_who_dismisses_the_thread_as_it_is_stopped_does_not_wait_for_an_answer(ending: Interrupted) -> None:
    book = Notes()
    with Gate() as gate:
        vars(book)["fire"] = gate
        ending.call_at(ending.clock(), book, 1)
        gate.await_begun()
        asking = Background(lambda: ending.dismiss(LONG))
        eventually(lambda: ending._asking)
        stopping = Background(ending.stop)
        eventually(lambda: ending._stopping)
    asking.join()
    stopping.join()
    assert not ending.threads[0].is_alive()


def test_a_start_inside_the_start_makes_no_second_thread(ending: Interrupted, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finaliser may run there, and submit to another pool."""
    start = threading.Thread.start

    def nested(thread: threading.Thread) -> None:
        ending.start()
        start(thread)
        ending.start()

    monkeypatch.setattr(threading.Thread, "start", nested)
    # It may end between its start and the moment in which there is something to do.
    ending.stays = True
    eventually(use(ending, "watch"))
    assert len(ending.threads) == 1


def test_a_delayed_call_for_which_there_is_no_thread_is_taken_back() -> None:
    with timed_pool() as (pool, ending):

        def late() -> None:
            ending.start = no_thread  # type: ignore[method-assign]

        # The thread ends between the look at it and the call.
        ending.start = late  # type: ignore[method-assign]
        thing = Thing()
        reference = weakref.ref(thing)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            pool.submit_later(1.0, thing.method)
        del thing
        gone(reference)
        assert pool.stats().delayed == 0
        # What is refused anyway asks for no thread.
        with pytest.raises(TypeError, match="fn must be callable, not 5"):
            pool.schedule(1.0, 5)  # type: ignore[arg-type]
        ending.start = lambda: None  # type: ignore[method-assign]
        assert pool.submit_later(1.0, int).cancel()
        pool.shutdown()
        ending.start = no_thread  # type: ignore[method-assign]
        for call in pool.submit_later, pool.schedule:
            with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
                call(1, int)
        ending.start = lambda: None  # type: ignore[method-assign]


def timekeepers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == NAME]


@pytest.fixture
def none_before() -> Iterator[None]:
    """Others may have left it to end by itself. Shutdowns wait for its end however busy the machine is."""
    eventually(lambda: not timekeepers())
    with seams.setting(wait_for_timekeeper=TIMEOUT):
        yield


@pytest.mark.usefixtures("none_before")
def test_the_thread_is_gone_when_the_last_pool_has_shut_down_or_the_last_worker_has_gone() -> None:
    with AdaptiveExecutor(keep_alive=LONG, warn_after=LONG, warn_lag=LONG) as pool:
        with AdaptiveExecutor() as other:
            assert other.submit(abs, -1).result(TIMEOUT) == 1
            assert pool.submit(abs, -1).result(TIMEOUT) == 1
        assert len(timekeepers()) == 1, "the other pool may be forgotten"
    assert timekeepers() == []
    pool = AdaptiveExecutor()
    pool.submit_later(LONG, int)
    assert len(timekeepers()) == 1
    pool.shutdown()
    assert timekeepers() == []
    pool = AdaptiveExecutor(3, keep_alive=0.01, warn_after=LONG)
    with Gate() as gate:
        gate.hold(pool, 3)
        assert len(timekeepers()) == 1
    eventually(lambda: not timekeepers())
    assert pool.submit(abs, -1).result(TIMEOUT) == 1
    pool.shutdown(wait=False)
    eventually(lambda: not timekeepers())


def test_a_log_that_raises_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """All pools rely on it, whatever the handlers of a program do."""
    logged = threading.Event()

    class Unreachable(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if threading.current_thread().name == NAME:
                logged.set()
                raise OSError("the log host is down")

    def fail() -> None:
        raise LookupError

    monkeypatch.setattr(logging.getLogger("concurrent.futures"), "handlers", [Unreachable()])
    with AdaptiveExecutor(1) as pool:
        seams.in_timekeeper(fail)
        assert logged.wait(TIMEOUT)
        assert pool.submit_later(0.01, abs, -1).result(TIMEOUT) == 1
