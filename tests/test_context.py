"""propagate_context: tasks see the context variables of their submitter, and change only their own copy."""

from __future__ import annotations

import contextvars
import threading
import weakref
from collections.abc import Iterator

import pytest
from support.common import LONG, TIMEOUT, Gate, Thing, gone, no_collector, output_of

from ebbpool import AdaptiveExecutor

variable: contextvars.ContextVar[object] = contextvars.ContextVar("variable", default="unset")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    token = variable.set("unset")
    yield
    variable.reset(token)


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


def test_a_call_that_runs_in_the_caller_changes_only_its_own_copy() -> None:
    with (
        AdaptiveExecutor(1, propagate_context=True, max_queue=0, when_full="caller_runs") as pool,
        Gate() as gate,
    ):
        gate.hold(pool)
        variable.set("mine")

        def change() -> tuple[object, int]:
            before = variable.get()
            variable.set("changed")
            return before, threading.get_ident()

        assert pool.submit(change).result(timeout=0) == ("mine", threading.get_ident())
        assert variable.get() == "mine"


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_future_that_is_over_holds_no_context(cancelled: bool) -> None:
    with no_collector(), AdaptiveExecutor(1, keep_alive=LONG, propagate_context=True) as pool, Gate() as gate:
        gate.hold(pool)
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


INHERITING = """
    import asyncio, contextvars, decimal, gc, sys, threading, warnings, weakref
    from ebbpool import AdaptiveExecutor

    variable = contextvars.ContextVar("variable", default="unset")

    def request(value, call, *args):
        variable.set(value)
        return contextvars.copy_context().run(call, *args)

    if sys.version_info >= (3, 14):
        assert sys.flags.thread_inherit_context and sys.flags.context_aware_warnings
"""
"""A script whose threads inherit the context in which they are started, where the interpreter can do that."""


@pytest.fixture
def inheriting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON_THREAD_INHERIT_CONTEXT", "1")
    monkeypatch.setenv("PYTHON_CONTEXT_AWARE_WARNINGS", "1")


@pytest.mark.usefixtures("inheriting")
@pytest.mark.parametrize("settings", ["", "thread_stack_size=1 << 20"])
def test_tasks_do_not_see_the_context_in_which_their_worker_was_started(settings: str) -> None:
    script = f"""
        seen = []
        with AdaptiveExecutor(1, initializer=lambda: seen.append(variable.get()), {settings}) as pool:
            for value in "ab":
                seen.append(request(value, lambda: pool.submit(variable.get).result()))
        print(*seen)
    """
    assert output_of(script, INHERITING) == ["unset unset unset"]


@pytest.mark.usefixtures("inheriting")
def test_workers_that_the_timekeeper_starts_see_no_request_either() -> None:
    script = """
        barrier = threading.Barrier(4)

        def meet():
            barrier.wait(20)
            return variable.get()

        with AdaptiveExecutor(4) as pool:
            futures = [request(number, pool.submit, meet) for number in range(4)]
            print(*(future.result() for future in futures))
    """
    assert output_of(script, INHERITING) == ["unset unset unset unset"]


@pytest.mark.usefixtures("inheriting")
def test_decimal_settings_and_warning_filters_of_a_request_stay_with_it() -> None:
    script = """
        def divide():
            return decimal.Decimal(1) / 3

        def warn():
            warnings.warn("of another request")

        with AdaptiveExecutor(1) as pool:
            with decimal.localcontext(prec=2), warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                first = pool.submit(divide).result()
            pool.submit(warn).result()
            print(len(str(first)), len(caught))
    """
    assert output_of(script, INHERITING) == ["30 0"]


@pytest.mark.usefixtures("inheriting")
def test_a_pool_that_is_left_with_a_task_running_keeps_nothing_of_the_request_that_left_it() -> None:
    script = """
        class Thing:
            pass

        running, going_on = threading.Event(), threading.Event()

        def task():
            running.set()
            going_on.wait(20)

        async def leave():
            async with AdaptiveExecutor(1) as pool:
                pool.submit(task)
                thing = Thing()
                variable.set(thing)
                references.append(weakref.ref(thing))
                del thing

        async def main():
            left = asyncio.create_task(leave())
            await asyncio.to_thread(running.wait, 20)
            await asyncio.sleep(0)
            left.cancel()
            await asyncio.wait([left])
            del left
            await asyncio.sleep(0)
            gc.collect()
            print(references[0]())

        references = []
        asyncio.run(main())
        going_on.set()
    """
    assert output_of(script, INHERITING) == ["None"]
