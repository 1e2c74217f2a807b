"""`ebbpool.anyio.run_sync`, and `anyio.to_thread.run_sync` with it installed, keep anyio's promises on every loop.

Tests that take `any_way` run on stock anyio too: what they ask for is what anyio does. What anyio's own tests ask for,
which run on ebbpool too, is not asked again.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from contextlib import nullcontext
from functools import partial

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import pytest
from anyio import wait_all_tasks_blocked
from support.anyio import Backend, Way, begun, leave_behind, on_asyncio, on_trio, run_on, until
from support.common import TIMEOUT, Boom, Gate, eventually, fail, wait_for_idle


class Base(BaseException):
    pass


@pytest.mark.anyio
@pytest.mark.parametrize("kind", [Boom, Base, concurrent.futures.CancelledError])
async def test_run_sync_raises_what_the_function_raises(any_way: Way, kind: type[BaseException]) -> None:
    error = kind("on purpose")

    def failing() -> None:
        raise error

    with pytest.raises(kind) as caught:
        await any_way.run_sync(failing)
    assert caught.value is error
    assert "failing" in [entry.name for entry in caught.traceback]


async def coroutine_function() -> str:
    return "awaited"


@on_trio
async def test_trio_wants_no_coroutine(any_way: Way) -> None:
    with pytest.raises(TypeError, match="appears to be asynchronous"):
        await any_way.run_sync(coroutine_function)


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


@on_asyncio
async def test_an_abandoned_call_gives_its_token_back_at_once(any_way: Way) -> None:
    limiter = anyio.CapacityLimiter(1)
    with Gate() as gate:
        await leave_behind(any_way, gate, gate, limiter=limiter)
        assert limiter.borrowed_tokens == 0


@on_trio
async def test_with_trio_an_abandoned_call_keeps_its_token_until_it_ends(any_way: Way) -> None:
    limiter = anyio.CapacityLimiter(1)
    for after in (int, fail):
        with Gate() as gate:
            await leave_behind(any_way, gate, lambda gate=gate, after=after: (gate(), after()), limiter=limiter)
            assert limiter.borrowed_tokens == 1
            gate.open()
            await until(lambda: not limiter.borrowed_tokens)
    assert await any_way.run_sync(abs, -1, limiter=limiter) == 1


@on_trio
async def test_trio_counts_the_threads(any_way: Way) -> None:
    trio_testing = pytest.importorskip("trio.testing")
    over: list[bool] = []

    async def wait() -> None:
        await trio_testing.wait_all_threads_completed()
        over.append(True)

    assert trio_testing.active_thread_count() == 0
    async with any_way.busy() as (_, group):
        assert trio_testing.active_thread_count() == 1
        group.start_soon(wait)
        await wait_all_tasks_blocked()
        assert not over
    assert over and trio_testing.active_thread_count() == 0


@pytest.mark.anyio
async def test_an_abandoned_call_runs_on_and_its_outcome_is_dropped(any_way: Way) -> None:
    """A loop that is told of the outcome fails the test; see `watched_loop`."""
    finished = threading.Event()

    def work() -> None:
        try:
            gate()
            fail()
        finally:
            finished.set()

    with Gate() as gate:
        await leave_behind(any_way, gate, work)
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
    call = partial(narrow_way.run_sync, calls.append, 1, abandon_on_cancel=abandon)
    async with narrow_way.busy():
        async with anyio.create_task_group() as group:
            group.start_soon(call)
            group.start_soon(call)
            await wait_all_tasks_blocked()
            assert pool.stats().queued == 2
            group.cancel_scope.cancel()
        assert pool.stats().queued == 0
        assert pool.stats().cancelled == 2
    if anyio_backend_name != "trio":
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0
    wait_for_idle(pool)
    assert calls == []


@on_asyncio
@pytest.mark.parametrize("scoped", [False, True])
async def test_a_native_cancel_takes_a_queued_call_off_the_queue(narrow_way: Way, scoped: bool) -> None:
    calls: list[int] = []
    pool = narrow_way.pool

    async def call() -> None:
        with anyio.CancelScope() if scoped else nullcontext():
            await narrow_way.run_sync(calls.append, 1)

    async with narrow_way.busy():
        task = asyncio.ensure_future(call())
        await wait_all_tasks_blocked()
        assert pool.stats().queued == 1
        task.cancel()
        assert pool.stats().queued == 0
        with pytest.raises(asyncio.CancelledError):
            await task
    assert calls == []


@on_asyncio
@pytest.mark.parametrize("pause", [0, 3])
async def test_a_native_cancel_goes_through_the_shield(any_way: Way, pause: int) -> None:
    """Even in the same turn of the loop as anyio's, which asyncio folds into one error; see `watched_loop`, too."""
    scopes: list[anyio.CancelScope] = []

    async def call() -> None:
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            await any_way.run_sync(lambda: (gate(), fail()))

    with Gate() as gate:
        task = asyncio.ensure_future(call())
        await begun(gate)
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


async def add(left: int, right: int) -> int:
    await anyio.lowlevel.checkpoint()
    return left + right


@pytest.mark.anyio
async def test_outside_of_a_call_there_is_no_way_back(our_way: Way) -> None:
    pool = our_way.pool
    pool.resize(max_workers=1)
    await our_way.run_sync(anyio.from_thread.run, add, 1, 2)
    for call in (anyio.from_thread.check_cancelled, lambda: anyio.from_thread.run_sync(abs, -1)):
        with pytest.raises(RuntimeError):
            pool.submit(call).result(TIMEOUT)
    assert pool.submit(lambda: dict(vars(anyio.run.__globals__["threadlocals"]))).result(TIMEOUT) == {}
    assert pool.stats().started == 1


@on_trio
async def test_with_trio_its_own_ways_work(any_way: Way) -> None:
    trio = pytest.importorskip("trio")

    def work() -> tuple[int, int]:
        trio.from_thread.check_cancelled()
        return trio.from_thread.run(add, 1, 2), trio.from_thread.run_sync(abs, -4)

    assert await any_way.run_sync(work) == (3, 4)


def test_the_loop_ends_before_an_abandoned_call_asks(anyio_backend: Backend, our_way: Way) -> None:
    """The loop that ends cannot be the one that runs the test."""
    outcome: list[BaseException] = []

    def work() -> None:
        gate()
        try:
            anyio.from_thread.run_sync(abs, -1)
        except BaseException as error:
            outcome.append(error)

    async def main() -> None:
        await leave_behind(our_way, gate, work)

    with Gate() as gate:
        run_on(anyio_backend, main)
        gate.open()
        eventually(lambda: outcome)
        wait_for_idle(our_way.pool)
    assert isinstance(outcome[0], RuntimeError), outcome
