"""Semaphores: what a single thread sees of them, held against threading's, and CPython's own tests."""

from __future__ import annotations

import gc
import inspect
import sys
import threading
import unittest
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from support.common import output_of
from support.semaphore import NAMES, each_kind, each_variant, variant, waiting  # noqa: F401  (fixtures)

from ebbpool import sync
from ebbpool._testing import seams

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

    @pytest.mark.parametrize("value", [1.5, "2", None, [1]])
    def test_what_is_no_integer_is_named(self, kind: Any, value: Any) -> None:
        with pytest.raises(TypeError, match="value must be an integer, not "):
            kind(value)
        sem = kind(1)
        sem.acquire()
        with pytest.raises(TypeError, match="n must be an integer, not "):
            sem.release(value)
        assert sem._value == 0

    def test_what_counts_as_an_integer_will_do(self, kind: Any) -> None:
        class Two:
            def __index__(self) -> int:
                return 2

        sem = kind(Two())
        assert sem.acquire() and sem.acquire() and not sem.acquire(False)
        sem.release(Two())
        assert sem._value == 2
        assert kind(True)._value == 1

    def test_there_is_a_most(self, semaphores: ModuleType) -> None:
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

    def test_repr(self, semaphores: ModuleType) -> None:
        sem, bounded = semaphores.Semaphore(3), semaphores.BoundedSemaphore(3)
        sem.release()
        bounded.acquire()
        assert repr(sem) == f"<ebbpool.sync.Semaphore at {id(sem):#x}: value=4>"
        assert repr(bounded) == f"<ebbpool.sync.BoundedSemaphore at {id(bounded):#x}: value=2/3>"

    def test_family(self, semaphores: ModuleType) -> None:
        assert issubclass(semaphores.BoundedSemaphore, semaphores.Semaphore)
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
