"""What a task that runs is told of its deadline, and of being cancelled."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import CancelledError

import pytest
from support.cancelling import cancel
from support.common import LONG, TIMEOUT, Gate, wait_for_idle
from support.loops import until

import ebbpool
from ebbpool import AdaptiveExecutor, QueueTimeout

SHORT = 0.05


def until_cancelled(begun: threading.Event) -> str:
    told = threading.Event()
    with ebbpool.on_cancel(told.set):
        begun.set()
        assert told.wait(TIMEOUT), "nobody has cancelled"
    try:
        ebbpool.check_cancelled()
    except CancelledError:
        return f"left, {ebbpool.cancelled()}"
    return "not cancelled"


@pytest.mark.parametrize(
    ("way", "in_lane"),
    [
        *(("future", False), ("within", False), ("amap", False)),
        *((way, in_lane) for way in ("shutdown", "deadline", "run") for in_lane in (False, True)),
    ],
)
def test_what_cancels(way: str, in_lane: bool) -> None:
    outcome: list[str] = []
    with AdaptiveExecutor(1) as pool:
        executor = pool.lane("lane", limit=1) if in_lane else pool
        future = cancel(way, executor, lambda begun: outcome.append(until_cancelled(begun)))
    assert outcome == ["left, True"]
    assert future is None or not future.cancelled()


def test_neither_the_next_task_of_the_thread_is_cancelled_nor_what_is_no_task() -> None:
    begun = threading.Event()
    with AdaptiveExecutor(1) as pool:
        first, second = pool.submit(until_cancelled, begun), pool.submit(ebbpool.cancelled)
        assert begun.wait(TIMEOUT)
        first.cancel()
        assert second.result(TIMEOUT) is False
        assert pool.submit(ebbpool.check_cancelled).result(TIMEOUT) is None
        assert not first.cancel()
    assert not ebbpool.cancelled()
    ebbpool.check_cancelled()
    assert ebbpool.time_left() is None
    with ebbpool.on_cancel(pytest.fail):
        pass


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


def test_the_time_that_is_left_and_a_deadline_holds_for_the_queue_too() -> None:
    with AdaptiveExecutor(1) as pool:
        assert pool.submit(ebbpool.time_left).result(TIMEOUT) is None
        assert pool.within(5).submit(ebbpool.time_left).result(TIMEOUT) is None
        left = pool.within(deadline=LONG).submit(ebbpool.time_left).result(TIMEOUT)
        assert left is not None
        assert LONG - TIMEOUT < left <= LONG

        def use_it_up(begun: threading.Event) -> float | None:
            until_cancelled(begun)
            return ebbpool.time_left()

        assert cancel("deadline", pool, use_it_up).result(TIMEOUT) == 0.0
        with Gate() as gate:
            gate.hold(pool)
            error = pool.within(LONG, deadline=SHORT).submit(int).exception(TIMEOUT)
            assert type(error) is QueueTimeout
            assert "deadline=0.05" in str(error)


def test_callbacks_are_called_once_and_only_within_their_block(caplog: pytest.LogCaptureFixture) -> None:
    called: list[str] = []
    begun, told, twice = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        with ebbpool.on_cancel(lambda: called.append("too early")):
            pass
        with ebbpool.on_cancel(lambda: 1 / 0), ebbpool.on_cancel(told.set):
            begun.set()
            assert told.wait(TIMEOUT)
        # Who cancels in the middle of the next line would make the call.
        assert twice.wait(TIMEOUT)
        # Called at once, in this thread.
        with ebbpool.on_cancel(lambda: called.append(threading.current_thread().name)):
            called.append("block")

    with caplog.at_level(logging.ERROR, "concurrent.futures"), AdaptiveExecutor(1, "own") as pool:
        future = pool.submit(work)
        assert begun.wait(TIMEOUT)
        future.cancel()
        future.cancel()
        twice.set()
        future.result(TIMEOUT)
    assert called == ["own_0", "block"]
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError]


@pytest.mark.asyncio
async def test_a_loop_does_not_run_callbacks_itself() -> None:
    threads: list[threading.Thread] = []
    begun, told = threading.Event(), threading.Event()

    def work() -> None:
        with ebbpool.on_cancel(lambda: (threads.append(threading.current_thread()), told.set())):
            begun.set()
            assert told.wait(TIMEOUT)

    async with AdaptiveExecutor(1) as pool:
        future = pool.run(work)
        await until(begun.is_set)
        future.cancel()
    assert threads[0] is not threading.current_thread()
