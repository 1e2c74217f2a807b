"""submit_later: when a call is queued, how it is cancelled at every stage, and what ends it before its time."""

from __future__ import annotations

import contextvars
import gc
import logging
import math
import threading
import weakref
from concurrent.futures import CancelledError, ThreadPoolExecutor
from concurrent.futures.thread import BrokenThreadPool
from math import inf
from typing import Any

import pytest
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
    fail,
    gone,
    needs_fork,
    output_of,
)
from support.manual_time import break_down, timed_pool

from ebbpool import AdaptiveExecutor, Future
from ebbpool._core.timers import VOID


def nothing_left(pool: AdaptiveExecutor) -> bool:
    return not pool._crew.timers.waiting


def test_a_call_runs_when_its_time_has_come_and_not_before() -> None:
    with timed_pool() as (pool, keeper):
        future = pool.submit_later(5, pow, 2, 3)
        assert isinstance(future, Future)
        assert keeper.advance(4.999) == pytest.approx(0.001)
        assert not future.done() and not future.running()
        assert pool.stats().workers == 0
        keeper.advance(0.0011)
        assert future.result(TIMEOUT) == 8
        assert nothing_left(pool) and keeper.entries() == 0


def test_calls_are_queued_in_the_order_of_their_times_and_ties_in_the_order_of_the_calls() -> None:
    with timed_pool(1) as (pool, keeper):
        ran: list[int] = []
        futures = [pool.submit_later(delay, ran.append, index) for index, delay in enumerate([3.0, 1, 2.0, 1.0, 0])]
        keeper.advance(3.0)
        for future in futures:
            future.result(TIMEOUT)
        assert ran == [4, 1, 3, 2, 0]


def test_arguments_and_keywords_are_the_calls_own() -> None:
    def call(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    with timed_pool() as (pool, keeper):
        future = pool.submit_later(1.0, call, 1, delay=2, fn=3, executor=4, args=5, kwargs=6)
        keeper.advance(1.0)
        assert future.result(TIMEOUT) == ((1,), {"delay": 2, "fn": 3, "executor": 4, "args": 5, "kwargs": 6})


def test_what_the_call_raises_is_the_futures() -> None:
    with timed_pool() as (pool, keeper):
        future = pool.submit_later(1.0, fail)
        keeper.advance(1.0)
        with pytest.raises(Boom):
            future.result(TIMEOUT)
        assert pool.wait_idle(TIMEOUT)
        assert pool.stats().failed == 1


@pytest.mark.parametrize("delay", [0, 0.0, -0.0, 1e-320])
def test_no_delay_to_speak_of(delay: float) -> None:
    with AdaptiveExecutor() as pool:
        assert pool.submit_later(delay, pow, 2, 3).result(TIMEOUT) == 8


@pytest.mark.parametrize("delay", [True, "1", b"1", None, 1j, [1], 10**400])
def test_a_delay_that_is_no_number(delay: Any) -> None:
    with AdaptiveExecutor() as pool, pytest.raises(TypeError, match=r"^delay must be a number of seconds, not "):
        pool.submit_later(delay, print)


@pytest.mark.parametrize("delay", [-1, -1e-9, -math.inf, math.inf, math.nan])
def test_a_delay_out_of_range(delay: float) -> None:
    with AdaptiveExecutor() as pool, pytest.raises(ValueError, match=rf"^delay must be .* seconds, not {delay!r}$"):
        pool.submit_later(delay, print)


def test_a_call_that_cannot_be_called() -> None:
    with AdaptiveExecutor() as pool:
        with pytest.raises(TypeError, match="fn must be callable, not 3"):
            pool.submit_later(1, 3)  # type: ignore[arg-type]
        assert nothing_left(pool)


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
        assert nothing_left(pool)
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


def test_what_runs_cannot_be_cancelled() -> None:
    with timed_pool() as (pool, keeper), Gate() as gate:
        future = pool.submit_later(1.0, gate, "value")
        keeper.advance(1.0)
        gate.await_begun()
        assert future.running() and not future.cancel()
        gate.open()
        assert future.result(TIMEOUT) == "value"


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
        for _ in range(100):
            for _ in range(1000):
                pool.submit_later(LONG, print).cancel()
            if keeper._bell.acquire(False):
                keeper.settle()
            assert keeper.entries() < 3000
        assert nothing_left(pool)


def test_a_heap_of_calls_that_are_all_cancelled_is_emptied_at_once() -> None:
    with timed_pool() as (pool, keeper):
        futures = [pool.submit_later(LONG, print) for _ in range(5000)]
        kept = pool.submit_later(LONG, print)
        keeper.settle()
        assert keeper._bell.acquire(False)
        for future in futures:
            future.cancel()
        assert keeper._bell.acquire(False), "nobody woke the timekeeper"
        keeper.settle()
        assert keeper.entries() <= VOID + 1
        assert list(pool._crew.timers.waiting) == [kept]


def test_after_a_suspension_nothing_is_lost_nothing_early_and_nothing_twice() -> None:
    with timed_pool(4) as (pool, keeper):
        ran: list[int] = []
        futures = [pool.submit_later(float(index), ran.append, index) for index in range(100)]
        keeper.advance(59.5)
        for future in futures[:60]:
            future.result(TIMEOUT)
        assert sorted(ran) == list(range(60))
        assert not any(future.done() for future in futures[60:])
        keeper.advance(1e6)
        for future in futures:
            future.result(TIMEOUT)
        assert sorted(ran) == list(range(100))


def test_with_a_full_queue_a_call_waits_its_turn() -> None:
    with timed_pool(1, max_queue=1) as (pool, keeper), Gate() as gate:
        gate.hold(pool)
        pool.submit(pow, 1, 1)
        later = [pool.submit_later(1.0, pow, 2, power) for power in range(5)]
        keeper.advance(1.0)
        assert not any(future.done() for future in later)
        gate.open()
        assert [future.result(TIMEOUT) for future in later] == [1, 2, 4, 8, 16]


def test_the_context_is_that_of_the_submitter() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")
    with timed_pool(propagate_context=True) as (pool, keeper):
        token = variable.set("submitter's")
        future = pool.submit_later(1.0, variable.get)
        variable.reset(token)
        keeper.advance(1.0)
        assert future.result(TIMEOUT) == "submitter's"


def test_arguments_of_any_name_arrive_in_a_context() -> None:
    with timed_pool(propagate_context=True) as (pool, keeper):
        future = pool.submit_later(1.0, lambda *args, **names: (args, names), 1, self=2, callable=3)
        keeper.advance(1.0)
        assert future.result(TIMEOUT) == ((1,), {"self": 2, "callable": 3})


def test_an_idle_pool_has_calls_that_wait_for_their_time() -> None:
    with timed_pool() as (pool, _):
        pool.submit_later(LONG, print)
        assert pool.wait_idle(0)
        stats = pool.stats()
        assert (stats.queued, stats.running, stats.submitted) == (0, 0, 0)


def test_shutdown_cancels_what_is_not_due_says_how_many_and_does_not_wait(caplog: pytest.LogCaptureFixture) -> None:
    pool = AdaptiveExecutor(thread_name_prefix="mine")
    futures = [pool.submit_later(LONG, print) for _ in range(3)]
    told: list[Any] = []
    futures[0].add_done_callback(told.append)
    futures[1].cancel()
    with caplog.at_level(logging.INFO, "concurrent.futures"):
        Background(pool.shutdown).join()
        pool.shutdown()
    assert [record.getMessage() for record in caplog.records] == [
        "shutdown of mine: 2 delayed calls cancelled, 0 schedules ended"
    ]
    assert all(future.cancelled() for future in futures)
    assert told == [futures[0]]
    with pytest.raises(CancelledError):
        futures[2].result(0)


def test_shutdown_without_delayed_calls_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "concurrent.futures"), AdaptiveExecutor() as pool:
        pool.submit_later(0, int).result(TIMEOUT)
    assert caplog.records == []


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


def test_what_falls_due_as_the_pool_closes_is_cancelled_by_whoever_closes_it() -> None:
    """The timekeeper leaves it: the callbacks of a cancelled future must not run in its thread."""
    with timed_pool() as (pool, keeper):
        future = pool.submit_later(1.0, print)
        pool._pool.close()
        keeper.advance(1.0)
        assert not future.done()
        pool.shutdown()
        assert future.cancelled()


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
        assert future.cancelled() and nothing_left(pool)
        assert keeper.advance(LONG) == inf


def test_after_shutdown_no_call_is_taken() -> None:
    pool = AdaptiveExecutor()
    pool.shutdown()
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        pool.submit_later(1, print)
    assert nothing_left(pool)


def test_a_callback_of_shutdown_may_not_submit_another() -> None:
    pool = AdaptiveExecutor()
    refusals: list[str] = []

    def again(_: Any) -> None:
        try:
            pool.submit_later(LONG, print)
        except RuntimeError as error:
            refusals.append(str(error))

    pool.submit_later(LONG, print).add_done_callback(again)
    pool.shutdown()
    assert refusals == ["cannot schedule new futures after shutdown"]


def test_a_pool_that_breaks_fails_what_waits_at_once() -> None:
    pool = AdaptiveExecutor(initializer=break_down)
    future = pool.submit_later(LONG, print)
    with pytest.raises(BrokenThreadPool):
        pool.submit(print).result(TIMEOUT)
    with pytest.raises(BrokenThreadPool):
        future.result(TIMEOUT)
    with pytest.raises(BrokenThreadPool):
        pool.submit_later(1, print)
    pool.shutdown()


def test_a_call_that_waits_keeps_its_pool_alive() -> None:
    with timed_pool() as (outer, keeper):
        pool = AdaptiveExecutor(keep_alive=LONG)
        pool._crew.timers = type(outer._crew.timers)(keeper)
        threads: list[threading.Thread] = []
        future = pool.submit_later(1.0, lambda: threads.append(threading.current_thread()))
        reference = weakref.ref(pool)
        del pool
        gc.collect()
        assert reference() is not None
        keeper.advance(1.0)
        future.result(TIMEOUT)
        collected(reference)
        assert all_end(threads)


def test_a_cancelled_call_keeps_nothing_alive() -> None:
    with timed_pool() as (outer, keeper):
        pool = AdaptiveExecutor()
        pool._crew.timers = type(outer._crew.timers)(keeper)
        future = pool.submit_later(LONG, print)
        keeper.settle()
        reference = weakref.ref(pool)
        del pool
        future.cancel()
        gc.collect()
        assert reference() is None
        assert keeper.entries() == 1


def test_an_executor_without_delayed_calls_is_in_no_cycle() -> None:
    gc.collect()
    gc.disable()
    try:
        pool = AdaptiveExecutor()
        pool.submit_later(LONG, print).cancel()
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


def test_many_threads_submit_delayed_calls_and_each_runs_once() -> None:
    ran: list[int] = []
    with AdaptiveExecutor(8) as pool, ThreadPoolExecutor(4) as submitters:
        batches = submitters.map(
            lambda base: [pool.submit_later(index % 7 * 0.001, ran.append, base + index) for index in range(500)],
            range(0, 2000, 500),
        )
        for batch in batches:
            for future in batch:
                future.result(TIMEOUT)
        assert sorted(ran) == list(range(2000))


def test_exit_cancels_what_waits_and_does_not_hang() -> None:
    lines = output_of("""
        import atexit
        from ebbpool import AdaptiveExecutor
        pool, unused = AdaptiveExecutor(), AdaptiveExecutor(daemon=True)
        for each in (pool, unused):
            each.submit_later(3600, print).add_done_callback(lambda future: print(future.cancelled(), flush=True))
        print(pool.submit_later(0, pow, 2, 3).result(10), flush=True)
        def late():
            for each in (pool, AdaptiveExecutor()):
                try:
                    each.submit_later(0, print, "never")
                except RuntimeError as error:
                    print(error)
        atexit.register(late)
    """)
    assert lines == ["8", "True", "True"] + ["cannot schedule new futures after interpreter shutdown"] * 2


@needs_fork
def test_a_forked_child_forgets_what_waits_and_can_begin_anew() -> None:
    lines = output_of(
        """
        pool = AdaptiveExecutor()
        far, soon = pool.submit_later(3600, int), pool.submit_later(0.2, os.getpid)
        told, heard = [], []
        far.add_done_callback(told.append)
        soon.add_done_callback(heard.append)
        def check():
            try:
                far.result(10)
            except BrokenThreadPool as error:
                print("fork" in str(error), told)
            print(pool.submit_later(0.01, pow, 2, 3).result(10), pool.stats().cancelled)
            pool.submit_later(3600, print)
            pool.shutdown()
        print(in_child(check), soon.result(10) == os.getpid(), pool.wait_idle(10) and heard == [soon])
        print(far.done())
    """,
        FORK,
    )
    assert lines == ["True []", "8 0", "0 True True", "False"]


def test_due_in_the_moment_of_the_shutdown() -> None:
    """The pool is closed between the timekeeper's look at it and the queue: the call is cancelled."""
    with timed_pool() as (pool, keeper):
        release = pool.release
        future = pool.submit_later(1, int)
        told_in: list[threading.Thread] = []
        future.add_done_callback(lambda _: told_in.append(threading.current_thread()))

        def closing(held: Any) -> bool:
            pool._pool.close()
            queued = release(held)
            assert told_in == []
            return queued

        pool.release = closing
        keeper.advance(1.0)
        pool.shutdown()
        assert future.cancelled() and nothing_left(pool)
        assert told_in == [threading.current_thread()]


class Noting(AdaptiveExecutor):
    """Notes when it hears of a delayed call that is done, and may be interrupted there."""

    def __init__(self, notes: list[str], interrupt: type[BaseException] | None = None) -> None:
        super().__init__(1)
        self.notes = notes
        self.interrupt = interrupt

    def _forget_delayed(self, future: Any) -> None:
        self.notes.append("heard")
        super()._forget_delayed(future)
        if self.interrupt is not None:
            raise self.interrupt


def test_only_the_end_of_a_call_tells_its_executor() -> None:
    """Not who adds a callback while another thread is still ending it: without a GIL both would drop the executor."""
    notes: list[str] = []

    class Waiter:
        def add_cancelled(self, future: Any) -> None:
            future.add_done_callback(lambda _: notes.append("told"))
            notes.append("added")

    with Noting(notes) as pool:
        future = pool.submit_later(LONG, int)
        with future._condition:
            future._waiters.append(Waiter())
        assert future.cancel()
    assert notes == ["told", "added", "heard"]


def test_all_are_told_of_a_cancelled_call_whatever_interrupts() -> None:
    notes: list[str] = []
    with Noting(notes, KeyboardInterrupt) as pool:
        future = pool.submit_later(LONG, int)
        future.add_done_callback(lambda _: notes.append("told"))
        with pytest.raises(KeyboardInterrupt):
            future.cancel()
        assert notes == ["heard", "told"]
        assert pool.stats().delayed == 0
