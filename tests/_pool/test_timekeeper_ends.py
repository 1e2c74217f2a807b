"""The end of the timekeeper's thread and its return: nothing that comes in the moment of the end is lost."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.common import (
    FORK,
    LONG,
    TIMEOUT,
    Background,
    Gate,
    Thing,
    all_end,
    eventually,
    gone,
    needs_fork,
    output_of,
)
from support.manual_time import timed_pool

from ebbpool import AdaptiveExecutor
from ebbpool._core.accel import Alarms
from ebbpool._pool.timekeeper import NAME, Tick, Timekeeper


class Notes:
    """A book that notes what is fired."""

    def __init__(self) -> None:
        self.fired: list[Any] = []

    def wants(self, thing: Any) -> bool:
        return thing not in self.fired

    def fire(self, thing: Any) -> None:
        self.fired.append(thing)


class Look:
    """Something to look at once."""

    def __init__(self) -> None:
        self.looks = 0

    def begin(self, tick: Tick) -> None:
        pass

    def tick(self, tick: Tick) -> float | None:
        self.looks += 1
        return None


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
        if name == "_thread" and value is None and self.place == "announced":
            self._make()
        elif name == "_thread" and value is not None and value not in self.threads:
            self.threads.append(value)


@pytest.fixture
def keeper() -> Iterator[Interrupted]:
    keeper = Interrupted()
    yield keeper
    keeper.stays = False
    keeper.consider()
    assert all_end(keeper.threads)
    assert keeper._thread is None


def use(keeper: Timekeeper, way: str) -> Callable[[], bool]:
    """Queue something in the given way; the outcome tells whether it has been done."""
    book, look, called = Notes(), Look(), threading.Event()
    if way == "watch":
        keeper.watch(look)
    elif way == "call_at":
        keeper.call_at(keeper.clock(), book, 1)
    elif way == "call_at later":
        keeper.call_at(keeper.clock() + 0.01, book, 1)
    else:
        keeper.call_soon(called.set)
    return lambda: look.looks == 1 or book.fired == [1] or called.is_set()


@contextmanager
def held(keeper: Interrupted) -> Iterator[None]:
    """Keep the thread: it may end between its start and the moment in which there is something to do."""
    keeper.stays = True
    yield
    keeper.stays = False


@pytest.mark.parametrize("place", ["asked", "announced"])
@pytest.mark.parametrize("inside", [True, False], ids=["in its thread", "in another"])
@pytest.mark.parametrize("way", ["watch", "call_at", "call_at later", "call_soon"])
def test_what_comes_as_the_thread_ends_is_done(keeper: Interrupted, way: str, inside: bool, place: str) -> None:
    done: list[Callable[[], bool]] = []
    used = threading.Event()

    def act() -> None:
        if inside:
            done.append(use(keeper, way))
        else:
            thread = threading.Thread(target=lambda: done.append(use(keeper, way)))
            thread.start()
            thread.join(TIMEOUT)
        used.set()

    keeper.at(place, act)
    keeper.start()
    assert used.wait(TIMEOUT)
    eventually(done[0])


def test_a_caller_that_starts_it_as_it_ends_has_it(keeper: Interrupted) -> None:
    """That need is new: the thread has asked before it was there."""

    def come_to_need_it() -> None:
        keeper.stays = True
        keeper.start()

    keeper.at("asked", come_to_need_it)
    keeper.start()
    eventually(lambda: keeper.stays)
    done = use(keeper, "call_soon")
    eventually(done)
    assert len(keeper.threads) == 1


def test_the_thread_ends_and_comes_back(keeper: Interrupted) -> None:
    for count in range(1, 4):
        with held(keeper):
            eventually(use(keeper, "watch"))
        keeper.dismiss(TIMEOUT)
        assert len(keeper.threads) == count
        assert not keeper.threads[-1].is_alive()


def test_it_stays_as_long_as_somebody_needs_it(keeper: Interrupted) -> None:
    keeper.stays = True
    keeper.start()
    keeper.dismiss()
    keeper.consider()
    eventually(use(keeper, "call_soon"))
    assert keeper.threads[0].is_alive()
    keeper.stays = False
    keeper.dismiss(TIMEOUT)
    assert not keeper.threads[0].is_alive()


def test_it_stays_while_something_is_due(keeper: Interrupted) -> None:
    book = Notes()
    with held(keeper):
        keeper.call_at(keeper.clock() + LONG, book, 1)
    keeper.dismiss()
    assert keeper.threads[0].is_alive()
    # Void, it is nothing to wait for.
    book.fired.append(1)
    keeper.void()
    keeper.dismiss(TIMEOUT)
    assert not keeper.threads[0].is_alive()


def test_its_own_thread_does_not_wait_for_its_end(keeper: Interrupted) -> None:
    over = threading.Event()
    keeper.stays = True
    keeper.start()
    keeper.call_soon(lambda: (keeper.dismiss(), over.set()))  # type: ignore[func-returns-value]
    assert over.wait(TIMEOUT)


def test_the_end_is_waited_for_with_a_limit(keeper: Interrupted) -> None:
    with Gate() as gate:
        keeper.call_soon(gate)
        keeper.start()
        gate.await_begun()
        keeper.dismiss(0.01)
        assert keeper.threads[0].is_alive()


def test_it_survives_what_a_callback_raises(keeper: Interrupted, caplog: pytest.LogCaptureFixture) -> None:
    keeper.stays = True
    keeper.start()
    keeper.call_soon(sys.exit)
    eventually(use(keeper, "call_soon"))
    assert len(keeper.threads) == 1
    assert "SystemExit" in caplog.text


def test_a_start_inside_the_start_makes_no_second_thread(keeper: Interrupted) -> None:
    """A finaliser may run there, and submit to another pool."""

    class Nested(threading.Thread):
        def start(self) -> None:
            keeper.start()
            super().start()
            keeper.start()

    keeper.kind = Nested
    with held(keeper):
        eventually(use(keeper, "watch"))
    assert len(keeper.threads) == 1


def test_a_start_that_was_refused_is_tried_again(keeper: Interrupted) -> None:
    class Refused(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    keeper.kind = Refused
    with pytest.raises(RuntimeError, match="can't start new thread"):
        keeper.start()
    keeper.kind = threading.Thread
    eventually(use(keeper, "watch"))


def test_a_delayed_call_for_which_there_is_no_thread_is_taken_back() -> None:
    with timed_pool() as (pool, keeper):

        def refuse() -> None:
            raise RuntimeError("can't start new thread")

        def late() -> None:
            keeper.start = refuse  # type: ignore[method-assign]

        # The thread ends between the look at it and the call.
        keeper.start = late  # type: ignore[method-assign]
        thing = Thing()
        reference = weakref.ref(thing)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            pool.submit_later(1.0, thing.method)
        del thing
        gone(reference)
        keeper.start = lambda: None  # type: ignore[method-assign]
        assert pool.stats().delayed == 0
        assert pool.submit_later(1.0, int).cancel()


def test_a_call_that_is_refused_anyway_asks_for_no_thread() -> None:
    with timed_pool() as (pool, keeper):

        def refuse() -> None:
            raise RuntimeError("can't start new thread")

        keeper.start = refuse  # type: ignore[method-assign]
        with pytest.raises(TypeError, match="fn must be callable, not 5"):
            pool.schedule(1.0, 5)  # type: ignore[arg-type]
        pool.shutdown()
        for call in pool.submit_later, pool.schedule:
            with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
                call(1, int)
        keeper.start = lambda: None  # type: ignore[method-assign]


def test_where_all_entries_are_void_they_are_swept() -> None:
    alarms, book = Alarms(), Notes()
    for thing in range(3):
        alarms.add(1e9, book, thing)
    alarms.merge()
    for thing in range(3):
        book.fired.append(thing)
        assert not alarms.void(), "that is not worth a ring"
    alarms.merge()
    assert len(alarms) == 0


def timekeepers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == NAME]


@pytest.fixture
def none_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may have left it to end by itself. Shutdowns wait for its end however busy the machine is."""
    monkeypatch.setattr("ebbpool._pool.crew.PATIENCE", TIMEOUT)
    eventually(lambda: not timekeepers())


@pytest.mark.usefixtures("none_before")
def test_it_is_gone_when_the_last_pool_has_shut_down() -> None:
    with AdaptiveExecutor(keep_alive=LONG) as pool:
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


@pytest.mark.usefixtures("none_before")
def test_it_goes_when_the_last_worker_has_gone() -> None:
    pool = AdaptiveExecutor(3, keep_alive=0.01)
    with Gate() as gate:
        gate.hold(pool, 3)
        assert len(timekeepers()) == 1
    eventually(lambda: not timekeepers())
    assert pool.submit(abs, -1).result(TIMEOUT) == 1
    pool.shutdown(wait=False)
    eventually(lambda: not timekeepers())


@pytest.mark.usefixtures("none_before")
def test_it_goes_with_a_forgotten_executor() -> None:
    pool = AdaptiveExecutor(keep_alive=LONG)
    pool.submit(int).result(TIMEOUT)
    assert len(timekeepers()) == 1
    del pool
    eventually(lambda: not timekeepers())


@pytest.mark.usefixtures("none_before")
def test_it_goes_with_a_shutdown_that_does_not_wait() -> None:
    pool = AdaptiveExecutor()
    pool.submit_later(LONG, int)
    pool.shutdown(wait=False)
    eventually(lambda: not timekeepers())


@pytest.mark.usefixtures("none_before")
def test_a_worker_that_shuts_down_another_pool() -> None:
    with AdaptiveExecutor() as pool:
        other = AdaptiveExecutor()
        other.submit(int).result(TIMEOUT)
        pool.submit(other.shutdown).result(TIMEOUT)
        assert len(timekeepers()) == 1
    assert timekeepers() == []


def test_pools_that_come_and_go_while_others_do() -> None:
    """Each meets at a barrier as wide as itself: without a timekeeper it would wait for ever."""

    def come_and_go() -> None:
        for _ in range(25):
            barrier = threading.Barrier(3)
            with AdaptiveExecutor(3) as pool:
                calls = [pool.submit(barrier.wait, TIMEOUT) for _ in range(3)]
                assert sorted(call.result(TIMEOUT) for call in calls) == [0, 1, 2]

    for caller in [Background(come_and_go) for _ in range(3)]:
        caller.join()


@needs_fork
def test_a_process_that_has_shut_down_its_pools_forks_without_a_warning() -> None:
    lines = output_of(
        """
    import warnings
    warnings.simplefilter("error")
    def threads():
        # The system may take a moment to strike off a thread that has been joined, and a fork counts there.
        while sys.platform == "linux" and len(os.listdir("/proc/self/task")) > 1:
            os.sched_yield()
        return threading.active_count()
    def check():
        with AdaptiveExecutor() as pool:
            print(pool.submit(pow, 2, 4).result(10))
        print(threads())
    for _ in range(3):
        with AdaptiveExecutor(4) as pool:
            print(sum(pool.map(abs, range(10))))
        print(threads())
        print(in_child(check))
    """,
        FORK,
    )
    assert lines == ["45", "1", "16", "1", "0"] * 3


@needs_fork
def test_a_fork_in_the_thread_itself() -> None:
    """In the child that thread is not the timekeeper any more."""
    lines = output_of(
        """
    from ebbpool._pool.timekeeper import timekeeper
    pool = AdaptiveExecutor(2, keep_alive=600)
    pool.submit(int).result(10)
    forked = threading.Event()
    def fork():
        global pid
        pid = os.fork()
        if pid == 0:
            def child():
                barrier = threading.Barrier(2)
                print(sorted(call.result(10) for call in [pool.submit(barrier.wait, 10) for _ in range(2)]), flush=True)
                os._exit(0)
            threading.Thread(target=child).start()
        forked.set()
    timekeeper.call_soon(fork)
    assert forked.wait(10)
    print(os.waitpid(pid, 0)[1], flush=True)
    """,
        FORK,
    )
    assert lines == ["[0, 1]", "0"]
