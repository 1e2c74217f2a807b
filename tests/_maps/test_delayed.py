"""submit_later and schedule: when calls are queued, what is missed, what an error does, and what ends them."""

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
from support import seams
from support.common import (
    FORK,
    LONG,
    TIMEOUT,
    Background,
    Boom,
    Gate,
    Thing,
    all_end,
    collected,
    eventually,
    gone,
    needs_fork,
    no_collector,
    output_of,
    wait_for_idle,
)
from support.manual_time import break_down, pass_time, timed_pool

from ebbpool import AdaptiveExecutor, Future, ScheduledTask

WAYS = ["submit_later", "schedule"]

# submit_later.


def test_a_call_runs_when_its_time_has_come_and_not_before() -> None:
    with timed_pool() as (pool, keeper):
        future = pool.submit_later(5, pow, 2, 3)
        assert isinstance(future, Future)
        assert keeper.advance(4.999) == pytest.approx(0.001)
        assert not future.done() and not future.running()
        assert pool.wait_idle(0)
        stats = pool.stats()
        assert (stats.workers, stats.queued, stats.running, stats.submitted, stats.delayed) == (0, 0, 0, 0, 1)
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


def test_any_delay() -> None:
    with AdaptiveExecutor() as pool:
        for delay in (0, 0.0, -0.0, 1e-320):
            assert pool.submit_later(delay, pow, 2, 3).result(TIMEOUT) == 8
        # The first of them is longer than any lock waits.
        far = [pool.submit_later(delay, print) for delay in (threading.TIMEOUT_MAX * 2, 1e300)]
        assert pool.submit_later(0.001, pow, 2, 3).result(TIMEOUT) == 8
        assert not any(future.done() for future in far)


@pytest.mark.parametrize("way", WAYS)
def test_cancelled_before_its_time_it_never_runs_and_lets_go_at_once(way: str) -> None:
    with timed_pool() as (pool, keeper):
        thing = Thing()
        reference = weakref.ref(thing)
        call = getattr(pool, way)(1.0, thing.method)
        told: list[Any] = []
        if way == "submit_later":
            call.add_done_callback(told.append)
        del thing
        assert call.cancel()
        gone(reference)
        if way == "submit_later":
            assert call.cancelled() and call.cancel() and told == [call]
        else:
            assert not call.cancel() and (call.active, call.next_run, call.runs) == (False, None, 0)
        assert keeper.advance(5.0) == inf
        assert pool.wait_idle(TIMEOUT)
        stats = pool.stats()
        assert (stats.delayed, stats.cancelled, stats.completed, stats.queued, stats.workers) == (0, 1, 0, 0, 0)


@pytest.mark.parametrize("way", WAYS)
def test_cancelled_in_the_queue_it_never_runs(way: str) -> None:
    with timed_pool(1) as (pool, keeper), Gate() as gate:
        gate.hold(pool)
        ran: list[int] = []
        call = getattr(pool, way)(1.0, ran.append, 1)
        keeper.advance(1.0)
        assert pool.stats().queued == 1
        assert call.cancel()
        assert pool.stats().queued == 0
        gate.open()
        pass_time(pool, keeper, 5.0)
        assert ran == []
        assert way == "submit_later" or call.runs == 0


def test_due_while_the_queue_is_full_it_waits_its_turn() -> None:
    with timed_pool(1, max_queue=1, when_full="reject") as (pool, keeper), Gate() as gate:
        gate.hold(pool)
        pool.submit(int)
        due = pool.submit_later(1, int)
        keeper.advance(1.0)
        assert not due.done() and pool.stats().queued == 1
        gate.open()
        assert due.result(TIMEOUT) == 0


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


@pytest.mark.parametrize("way", WAYS)
def test_the_context_of_each_run_is_a_copy_of_the_callers(way: str) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")
    seen: list[Any] = []

    def run(*args: int, **names: int) -> None:
        seen.append((variable.get(), args, names))
        variable.set("changed by a run")

    with timed_pool(propagate_context=True) as (pool, keeper):
        token = variable.set("caller's")
        getattr(pool, way)(1, run, 1, self=2, callable=3)
        variable.reset(token)
        for _ in range(3):
            pass_time(pool, keeper, 1.0)
    assert seen == [("caller's", (1,), {"self": 2, "callable": 3})] * (3 if way == "schedule" else 1)


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


@pytest.mark.parametrize("way", WAYS)
def test_what_waits_keeps_its_pool_and_its_call_alive_until_it_is_over(way: str) -> None:
    pool, thing, threads = AdaptiveExecutor(keep_alive=LONG), Thing(), set()
    ran = threading.Semaphore(0)

    def run(_: Any) -> None:
        threads.add(threading.current_thread())
        ran.release()

    call = getattr(pool, way)(0.01, run, thing)
    references = weakref.ref(pool), weakref.ref(thing)
    del pool, thing
    for _ in range(3 if way == "schedule" else 1):
        gc.collect()
        assert ran.acquire(timeout=TIMEOUT)
    call.cancel()
    collected(*references)
    assert all_end(threads)


def test_an_executor_without_delayed_calls_is_in_no_cycle() -> None:
    with no_collector():
        pool = AdaptiveExecutor()
        pool.submit_later(LONG, print).cancel()
        pool.submit_later(0, int).result(TIMEOUT)
        assert pool.wait_idle(TIMEOUT)
        reference = weakref.ref(pool)
        del pool
        gone(reference)


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


# schedule.


@pytest.mark.parametrize(("first", "expected"), [(None, 1010.0), (0, 1000.0), (0.5, 1000.5), (25, 1025.0)])
def test_a_schedule_keeps_the_beat(first: float | None, expected: float) -> None:
    ran: list[float] = []

    def call(*args: Any, **kwargs: Any) -> None:
        assert (args, kwargs) == ((1, 2), {"interval": 3, "fn": 4})
        kwargs.clear()
        ran.append(keeper.now)

    with timed_pool() as (pool, keeper):
        task = pool.schedule(10, call, 1, 2, first=first, interval=3, fn=4)
        assert isinstance(task, ScheduledTask)
        assert (task.interval, task.runs, task.missed, task.last_error, task.next_run) == (10, 0, 0, None, expected)
        pass_time(pool, keeper, expected - 1000.0)
        assert ran == [expected]
        for _ in range(25):
            pass_time(pool, keeper, 1.0)
        assert ran == [expected, expected + 10, expected + 20]
        assert (task.runs, task.missed, task.next_run, task.active) == (3, 0, expected + 30, True)


@pytest.mark.parametrize(
    ("interval", "pauses"),
    [(10, [10.3, 9.9, 10.1, 9.7]), (0.1, [0.1 * 1_000_000]), (1e-9, [1.0] * 3), (5e-324, [1.0] * 3)],
)
def test_neither_late_runs_nor_missed_ones_shift_the_beat(interval: float, pauses: list[float]) -> None:
    with timed_pool() as (pool, keeper):
        task = pool.schedule(interval, int)
        for number, pause in enumerate(pauses, 1):
            pass_time(pool, keeper, pause)
            assert task.runs >= number
        # Not below the resolution of the clock.
        step = max(interval, 1e-9)
        assert task.interval == interval and task.next_run is not None
        due = 1000.0 + interval + step * (task.runs + task.missed)
        assert task.next_run == pytest.approx(due, rel=0.0, abs=2e-9)
        assert keeper.now <= task.next_run <= keeper.now + step + 1e-9
        told = f"<ScheduledTask of int every {interval:g} s: %s, runs={task.runs}, missed={task.missed}>"
        assert repr(task) == told % "goes on"
        task.cancel()
        assert repr(task) == told % "ended"


@pytest.mark.parametrize(("late", "missed", "following"), [(35, 3, 1050.0), (10, 0, 1020.0)], ids=["long", "on a beat"])
def test_a_run_that_takes_too_long_is_not_overlapped_and_its_beats_are_dropped(
    late: int, missed: int, following: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    with timed_pool() as (pool, keeper), Gate() as gate:
        task = pool.schedule(10, gate)
        counted, hold_back = [], pool.hold_back
        monkeypatch.setattr(pool, "hold_back", lambda *call: (counted.append(task.missed), hold_back(*call))[1])
        keeper.advance(10.0)
        gate.await_begun()
        assert task.next_run == 1020.0
        for _ in range(late):
            keeper.advance(1.0)
        assert (task.runs, task.missed) == (0, 0)
        gate.open()
        wait_for_idle(pool)
        assert (task.runs, task.missed, task.next_run) == (1, missed, following)
        assert counted == [missed], "it is counted before the next run can end, which counts, too"
        pass_time(pool, keeper, following - keeper.now)
        gate.await_begun()
        assert (task.runs, task.missed, gate.peak) == (2, missed, 1)


def test_an_error_is_logged_and_the_schedule_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    outcomes = [None, Boom("one"), SystemExit("two"), None]

    def act() -> None:
        error = outcomes.pop(0)
        if error is not None:
            raise error

    with timed_pool() as (pool, keeper), caplog.at_level(logging.DEBUG, "concurrent.futures"):
        task = pool.schedule(1, act)
        pass_time(pool, keeper, 1.0)
        assert task.last_error is None
        pass_time(pool, keeper, 1.0)
        assert isinstance(task.last_error, Boom)
        pass_time(pool, keeper, 1.0)
        pass_time(pool, keeper, 1.0)
        assert isinstance(task.last_error, SystemExit)
        assert (task.runs, task.missed, task.next_run) == (4, 0, 1005.0)
        assert pool.stats().failed == 2
        messages = [(record.levelname, record.getMessage()) for record in caplog.records]
    name = f"{test_an_error_is_logged_and_the_schedule_goes_on.__name__}.<locals>.act"
    assert messages == [("ERROR", f"Exception in the scheduled call of {name}:")] * 2
    assert caplog.records[0].exc_info is not None and isinstance(caplog.records[0].exc_info[1], Boom)


@pytest.mark.parametrize("log_fails", [False, True])
@pytest.mark.parametrize("on_error", ["log", "stop"])
def test_an_error_stops_the_schedule_that_asks_for_it(
    on_error: Any, log_fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def handle(record: logging.LogRecord) -> None:
        if log_fails and "scheduled" in record.getMessage():
            raise OSError("disk full")

    monkeypatch.setattr(logging.getLogger("concurrent.futures"), "handle", handle)
    with timed_pool() as (pool, keeper):
        task = pool.schedule(1, break_down, on_error=on_error)
        pass_time(pool, keeper, 1.0)
        assert isinstance(task.last_error, Boom)
        if on_error == "log":
            assert (task.runs, task.active, task.next_run) == (1, True, 1002.0)
        else:
            assert (task.runs, task.active, task.next_run) == (1, False, None)
            assert keeper.advance(10.0) == inf
            assert task.runs == 1
            assert not task.cancel()


@pytest.mark.parametrize("by_itself", [False, True])
def test_cancelled_while_it_runs(by_itself: bool) -> None:
    with timed_pool() as (pool, keeper), Gate() as gate:
        task: ScheduledTask = pool.schedule(1, lambda: gate(by_itself and task.cancel()))
        keeper.advance(1.0)
        gate.await_begun()
        assert task.cancel() is not by_itself
        assert (task.active, task.next_run) == (False, None)
        gate.open()
        for _ in range(3):
            pass_time(pool, keeper, 1.0)
        assert task.runs == 1


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
        assert pool.stats().delayed == 0
        assert keeper.advance(5.0) == inf
        assert (task.runs, task.active) == (1, False)


@pytest.mark.parametrize("ended", [True, False])
def test_the_run_under_way_at_a_shutdown_finishes_and_is_the_last(
    ended: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with timed_pool() as (pool, keeper), Gate() as gate:
        task = pool.schedule(1, gate)
        keeper.advance(1.0)
        gate.await_begun()
        pool.shutdown(wait=False) if ended else seams.engine_of(pool).close()
        assert task.active is not ended
        gate.open()
        eventually(lambda: not task.active and task.runs == 1)
        wait_for_idle(pool)
        assert (task.runs, task.missed, task.last_error) == (1, 0, None)
        assert keeper.advance(5.0) == inf
        assert caplog.records == []


# What ends both.


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
