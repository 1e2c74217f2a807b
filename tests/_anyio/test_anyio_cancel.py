"""Cancellation of calls that `ebbpool.anyio` runs is cancellation as anyio has it.

Tests that take `any_way` run on stock anyio too: what they ask for is what anyio does.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import pytest
from anyio import wait_all_tasks_blocked
from support.anyio import Way, on_asyncio
from support.common import TIMEOUT, Boom, Gate, eventually, wait_for_idle

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


def failing() -> None:
    raise Boom("on purpose")


@pytest.mark.anyio
async def test_a_running_call_is_shielded(any_way: Way) -> None:
    results: list[str] = []

    async def call() -> None:
        results.append(await any_way.run_sync(gate, "kept"))
        await anyio.lowlevel.checkpoint()
        results.append("never")

    with Gate() as gate:
        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await wait_all_tasks_blocked()
            gate.await_begun()
            group.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                for _ in range(5):
                    await anyio.lowlevel.checkpoint()
                assert results == []
                gate.open()
    assert results == ["kept"]


@pytest.mark.anyio
async def test_an_abandoned_call_runs_on_and_its_outcome_is_dropped(any_way: Way) -> None:
    """A loop that is told of the outcome fails the test; see `watched_loop`."""
    finished = threading.Event()

    def fail() -> None:
        try:
            gate()
            failing()
        finally:
            finished.set()

    with Gate() as gate:
        async with anyio.create_task_group() as group:

            async def call() -> None:
                await any_way.run_sync(fail, abandon_on_cancel=True)

            group.start_soon(call)
            await wait_all_tasks_blocked()
            gate.await_begun()
            group.cancel_scope.cancel()
        assert not finished.is_set()
        gate.open()
        eventually(finished.is_set)
        wait_for_idle(any_way.pool)
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        assert await any_way.run_sync(abs, -1) == 1


@pytest.mark.anyio
@pytest.mark.parametrize("abandon", [False, True])
async def test_a_cancelled_task_takes_its_queued_call_off_the_queue(
    anyio_backend_name: str, narrow_way: Way, abandon: bool
) -> None:
    """As with stock anyio, where what has not begun waits for a token and can be cancelled."""
    calls: list[int] = []
    pool = narrow_way.pool

    with Gate() as gate:
        async with anyio.create_task_group() as outer:
            outer.start_soon(narrow_way.run_sync, gate)
            await wait_all_tasks_blocked()
            gate.await_begun()
            async with anyio.create_task_group() as group:

                async def call() -> None:
                    await narrow_way.run_sync(calls.append, 1, abandon_on_cancel=abandon)

                group.start_soon(call)
                group.start_soon(call)
                await wait_all_tasks_blocked()
                assert pool.stats().queued == 2
                group.cancel_scope.cancel()
            assert pool.stats().queued == 0
            assert pool.stats().cancelled == 2
            gate.open()
        if anyio_backend_name != "trio":
            task = asyncio.current_task()
            assert task is not None and task.cancelling() == 0
    wait_for_idle(pool)
    assert calls == []


@on_asyncio
@pytest.mark.parametrize("scoped", [False, True])
async def test_a_native_cancel_leaves_a_running_call_behind(any_way: Way, scoped: bool) -> None:
    async def call() -> None:
        if not scoped:
            await any_way.run_sync(gate)
            return
        with anyio.CancelScope():
            await any_way.run_sync(gate)

    with Gate() as gate:
        task = asyncio.ensure_future(call())
        await wait_all_tasks_blocked()
        gate.await_begun()
        task.cancel("native")
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        gate.open()


@on_asyncio
@pytest.mark.parametrize("scoped", [False, True])
async def test_a_native_cancel_takes_a_queued_call_off_the_queue(narrow_way: Way, scoped: bool) -> None:
    calls: list[int] = []
    pool = narrow_way.pool

    async def call() -> None:
        if not scoped:
            await narrow_way.run_sync(calls.append, 1)
            return
        with anyio.CancelScope():
            await narrow_way.run_sync(calls.append, 1)

    with Gate() as gate:
        first = asyncio.ensure_future(narrow_way.run_sync(gate))
        await wait_all_tasks_blocked()
        gate.await_begun()
        task = asyncio.ensure_future(call())
        await wait_all_tasks_blocked()
        assert pool.stats().queued == 1
        task.cancel()
        assert pool.stats().queued == 0
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.open()
        await first
    assert calls == []


@on_asyncio
@pytest.mark.parametrize("pause", [0, 3])
async def test_a_native_cancel_goes_through_the_shield(any_way: Way, pause: int) -> None:
    """Even in the same turn of the loop as anyio's, which asyncio folds into one error; see `watched_loop`, too."""
    scopes: list[anyio.CancelScope] = []

    async def call() -> None:
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            await any_way.run_sync(gate)

    with Gate() as gate:
        task = asyncio.ensure_future(call())
        await wait_all_tasks_blocked()
        gate.await_begun()
        scopes[0].cancel()
        for _ in range(pause):
            await asyncio.sleep(0)
        assert not task.done()
        task.cancel("native")
        await asyncio.wait([task], timeout=TIMEOUT)
        assert task.done()
        gate.open()
        wait_for_idle(any_way.pool)
        for _ in range(5):
            await anyio.lowlevel.checkpoint()


@on_asyncio
@pytest.mark.parametrize("abandon", [False, True])
async def test_a_scope_leaves_no_request_behind(any_way: Way, abandon: bool) -> None:
    task = asyncio.current_task()
    assert task is not None
    with Gate() as gate:
        with anyio.CancelScope() as scope:
            asyncio.get_running_loop().call_later(0.01, scope.cancel)
            asyncio.get_running_loop().call_later(0.02, gate.open)
            await any_way.run_sync(gate, abandon_on_cancel=abandon)
            await anyio.lowlevel.checkpoint()
        assert scope.cancelled_caught
    assert task.cancelling() == 0
