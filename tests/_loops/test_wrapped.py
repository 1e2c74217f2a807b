"""What `run_in_executor` of any loop, and `asyncio.wrap_future`, make of many results at once."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
from support.common import Boom, Gate
from support.loops import Reports, behind, chaining, fail, on_every_loop
from support.seams import core

from ebbpool import AdaptiveExecutor

DELIVERED_AT_ONCE: int = vars(core("plain", "loop_calls"))["DELIVERED_AT_ONCE"]


def test_the_callback_of_this_asyncio_is_known() -> None:
    assert chaining.CHAINED is not None


async def _steps(futures: list[asyncio.Future[Any]]) -> list[int]:
    """Return how many of these were done after each turn of the loop."""
    done = [0]
    while done[-1] < len(futures):
        await asyncio.sleep(0)
        done.append(sum(future.done() for future in futures))
    return [after - before for before, after in itertools.pairwise(done)]


@on_every_loop
async def test_other_callbacks_get_their_turn_between_results() -> None:
    loop = asyncio.get_running_loop()
    async with AdaptiveExecutor(1) as pool:
        ways: list[Callable[[], asyncio.Future[int]]] = [
            lambda: asyncio.wrap_future(pool.submit(int, "3")),
            lambda: asyncio.ensure_future(loop.run_in_executor(pool, int, "3")),
        ]
        for way in ways:
            # One that is done before it is wrapped is asyncio's own affair.
            with Gate() as gate:
                gate.hold(pool)
                futures = [way() for _ in range(8 * DELIVERED_AT_ONCE)]
            behind(pool)
            assert max(await _steps(futures)) <= DELIVERED_AT_ONCE + 1
            assert {future.result() for future in futures} == {3}


@on_every_loop
@pytest.mark.parametrize("known", [True, False])
async def test_outcomes_are_those_of_asyncio(known: bool, monkeypatch: pytest.MonkeyPatch, reports: Reports) -> None:
    """Where asyncio has another callback than is known, it is called."""
    if not known:
        monkeypatch.setattr(chaining, "CHAINED", None)
    async with AdaptiveExecutor(1) as pool:

        def wrapped(fn: Any, *args: Any) -> asyncio.Future[Any]:
            return asyncio.wrap_future(pool.submit(fn, *args))

        assert await wrapped(int, "3") == 3
        with pytest.raises(Boom):
            await wrapped(fail, Boom())
        with pytest.raises(asyncio.CancelledError):
            await wrapped(fail, concurrent.futures.CancelledError())
        with pytest.raises(asyncio.InvalidStateError):
            await wrapped(fail, concurrent.futures.InvalidStateError())
        with Gate() as gate:
            running, queued = wrapped(gate), pool.submit(int)
            waits = asyncio.wrap_future(queued)
            gate.await_begun()
            running.cancel()
            queued.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
        behind(pool)
        assert await wrapped(int, "4") == 4
        assert running.cancelled()
    assert await reports.all() == []


@on_every_loop
async def test_what_a_call_gave_to_the_loop_runs_before_its_future_is_done() -> None:
    loop = asyncio.get_running_loop()
    seen: list[bool] = []

    def call(number: int) -> None:
        loop.call_soon_threadsafe(lambda: seen.append(futures[number].done()))

    async with AdaptiveExecutor(1) as pool:
        with Gate() as gate:
            pool.submit(gate)
            futures = [asyncio.wrap_future(pool.submit(call, number)) for number in range(3 * DELIVERED_AT_ONCE)]
        await asyncio.gather(*futures)
    assert seen == [False] * len(futures)


@on_every_loop
async def test_the_loop_s_lag_is_told_by_the_name_of_its_own_thread() -> None:
    async with AdaptiveExecutor(1) as pool:
        with Gate() as gate:
            gate.hold(pool)
            futures = [asyncio.wrap_future(pool.submit(int)) for _ in range(3)]
        await asyncio.gather(*futures)
        assert [lag.name for lag in pool.stats().loop_lag] == [threading.current_thread().name]


def test_a_loop_that_is_closed_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    told = threading.Event()
    loop = asyncio.new_event_loop()
    with Gate() as gate, AdaptiveExecutor(1) as pool:
        first = pool.submit(gate)
        wrapped = asyncio.wrap_future(first, loop=loop)
        first.add_done_callback(lambda _: told.set())
        gate.await_begun()
        loop.close()
        gate.open()
        behind(pool)
        assert told.is_set()
        assert not wrapped.done()
        assert pool.submit(int, "3").result() == 3
    assert caplog.records == []
