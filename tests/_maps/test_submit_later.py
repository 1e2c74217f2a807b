"""submit_later: when a call is queued, and how it is cancelled; and what ends delayed calls and schedules alike."""

from __future__ import annotations

import contextvars
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
from support.manual_time import break_down, timed_pool

from ebbpool import AdaptiveExecutor, Future


def test_a_call_runs_when_its_time_has_come_and_not_before() -> None:
    with timed_pool() as (pool, keeper):
        future = pool.submit_later(5, pow, 2, 3)
        assert isinstance(future, Future)
        assert keeper.advance(4.999) == pytest.approx(0.001)
        assert not future.done() and not future.running()
        assert pool.stats().workers == 0
        keeper.advance(0.0011)
        assert future.result(TIMEOUT) == 8
        assert pool.stats().delayed == 0 and keeper.entries() == 0


def test_calls_are_queued_in_the_order_of_their_times_and_ties_in_the_order_of_the_calls() -> None:
    with timed_pool(1) as (pool, keeper):
        ran: list[int] = []
        futures = [pool.submit_later(delay, ran.append, index) for index, delay in enumerate([3.0, 1, 2.0, 1.0, 0])]
        keeper.advance(3.0)
        for future in futures:
            future.result(TIMEOUT)
        assert ran == [4, 1, 3, 2, 0]


@pytest.mark.parametrize("delay", [0, 0.0, -0.0, 1e-320])
def test_no_delay_to_speak_of(delay: float) -> None:
    with AdaptiveExecutor() as pool:
        assert pool.submit_later(delay, pow, 2, 3).result(TIMEOUT) == 8


def test_a_delay_longer_than_any_lock_waits() -> None:
    with AdaptiveExecutor() as pool:
        far = pool.submit_later(threading.TIMEOUT_MAX * 2, print)
        further = pool.submit_later(1e300, print)
        assert pool.submit_later(0.001, pow, 2, 3).result(TIMEOUT) == 8
        assert not far.done() and not further.done()


def test_one_thread_keeps_the_time_of_all_calls() -> None:
    pools = [AdaptiveExecutor() for _ in range(3)]
    before = set(threading.enumerate())
    futures = [pools[index % 3].submit_later(LONG + index, print) for index in range(3000)]
    new = {thread.name for thread in set(threading.enumerate()) - before}
    assert new <= {"ebbpool-timekeeper"}
    for pool in pools:
        pool.shutdown()
    assert all(future.cancelled() for future in futures)


def test_cancelled_before_its_time_it_never_runs_and_lets_go_at_once() -> None:
    with timed_pool() as (pool, keeper):
        thing = Thing()
        reference = weakref.ref(thing)
        future = pool.submit_later(1.0, thing.method)
        told: list[Any] = []
        future.add_done_callback(told.append)
        del thing
        assert future.cancel() and future.cancelled() and future.cancel()
        gone(reference)
        assert told == [future]
        assert pool.stats().delayed == 0
        keeper.advance(2.0)
        assert pool.wait_idle(TIMEOUT)
        stats = pool.stats()
        assert (stats.cancelled, stats.completed, stats.queued, stats.workers) == (1, 0, 0, 0)


def test_cancelled_in_the_queue_it_never_runs() -> None:
    with timed_pool(1) as (pool, keeper), Gate() as gate:
        gate.hold(pool)
        ran: list[int] = []
        future = pool.submit_later(1.0, ran.append, 1)
        keeper.advance(1.0)
        assert pool.stats().queued == 1
        assert future.cancel()
        assert pool.stats().queued == 0
        gate.open()
        assert pool.submit(pow, 2, 3).result(TIMEOUT) == 8
        assert ran == []


def test_cancelled_in_the_moment_it_falls_due() -> None:
    """Either the call runs, or cancel() says that it never will."""
    with AdaptiveExecutor(4) as pool:
        ran: set[int] = set()
        futures = [pool.submit_later(index % 50 * 0.0004, ran.add, index) for index in range(2000)]
        cancelled = {index for index, future in enumerate(futures) if future.cancel()}
        for index, future in enumerate(futures):
            if index not in cancelled:
                future.result(TIMEOUT)
        assert ran == set(range(2000)) - cancelled
        assert pool.wait_idle(TIMEOUT)
        assert pool.stats().cancelled == len(cancelled)


def test_cancelled_calls_do_not_pile_up() -> None:
    with timed_pool() as (pool, keeper):
        for _ in range(30):
            for _ in range(1000):
                pool.submit_later(LONG, print).cancel()
            if keeper._bell.acquire(False):
                keeper.settle()
            assert keeper.entries() < 3000
        assert pool.stats().delayed == 0


def test_the_context_is_that_of_the_submitter() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")
    with timed_pool(propagate_context=True) as (pool, keeper):
        token = variable.set("submitter's")
        future = pool.submit_later(1.0, lambda *args, **names: (variable.get(), args, names), 1, self=2, callable=3)
        variable.reset(token)
        keeper.advance(1.0)
        assert future.result(TIMEOUT) == ("submitter's", (1,), {"self": 2, "callable": 3})


def test_an_idle_pool_has_calls_that_wait_for_their_time() -> None:
    with timed_pool() as (pool, _):
        pool.submit_later(LONG, print)
        assert pool.wait_idle(0)
        stats = pool.stats()
        assert (stats.queued, stats.running, stats.submitted) == (0, 0, 0)


def test_shutdown_leaves_what_is_due_in_the_queue() -> None:
    with timed_pool(1) as (pool, keeper), Gate() as gate:
        gate.hold(pool)
        due, not_due = pool.submit_later(1.0, pow, 2, 3), pool.submit_later(1.5, pow, 2, 3)
        keeper.advance(1.0)
        pool.shutdown(wait=False)
        assert not_due.cancelled() and not due.done()
        gate.open()
        assert due.result(TIMEOUT) == 8
        keeper.advance(10.0)


def test_a_call_submitted_as_the_pool_closes_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shutdown comes after the pool was seen open, and before the call is among those that wait."""
    with timed_pool() as (pool, keeper):
        hold_back = pool.hold_back

        def late(*call: Any) -> Any:
            future = hold_back(*call)
            pool.shutdown()
            return future

        monkeypatch.setattr(pool, "hold_back", late)
        future = pool.submit_later(LONG, print)
        assert future.cancelled() and pool.stats().delayed == 0
        assert keeper.advance(LONG) == inf


def test_a_call_that_waits_keeps_its_pool_alive() -> None:
    pool = AdaptiveExecutor(keep_alive=LONG)
    future = pool.submit_later(0.02, threading.current_thread)
    reference = weakref.ref(pool)
    del pool
    gc.collect()
    thread = future.result(TIMEOUT)
    collected(reference)
    assert all_end([thread])


def test_an_executor_without_delayed_calls_is_in_no_cycle() -> None:
    gc.collect()
    gc.disable()
    try:
        pool = AdaptiveExecutor()
        future = pool.submit_later(LONG, print)
        future.cancel()
        pool.submit_later(0, int).result(TIMEOUT)
        assert pool.wait_idle(TIMEOUT)
        reference = weakref.ref(pool)
        del pool
        eventually(lambda: reference() is None)
    finally:
        gc.enable()


def test_a_finaliser_may_submit_a_delayed_call() -> None:
    class Dies:
        def __init__(self, pool: AdaptiveExecutor, futures: list[Any]) -> None:
            self.pool, self.futures, self.me = pool, futures, self

        def __del__(self) -> None:
            self.futures.append(self.pool.submit_later(0, pow, 2, 3))

    futures: list[Any] = []
    with AdaptiveExecutor() as pool:
        for _ in range(20):
            Dies(pool, futures)
            pool.submit_later(0, gc.collect).result(TIMEOUT)
        # A collection does nothing while another thread collects.
        eventually(lambda: (gc.collect(), len(futures) == 20)[1])
        assert [future.result(TIMEOUT) for future in futures] == [8] * 20


def test_a_turn_at_the_moment_of_a_shutdown_leaves_no_entry_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    with timed_pool() as (pool, keeper):
        pool.submit_later(60.0, int)
        keeper.settle()
        count_void = keeper.void

        def turn_at_once() -> None:
            count_void()
            keeper.settle()

        monkeypatch.setattr(keeper, "void", turn_at_once)
        pool.shutdown()
        assert keeper.entries() == 0


def test_shutdown_ends_what_is_not_due_says_how_much_and_does_not_wait(caplog: pytest.LogCaptureFixture) -> None:
    pool = AdaptiveExecutor(thread_name_prefix="mine")
    tasks = [pool.schedule(LONG, print) for _ in range(2)]
    futures = [pool.submit_later(LONG, print) for _ in range(4)]
    told: list[Any] = []
    futures[0].add_done_callback(told.append)
    tasks[0].cancel()
    futures[1].cancel()
    with caplog.at_level(logging.INFO, "concurrent.futures"):
        Background(pool.shutdown).join()
        pool.shutdown()
    assert [record.getMessage() for record in caplog.records] == [
        "shutdown of mine: 3 delayed calls cancelled, 1 schedules ended"
    ]
    assert not any(task.active for task in tasks)
    assert all(future.cancelled() for future in futures)
    assert told == [futures[0]]
    for call in (pool.schedule, pool.submit_later):
        with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
            call(1, print)
    assert pool.stats().delayed == 0


def test_a_pool_that_breaks_ends_its_schedules_and_fails_what_waits() -> None:
    with timed_pool(initializer=break_down) as (pool, keeper):
        running, waiting = pool.schedule(1, print), pool.schedule(LONG, print)
        future = pool.submit_later(LONG, print)
        keeper.advance(1.0)
        eventually(lambda: not running.active and not waiting.active)
        for task in (running, waiting):
            assert isinstance(task.last_error, BrokenThreadPool)
            assert task.runs == 0
        with pytest.raises(BrokenThreadPool):
            future.result(TIMEOUT)
        for call in (pool.schedule, pool.submit_later):
            with pytest.raises(BrokenThreadPool):
                call(1, print)


def test_exit_ends_what_waits_and_does_not_hang() -> None:
    lines = output_of("""
        import atexit
        import threading
        from ebbpool import AdaptiveExecutor
        pool, unused, ran = AdaptiveExecutor(), AdaptiveExecutor(daemon=True), threading.Semaphore(0)
        AdaptiveExecutor().schedule(0.001, ran.release)
        AdaptiveExecutor().schedule(3600, print)
        for each in (pool, unused):
            each.submit_later(3600, print).add_done_callback(lambda future: print(future.cancelled(), flush=True))
        for _ in range(3):
            ran.acquire(timeout=10)
        print(pool.submit_later(0, pow, 2, 3).result(10), flush=True)
        def late():
            for each in (pool, AdaptiveExecutor()):
                for call in (each.submit_later, each.schedule):
                    try:
                        call(1, print, "never")
                    except RuntimeError as error:
                        print(error)
        atexit.register(late)
    """)
    assert lines == ["8", "True", "True"] + ["cannot schedule new futures after interpreter shutdown"] * 4


@needs_fork
def test_a_forked_child_forgets_what_waits_and_can_begin_anew() -> None:
    lines = output_of(
        """
        pool = AdaptiveExecutor()
        ran, again, told, heard = threading.Semaphore(0), threading.Event(), [], []
        task = pool.schedule(0.005, ran.release)
        far, soon = pool.submit_later(3600, int), pool.submit_later(0.2, os.getpid)
        far.add_done_callback(told.append)
        soon.add_done_callback(heard.append)
        ran.acquire(timeout=10)
        def check():
            print(task.active, task.next_run, task.cancel())
            try:
                far.result(10)
            except BrokenThreadPool as error:
                print("fork" in str(error), told)
            print(pool.submit_later(0.01, pow, 2, 3).result(10), pool.stats().cancelled)
            other = pool.schedule(0.005, again.set)
            print(again.wait(10), other.cancel())
            pool.submit_later(3600, print)
            pool.shutdown()
        print(in_child(check), soon.result(10) == os.getpid(), pool.wait_idle(10) and heard == [soon])
        for _ in range(3):
            ran.acquire(timeout=10)
        print(task.active, far.done())
    """,
        FORK,
    )
    assert lines == ["False None False", "True []", "8 0", "True True", "0 True True", "True False"]
