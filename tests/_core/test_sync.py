"""Semaphores, held against threading's and CPython's own tests: who gets a permit and when; none is lost on the way."""

from __future__ import annotations

import gc
import inspect
import signal
import sys
import textwrap
import threading
import time
import unittest
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import ModuleType
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from support import seams
from support.common import FORK, TIMEOUT, Background, Boom, eventually, needs_fork, output_of

from ebbpool import sync

NAMES = ("Semaphore", "BoundedSemaphore")


def variant(name: str) -> ModuleType:
    """Return the "plain" or the "compiled" semaphores; skip the test where they were not built."""
    module = seams.core(name, "semaphore")
    if module is None:
        pytest.skip("the extension is not built")
    return module


@pytest.fixture(name="semaphores", params=["plain", "compiled"])
def each_variant(request: pytest.FixtureRequest) -> ModuleType:
    """The semaphores as plain Python and, where they were built, as the extension."""
    return variant(request.param)


@pytest.fixture(name="kind", params=NAMES)
def each_kind(request: pytest.FixtureRequest, semaphores: ModuleType) -> Any:
    """Each class of each variant."""
    return getattr(semaphores, request.param)


def waiting(sem: Any) -> int:
    """Return how many wait for a permit."""
    return len(sem._waiters)


def queue_up(sem: Any) -> Background:
    """Start a thread that waits for a permit, and return when it stands in the queue."""
    before = waiting(sem)
    thread = Background(sem.acquire)
    eventually(lambda: waiting(sem) == before + 1, "the thread waits for a permit")
    return thread


try:
    from test import lock_tests
except ImportError:
    lock_tests = None


class TestSemantics:
    @pytest.mark.parametrize("name", NAMES)
    def test_signatures_are_those_of_threading(self, semaphores: ModuleType, name: str) -> None:
        def shape(call: Any) -> list[tuple[str, Any]]:
            return [(p.name, p.default) for p in inspect.signature(call).parameters.values()]

        ours, theirs = getattr(semaphores, name), getattr(threading, name)
        assert shape(ours) == shape(theirs)
        for method in ("acquire", "release", "__enter__"):
            assert shape(getattr(ours, method)) == shape(getattr(theirs, method))

    def test_what_counts_as_an_integer_will_do_and_what_does_not_is_named(self, kind: Any) -> None:
        class Two:
            def __index__(self) -> int:
                return 2

        sem = kind(Two())
        assert sem.acquire() and sem.acquire() and not sem.acquire(False)
        for value in (1.5, "2", None, [1]):
            with pytest.raises(TypeError, match="value must be an integer, not "):
                kind(value)
            with pytest.raises(TypeError, match="n must be an integer, not "):
                sem.release(value)
        assert sem._value == 0
        sem.release(Two())
        assert sem._value == 2
        assert kind(True)._value == 1

    def test_the_value_has_a_maximum(self, semaphores: ModuleType) -> None:
        most = sys.maxsize
        with pytest.raises(ValueError, match="value must be at most"):
            semaphores.Semaphore(most + 1)
        sem = semaphores.Semaphore(most)
        with pytest.raises(ValueError, match="n must leave at most"):
            sem.release()
        assert sem._value == most
        assert sem.acquire()
        with pytest.raises(ValueError, match="n must leave at most"):
            sem.release(2)
        with pytest.raises(ValueError, match="n must be at most"):
            sem.release(most + 1)
        sem.release()
        assert sem._value == most

    @pytest.mark.parametrize(
        ("timeout", "error"), [("1", TypeError), (1j, TypeError), (float("nan"), ValueError), (1e300, OverflowError)]
    )
    def test_a_bad_timeout_leaves_nobody_waiting(self, kind: Any, timeout: Any, error: Any) -> None:
        sem = kind(1)
        assert sem.acquire(timeout=timeout), "with a permit free nobody looks at the timeout, as in threading"
        with pytest.raises(error):
            sem.acquire(timeout=timeout)
        assert waiting(sem) == 0
        sem.release()
        assert sem._value == 1

    def test_a_semaphore_shows_its_value_and_its_public_module(self, semaphores: ModuleType) -> None:
        sem, bounded = semaphores.Semaphore(3), semaphores.BoundedSemaphore(3)
        sem.release()
        bounded.acquire()
        assert repr(sem) == f"<ebbpool.sync.Semaphore at {id(sem):#x}: value=4>"
        assert repr(bounded) == f"<ebbpool.sync.BoundedSemaphore at {id(bounded):#x}: value=2/3>"
        assert isinstance(bounded, semaphores.Semaphore)
        assert semaphores.Semaphore.__module__ == semaphores.BoundedSemaphore.__module__ == "ebbpool.sync"

    def test_a_cycle_through_it_is_collected(self, kind: Any) -> None:
        sem = kind()
        sem.self = sem
        reference = weakref.ref(sem)
        del sem
        gc.collect()
        assert reference() is None

    def test_a_subclass_has_its_say(self, kind: Any) -> None:
        class Counted(kind):  # type: ignore[misc]
            def __init__(self, value: int, name: str) -> None:
                super().__init__(value)
                self.name = name
                self.released: list[int] = []

            def release(self, n: int = 1) -> None:
                super().release(n)
                self.released.append(n)

        sem = Counted(2, "two")
        with sem:
            assert sem._value == 1
        assert (sem.released, sem._value, sem.name) == ([1], 2, "two")
        assert "Counted at" in repr(sem)


HISTORIES = st.lists(
    st.one_of(
        st.tuples(st.just("acquire"), st.sampled_from([(False,), (True, 0), (True, -1.5), (False, 1), (0, None)])),
        st.tuples(st.just("release"), st.one_of(st.just(()), st.tuples(st.integers(-1, 4)))),
    ),
    max_size=40,
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("which", ["plain", "compiled"])
@given(start=st.integers(-1, 3), history=HISTORIES)
def test_a_single_thread_sees_what_threading_would_show_it(
    which: str, name: str, start: int, history: list[tuple[str, tuple[Any, ...]]]
) -> None:
    def outcome(call: Callable[[], object]) -> object:
        try:
            return call()
        except ValueError as error:
            return str(error)

    made = [outcome(lambda cls=cls: cls(start)) for cls in (getattr(variant(which), name), getattr(threading, name))]
    ours, theirs = made
    if isinstance(theirs, str):
        assert ours == theirs
        return
    for method, args in history:
        told = [outcome(lambda sem=sem: getattr(sem, method)(*args)) for sem in made]  # noqa: B023  (called at once)
        assert told[0] == told[1], (method, args)
        assert ours._value == theirs._value, (method, args)


def test_the_choice_between_plain_and_compiled() -> None:
    script = "import ebbpool.sync as s; print(s.COMPILED, s.Semaphore.__module__)"
    assert output_of(script, "import os; os.environ['EBBPOOL_PURE'] = '1'\n") == ["False ebbpool.sync"]
    compiled = not seams.PURE and sync.core.__name__.endswith("_c")
    assert compiled == sync.COMPILED
    assert {sync.Semaphore, sync.BoundedSemaphore} == {getattr(sync.core, name) for name in NAMES}


SUITES = {"Semaphore": "SemaphoreTests", "BoundedSemaphore": "BoundedSemaphoreTests"}
CPYTHONS = [
    (name, test)
    for name, suite in SUITES.items()
    if lock_tests is not None
    for test in unittest.defaultTestLoader.getTestCaseNames(getattr(lock_tests, suite))
]


@pytest.mark.parametrize(("name", "test"), CPYTHONS)
def test_cpythons_own(semaphores: ModuleType, name: str, test: str) -> None:
    """CPython's tests of semaphores, where the interpreter comes with them."""

    class Case(getattr(lock_tests, SUITES[name])):  # type: ignore[misc]
        semtype = staticmethod(getattr(semaphores, name))

    if test == "test_repr":
        # It expects a class from a module without dots.
        Case.semtype = type(name, (getattr(semaphores, name),), {"__module__": "threading"})
    result = unittest.TestResult()
    Case(test).run(result)
    assert result.testsRun == 1
    assert not result.errors and not result.failures, [text for _, text in result.errors + result.failures]


class Bell:
    """The lock that a waiter sleeps on: instead of sleeping it plays the next step.

    A step stands for what other threads do meanwhile. It returns what the lock would: whether it was released, or,
    lying, that it was not although it just has been.
    """

    def __init__(self, steps: tuple[Callable[[], bool], ...]) -> None:
        self.steps = list(steps)
        self.timeouts: list[float] = []
        self._born = False
        self._rung = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not self._born:
            self._born = True
            return True
        self.timeouts.append(timeout)
        told = self.steps.pop(0)()
        assert self._rung or not told, "the waiter was not rung for"
        if told:
            self._rung = False
        return told

    def release(self) -> None:
        assert not self._rung, "rung twice"
        self._rung = True


@pytest.fixture
def play(semaphores: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Bell]:
    """Give the next waiter the steps it is called with; those after it wait in earnest."""
    allocate = semaphores.allocate_lock
    bells: list[Bell] = []

    def play(*steps: Callable[[], bool]) -> Bell:
        bells.append(Bell(steps))
        return bells[-1]

    monkeypatch.setattr(semaphores, "allocate_lock", lambda: bells.pop(0) if bells else allocate())
    return play


def test_waiters_are_served_in_order_of_arrival(kind: Any) -> None:
    sem = kind(5)
    for _ in range(5):
        sem.acquire()
    threads = [queue_up(sem) for _ in range(5)]
    for number, thread in enumerate(threads):
        sem.release()
        assert thread.join() is True
        assert [other.over.is_set() for other in threads[number + 1 :]] == [False] * (4 - number)
    assert (sem._value, waiting(sem)) == (0, 0)


class TestHandOver:
    """What happens between a release and the moment its waiter runs, step by step."""

    @pytest.fixture
    def sem(self, semaphores: ModuleType) -> Any:
        return semaphores.Semaphore(0)

    @pytest.mark.parametrize(
        ("naps", "got", "left"),
        [
            pytest.param([["release", "late"]], True, 0, id="a permit that comes as time runs out is taken"),
            pytest.param([["release both", "late"]], True, 1, id="of two, one is taken"),
            pytest.param([["release", "interrupted"]], None, 1, id="an interrupted waiter gives its permit back"),
            pytest.param([["release both", "interrupted"]], None, 2, id="and leaves another alone"),
            pytest.param(
                [["release", "overtake", "woken"], ["release", "find none", "woken"]],
                True,
                0,
                id="a newcomer passes a waiter only once",
            ),
            pytest.param(
                [["queue up", "release", "release", "woken"]], True, 0, id="one that takes its permit wakes the next"
            ),
            pytest.param(
                [["queue up", "release", "interrupted"]], None, 0, id="an interrupted waiter passes its permit on"
            ),
            pytest.param(
                [["release", "overtake", "woken"], ["queue up", "release", "find none", "interrupted"]],
                None,
                0,
                id="and so does one that it was handed to",
            ),
        ],
    )
    def test_events_during_a_wait(
        self, sem: Any, play: Any, naps: list[list[str]], got: bool | None, left: int
    ) -> None:
        others: list[Background] = []
        happens: dict[str, Callable[[], object]] = {
            "release": sem.release,
            "release both": lambda: sem.release(2),
            "overtake": lambda: sem.acquire(False) is True,
            "find none": lambda: sem.acquire(False) is False,
            "queue up": lambda: others.append(queue_up(sem)),
        }

        def nap(*events: str) -> bool:
            *before, end = events
            for event in before:
                assert happens[event]() is not False, event
            if end == "interrupted":
                raise KeyboardInterrupt
            return end == "woken"

        bell = play(*[partial(nap, *events) for events in naps])
        with pytest.raises(KeyboardInterrupt) if got is None else nullcontext():
            assert sem.acquire(timeout=1 if naps[0][-1] == "late" else None) is got
        assert [thread.join() for thread in others] == [True] * len(others)
        assert not bell.steps
        assert (sem._value, waiting(sem)) == (left, 0)

    def test_an_overtaken_waiter_waits_for_the_rest_of_its_time(self, sem: Any, play: Any) -> None:
        def overtaken() -> bool:
            now = time.monotonic()
            eventually(lambda: time.monotonic() > now, "the clock goes on")
            sem.release()
            assert sem.acquire(False) is True
            return True

        bell = play(overtaken, lambda: False)
        assert sem.acquire(timeout=5) is False
        first, second = bell.timeouts
        assert 0 <= second < first == 5
        assert (sem._value, waiting(sem)) == (0, 0)

    def test_a_waiter_behind_one_that_is_just_waking_does_not_take_its_permit(self, sem: Any, play: Any) -> None:
        gate = threading.Event()

        def wakes_slowly() -> bool:
            return gate.wait(TIMEOUT)

        def out_of_time() -> bool:
            sem.release()
            assert (sem._value, waiting(sem)) == (1, 2)
            return False

        play(wakes_slowly)
        first = queue_up(sem)
        play(out_of_time)
        assert sem.acquire(timeout=1) is False
        gate.set()
        assert first.join() is True
        assert (sem._value, waiting(sem)) == (0, 0)

    def test_a_permit_that_comes_before_the_waiter_queues_up_is_taken(
        self, sem: Any, semaphores: ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        allocate = semaphores.allocate_lock

        def allocate_lock() -> Any:
            sem.release()
            return allocate()

        monkeypatch.setattr(semaphores, "allocate_lock", allocate_lock)
        assert sem.acquire() is True
        assert (sem._value, waiting(sem)) == (0, 0)


def test_a_signal_handler_may_release_what_its_own_thread_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler comes between any two steps of plain Python; in C there is no such place under the mutex."""
    semaphores = variant("plain")
    sem = semaphores.Semaphore(0)

    class Interrupted(Bell):
        def release(self) -> None:
            super().release()
            sem.release()

    def woken() -> bool:
        sem.release()
        return True

    monkeypatch.setattr(semaphores, "allocate_lock", lambda: Interrupted((woken,)))
    assert sem.acquire() is True
    assert (sem._value, waiting(sem)) == (1, 0)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals cannot be sent to a thread here")
def test_a_signal_in_a_waiter_costs_no_permit(kind: Any, one_interrupt: Callable[[BaseException], None]) -> None:
    sem = kind(1)
    sem.acquire()

    def interrupt() -> None:
        eventually(lambda: waiting(sem) == 1)
        one_interrupt(Boom())

    thread = Background(interrupt)
    with pytest.raises(Boom):
        sem.acquire(timeout=TIMEOUT)
    thread.join()
    assert waiting(sem) == 0
    sem.release()
    assert sem._value == 1
    assert sem.acquire(False)


WAITING = """
import importlib

semaphores = importlib.import_module(sys.modules["ebbpool.sync"].core.__name__)
sem = semaphores.Semaphore(0)


def queue_up():
    before = len(sem._waiters)
    thread = threading.Thread(target=sem.acquire, daemon=True)
    thread.start()
    while len(sem._waiters) == before:
        pass
    # It has let the mutex go, which the child of a fork would find held for good.
    assert not sem.acquire(False)
    return thread
"""


@needs_fork
@pytest.mark.parametrize("which", ["plain", "compiled"])
class TestFork:
    def prelude(self, which: str) -> str:
        variant(which)
        choose = f"import os\nos.environ['EBBPOOL_PURE'] = '{int(which == 'plain')}'\nimport ebbpool.sync\n"
        return choose + textwrap.dedent(FORK) + WAITING

    def test_waiters_left_with_the_parent_take_no_permit(self, which: str) -> None:
        script = """
            stayed = [queue_up(), queue_up()]

            def check():
                thread = queue_up()
                sem.release()
                thread.join(10)
                assert not thread.is_alive(), "the permit went to a thread that is not here"
                sem.release(2)
                assert (sem._value, sem._waiters) == (2, [])

            assert in_child(check) == 0
            sem.release(2)
            for thread in stayed:
                thread.join()
            print(sem._value, sem._waiters)
        """
        assert output_of(script, self.prelude(which)) == ["0 []"]

    def test_a_waiter_whose_own_thread_forks_goes_on_waiting_in_the_child(self, which: str) -> None:
        script = """
            class Bell:
                rung = born = False

                def acquire(self, blocking=True, timeout=-1):
                    if not self.born:
                        self.born = True
                        return True
                    global child
                    child = os.fork()
                    sem.release(1 if child == 0 else 2)
                    return self.rung

                def release(self):
                    self.rung = True

            stayed = queue_up()
            semaphores.allocate_lock = Bell
            got = sem.acquire(timeout=10)

            def check():
                assert (got, sem._value, sem._waiters) == (True, 0, [])

            check()
            if child == 0:
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            stayed.join()
            print("done")
        """
        assert output_of(script, self.prelude(which)) == ["done"]
