"""`AdaptiveExecutor.run` with a full queue: it waits its turn without blocking the loop, refuses, or runs in line."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import Any, Self

import pytest
from support.common import TIMEOUT, Background, Boom, Gate, wait_for_idle
from support.loops import Loops, in_threads, on_every_loop, turns, until

from ebbpool import AdaptiveExecutor, QueueFull
from ebbpool._testing.seams import BlockedSubmitter

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


def fail(error: BaseException) -> None:
    raise error


class Full:
    """A pool of one busy worker whose queue is full; `gate` shuts in the call that runs."""

    def __init__(self, max_queue: int = 1, **options: Any) -> None:
        self.gate = Gate()
        self.pool = AdaptiveExecutor(1, max_queue=max_queue, **options)
        self.running = self.pool.submit(self.gate)
        self.gate.await_begun()
        self.queued = [self.pool.submit(int) for _ in range(max_queue)]
        assert self.pool.stats().queued == max_queue

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        self.gate.open()
        self.pool.shutdown()


def blocked_submitter(pool: AdaptiveExecutor, fn: Callable[..., Any], *args: Any) -> Background:
    """Do what `submit` does that finds the queue full; it stands in line when this returns."""
    submitter = BlockedSubmitter(pool, fn, *args)
    return Background(lambda: submitter.let_in(TIMEOUT) and submitter.come())


@on_every_loop
async def test_it_waits_for_room_without_blocking_the_loop() -> None:
    with Full() as full:
        futures = [full.pool.run(int, number) for number in range(50)]
        await turns()
        stats = full.pool.stats()
        assert (stats.running, stats.queued, stats.rejected) == (1, 1, 0)
        assert not any(future.done() for future in futures)
        asyncio.get_running_loop().call_later(0.001, full.gate.open)
        assert await asyncio.gather(*futures) == list(range(50))
        wait_for_idle(full.pool)
        assert full.pool.stats().completed == 52


@on_every_loop
async def test_calls_and_blocked_submitters_take_turns_in_order_of_arrival() -> None:
    """One place at a time, and the next only when the last is taken: a thread that is let in needs a while to come."""

    order: list[int] = []
    gates = [Gate() for _ in range(7)]

    def call(number: int) -> None:
        order.append(number)
        gates[number]()

    async with AdaptiveExecutor(1, max_queue=1) as pool:
        with contextlib.ExitStack() as stack:
            for gate in gates:
                stack.enter_context(gate)
            futures = [pool.run(call, 0)]
            await until(lambda: gates[0].peak == 1)
            futures.append(pool.run(call, 1))
            blocked = []
            for number in range(2, 7):
                if number % 2:
                    futures.append(pool.run(call, number))
                else:
                    blocked.append(blocked_submitter(pool, call, number))
            for number, gate in enumerate(gates):
                await until(lambda gate=gate: gate.peak == 1)
                await until(lambda number=number: pool.stats().queued == (number < 6))
                assert order == list(range(number + 1))
                gate.open()
            await asyncio.gather(*futures)
            for background in blocked:
                background.join().result(TIMEOUT)


@on_every_loop
async def test_cancelled_while_it_waits_for_room() -> None:
    ran: list[int] = []
    with Full() as full:
        futures = [full.pool.run(ran.append, number) for number in range(4)]
        task = asyncio.ensure_future(asyncio.wait_for(futures[1], TIMEOUT))
        await turns()
        task.cancel()
        await asyncio.wait([task])
        assert futures[1].cancelled()
        assert futures[3].cancel()
        assert (full.pool.stats().queued, full.pool.stats().cancelled) == (1, 2)
        # The place of one that leaves the queue goes to the next.
        assert full.queued[0].cancel()
        assert (full.pool.stats().queued, full.pool.stats().cancelled) == (1, 3)
        assert futures[0].cancel()
        assert (full.pool.stats().queued, full.pool.stats().cancelled) == (1, 4)
        full.gate.open()
        await futures[2]
        wait_for_idle(full.pool)
        assert (full.pool.stats().queued, full.pool.stats().completed) == (0, 2)
    assert ran == [2]


@on_every_loop
async def test_new_bounds_let_calls_in() -> None:
    with Full() as full:
        futures = [full.pool.run(int, number) for number in range(5)]
        full.pool.resize(max_queue=3)
        assert full.pool.stats().queued == 3
        full.pool.resize(max_queue=None)
        assert full.pool.stats().queued == 6
        full.gate.open()
        assert await asyncio.gather(*futures) == list(range(5))


def test_several_loops_wait_for_room_in_one_queue(loops: Loops) -> None:
    """Each loop runs in a thread of its own."""
    with AdaptiveExecutor(2, max_queue=2) as pool:

        async def main() -> list[int]:
            return await asyncio.gather(*[pool.run(int, number) for number in range(200)])

        assert in_threads(*[lambda: loops(main)] * 3) == [list(range(200))] * 3
        wait_for_idle(pool)
        assert pool.stats().completed == 600


@on_every_loop
async def test_a_full_queue_that_rejects() -> None:
    with Full(when_full="reject") as full:
        for number in range(1, 4):
            with pytest.raises(QueueFull, match="max_queue=1"):
                full.pool.run(int)
            assert full.pool.stats().rejected == number
        assert full.pool.stats().submitted == 2
        full.gate.open()
        wait_for_idle(full.pool)
        assert await full.pool.run(int, 5) == 5


@on_every_loop
async def test_a_full_queue_whose_callers_run() -> None:
    variable.set("mine")

    loop = asyncio.get_running_loop()
    order: list[str] = []

    def call() -> tuple[str, threading.Thread]:
        order.append("run")
        loop.call_soon_threadsafe(order.append, "given to the loop")
        seen = variable.get()
        variable.set("theirs")
        return seen, threading.current_thread()

    with Full(when_full="caller_runs") as full:
        future = full.pool.run(call)
        order.append("handed over")
        assert variable.get() == "mine"
        assert full.pool.stats().submitted == 3
        assert await future == ("mine", threading.current_thread())
        order.append("awaited")
        assert order == ["run", "handed over", "given to the loop", "awaited"]
        future = full.pool.run(fail, Boom("here"))
        with pytest.raises(Boom, match="here"):
            await future
        assert not future.cancel()
        with pytest.raises(RuntimeError, match="StopIteration"):
            await full.pool.run(next, iter(()))
        assert await asyncio.gather(*[full.pool.run(pow, number, exp=2) for number in range(5)]) == [0, 1, 4, 9, 16]
        stats = full.pool.stats()
        assert (stats.submitted, stats.completed, stats.failed, stats.rejected) == (10, 6, 2, 0)
        full.gate.open()
        wait_for_idle(full.pool)
        assert (await full.pool.run(threading.current_thread)) is not threading.current_thread()


@on_every_loop
@pytest.mark.parametrize("policy", ["block", "reject", "caller_runs"])
async def test_a_queue_of_no_length(policy: Any) -> None:
    async with AdaptiveExecutor(2, max_queue=0, when_full=policy) as pool:
        with Gate() as gate:
            shut = [pool.run(gate) for _ in range(2)]
            await until(lambda: gate.peak == 2)
            if policy == "reject":
                with pytest.raises(QueueFull):
                    pool.run(int)
            else:
                future = pool.run(threading.current_thread)
            assert pool.stats().queued == 0
            gate.open()
            await asyncio.gather(*shut)
            if policy != "reject":
                assert ((await future) is threading.current_thread()) is (policy == "caller_runs")
