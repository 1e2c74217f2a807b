"""A task asks whether it was cancelled, how much time it has left, and has a callback called."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

import pytest
from support.common import TIMEOUT, Gate, eventually, wait_for_idle

import ebbpool
from ebbpool import AdaptiveExecutor, QueueTimeout

LONG = 600.0
SHORT = 0.05


def until_cancelled(begun: threading.Event | None = None) -> str:
    """Run until somebody cancels the task."""
    told = threading.Event()
    with ebbpool.on_cancel(told.set):
        if begun is not None:
            begun.set()
        assert told.wait(TIMEOUT), "nobody has cancelled"
    try:
        ebbpool.check_cancelled()
    except CancelledError:
        return f"left, {ebbpool.cancelled()}"
    return "not cancelled"


@pytest.mark.parametrize("way", ["future", "shutdown", "shutdown of a lane", "deadline", "deadline in a lane"])
def test_what_cancels(way: str) -> None:
    begun = threading.Event()
    with AdaptiveExecutor(1) as pool:
        lane = pool.lane("lane", limit=1)
        submit: Callable[..., Any] = pool.submit
        if way == "deadline":
            submit = pool.within(deadline=SHORT).submit
        elif way == "deadline in a lane":
            submit = lane.within(deadline=SHORT).submit
        elif way == "shutdown of a lane":
            submit = lane.submit
        future = submit(until_cancelled, begun)
        if not way.startswith("deadline"):
            assert begun.wait(TIMEOUT)
        if way == "future":
            # As with the standard library: it runs, so it is not cancelled.
            assert not future.cancel()
        elif way == "shutdown":
            pool.shutdown(wait=False, cancel_futures=True)
        elif way == "shutdown of a lane":
            lane.shutdown(wait=False, cancel_futures=True)
        assert future.result(TIMEOUT) == "left, True"
        assert not future.cancelled()


def test_the_next_task_of_the_thread_is_not_cancelled() -> None:
    begun = threading.Event()
    with AdaptiveExecutor(1) as pool:
        first = pool.submit(until_cancelled, begun)
        second = pool.submit(ebbpool.cancelled)
        assert begun.wait(TIMEOUT)
        first.cancel()
        assert second.result(TIMEOUT) is False
        assert pool.submit(ebbpool.check_cancelled).result(TIMEOUT) is None
        assert not first.cancel()


@pytest.mark.asyncio
@pytest.mark.parametrize("way", ["run", "lane", "within", "amap"])
async def test_an_await_that_is_cancelled(way: str) -> None:
    async with AdaptiveExecutor(2) as pool:
        outcome: list[str] = []
        begun = threading.Event()

        def work(*_: object) -> None:
            outcome.append(until_cancelled(begun))

        async def ask() -> None:
            if way == "amap":
                async for _ in pool.amap(work, [1]):
                    pass
            elif way == "run":
                await pool.run(work)
            elif way == "lane":
                await pool.lane("lane", limit=1).run(work)
            else:
                await pool.within(LONG).run(work)

        task = asyncio.ensure_future(ask())
        while not begun.is_set():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(eventually, lambda: outcome == ["left, True"])


@pytest.mark.asyncio
async def test_what_nobody_waits_for_is_seen() -> None:
    async with AdaptiveExecutor(2) as pool:
        with Gate() as gate:
            given_up, wanted = pool.run(gate), pool.run(gate)
            gate.await_begun(2)
            assert (pool.stats().abandoned, pool.stats().longest_abandoned) == (0, 0)
            given_up.cancel()
            stats = pool.stats()
            assert (stats.abandoned, stats.running) == (1, 2)
            assert stats.longest_abandoned > 0
            assert sorted(task.abandoned for task in pool.running()) == [False, True]
            gate.open()
            await wanted
            await asyncio.to_thread(wait_for_idle, pool)
        assert (pool.stats().abandoned, pool.stats().longest_abandoned) == (0, 0)


def test_the_time_that_is_left() -> None:
    with AdaptiveExecutor(1) as pool:
        assert pool.submit(ebbpool.time_left).result(TIMEOUT) is None
        assert pool.within(5).submit(ebbpool.time_left).result(TIMEOUT) is None
        left = pool.within(deadline=LONG).submit(ebbpool.time_left).result(TIMEOUT)
        assert left is not None
        assert LONG - TIMEOUT < left <= LONG

        def use_it_up() -> float | None:
            until_cancelled()
            return ebbpool.time_left()

        assert pool.within(deadline=SHORT).submit(use_it_up).result(TIMEOUT) == 0.0


def test_a_deadline_holds_for_the_queue_too() -> None:
    with AdaptiveExecutor(1) as pool, Gate() as gate:
        gate.hold(pool)
        late = pool.within(LONG, deadline=SHORT).submit(int)
        error = late.exception(TIMEOUT)
        assert type(error) is QueueTimeout
        assert "deadline=0.05" in str(error)


def test_outside_of_a_task_nothing_is_cancelled() -> None:
    assert not ebbpool.cancelled()
    ebbpool.check_cancelled()
    assert ebbpool.time_left() is None
    with ebbpool.on_cancel(pytest.fail):
        pass


def test_callbacks_are_called_once_and_only_within_their_block(caplog: pytest.LogCaptureFixture) -> None:
    called: list[str] = []
    begun, told = threading.Event(), threading.Event()

    def work() -> None:
        with ebbpool.on_cancel(lambda: called.append("too early")):
            pass
        with ebbpool.on_cancel(lambda: 1 / 0), ebbpool.on_cancel(told.set):
            begun.set()
            assert told.wait(TIMEOUT)
        # Called at once, in this thread.
        with ebbpool.on_cancel(lambda: called.append(threading.current_thread().name)):
            called.append("block")

    with caplog.at_level(logging.ERROR, "concurrent.futures"), AdaptiveExecutor(1, "own") as pool:
        future = pool.submit(work)
        assert begun.wait(TIMEOUT)
        future.cancel()
        future.cancel()
        future.result(TIMEOUT)
    assert called == ["own_0", "block"]
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError]


@pytest.mark.asyncio
async def test_a_loop_does_not_run_callbacks_itself() -> None:
    threads: list[threading.Thread] = []
    begun, told = threading.Event(), threading.Event()

    def note() -> None:
        threads.append(threading.current_thread())
        told.set()

    def work() -> None:
        with ebbpool.on_cancel(note):
            begun.set()
            assert told.wait(TIMEOUT)

    async with AdaptiveExecutor(1) as pool:
        future = pool.run(work)
        while not begun.is_set():
            await asyncio.sleep(0)
        future.cancel()
        await asyncio.to_thread(eventually, lambda: threads)
    assert threads[0] is not threading.current_thread()
