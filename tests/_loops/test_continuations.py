"""Calls of a context that has called before go first: who holds something gets a thread to give it back."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.common import TIMEOUT, Gate, eventually
from support.loops import on_every_loop

from ebbpool import AdaptiveExecutor
from ebbpool._testing import seams


def in_new_context(call: Callable[..., Any], *args: Any) -> Any:
    return contextvars.Context().run(call, *args)


async def known(pool: AdaptiveExecutor) -> contextvars.Context:
    """Return a context of which a call has begun."""
    context = contextvars.Context()
    await context.run(pool.run, int)
    return context


@on_every_loop
async def test_they_go_before_those_that_begin_in_order() -> None:
    order: list[str] = []
    async with AdaptiveExecutor(1) as pool:
        contexts = [await known(pool) for _ in range(2)]
        with Gate() as gate:
            held = in_new_context(pool.run, gate)
            gate.await_begun()
            calls = [in_new_context(pool.run, order.append, name) for name in "ab"]
            calls.append(pool.submit(order.append, "c"))
            calls += [contexts[place].run(pool.run, order.append, name) for place, name in enumerate("de")]
            calls.append(contexts[0].run(pool.run, order.append, "f"))
            gate.open()
            await held
            await asyncio.gather(*[call if asyncio.isfuture(call) else asyncio.wrap_future(call) for call in calls])
    assert "".join(order) == "defabc"


@on_every_loop
async def test_a_context_whose_first_call_has_not_begun_keeps_its_order() -> None:
    order: list[str] = []
    async with AdaptiveExecutor(1) as pool:
        with Gate() as gate:
            held = in_new_context(pool.run, gate)
            gate.await_begun()
            other = in_new_context(pool.run, order.append, "other")
            context = contextvars.Context()
            first = context.run(pool.run, order.append, "first")
            first.cancel()
            calls = [context.run(pool.run, order.append, str(number)) for number in range(3)]
            gate.open()
            await asyncio.gather(held, other, *calls)
    assert order == ["other", "0", "1", "2"]


@on_every_loop
async def test_pools_are_told_apart() -> None:
    order: list[str] = []
    async with AdaptiveExecutor(1) as pool, AdaptiveExecutor(1) as another:
        context = await known(another)
        with Gate() as gate:
            held = in_new_context(pool.run, gate)
            gate.await_begun()
            calls = [in_new_context(pool.run, order.append, "a"), context.run(pool.run, order.append, "b")]
            gate.open()
            await asyncio.gather(held, *calls)
    assert order == ["a", "b"]


@pytest.mark.asyncio
async def test_a_flood_of_them_does_not_shut_others_out() -> None:
    order: list[int] = []
    async with AdaptiveExecutor(1) as pool:
        context = await known(pool)
        with seams.setting(overtaken=0.0), Gate() as gate:
            held = in_new_context(pool.run, gate)
            gate.await_begun()
            beginning = in_new_context(pool.run, order.append, -1)
            calls = [context.run(pool.run, order.append, number) for number in range(100)]
            gate.open()
            await asyncio.gather(held, beginning, *calls)
    assert order.index(-1) <= 2
    order.remove(-1)
    assert order == list(range(100))


@pytest.mark.asyncio
async def test_they_have_a_reserve_at_the_ceiling() -> None:
    """Sixteen threads wait for what another call gives back; that one gets a thread of its own, beyond the ceiling."""
    async with AdaptiveExecutor(16) as pool:
        context = await known(pool)
        given_back = threading.Event()
        waiting = [in_new_context(pool.run, given_back.wait, TIMEOUT) for _ in range(20)]
        await asyncio.to_thread(eventually, lambda: pool.stats().running == 16)
        await context.run(pool.run, given_back.set)
        assert await asyncio.gather(*waiting) == [True] * 20
        assert pool.stats().started == 17


@pytest.mark.asyncio
async def test_the_reserve_is_for_them_alone() -> None:
    async with AdaptiveExecutor(16) as pool:
        context = await known(pool)
        with Gate() as gate, Gate() as beginners:
            waiting = [in_new_context(pool.run, beginners) for _ in range(17)]
            await asyncio.to_thread(beginners.await_begun, 16)
            going_on = context.run(pool.run, gate)
            await asyncio.to_thread(gate.await_begun)
            assert pool.stats().running == 17
            gate.open()
            await going_on
            # The seventeenth thread is idle, and the seventeenth beginner waits.
            assert await asyncio.to_thread(beginners.nobody_begins)
            beginners.open()
            await asyncio.gather(*waiting)


@pytest.mark.asyncio
async def test_a_small_pool_has_no_reserve() -> None:
    async with AdaptiveExecutor(1) as pool:
        context = await known(pool)
        with Gate() as gate:
            running = in_new_context(pool.run, gate)
            gate.await_begun()
            going_on = context.run(pool.run, int)
            for seconds in range(4):
                seams.look_at(pool, time.monotonic() + seconds)
            assert pool.stats().workers == 1
            gate.open()
            assert await asyncio.gather(running, going_on) == [None, 0]


@pytest.mark.asyncio
async def test_one_more_thread_comes_each_time_that_the_reserve_is_stuck() -> None:
    """Beyond the reserve one thread comes for each 0.1 s in which none takes a task; `decisions` says so."""
    async with AdaptiveExecutor(16) as pool:
        context = await known(pool)
        given_back = threading.Event()
        beginners = [in_new_context(pool.run, given_back.wait, TIMEOUT) for _ in range(16)]
        await asyncio.to_thread(eventually, lambda: pool.stats().running == 16)
        stuck = [context.run(pool.run, given_back.wait, TIMEOUT) for _ in range(3)]
        await context.run(pool.run, given_back.set)
        await asyncio.gather(*beginners, *stuck)
        assert pool.stats().started == 20
        reasons = [each.reason for each in pool.decisions()]
        assert sum("go on with what earlier ones began" in reason for reason in reasons) == 3
        # They leave again.
        eventually(lambda: pool.stats().workers <= 17)
