"""`ebbpool.anyio.run_sync` and its pool: several loops, references, shutdown, a full queue, the shared executor."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import importlib.metadata
import inspect
import threading
import weakref
from functools import partial
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import pytest
from anyio import wait_all_tasks_blocked
from support.anyio import ASYNCIO, TRIO, Backend, Way, missing, run_on
from support.common import (
    Background,
    Boom,
    Gate,
    Thing,
    collected,
    eventually,
    fail,
    gone,
    no_collector,
    no_thread,
    output_of,
    raise_watched,
    starting,
    wait_for_idle,
)
from support.seams import engine_of

import ebbpool.anyio
from ebbpool import AdaptiveExecutor

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


def stopping() -> None:
    raise StopIteration("no more")


def test_several_loops_share_one_pool(our_way: Way) -> None:
    """Each loop runs in a thread of its own."""

    async def main() -> int:
        results: list[int] = []
        async with anyio.create_task_group() as group:

            async def call() -> None:
                results.append(await our_way.run_sync(abs, -1))

            for _ in range(50):
                group.start_soon(call)
        return sum(results)

    backends = [param.values[0] for param in (*ASYNCIO, *TRIO) if not any(mark.args[0] for mark in param.marks)]
    threads = [Background(partial(run_on, backend, main)) for backend in [*backends, *backends]]
    assert [thread.join() for thread in threads] == [50] * len(threads)


@pytest.mark.anyio
async def test_nothing_of_a_finished_call_is_kept(our_way: Way) -> None:
    references: list[weakref.ref[Any]] = []

    async def calls(abandon: bool) -> None:
        with contextlib.suppress(Boom):
            await our_way.run_sync(raise_watched, references, abandon_on_cancel=abandon)
        thing = Thing()
        references.append(weakref.ref(thing))
        await our_way.run_sync(thing.method, abandon_on_cancel=abandon)
        await our_way.run_sync(lambda given: given, thing, abandon_on_cancel=abandon)

    with no_collector():
        for abandon in (False, True):
            await calls(abandon)
            with anyio.CancelScope():
                await calls(abandon)
        wait_for_idle(our_way.pool)
        # The callback that woke this task holds the outcome.
        await anyio.lowlevel.checkpoint()
        gone(*references, pool=our_way.pool)


@pytest.mark.parametrize("anyio_backend", ASYNCIO)
def test_a_loop_is_not_kept(anyio_backend: Backend) -> None:
    """The loop that is freed cannot be the one that runs the test."""
    references: list[weakref.ref[Any]] = []

    async def main() -> None:
        references.append(weakref.ref(asyncio.get_running_loop()))
        await ebbpool.anyio.run_sync(abs, -1, executor=pool)

    with AdaptiveExecutor() as pool:
        run_on(anyio_backend, main)
        collected(references[0])


@pytest.mark.anyio
async def test_a_pool_that_is_shut_down_refuses(our_way: Way) -> None:
    limiter = anyio.CapacityLimiter(1)
    our_way.pool.shutdown()
    for given in (None, limiter):
        with pytest.raises(RuntimeError, match="after shutdown"):
            await our_way.run_sync(abs, -1, limiter=given)
    assert limiter.borrowed_tokens == 0


@pytest.mark.anyio
@pytest.mark.parametrize(("abandon", "scoped"), [(False, True), (True, False)])
async def test_a_call_that_the_pool_cancels(narrow_way: Way, abandon: bool, scoped: bool) -> None:
    outcome: list[str] = []

    async def call() -> None:
        scope = anyio.CancelScope() if scoped else contextlib.nullcontext()
        with pytest.raises(concurrent.futures.CancelledError, match="the pool"), scope:
            await narrow_way.run_sync(abs, -1, abandon_on_cancel=abandon)
        outcome.append("told")

    async with narrow_way.busy() as (_, group):
        group.start_soon(call)
        await wait_all_tasks_blocked()
        narrow_way.pool.shutdown(wait=False, cancel_futures=True)
    assert outcome == ["told"]


@pytest.mark.anyio
async def test_a_call_that_a_scope_and_then_the_pool_cancel(our_way: Way) -> None:
    outcome: list[str] = []
    scope = anyio.CancelScope()

    async def call() -> None:
        with pytest.raises(concurrent.futures.CancelledError, match="the pool"), scope:
            await our_way.run_sync(abs, -1)
        outcome.append("told")

    async with our_way.busy() as (_, group):
        # Below the ceiling a worker seems to be coming, so the call stays in the queue.
        with starting(".*", no_thread):
            group.start_soon(call)
            await wait_all_tasks_blocked()
            scope.cancel()
            our_way.pool.shutdown(wait=False, cancel_futures=True)
    assert outcome == ["told"]


@pytest.mark.anyio
async def test_a_call_with_a_limiter_of_its_own_is_not_held_up_by_the_ceiling(narrow_way: Way) -> None:
    pool = narrow_way.pool
    # The second of these waits in the queue.
    async with narrow_way.busy(calls=2, begin=1) as (gate, _):
        for _ in range(3):
            assert await narrow_way.run_sync(abs, -1, limiter=anyio.CapacityLimiter(1)) == 1
        assert gate.nobody_begins(pool)
        with pytest.raises(Boom):
            await narrow_way.run_sync(fail, limiter=anyio.CapacityLimiter(1))
        with anyio.CancelScope() as scope:
            scope.cancel()
            await narrow_way.run_sync(abs, -1, limiter=anyio.CapacityLimiter(1))
        assert (engine_of(pool).staff.off, pool.stats().max_workers) == (0, 1)
    wait_for_idle(pool)
    eventually(lambda: pool.stats().workers <= 1)


@pytest.mark.anyio
@pytest.mark.parametrize("abandon", [False, True])
async def test_a_cancelled_call_with_a_limiter_of_its_own_gives_back_its_place(narrow_way: Way, abandon: bool) -> None:
    pool = narrow_way.pool
    async with narrow_way.busy(abandon_on_cancel=abandon, limiter=anyio.CapacityLimiter(1)) as (_, group):
        group.cancel_scope.cancel()
    wait_for_idle(pool)
    await anyio.lowlevel.checkpoint()
    eventually(lambda: (engine_of(pool).staff.off, pool.stats().max_workers) == (0, 1))


@pytest.mark.anyio
async def test_a_full_queue_that_blocks_does_not_block_the_loop() -> None:
    results: list[int] = []

    async def call(number: int) -> None:
        results.append(await ebbpool.anyio.run_sync(abs, number, executor=pool))

    with AdaptiveExecutor(1, max_queue=1) as pool, Gate() as gate:
        gate.hold(pool)
        async with anyio.create_task_group() as group:
            for number in range(4):
                group.start_soon(call, number)
            await wait_all_tasks_blocked()
            with anyio.move_on_after(0.01) as scope:
                await ebbpool.anyio.run_sync(abs, -100, executor=pool)
            assert scope.cancelled_caught
            assert results == []
            gate.open()
    assert sorted(results) == [0, 1, 2, 3]


@pytest.mark.anyio
async def test_a_call_that_the_caller_runs_has_no_way_back() -> None:
    def work() -> str:
        assert threading.current_thread() is here
        with pytest.raises(RuntimeError):
            anyio.from_thread.run_sync(abs, -1)
        return variable.get()

    here = threading.current_thread()
    variable.set("the task's")
    with AdaptiveExecutor(1, max_queue=0, when_full="caller_runs") as pool, Gate() as gate:
        gate.hold(pool)
        assert await ebbpool.anyio.run_sync(work, executor=pool) == "the task's"
        with pytest.raises(RuntimeError, match="coroutine raised StopIteration"):
            await ebbpool.anyio.run_sync(stopping, executor=pool)
        gate.open()


@missing("trio")
def test_trio_that_runs_inside_of_a_task_of_asyncio() -> None:
    import trio

    async def main() -> list[int]:
        call = partial(ebbpool.anyio.run_sync, abs, -1, executor=pool)
        return [await call(), trio.run(call), await call()]

    with AdaptiveExecutor() as pool:
        assert asyncio.run(main()) == [1, 1, 1]


@pytest.mark.skipif(
    any(line.startswith("sniffio") for line in importlib.metadata.requires("anyio") or ()),
    reason="this anyio needs sniffio",
)
def test_asyncio_without_sniffio() -> None:
    script = """
        import sys
        sys.modules["sniffio"] = None
        import asyncio
        import ebbpool.anyio

        async def main():
            with ebbpool.AdaptiveExecutor(1) as pool:
                for number in (-1, -2):
                    print(await ebbpool.anyio.run_sync(abs, number, executor=pool))

        asyncio.run(main())
        try:
            ebbpool.anyio.run_sync(abs, -3).send(None)
        except RuntimeError as error:
            print(type(error).__name__)
    """
    assert output_of(script) == ["1", "2", "NoEventLoopError"]


@pytest.mark.anyio
async def test_without_an_executor_the_process_shares_one() -> None:
    shared = []
    for _ in range(2):
        assert await ebbpool.anyio.run_sync(abs, -1) == 1
        with ebbpool.anyio.install() as installation:
            shared.append(installation.executor)
    assert shared[0] is shared[1]
    shared[0].shutdown()
    name = await ebbpool.anyio.run_sync(lambda: threading.current_thread().name)
    assert name.startswith("ebbpool-anyio")
    with ebbpool.anyio.install() as installation:
        assert installation.executor is not shared[0]
        installation.executor.shutdown()


def test_run_sync_is_a_coroutine_function_with_the_parameters_of_anyio() -> None:
    ours = inspect.signature(ebbpool.anyio.run_sync).parameters
    stock = inspect.signature(anyio.to_thread.run_sync).parameters
    assert inspect.iscoroutinefunction(ebbpool.anyio.run_sync)
    deprecated = {"cancellable"}
    assert {(p.name, p.kind, p.default) for p in stock.values() if p.name not in deprecated} == {
        (p.name, p.kind, p.default) for p in ours.values() if p.name != "executor"
    }
