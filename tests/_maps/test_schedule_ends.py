"""What ends a schedule: cancel() at every moment, shutdown, a broken pool, exit and fork; and what it keeps alive."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from concurrent.futures.thread import BrokenThreadPool
from math import inf
from typing import Any

import pytest
from support.common import (
    FORK,
    LONG,
    TIMEOUT,
    Background,
    Gate,
    Thing,
    all_end,
    collected,
    eventually,
    gone,
    needs_fork,
    output_of,
)
from support.manual_time import break_down, pass_time, timed_pool

from ebbpool import AdaptiveExecutor, ScheduledTask
from ebbpool._core.accel import Timers


def test_cancelled_before_its_first_run() -> None:
    with timed_pool() as (pool, keeper):
        thing = Thing()
        reference = weakref.ref(thing)
        task = pool.schedule(1, thing.method)
        del thing
        assert task.cancel()
        assert not task.cancel()
        gone(reference)
        assert (task.active, task.next_run, task.runs) == (False, None, 0)
        assert keeper.advance(5.0) == inf
        assert not pool._crew.timers.waiting


def test_cancelled_while_a_run_waits_for_a_thread() -> None:
    with timed_pool(1) as (pool, keeper), Gate() as gate:
        gate.hold(pool)
        ran: list[int] = []
        task = pool.schedule(1, ran.append, 1)
        keeper.advance(1.0)
        assert pool.stats().queued == 1
        assert task.cancel()
        assert pool.stats().queued == 0
        gate.open()
        pass_time(pool, keeper, 5.0)
        assert (ran, task.runs) == ([], 0)


def test_cancelled_while_it_runs() -> None:
    with timed_pool() as (pool, keeper), Gate() as gate:
        task = pool.schedule(1, gate)
        keeper.advance(1.0)
        gate.await_begun()
        assert task.cancel()
        assert (task.active, task.next_run) == (False, None)
        gate.open()
        pass_time(pool, keeper, 5.0)
        assert task.runs == 1
        assert gate.nobody_begins()


def test_cancelled_by_itself() -> None:
    with timed_pool() as (pool, keeper):
        tasks: list[ScheduledTask] = []
        tasks.append(pool.schedule(1, lambda: tasks[0].cancel()))
        for _ in range(3):
            pass_time(pool, keeper, 1.0)
        assert tasks[0].runs == 1
        assert not tasks[0].active


def test_cancelled_between_two_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last run has ended, and the next is not yet where cancel() would find it."""
    with timed_pool() as (pool, keeper):
        task = pool.schedule(1, int)
        hold_back = pool.hold_back

        def slow(*call: Any) -> Any:
            future = hold_back(*call)
            assert task.cancel()
            return future

        monkeypatch.setattr(pool, "hold_back", slow)
        pass_time(pool, keeper, 1.0)
        assert not pool._crew.timers.waiting
        assert keeper.advance(5.0) == inf
        assert (task.runs, task.active) == (1, False)


def test_no_run_begins_after_cancel_has_returned() -> None:
    """Cancelled at any moment of its beat, by another thread."""
    with AdaptiveExecutor(4) as pool:
        for round_number in range(100):
            cancelled = threading.Event()
            late: list[bool] = []

            def run(late: list[bool] = late, cancelled: threading.Event = cancelled) -> None:
                late.append(cancelled.is_set())

            task = pool.schedule(0.0001, run, first=0)
            eventually(lambda: len(late) > round_number % 5)  # noqa: B023  (used at once)
            task.cancel()
            assert pool.wait_idle(TIMEOUT)
            cancelled.set()
            count = len(late)
            assert pool.submit_later(0.001, len, late).result(TIMEOUT) == count
            assert task.runs <= count


def test_cancelled_schedules_do_not_pile_up() -> None:
    with timed_pool() as (pool, keeper):
        for _ in range(20):
            for _ in range(500):
                pool.schedule(LONG, print).cancel()
            if keeper._bell.acquire(False):
                keeper.settle()
            assert keeper.entries() < 3000
        assert not pool._crew.timers.schedules


def test_shutdown_ends_schedules_says_how_many_and_does_not_wait(caplog: pytest.LogCaptureFixture) -> None:
    pool = AdaptiveExecutor(thread_name_prefix="mine")
    tasks = [pool.schedule(LONG, print) for _ in range(3)]
    pool.submit_later(LONG, print)
    tasks[0].cancel()
    with caplog.at_level(logging.INFO, "concurrent.futures"):
        Background(pool.shutdown).join()
    assert [record.getMessage() for record in caplog.records] == [
        "shutdown of mine: 1 delayed calls cancelled, 2 schedules ended"
    ]
    assert not any(task.active for task in tasks)
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        pool.schedule(1, print)
    assert not pool._crew.timers.schedules


def test_shutdown_lets_the_run_under_way_finish() -> None:
    with timed_pool() as (pool, keeper), Gate() as gate:
        task = pool.schedule(1, gate)
        keeper.advance(1.0)
        gate.await_begun()
        pool.shutdown(wait=False)
        assert not task.active
        gate.open()
        pool.shutdown(timeout=TIMEOUT)
        assert (task.runs, task.last_error) == (1, None)
        assert keeper.advance(5.0) == inf


def test_a_run_that_shutdown_cancels_in_the_queue_is_none() -> None:
    with timed_pool(1) as (pool, keeper), Gate() as gate:
        gate.hold(pool)
        task = pool.schedule(1, print)
        keeper.advance(1.0)
        pool.shutdown(wait=False, cancel_futures=True)
        assert (task.active, task.runs) == (False, 0)


def test_a_run_that_ends_as_the_pool_closes_is_the_last(caplog: pytest.LogCaptureFixture) -> None:
    with timed_pool() as (pool, keeper), Gate() as gate:
        task = pool.schedule(1, gate)
        keeper.advance(1.0)
        gate.await_begun()
        pool._pool.close()
        gate.open()
        eventually(lambda: not task.active)
        assert (task.runs, task.missed) == (1, 0)
        assert caplog.records == []


def test_a_pool_that_breaks_ends_its_schedules() -> None:
    with timed_pool(initializer=break_down) as (pool, keeper):
        running, waiting = pool.schedule(1, print), pool.schedule(LONG, print)
        keeper.advance(1.0)
        eventually(lambda: not running.active and not waiting.active)
        for task in (running, waiting):
            assert isinstance(task.last_error, BrokenThreadPool)
            assert task.runs == 0
        with pytest.raises(BrokenThreadPool):
            pool.schedule(1, print)


def test_whoever_sees_that_a_schedule_has_ended_may_read_why() -> None:
    class Watched(dict[ScheduledTask, None]):
        def __delitem__(self, task: ScheduledTask) -> None:
            if task in self:
                seen.append(task.last_error)
            super().__delitem__(task)

    seen: list[object] = []
    error = BrokenThreadPool("broken")
    with timed_pool() as (pool, _):
        pool._crew.timers.schedules = Watched()
        task = pool.schedule(LONG, print)
        assert task.stop(error)
        assert seen == [error]
        assert not task.stop(BrokenThreadPool("later"))
        assert task.last_error is error


def test_a_schedule_keeps_its_pool_alive_until_it_is_cancelled() -> None:
    with timed_pool() as (outer, keeper):
        pool = AdaptiveExecutor(keep_alive=LONG)
        pool._crew.timers = type(outer._crew.timers)(keeper)
        threads: set[threading.Thread] = set()
        task = pool.schedule(1, lambda: threads.add(threading.current_thread()))
        reference = weakref.ref(pool)
        del pool
        for count in range(1, 4):
            gc.collect()
            keeper.now += 1.0
            # The run before may be over and the next one not yet armed.
            eventually(lambda: keeper.settle() > 0 and task.runs == count)  # noqa: B023  (used at once)
        task.cancel()
        collected(reference)
        assert all_end(threads)


def test_a_schedule_that_nobody_holds_goes_on() -> None:
    ran = threading.Semaphore(0)
    pool = AdaptiveExecutor()
    pool.schedule(0.001, ran.release)
    for _ in range(5):
        gc.collect()
        assert ran.acquire(timeout=TIMEOUT)
    pool.shutdown()


def test_a_schedule_that_has_ended_holds_neither_call_nor_pool() -> None:
    with timed_pool() as (outer, keeper):
        pool = AdaptiveExecutor()
        pool._crew.timers = type(outer._crew.timers)(keeper)
        thing = Thing()
        references = weakref.ref(pool), weakref.ref(thing)
        task = pool.schedule(1, thing.method)
        pass_time(pool, keeper, 1.0)
        task.cancel()
        pool.shutdown()
        del pool, thing
        gc.collect()
        gone(*references)
        assert task.runs == 1


def test_exit_ends_schedules_and_does_not_hang() -> None:
    lines = output_of("""
        import threading
        from ebbpool import AdaptiveExecutor
        ran = threading.Semaphore(0)
        AdaptiveExecutor().schedule(0.001, ran.release)
        AdaptiveExecutor().schedule(3600, print)
        for _ in range(3):
            ran.acquire(timeout=10)
        print("over")
    """)
    assert lines == ["over"]


@needs_fork
def test_a_forked_child_forgets_the_schedules() -> None:
    lines = output_of(
        """
        pool = AdaptiveExecutor()
        ran = threading.Semaphore(0)
        task = pool.schedule(0.005, ran.release)
        ran.acquire(timeout=10)
        def check():
            print(task.active, task.next_run, task.cancel())
            again = threading.Event()
            other = pool.schedule(0.005, again.set)
            print(again.wait(10), other.cancel())
            pool.shutdown()
        print(in_child(check))
        for _ in range(3):
            ran.acquire(timeout=10)
        print(task.active)
    """,
        FORK,
    )
    assert lines == ["False None False", "True True", "0", "True"]


def test_due_in_the_moment_of_the_shutdown() -> None:
    """The pool is closed between the timekeeper's look at it and the queue: the run is cancelled, not failed."""
    with timed_pool() as (pool, keeper):
        ran: list[int] = []
        task = pool.schedule(1, ran.append, 1)
        release = pool.release

        def closing(future: Any) -> bool:
            pool._pool.close()
            return release(future)

        pool.release = closing
        keeper.advance(1.0)
        pool.shutdown()
        assert (ran, task.runs, task.last_error, task.active) == ([], 0, None, False)


def test_cancelled_while_its_next_run_is_armed() -> None:
    class Cancelling(Timers):
        def add(self, executor: Any, future: Any, due: float) -> None:
            if armed:
                assert task.cancel()
            super().add(executor, future, due)

    with timed_pool() as (pool, keeper):
        armed = False
        timers = pool._crew.timers = Cancelling(keeper)
        task = pool.schedule(3600, int, first=1)
        armed = True
        pass_time(pool, keeper, 1.0)
        assert task.runs == 1
        assert not timers.waiting
        assert pool.stats().delayed == 0
