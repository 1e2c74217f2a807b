"""propagate_context: tasks see the context variables of their submitter, and change only their own copy."""

from __future__ import annotations

import contextvars
import threading
import weakref
from collections.abc import Iterator

import pytest
from support.common import LONG, TIMEOUT, Gate, Thing, gone, no_collector, output_of, wait_for_idle

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


def test_each_call_of_a_session_has_a_copy_of_its_own() -> None:
    def change(value: object) -> object:
        before = variable.get()
        variable.set(value)
        return before

    with AdaptiveExecutor(1, propagate_context=True) as pool, pool.session() as session:
        for value in range(2):
            variable.set(value)
            assert session.submit(change, value="changed").result(TIMEOUT) == value
        assert list(session.map(change, range(5))) == [1] * 5
    with AdaptiveExecutor(1) as pool, pool.session() as session:
        assert session.submit(change, "kept").result(TIMEOUT) == "unset"
        assert session.submit(change, "kept").result(TIMEOUT) == "kept"


def test_changes_of_a_call_stay_in_the_call() -> None:
    def change() -> tuple[object, object, int]:
        before = variable.get()
        variable.set("changed")
        return before, variable.get(), threading.get_ident()

    with AdaptiveExecutor(1, propagate_context=True, max_queue=0, when_full="caller_runs") as pool, Gate() as gate:
        variable.set("mine")
        assert pool.submit(change).result(TIMEOUT)[:2] == ("mine", "changed")
        assert variable.get() == "mine"
        assert pool.submit(variable.get).result(TIMEOUT) == "mine"
        # A worker that is not back yet would leave the gate to the caller.
        wait_for_idle(pool)
        gate.hold(pool)
        # This one runs in the caller.
        assert pool.submit(change).result(timeout=0) == ("mine", "changed", threading.get_ident())
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
    import asyncio, contextvars, gc, sys, threading, weakref
    from ebbpool import AdaptiveExecutor

    variable = contextvars.ContextVar("variable", default="unset")

    def request(value, call, *args):
        variable.set(value)
        return contextvars.copy_context().run(call, *args)

    if sys.version_info >= (3, 14):
        assert sys.flags.thread_inherit_context
"""
"""A script whose threads inherit the context in which they are started, where the interpreter can do that."""

NOT_SEEN = """
    seen = []
    with AdaptiveExecutor(1, initializer=lambda: seen.append(variable.get()), {}) as pool:
        for value in "ab":
            seen.append(request(value, lambda: pool.submit(variable.get).result()))
    print(*seen)
"""
STARTED_BY_THE_TIMEKEEPER = """
    barrier = threading.Barrier(4)

    def meet():
        barrier.wait(20)
        return variable.get()

    with AdaptiveExecutor(4) as pool:
        futures = [request(number, pool.submit, meet) for number in range(4)]
        print(*(future.result() for future in futures))
"""
LEFT_WITH_A_TASK_RUNNING = """
    class Thing:
        pass

    running, going_on = threading.Event(), threading.Event()
    references = []

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

    asyncio.run(main())
    going_on.set()
"""


@pytest.mark.parametrize(
    ("script", "printed"),
    [
        (NOT_SEEN.format(""), "unset unset unset"),
        (NOT_SEEN.format("thread_stack_size=1 << 20"), "unset unset unset"),
        (STARTED_BY_THE_TIMEKEEPER, "unset unset unset unset"),
        (LEFT_WITH_A_TASK_RUNNING, "None"),
    ],
    ids=["a worker", "its own stack", "by the timekeeper", "left"],
)
def test_workers_have_nothing_of_the_request_that_started_them(
    script: str, printed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHON_THREAD_INHERIT_CONTEXT", "1")
    assert output_of(script, INHERITING) == [printed]
