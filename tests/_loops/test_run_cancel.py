"""`AdaptiveExecutor.run`, cancelled: what is queued never runs, what runs finishes, errors are told once."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import weakref
from typing import Any

import pytest
from support.common import Boom, Gate, Thing, eventually, gone, no_collector
from support.loops import Reports, behind, on_every_loop, turns

from ebbpool import AdaptiveExecutor
from ebbpool._testing import seams

variable: contextvars.ContextVar[Any] = contextvars.ContextVar("variable", default=None)


def fail(error: BaseException) -> None:
    raise error


@on_every_loop
async def test_cancelling_the_future_itself() -> None:
    ran: list[int] = []

    async with AdaptiveExecutor(1) as pool:
        with Gate() as gate:
            running = pool.run(gate)
            gate.await_begun()
            queued = pool.run(ran.append, 1)
            told: list[bool] = []
            queued.add_done_callback(lambda future: told.append(future.cancelled()))
            assert queued.cancel("not needed")
            assert queued.cancelled()
            assert (pool.stats().queued, pool.stats().cancelled) == (0, 1)
            assert not queued.cancel()
            assert running.cancel()
            assert not running.cancel()
            assert pool.stats().running == 1
            with pytest.raises(asyncio.CancelledError, match="not needed"):
                await queued
            await turns()
            assert told == [True]
        done = pool.run(int)
        await done
        assert not done.cancel()
        assert (pool.stats().submitted, pool.stats().cancelled) == (3, 1)
    assert ran == []


@on_every_loop
@pytest.mark.parametrize("raised", [False, True])
async def test_cancelled_between_the_end_of_the_call_and_its_delivery(reports: Reports, raised: bool) -> None:
    error = Boom("late") if raised else None

    async with AdaptiveExecutor(1) as pool:
        future = pool.run(int) if error is None else pool.run(fail, error)
        behind(pool)
        assert future.cancel()
        with pytest.raises(asyncio.CancelledError):
            await future
        await pool.run(int)
        assert future.cancelled()
        assert pool.stats().cancelled == 0
    assert [report["exception"] for report in await reports.all()] == ([] if error is None else [error])


@on_every_loop
async def test_cancelled_after_it_has_waited_too_long_and_before_that_is_delivered(reports: Reports) -> None:
    async with AdaptiveExecutor(1) as pool:
        with Gate() as gate:
            gate.hold(pool)
            late = pool.within(0.001).run(int)
            eventually(lambda: pool.stats().expired == 1)
            assert late.cancel()
            await turns(5)
            assert late.cancelled()
    assert await reports.all() == []


@on_every_loop
async def test_a_cancelled_call_lets_go_of_all_it_held_at_once() -> None:
    async with AdaptiveExecutor(1) as pool:
        with Gate() as gate:
            pool.submit(gate)
            gate.await_begun()
            # One that is ahead of it: the head of the queue is looked at by others, too.
            ahead = pool.run(int)
            thing, in_context = Thing(), Thing()
            references = [weakref.ref(thing), weakref.ref(in_context)]
            token = variable.set(in_context)
            future = pool.run(thing.method, thing, keyword=thing)
            variable.reset(token)
            del thing, in_context, token
            future.cancel()
            await turns()
            with no_collector():
                # The worker is busy: nobody else could have let go of it.
                gone(*references)
            references.append(weakref.ref(future))
            del future
            gone(*references)
            gate.open()
            await ahead


@on_every_loop
async def test_cancelled_calls_do_not_fill_the_queue() -> None:
    async with AdaptiveExecutor(1) as pool:
        with Gate() as gate:
            pool.submit(gate)
            gate.await_begun()
            kept = [pool.run(int, number) for number in range(3)]
            references = []
            for _ in range(1000):
                future = pool.run(int)
                references.append(weakref.ref(future))
                future.cancel()
            del future
            await turns()
            gone(*references)
            assert sum(type(thing) is seams.running_part("loop_calls").LoopCall for thing in gc.get_objects()) < 500
            assert (pool.stats().queued, pool.stats().cancelled) == (3, 1000)
            gate.open()
            assert await asyncio.gather(*kept) == [0, 1, 2]
