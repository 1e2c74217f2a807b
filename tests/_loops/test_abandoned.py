"""Calls whose await was given up: their threads do not count towards the ceiling, as many as the ceiling at most."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from support.common import LONG, TIMEOUT, Gate, eventually, forked, wait_for_idle
from support.loops import given_up, on_every_loop, until

from ebbpool import AdaptiveExecutor, QueueTimeout

CEILING = 3
Ask = Callable[..., Any]
WAYS: dict[str, Callable[[Any], Ask]] = {
    "run": lambda pool: pool.run,
    "run_in_executor": lambda pool: lambda *call: asyncio.get_running_loop().run_in_executor(pool, *call),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Callable[[Any], Ask]:
    """How a call is handed in: on a stock loop `run_in_executor` submits it, and wraps its future."""
    return WAYS[request.param]


async def give_up(pool: AdaptiveExecutor, ask: Ask, gate: Gate, count: int = 1) -> None:
    """Have so many calls enter the gate, and cancel their awaits."""
    before = pool.stats().abandoned
    tasks = [asyncio.ensure_future(asyncio.wait_for(ask(gate), LONG)) for _ in range(count)]
    await asyncio.sleep(0)
    gate.await_begun(count)
    for task in tasks:
        task.cancel()
    await until(lambda: pool.stats().abandoned == before + count)


@on_every_loop
async def test_all_that_can_end_are_answered_however_many_hang(way: Callable[[Any], Ask]) -> None:
    """One in ten never returns, and all together they are more than the pool's ceiling."""
    calls, at_once = 12 * CEILING, asyncio.Semaphore(2 * CEILING)
    loop = asyncio.get_running_loop()
    with AdaptiveExecutor(CEILING) as pool, Gate() as gate:
        ask = way(pool)

        def call(number: int, begun: asyncio.Event) -> int:
            if number % 7 == 0:
                loop.call_soon_threadsafe(begun.set)
                gate()
            return number

        async def client(number: int) -> int | None:
            async with at_once:
                begun = asyncio.Event()
                answer = asyncio.ensure_future(ask(call, number, begun))
                if number % 7:
                    return int(await answer)
                await begun.wait()
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(answer, 0)
                return None

        answers = await asyncio.gather(*map(client, range(calls)))
        assert answers == [number if number % 7 else None for number in range(calls)]
        assert pool.stats().abandoned == 6
        gate.open()
        await asyncio.to_thread(wait_for_idle, pool)
        assert pool.stats().abandoned == pool.stats().blocked == 0


@on_every_loop
async def test_as_many_as_the_ceiling_do_not_count_and_the_others_are_named(way: Callable[[Any], Ask]) -> None:
    with AdaptiveExecutor(CEILING) as pool, Gate() as gate, Gate() as other, Gate() as last:
        ask = way(pool)
        await give_up(pool, ask, gate)
        await give_up(pool, ask, other, CEILING - 1)
        await give_up(pool, ask, other, CEILING)
        stats = pool.stats()
        assert (stats.workers, stats.running, stats.blocked) == (2 * CEILING, 2 * CEILING, 0)
        waiting = ask(last)
        assert last.nobody_begins(pool)
        with pytest.raises(QueueTimeout, match=r"; abandoned calls have threads: .*Gate \(6\)$"):
            pool.within(0.01).submit(int).result(TIMEOUT)
        # One ends, and another of them counts no longer in its place.
        gate.open()
        last.await_begun()
        last.open()
        await waiting
        assert pool.submit(int).result(TIMEOUT) == 0
        other.open()
        await asyncio.to_thread(wait_for_idle, pool)


@on_every_loop
async def test_a_call_that_ends_after_all_gives_its_place_back(way: Callable[[Any], Ask]) -> None:
    with AdaptiveExecutor(2, keep_alive=LONG) as pool, Gate() as gate, Gate() as after:
        await give_up(pool, way(pool), gate, 2)
        after.hold(pool, 2)
        assert pool.stats().workers == 4
        pool.submit(after)
        assert after.nobody_begins(pool)
        gate.open()
        eventually(lambda: pool.stats().workers == 2, "the threads fall back to the ceiling")
        assert after.nobody_begins(pool)
        after.open()
        wait_for_idle(pool)
        assert (pool.stats().workers, after.peak) == (2, 2)


@on_every_loop
@pytest.mark.parametrize("first", ["blocked", "abandoned"])
async def test_an_abandoned_call_that_is_blocked_on_its_own_pool_counts_once(
    way: Callable[[Any], Ask], first: str
) -> None:
    with AdaptiveExecutor(2) as pool, ExitStack() as gates:
        before, inner, others = (gates.enter_context(Gate()) for _ in range(3))
        if first == "blocked":
            before.open()

        def parent() -> None:
            before()
            pool.submit(inner).result()

        task = asyncio.ensure_future(asyncio.wait_for(way(pool)(parent), LONG))
        await asyncio.sleep(0)
        (inner if first == "blocked" else before).await_begun()
        task.cancel()
        await until(lambda: pool.stats().abandoned == 1)
        if first == "abandoned":
            before.open()
            inner.await_begun()
        await until(lambda: pool.stats().blocked == 1)
        others.hold(pool)
        pool.submit(others)
        assert others.nobody_begins(pool)
        inner.open()
        others.await_begun()
        await until(lambda: pool.stats().blocked == 0)
        others.open()
        await asyncio.to_thread(wait_for_idle, pool)


@on_every_loop
async def test_a_lane_keeps_its_limit(way: Callable[[Any], Ask]) -> None:
    with AdaptiveExecutor(2) as pool, Gate() as gate, Gate() as others:
        lane = pool.lane("db", limit=1)
        await give_up(pool, way(lane), gate)
        next_one = lane.submit(others)
        others.hold(pool, 2)
        assert others.nobody_begins(pool)
        assert (lane.stats().running, lane.stats().queued, others.peak) == (1, 1, 2)
        gate.open()
        others.open()
        next_one.result(TIMEOUT)
        assert others.peak == 2


@on_every_loop
async def test_a_session_makes_one_call_at_a_time() -> None:
    with AdaptiveExecutor(2) as pool, pool.session() as session, Gate() as gate, Gate() as others:
        call = asyncio.get_running_loop().run_in_executor(session, gate)
        gate.await_begun()
        call.cancel()
        await asyncio.sleep(0)
        next_one = session.submit(gate)
        others.hold(pool, 2)
        pool.submit(others)
        assert others.nobody_begins(pool) and gate.nobody_begins(pool)
        gate.open()
        assert next_one.result(TIMEOUT) is None
        others.open()
        assert gate.peak == 1


@on_every_loop
async def test_in_a_pool_of_one_nothing_runs_beside_it(way: Callable[[Any], Ask]) -> None:
    with AdaptiveExecutor(1) as pool, Gate() as gate:
        await give_up(pool, way(pool), gate)
        waiting = pool.submit(gate)
        assert gate.nobody_begins(pool)
        with pytest.raises(QueueTimeout, match=r"; abandoned calls have threads: .*Gate \(1\)$"):
            pool.within(0.01).submit(int).result(TIMEOUT)
        gate.open()
        assert waiting.result(TIMEOUT) is None
        assert gate.peak == 1


@on_every_loop
async def test_the_bound_is_that_of_a_new_ceiling(way: Callable[[Any], Ask]) -> None:
    with AdaptiveExecutor(2) as pool, Gate() as gate, Gate() as others:
        await give_up(pool, way(pool), gate, 2)
        pool.resize(max_workers=1)
        waiting = [pool.submit(others) for _ in range(4)]
        assert others.nobody_begins(pool)
        pool.resize(max_workers=3)
        others.await_begun(3)
        assert others.nobody_begins(pool)
        gate.open()
        others.open()
        assert [future.result(TIMEOUT) for future in waiting] == [None] * 4
        assert others.peak == 3


@on_every_loop
async def test_what_is_queued_runs_though_the_pool_is_shut_down(way: Callable[[Any], Ask]) -> None:
    with AdaptiveExecutor(2) as pool, Gate() as gate, Gate() as others:
        await give_up(pool, way(pool), gate, 2)
        futures = [pool.submit(others) for _ in range(3)]
        pool.shutdown(wait=False)
        others.await_begun(2)
        others.open()
        for future in futures:
            assert future.result(TIMEOUT) is None
        with pytest.raises(TimeoutError, match="abandoned: its await was cancelled"):
            pool.shutdown(timeout=0)


@on_every_loop
async def test_calls_of_amap_are_abandoned_where_the_iteration_is_cancelled() -> None:
    async def read(pool: AdaptiveExecutor, gate: Gate) -> None:
        async for _ in pool.amap(gate, [1, 2]):
            pass

    with AdaptiveExecutor(2) as pool, Gate() as gate:
        reading = asyncio.create_task(read(pool, gate))
        await asyncio.to_thread(gate.await_begun, 2)
        reading.cancel()
        await until(lambda: pool.stats().abandoned == 2)
        pool.submit(gate)
        pool.submit(gate)
        gate.await_begun(2)


def test_a_submitter_that_finds_no_room_is_told_what_hangs() -> None:
    with AdaptiveExecutor(1, max_queue=1, max_wait=0.01) as pool, Gate() as gate:
        given_up(gate.hold(pool))
        pool.within(LONG).submit(int)
        with pytest.raises(QueueTimeout, match=r"no room in the queue of .* s; abandoned calls have threads: .*Gate"):
            pool.submit(int)


def test_a_call_that_a_thread_without_a_loop_cancels_is_not_abandoned() -> None:
    with AdaptiveExecutor(2) as pool, Gate() as gate:
        gate.hold(pool).cancel()
        waiting = [pool.submit(gate) for _ in range(2)]
        gate.await_begun()
        assert gate.nobody_begins(pool)
        assert pool.stats().abandoned == 0
        gate.open()
        concurrent.futures.wait(waiting, TIMEOUT)


@pytest.mark.parametrize("where", ["main", "call"])
def test_a_forked_child_begins_at_its_ceiling(where: str) -> None:
    lines = forked(
        f"""
            import asyncio
            pool, where = AdaptiveExecutor(2), {where!r}
            begun, gate, told = threading.Event(), threading.Event(), threading.Event()
            def check():
                barrier = threading.Barrier(2)
                met = [pool.submit(barrier.wait, 10) for _ in range(2)]
                print(pool.stats().blocked, [call.exception(10) for call in met], pool.stats().blocked)
            def stay():
                begun.set()
                gate.wait(20)
                if where == "call":
                    print(in_child(check))
                told.set()
            async def main():
                call = pool.run(stay)
                begun.wait(10)
                call.cancel()
            asyncio.run(main())
            if where == "main":
                print(in_child(check))
            gate.set()
            told.wait(10)
            pool.shutdown()
            print(pool.stats().blocked)
        """
    )
    assert lines == ["0 [None, None] 0", "0", "0"]
