"""Several event loops, each in a thread of its own and all on one pool, as a server with worker threads has them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support import seams
from support.common import TIMEOUT, Background, Gate
from support.loops import OURS, factory_of

import ebbpool
from ebbpool import AdaptiveExecutor

anyio = pytest.importorskip("anyio")

COUNT = 3


@pytest.fixture(name="new_loop", params=["asyncio", "uvloop", *OURS])
def each_factory(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    return factory_of(request)


def on_each(new_loop: Any, main: Callable[[int], Awaitable[Any]]) -> list[Any]:
    """Run `main(number)` on each of some loops at the same time; return what they return, in order."""

    def run(number: int) -> Any:
        threading.current_thread().name = f"loop-{number}"
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(main(number))

    threads = [Background(lambda number=number: run(number)) for number in range(COUNT)]
    return [thread.join(3 * TIMEOUT) for thread in threads]


def test_each_way_to_the_pool_is_there_for_all_loops_at_once(new_loop: Any) -> None:
    """In each way a call of every loop runs at the same time, and what it sends back comes to its own loop."""
    meeting = threading.Barrier(COUNT)

    async def main(number: int) -> set[str]:
        loop = asyncio.get_running_loop()
        here = threading.get_ident()

        def call() -> str:
            meeting.wait(TIMEOUT)
            return threading.current_thread().name.partition("_")[0]

        def call_and_ask() -> str:
            assert anyio.from_thread.run_sync(threading.get_ident) == here
            return call()

        names = {
            await loop.run_in_executor(None, call),
            await asyncio.to_thread(call),
            await anyio.to_thread.run_sync(call_and_ask),
            await pool.run(call),
        }
        assert threading.get_ident() == here
        return names

    with AdaptiveExecutor(COUNT, "shared") as pool, ebbpool.install(pool):
        assert on_each(new_loop, main) == [{"shared"}] * COUNT


def test_a_loop_that_cancels_and_ends_leaves_the_calls_of_other_loops_alone(new_loop: Any) -> None:
    ended = threading.Event()

    async def main(number: int) -> list[int]:
        calls = [asyncio.create_task(asyncio.to_thread(gate, number)) for _ in range(2)]
        await asyncio.to_thread(begun.wait, TIMEOUT)
        assert await asyncio.to_thread(ended.wait, TIMEOUT)
        gate.open()
        return await asyncio.gather(*calls)

    async def cancel() -> None:
        await asyncio.to_thread(begun.wait, TIMEOUT)
        given_up = asyncio.create_task(asyncio.to_thread(first))
        await asyncio.to_thread(first.await_begun)
        given_up.cancel()
        first.open()
        with pytest.raises(asyncio.CancelledError):
            await given_up

    def cancel_and_end() -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(cancel())
        ended.set()

    begun = threading.Barrier(COUNT + 1)
    with AdaptiveExecutor() as pool, ebbpool.install(pool), Gate() as gate, Gate() as first:
        ending = Background(cancel_and_end)
        assert on_each(new_loop, main) == [[number] * 2 for number in range(COUNT)]
        ending.join()


@pytest.mark.parametrize("by", ["max_workers", "admission"])
def test_several_loops_share_one_limit(new_loop: Any, by: str) -> None:
    submitted = threading.Barrier(COUNT + 1)

    async def main(number: int) -> list[int]:
        calls = [asyncio.create_task(asyncio.to_thread(gate, number)) for _ in range(2)]
        await asyncio.sleep(0)
        submitted.wait(TIMEOUT)
        return await asyncio.gather(*calls)

    with (
        seams.watched_by(seams.Nobody()),
        AdaptiveExecutor(2 if by == "max_workers" else 8, min_workers=2, short_first=False) as pool,
        ebbpool.install(pool),
        Gate() as gate,
    ):
        if by == "admission":
            pool.resize(min_workers=6)
            seams.engine_of(pool).admit(2)
        running = Background(lambda: on_each(new_loop, main))
        submitted.wait(TIMEOUT)
        gate.await_begun(2)
        assert gate.nobody_begins(pool)
        if by == "admission":
            seams.engine_of(pool).admit(seams.ALL)
            gate.await_begun(4)
        gate.open()
        assert running.join(3 * TIMEOUT) == [[number] * 2 for number in range(COUNT)]
        assert gate.peak == (2 if by == "max_workers" else 6)


def test_the_lag_of_each_is_told(new_loop: Any) -> None:
    meeting = threading.Barrier(COUNT)

    async def main(number: int) -> None:
        await pool.run(meeting.wait, TIMEOUT)
        # Each has come for the result of the first, or it would not take part in the second.
        await pool.run(meeting.wait, TIMEOUT)
        assert {lag.name for lag in pool.stats().loop_lag} >= {f"loop-{each}" for each in range(COUNT)}
        # The lag of a loop whose thread has ended is told no more.
        await anyio.to_thread.run_sync(meeting.wait, TIMEOUT)

    with AdaptiveExecutor(COUNT, "shared") as pool, ebbpool.install(pool):
        on_each(new_loop, main)
