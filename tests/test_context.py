"""propagate_context: tasks see the context variables of their submitter, and change only their own copy."""

from __future__ import annotations

import contextvars
import threading
import weakref
from collections.abc import Iterator

import pytest
from support import LONG, TIMEOUT, Gate, Thing, gone, no_collector

from ebbpool import AdaptiveExecutor

variable: contextvars.ContextVar[object] = contextvars.ContextVar("variable", default="unset")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    token = variable.set("unset")
    yield
    variable.reset(token)


def test_contexts_stay_apart_unless_asked_for() -> None:
    with AdaptiveExecutor(1, keep_alive=LONG) as pool:
        assert pool.submit(int).result(TIMEOUT) == 0
        variable.set("mine")
        assert pool.submit(variable.get).result(TIMEOUT) == "unset"


def test_a_task_sees_the_variables_of_its_submitter() -> None:
    with AdaptiveExecutor(1, keep_alive=LONG, propagate_context=True) as pool:
        for value in ("one", "two"):
            variable.set(value)
            assert pool.submit(variable.get).result(TIMEOUT) == value


def test_the_context_is_that_of_the_moment_of_submitting() -> None:
    with AdaptiveExecutor(1, propagate_context=True) as pool, Gate() as gate:
        pool.submit(gate)
        futures = []
        for value in range(5):
            variable.set(value)
            futures.append(pool.submit(variable.get))
        variable.set("later")
        gate.open()
        assert [future.result(TIMEOUT) for future in futures] == list(range(5))


def test_changes_of_a_task_stay_in_the_task() -> None:
    with AdaptiveExecutor(1, propagate_context=True) as pool:
        variable.set("mine")

        def change() -> object:
            variable.set("changed")
            return variable.get()

        assert pool.submit(change).result(TIMEOUT) == "changed"
        assert variable.get() == "mine"
        assert pool.submit(variable.get).result(TIMEOUT) == "mine"


def test_tasks_of_one_context_may_run_at_the_same_time() -> None:
    with AdaptiveExecutor(4, propagate_context=True) as pool:
        variable.set("shared")
        barrier = threading.Barrier(4)

        def meet() -> object:
            barrier.wait(TIMEOUT)
            return variable.get()

        assert [future.result(TIMEOUT) for future in [pool.submit(meet) for _ in range(4)]] == ["shared"] * 4


@pytest.mark.parametrize("buffersize", [None, 2])
def test_map_propagates_too(buffersize: int | None) -> None:
    with AdaptiveExecutor(2, propagate_context=True) as pool:
        variable.set("mapped")
        results = pool.map(lambda number: (number, variable.get()), range(5), buffersize=buffersize)
        assert list(results) == [(number, "mapped") for number in range(5)]


def test_arguments_arrive_in_a_context() -> None:
    with AdaptiveExecutor(1, propagate_context=True) as pool:
        future = pool.submit(lambda *args, **kwargs: (args, kwargs), 1, 2, self=3, fn=4)
        assert future.result(TIMEOUT) == ((1, 2), {"self": 3, "fn": 4})


def test_an_error_arrives_from_a_context() -> None:
    with AdaptiveExecutor(1, propagate_context=True) as pool, pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 // 0).result(TIMEOUT)


def test_a_call_that_runs_in_the_caller_changes_only_its_own_copy() -> None:
    with (
        AdaptiveExecutor(1, propagate_context=True, max_queue=0, when_full="caller_runs") as pool,
        Gate() as gate,
    ):
        pool.submit(gate)
        gate.await_begun()
        variable.set("mine")

        def change() -> tuple[object, int]:
            before = variable.get()
            variable.set("changed")
            return before, threading.get_ident()

        assert pool.submit(change).result(timeout=0) == ("mine", threading.get_ident())
        assert variable.get() == "mine"


def test_a_nested_task_inherits_the_context_of_its_parent() -> None:
    with AdaptiveExecutor(2, propagate_context=True) as pool:

        def parent() -> object:
            variable.set("parent")
            return pool.submit(variable.get).result(TIMEOUT)

        assert pool.submit(parent).result(TIMEOUT) == "parent"


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_future_that_is_over_holds_no_context(cancelled: bool) -> None:
    with no_collector(), AdaptiveExecutor(1, keep_alive=LONG, propagate_context=True) as pool, Gate() as gate:
        pool.submit(gate)
        gate.await_begun()
        thing = Thing()
        reference = weakref.ref(thing)
        token = variable.set(thing)
        future = pool.submit(int)
        variable.reset(token)
        del token, thing
        assert reference() is not None
        if cancelled:
            assert future.cancel()
        gate.open()
        if not cancelled:
            assert future.result(TIMEOUT) == 0
        gone(reference)
        assert future.done()
