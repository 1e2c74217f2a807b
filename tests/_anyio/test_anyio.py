"""`ebbpool.anyio.run_sync`, and `anyio.to_thread.run_sync` with it installed, keep anyio's promises on every loop.

Tests that take `any_way` run on stock anyio too: what they ask for is what anyio does.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import pytest
from anyio import wait_all_tasks_blocked
from support.anyio import Way, leave_behind, on_asyncio, on_trio, until
from support.common import Boom, Gate, wait_for_idle

import ebbpool.anyio
from ebbpool import AdaptiveExecutor

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


def stopping() -> None:
    raise StopIteration("no more")


def failing() -> None:
    raise Boom("on purpose")


class Base(BaseException):
    pass


@pytest.mark.anyio
async def test_it_returns_what_the_function_returns(any_way: Way) -> None:
    assert await any_way.run_sync(divmod, 17, 5) == (3, 2)


@pytest.mark.anyio
@pytest.mark.parametrize("kind", [Boom, Base, concurrent.futures.CancelledError])
async def test_it_raises_what_the_function_raises(any_way: Way, kind: type[BaseException]) -> None:
    error = kind("on purpose")

    def fail() -> None:
        raise error

    with pytest.raises(kind) as caught:
        await any_way.run_sync(fail)
    assert caught.value is error
    assert "fail" in [entry.name for entry in caught.traceback]


@pytest.mark.anyio
async def test_a_stop_iteration_becomes_a_runtime_error(any_way: Way) -> None:
    with pytest.raises(RuntimeError, match="coroutine raised StopIteration") as caught:
        await any_way.run_sync(stopping)
    assert isinstance(caught.value.__cause__, StopIteration)


async def coroutine_function() -> str:
    return "awaited"


@on_asyncio
async def test_a_coroutine_is_handed_out(any_way: Way) -> None:
    coroutine = await any_way.run_sync(coroutine_function)
    assert str(await coroutine) == "awaited"


@on_trio
async def test_trio_wants_no_coroutine(any_way: Way) -> None:
    with pytest.raises(TypeError, match="appears to be asynchronous"):
        await any_way.run_sync(coroutine_function)


@pytest.mark.anyio
async def test_context_variables_are_carried_in_but_not_out(any_way: Way) -> None:
    def look_and_change() -> str:
        seen = variable.get()
        variable.set("changed")
        return seen

    variable.set("the task's")
    assert (await any_way.run_sync(look_and_change), variable.get()) == ("the task's", "the task's")


@pytest.mark.anyio
async def test_the_function_is_outside_of_the_loop(any_way: Way) -> None:
    async def inner() -> str:
        await anyio.lowlevel.checkpoint()
        return "inner"

    assert await any_way.run_sync(anyio.run, inner) == "inner"


@pytest.mark.anyio
async def test_a_cancelled_task_does_not_begin_a_call(any_way: Way) -> None:
    calls: list[int] = []

    with anyio.CancelScope() as scope:
        scope.cancel()
        await any_way.run_sync(calls.append, 1)
    assert scope.cancelled_caught
    assert any_way.pool.stats().submitted == 0
    assert calls == []


@pytest.mark.anyio
async def test_a_task_cancelled_at_the_first_checkpoint_does_not_begin_a_call(any_way: Way) -> None:
    calls: list[int] = []

    async with anyio.create_task_group() as group:
        group.start_soon(any_way.run_sync, calls.append, 1)
        group.cancel_scope.cancel()
    wait_for_idle(any_way.pool)
    assert calls == []


@on_asyncio
async def test_other_tasks_get_a_turn_before_the_call(any_way: Way) -> None:
    turns: list[str] = []

    asyncio.get_running_loop().call_soon(turns.append, "other")
    await any_way.run_sync(turns.append, "call")
    assert turns == ["other", "call"]


@pytest.mark.anyio
async def test_what_the_function_put_on_the_loop_runs_before_the_await_returns(any_way: Way) -> None:
    turns: list[int] = []

    def soon() -> None:
        anyio.from_thread.run_sync(turns.append, 1)

    await any_way.run_sync(soon)
    turns.append(2)
    assert turns == [1, 2]


@pytest.mark.anyio
async def test_a_limiter_limits(any_way: Way) -> None:
    gate = Gate()

    limiter = anyio.CapacityLimiter(2)

    async def call() -> None:
        await any_way.run_sync(gate, limiter=limiter)

    with gate:
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(call)
            await wait_all_tasks_blocked()
            gate.await_begun(2)
            assert gate.nobody_begins()
            assert limiter.borrowed_tokens == 2
            assert limiter.statistics().tasks_waiting == 3
            gate.open()
    assert limiter.borrowed_tokens == 0
    assert gate.peak == 2


@pytest.mark.anyio
async def test_without_a_limiter_the_ceiling_is_the_limit(our_way: Way) -> None:
    gate = Gate()

    our_way.pool.resize(max_workers=45)
    with gate:
        async with anyio.create_task_group() as group:
            for _ in range(50):
                group.start_soon(our_way.run_sync, gate)
            await wait_all_tasks_blocked()
            gate.await_begun(45)
            assert gate.nobody_begins()
            assert anyio.to_thread.current_default_thread_limiter().borrowed_tokens == 0
            gate.open()
    assert gate.peak == 45


@on_asyncio
async def test_an_abandoned_call_gives_its_token_back_at_once(any_way: Way) -> None:
    limiter = anyio.CapacityLimiter(1)
    with Gate() as gate:
        await leave_behind(any_way, gate, gate, limiter=limiter)
        assert limiter.borrowed_tokens == 0


@on_trio
async def test_with_trio_an_abandoned_call_keeps_its_token_until_it_ends(any_way: Way) -> None:
    limiter = anyio.CapacityLimiter(1)
    for fail in (False, True):
        with Gate() as gate:

            def work(gate: Gate = gate, fail: bool = fail) -> None:
                gate()
                if fail:
                    failing()

            await leave_behind(any_way, gate, work, limiter=limiter)
            assert limiter.borrowed_tokens == 1
            gate.open()
            await until(lambda: not limiter.borrowed_tokens)
    assert await any_way.run_sync(abs, -1, limiter=limiter) == 1


@on_trio
async def test_with_trio_a_call_taken_off_the_queue_gives_its_token_back() -> None:
    with AdaptiveExecutor(1) as pool, ebbpool.anyio.install(pool, keep_default_limiter=True):
        limiter = anyio.to_thread.current_default_thread_limiter()
        with Gate() as gate:
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.to_thread.run_sync, gate)
                await wait_all_tasks_blocked()
                with anyio.move_on_after(0.01) as scope:
                    await anyio.to_thread.run_sync(abs, -1)
                assert scope.cancelled_caught
                assert limiter.borrowed_tokens == 1
                gate.open()


@on_trio
async def test_trio_counts_the_threads(any_way: Way) -> None:
    trio_testing = pytest.importorskip("trio.testing")

    assert trio_testing.active_thread_count() == 0
    with Gate() as gate:
        async with anyio.create_task_group() as group:
            group.start_soon(any_way.run_sync, gate)
            await wait_all_tasks_blocked()
            assert trio_testing.active_thread_count() == 1
            waiter: list[str] = []

            async def wait() -> None:
                await trio_testing.wait_all_threads_completed()
                waiter.append("over")

            group.start_soon(wait)
            await wait_all_tasks_blocked()
            assert waiter == []
            gate.open()
    assert waiter == ["over"]
    assert trio_testing.active_thread_count() == 0
