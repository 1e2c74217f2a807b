"""The pool as the executor of every kind of loop: default executor, cancellation, and a loop that is never blocked."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest
from support.common import LONG, TIMEOUT, Boom, Gate, all_end
from support.loops import Loops, on_every_loop, until

from ebbpool import AdaptiveExecutor


@on_every_loop
async def test_as_default_executor() -> None:
    loop = asyncio.get_running_loop()
    pool = AdaptiveExecutor(4, "default")
    loop.set_default_executor(pool)
    thread = await loop.run_in_executor(None, threading.current_thread)
    assert thread.name == "default_0"
    assert thread in pool._threads
    assert (await asyncio.to_thread(threading.current_thread)).name.startswith("default_")
    assert await asyncio.to_thread(pow, 2, exp=5) == 32
    await loop.shutdown_default_executor()
    assert not thread.is_alive()
    with pytest.raises(RuntimeError):
        await loop.run_in_executor(None, int)


def test_the_loop_shuts_its_default_executor_down(loops: Loops) -> None:
    """The loop does so when it ends, so that the test has to outlive it."""
    pools: list[AdaptiveExecutor] = []

    async def main() -> None:
        pools.append(AdaptiveExecutor(2, keep_alive=LONG))
        asyncio.get_running_loop().set_default_executor(pools[0])
        await asyncio.to_thread(int)

    loops(main)
    assert pools[0]._shutdown is True
    assert pools[0].stats().workers == 0


@on_every_loop
async def test_name_lookups_run_on_it() -> None:
    loop = asyncio.get_running_loop()
    pool = AdaptiveExecutor(2)
    loop.set_default_executor(pool)
    found = await loop.getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM)
    assert found[0][4] == ("127.0.0.1", 80)
    if type(loop).__module__.startswith("asyncio"):  # uvloop asks libuv's own threads
        assert pool.stats().submitted == 1


@on_every_loop
async def test_blocking_calls_run_side_by_side() -> None:
    loop = asyncio.get_running_loop()
    barrier = threading.Barrier(8)
    async with AdaptiveExecutor(8) as pool:
        places = await asyncio.gather(*[loop.run_in_executor(pool, barrier.wait, TIMEOUT) for _ in range(8)])
    assert sorted(places) == list(range(8))


@on_every_loop
async def test_cancelling_the_await_takes_the_call_off_the_queue() -> None:
    ran: list[int] = []

    loop = asyncio.get_running_loop()
    with AdaptiveExecutor(1) as pool, Gate() as gate:
        loop.set_default_executor(pool)
        running = loop.run_in_executor(None, gate, "ran on")
        gate.await_begun()
        calls = [
            loop.run_in_executor(None, ran.append, 1),
            asyncio.create_task(asyncio.to_thread(ran.append, 2)),
            asyncio.ensure_future(asyncio.wait_for(loop.run_in_executor(None, ran.append, 3), TIMEOUT)),
            asyncio.wrap_future(pool.submit(ran.append, 4)),
        ]
        await until(lambda: pool._work_queue.qsize() == 4)
        for call in calls:
            assert call.cancel()
        for call in calls:
            with pytest.raises(asyncio.CancelledError):
                await call
        await until(lambda: pool._work_queue.qsize() == 0)
        stats = pool.stats()
        assert (stats.queued, stats.cancelled) == (0, 4)
        gate.open()
        assert await running == "ran on"
    assert ran == []


@on_every_loop
async def test_callbacks_given_to_the_loop_by_a_call_run_before_its_await_returns() -> None:
    loop = asyncio.get_running_loop()
    order: list[str] = []

    def call(number: int, awaited: threading.Event) -> None:
        # asyncio passes on at once what is over before it is asked for: nothing to be ordered there.
        assert awaited.wait(TIMEOUT)
        loop.call_soon_threadsafe(order.append, f"from call {number}")

    async with AdaptiveExecutor(1) as pool:
        for number in range(20):
            awaited = threading.Event()
            future = loop.run_in_executor(pool, call, number, awaited)
            awaited.set()
            await future
            order.append(f"after call {number}")
    assert order == [text for number in range(20) for text in (f"from call {number}", f"after call {number}")]


@on_every_loop
async def test_async_with_never_blocks_the_loop() -> None:
    """Only the loop opens the gate that the last task waits for."""

    loop = asyncio.get_running_loop()
    gate = Gate()
    async with AdaptiveExecutor(2) as pool:
        assert isinstance(pool, AdaptiveExecutor)
        future = pool.submit(gate, "let through by the loop")
        gate.await_begun()
        loop.call_later(0.01, gate.open)
    assert future.result(timeout=0) == "let through by the loop"
    assert pool._shutdown is True
    assert not any(thread.is_alive() for thread in gate.threads)
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        pool.submit(int)


@on_every_loop
async def test_async_with_passes_an_error_on() -> None:
    with pytest.raises(Boom):
        async with AdaptiveExecutor(2) as pool:
            future = pool.submit(int, 3)
            raise Boom
    assert future.result(timeout=0) == 3
    assert pool._shutdown is True


@on_every_loop
async def test_cancelling_the_end_of_async_with_leaves_the_pool_shut_down() -> None:
    pools: list[AdaptiveExecutor] = []
    futures: list[Any] = []

    async def use() -> None:
        async with AdaptiveExecutor(2) as pool:
            pools.append(pool)
            futures.append(pool.submit(gate, "ran on"))
            gate.await_begun()

    with Gate() as gate:
        task = asyncio.create_task(use())
        await until(lambda: pools and pools[0]._shutdown)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not futures[0].done()
        gate.open()
    assert futures[0].result(TIMEOUT) == "ran on"
    assert all_end(gate.threads)
