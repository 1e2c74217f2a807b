"""`AdaptiveExecutor.run`: from an event loop to a worker and back, with context and names, and with a full queue."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import threading
import traceback
from collections.abc import Awaitable, Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Self

import pytest
from support.common import TIMEOUT, Background, Boom, Gate, wait_for_idle
from support.loops import Loops, fail, on_every_loop, turns, until
from support.seams import POLICIES, BlockedSubmitter

from ebbpool import AdaptiveExecutor, QueueFull

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


@on_every_loop
async def test_run_returns_a_future_of_the_loop() -> None:
    async with AdaptiveExecutor(1, "mine") as pool:
        future = pool.run(threading.current_thread)
        assert isinstance(future, asyncio.Future)
        assert future.get_loop() is asyncio.get_running_loop()
        assert not future.done()
        assert (await future).name == "mine_0"
        assert future.result().name == "mine_0"
        assert await asyncio.wait_for(pool.run(int, "7"), TIMEOUT) == 7


@on_every_loop
@pytest.mark.parametrize("kind", [Boom, GeneratorExit, SystemExit, KeyboardInterrupt])
async def test_whatever_a_call_raises_goes_to_its_future(kind: type[BaseException]) -> None:
    error = kind()
    async with AdaptiveExecutor(1) as pool:
        future = pool.run(fail, error)
        await asyncio.wait([future])
        assert future.exception() is error
        assert [frame.name for frame in traceback.extract_tb(error.__traceback__)] == ["fail"]
        wait_for_idle(pool)
        assert (pool.stats().failed, pool.stats().completed) == (1, 0)
        assert await pool.run(int) == 0


@on_every_loop
async def test_errors_that_asyncio_deals_with_in_its_own_way() -> None:
    async with AdaptiveExecutor(1) as pool:
        for kind in (asyncio.CancelledError, concurrent.futures.CancelledError):
            with pytest.raises(asyncio.CancelledError):
                await pool.run(fail, kind())
        with pytest.raises(RuntimeError, match="StopIteration") as caught:
            await pool.run(next, iter(()))
        assert isinstance(caught.value.__cause__, StopIteration)


@on_every_loop
async def test_bad_calls_are_refused_at_once() -> None:
    pool = AdaptiveExecutor(1)
    with pytest.raises(TypeError, match="fn must be callable, not 17"):
        pool.run(17)
    for arguments in ({}, {"fn": int}):
        with pytest.raises(TypeError):
            pool.run(**arguments)
    assert pool.stats().submitted == 0
    pool.shutdown()
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        pool.run(int)
    assert pool.stats().submitted == 0


def test_outside_of_a_loop(loops: Loops) -> None:
    """Before a loop runs, beside it, and after its end."""
    with AdaptiveExecutor(1) as pool:
        with pytest.raises(RuntimeError, match="no running event loop"):
            pool.run(int)

        async def main() -> None:
            # A worker has no loop either.
            with pytest.raises(RuntimeError, match="no running event loop"):
                await pool.run(pool.run, int)

        loops(main)
        with pytest.raises(RuntimeError, match="no running event loop"):
            pool.run(int)
        wait_for_idle(pool)
        assert pool.stats().submitted == 1


@on_every_loop
async def test_context_variables_are_carried_in_and_do_not_leak() -> None:
    def call(value: str, error: BaseException | None = None) -> str:
        seen = variable.get()
        variable.set(value)
        if error is not None:
            raise error
        return seen

    for propagate in (False, True):
        async with AdaptiveExecutor(1, propagate_context=propagate) as pool:
            token = variable.set("mine")
            future = pool.run(call, "theirs")
            variable.set("changed later")
            assert await future == "mine"
            assert variable.get() == "changed later"
            with pytest.raises(Boom):
                await pool.run(call, "theirs", Boom())
            await asyncio.gather(pool.run(call, "theirs", GeneratorExit()), return_exceptions=True)
            assert await pool.run(call, "theirs") == "changed later"
            variable.reset(token)
            # Nothing stays with the worker, either.
            assert await pool.run(variable.get) == "unset"
            assert contextvars.Context().run(pool.submit, variable.get).result(TIMEOUT) == "unset"


HERE = __name__


def wait_at(gate: Gate) -> None:
    gate()


def by_asgiref(pool: AdaptiveExecutor, gate: Gate) -> Awaitable[None]:
    made: Awaitable[None] = import_module("asgiref.sync").SyncToAsync(wait_at, thread_sensitive=False)(gate)
    return made


NAMED: list[Any] = [
    lambda pool, gate: pool.run(wait_at, gate),
    lambda pool, gate: asyncio.get_running_loop().run_in_executor(pool, wait_at, gate),
    lambda pool, gate: asyncio.to_thread(wait_at, gate),
    pytest.param(by_asgiref, marks=pytest.mark.skipif(find_spec("asgiref") is None, reason="asgiref is not installed")),
]


@on_every_loop
@pytest.mark.parametrize("propagate_context", [False, True])
@pytest.mark.parametrize("way", NAMED)
async def test_what_runs_has_the_name_of_the_users_function(
    way: Callable[[AdaptiveExecutor, Gate], Awaitable[None]], propagate_context: bool
) -> None:
    with AdaptiveExecutor(propagate_context=propagate_context) as pool, Gate() as gate:
        asyncio.get_running_loop().set_default_executor(pool)
        going = asyncio.ensure_future(way(pool, gate))
        await until(lambda: bool(gate.threads), "the call has begun")
        names = [task.name for task in pool.running()]
        gate.open()
        await going
    assert names == [f"{HERE}.wait_at"]


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
    return Background(lambda: submitter.let_in(TIMEOUT) and submitter.future)


@on_every_loop
async def test_run_waits_for_room_without_blocking_the_loop_and_new_bounds_let_calls_in() -> None:
    with Full() as full:
        futures = [full.pool.run(int, number) for number in range(50)]
        await turns()
        stats = full.pool.stats()
        assert (stats.running, stats.queued, stats.rejected) == (1, 1, 0)
        assert not any(future.done() for future in futures)
        full.pool.resize(max_queue=3)
        assert full.pool.stats().queued == 3
        full.pool.resize(max_queue=None)
        assert full.pool.stats().queued == 51
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
@pytest.mark.parametrize("policy", POLICIES)
async def test_a_queue_of_no_length(policy: Any) -> None:
    async with AdaptiveExecutor(2, max_queue=0, when_full=policy, short_first=False) as pool:
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


@pytest.mark.parametrize("when_full", ["reject", "caller_runs"])
@pytest.mark.parametrize("running", [0, 1])
@pytest.mark.asyncio
async def test_where_nothing_may_wait_the_pool_grows_for_a_call(when_full: Any, running: int) -> None:
    async with AdaptiveExecutor(4, max_queue=0, when_full=when_full) as pool:
        with Gate() as gate:
            for _ in range(running):
                gate.hold(pool)
            assert await pool.run(threading.get_ident) != threading.get_ident()
