"""`AdaptiveExecutor.run` with a full queue: it waits its turn without blocking the loop, refuses, or runs in line."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import weakref
from _thread import allocate_lock
from collections.abc import Callable
from typing import Any, Self

import pytest
from support.common import TIMEOUT, Background, Boom, Gate, Thing, gone, no_collector, wait_for_idle
from support.loops import Loops, Reports, in_threads, on_every_loop, turns, until

from ebbpool import AdaptiveExecutor, BrokenThreadPool, QueueFull

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
    waiter = allocate_lock()
    waiter.acquire()
    assert pool._pool.seek(waiter, False)
    future = pool.hold_back(fn, args, None)

    def come() -> Any:
        waiter.acquire()
        assert pool._pool.push(future, False, waiter) is None
        return future

    return Background(come)


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
async def test_no_more_than_max_queue_wait_in_the_queue() -> None:
    queued: list[int] = []

    async with AdaptiveExecutor(2, max_queue=3) as pool:

        def call(number: int) -> int:
            queued.append(pool.stats().queued)
            return number

        with Gate() as gate:
            shut = [pool.run(gate) for _ in range(2)]
            await until(lambda: gate.peak == 2)
            futures = [pool.run(call, number) for number in range(200)]
            gate.open()
            assert await asyncio.gather(*futures) == list(range(200))
            await asyncio.gather(*shut)
    # A worker that has nothing in hand is about to take one more.
    assert max(queued) <= 3 + 2


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
async def test_the_pool_grows_for_calls_that_wait_for_room() -> None:
    async with AdaptiveExecutor(4, max_queue=1) as pool:
        with Gate() as gate:
            futures = [pool.run(gate, number) for number in range(6)]
            await until(lambda: gate.peak == 4)
            assert pool.stats().queued == 1
            gate.open()
            assert await asyncio.gather(*futures) == list(range(6))


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
async def test_a_call_cancelled_while_it_waits_for_room_lets_go_at_once() -> None:
    with Full() as full:
        thing = Thing()
        reference = weakref.ref(thing)
        future = full.pool.run(thing.method, thing)
        del thing
        future.cancel()
        references = [reference, weakref.ref(future)]
        del future
        await turns()
        with no_collector():
            gone(*references)


@on_every_loop
@pytest.mark.parametrize("cancel", [False, True], ids=["runs", "cancels"])
async def test_a_shutdown_while_calls_wait_for_room(cancel: bool) -> None:
    ran: list[int] = []
    with Full() as full:
        futures = [full.pool.run(ran.append, number) for number in range(5)]
        blocked = Background(lambda: full.pool.submit(ran.append, 5))
        assert blocked.still_waits()
        full.pool.shutdown(wait=False, cancel_futures=cancel)
        with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
            blocked.join()
        with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
            full.pool.run(int)
        if not cancel:
            full.gate.open()
        await asyncio.wait(futures)
        assert [future.cancelled() for future in futures] == [cancel] * 5
    assert ran == ([] if cancel else list(range(5)))
    assert full.pool.stats().cancelled == (6 if cancel else 0)


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


@on_every_loop
async def test_a_pool_that_breaks_while_calls_wait_for_room() -> None:
    with Gate() as gate:

        def initialize() -> None:
            gate()
            raise Boom

        pool = AdaptiveExecutor(1, max_queue=1, initializer=initialize)
        futures = [pool.run(int) for _ in range(5)]
        await until(lambda: gate.peak == 1)
        gate.open()
        await asyncio.wait(futures)
        assert [type(future.exception()) for future in futures] == [BrokenThreadPool] * 5
        pool.shutdown()


def test_several_loops_wait_for_room_in_one_queue(loops: Loops) -> None:
    """Each loop runs in a thread of its own."""
    with AdaptiveExecutor(2, max_queue=2) as pool:

        async def main() -> list[int]:
            return await asyncio.gather(*[pool.run(int, number) for number in range(200)])

        assert in_threads(*[lambda: loops(main)] * 3) == [list(range(200))] * 3
        wait_for_idle(pool)
        assert pool.stats().completed == 600


def test_a_loop_within_a_worker_waits_for_room_too(loops: Loops) -> None:
    """Two loops of a kind: that of the call runs in a worker."""

    async def main() -> None:
        async with AdaptiveExecutor(2, max_queue=1) as pool:

            async def inner() -> list[int]:
                return await asyncio.gather(*[pool.run(int, number) for number in range(20)])

            def call() -> list[int]:
                with asyncio.Runner(loop_factory=loops.new) as runner:
                    return runner.run(inner())

            assert await pool.run(call) == list(range(20))

    loops(main)


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
async def test_an_error_of_a_call_run_in_line_that_nobody_asks_for_is_reported_once(reports: Reports) -> None:
    with Full(when_full="caller_runs") as full:
        full.pool.run(fail, Boom("dropped"))
        await turns()
    assert [repr(report["exception"]) for report in await reports.all()] == ["Boom('dropped')"]


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


@on_every_loop
async def test_one_after_the_other_never_finds_the_queue_full() -> None:
    async with AdaptiveExecutor(1, max_queue=1, when_full="reject") as pool:
        for number in range(300):
            assert await pool.run(int, number) == number
        assert pool.stats().rejected == 0
