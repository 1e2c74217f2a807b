"""shutdown(wait, cancel_futures, timeout): what still runs, what is told, and what is left."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from typing import Any

import pytest
from support.common import (
    LONG,
    STACKS,
    TIMEOUT,
    Background,
    Gate,
    all_end,
    eventually,
    fail,
    needs_stacks,
    wait_for_idle,
)

from ebbpool import AdaptiveExecutor


def test_shutdown_waits_for_everything() -> None:
    pool = AdaptiveExecutor(2)
    gate = Gate()
    futures = [pool.submit(gate, number) for number in range(6)]
    gate.await_begun(2)
    threads = set(pool._threads)
    assert len(threads) == 2
    closing = Background(pool.shutdown)
    assert closing.still_waits()
    gate.open()
    assert closing.join() is None
    assert [future.result(timeout=0) for future in futures] == list(range(6))
    assert not any(thread.is_alive() for thread in threads)
    assert pool._shutdown is True


@pytest.mark.counts_references
def test_shutdown_waits_for_the_very_end_of_the_threads() -> None:
    """Thread-local variables die after the last line that a thread runs: that, too, is waited for."""
    local = threading.local()
    ending, let_end = threading.Event(), threading.Event()

    class Last:
        def __del__(self) -> None:
            ending.set()
            let_end.wait(TIMEOUT)

    def keep() -> threading.Thread:
        local.last = Last()
        return threading.current_thread()

    pool = AdaptiveExecutor(1, keep_alive=LONG)
    worker = pool.submit(keep).result(TIMEOUT)
    pool.shutdown(wait=False)
    try:
        assert ending.wait(TIMEOUT)
        closing = Background(pool.shutdown)
        assert closing.still_waits()
    finally:
        let_end.set()
    closing.join()
    assert not worker.is_alive()


def test_shutdown_without_waiting_returns_at_once_and_everything_still_runs() -> None:
    pool = AdaptiveExecutor(2, keep_alive=LONG)
    with Gate() as gate:
        futures = [pool.submit(gate, number) for number in range(6)]
        gate.await_begun(2)
        threads = set(pool._threads)
        assert pool.shutdown(wait=False) is None
        assert pool._shutdown is True
        assert not any(future.done() for future in futures)
        gate.open()
        assert [future.result(TIMEOUT) for future in futures] == list(range(6))
    assert all_end(threads)


def test_the_pool_still_grows_for_what_was_queued_before_shutdown() -> None:
    for wait in (True, False):
        pool = AdaptiveExecutor(4)
        barrier = threading.Barrier(4)
        futures = [pool.submit(barrier.wait, TIMEOUT) for _ in range(4)]
        pool.shutdown(wait=wait)
        assert sorted(future.result(TIMEOUT) for future in futures) == [0, 1, 2, 3]
        pool.shutdown()


def test_cancel_futures() -> None:
    ran: list[int] = []
    pool = AdaptiveExecutor(1)
    with Gate() as gate:
        running = pool.submit(gate, "ran on")
        gate.await_begun()
        queued = [pool.submit(ran.append, number) for number in range(5)]
        calls: list[Any] = []
        queued[0].add_done_callback(calls.append)
        waiting = Background(lambda: concurrent.futures.wait(queued, TIMEOUT))
        pool.shutdown(wait=False, cancel_futures=True)
        assert all(future.cancelled() for future in queued)
        assert {future._state for future in queued} == {"CANCELLED_AND_NOTIFIED"}
        assert calls == [queued[0]]
        assert waiting.join() == (set(queued), set())
        assert pool._work_queue.qsize() == 0
        gate.open()
        assert running.result(TIMEOUT) == "ran on"
    pool.shutdown()
    assert ran == []
    assert pool.stats().cancelled == 5


def test_cancel_futures_in_a_second_shutdown() -> None:
    pool = AdaptiveExecutor(1)
    with Gate() as gate:
        gate.hold(pool)
        queued = pool.submit(int)
        pool.shutdown(wait=False)
        assert not queued.cancelled()
        pool.shutdown(wait=False, cancel_futures=True)
        assert queued.cancelled()
    pool.shutdown()


def test_idle_workers_leave() -> None:
    pool = AdaptiveExecutor(4, min_workers=4, keep_alive=LONG)
    with Gate() as gate:
        gate.hold(pool, 4)
        gate.open()
        wait_for_idle(pool)
        threads = set(pool._threads)
    pool.shutdown()
    assert len(threads) == 4
    assert not any(thread.is_alive() for thread in threads)
    assert pool.stats().workers == 0


@pytest.mark.parametrize("wait", [True, False])
def test_a_pool_that_was_never_used(wait: bool) -> None:
    pool = AdaptiveExecutor(4, min_workers=2)
    pool.shutdown(wait=wait)
    pool.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(int)


def test_shutdown_again_and_from_many_threads() -> None:
    pool = AdaptiveExecutor(2)
    with Gate() as gate:
        future = pool.submit(gate, 1)
        gate.await_begun()
        closing = [Background(pool.shutdown) for _ in range(4)]
        assert closing[0].still_waits()
        gate.open()
        for each in closing:
            assert each.join() is None
    pool.shutdown()
    pool.shutdown(wait=False, cancel_futures=True)
    assert future.result(timeout=0) == 1


def test_waiting_after_a_shutdown_that_did_not() -> None:
    pool = AdaptiveExecutor(1)
    with Gate() as gate:
        gate.hold(pool)
        pool.shutdown(wait=False)
        closing = Background(pool.shutdown)
        assert closing.still_waits()
        gate.open()
        closing.join()
    assert all_end(gate.threads)


def test_leaving_the_with_block_waits() -> None:
    gate = Gate()

    def use() -> Any:
        with AdaptiveExecutor(1) as pool:
            return pool.submit(gate, 7)

    using = Background(use)
    gate.await_begun()
    assert using.still_waits()
    gate.open()
    assert using.join().result(timeout=0) == 7


def stubborn(gate: Gate, value: object) -> object:
    return gate(value)  # the line that a report has to show


@pytest.mark.parametrize("timeout", [0, 0.01])
def test_a_shutdown_that_times_out_tells_what_still_runs(timeout: float) -> None:
    pool = AdaptiveExecutor(2, "report", keep_alive=LONG)
    with Gate() as gate:
        futures = [pool.submit(stubborn, gate, number) for number in range(2)]
        gate.await_begun(2)
        queued = pool.submit(len, "queued")
        with pytest.raises(TimeoutError) as caught:
            pool.shutdown(timeout=timeout)
        text = str(caught.value)
        for name in ("report_0", "report_1"):
            assert name in text
        assert "stubborn" in text
        assert text.count("the line that a report has to show" if STACKS else "(no stack") == 2
        assert __file__ in text or not STACKS
        with pytest.raises(RuntimeError, match="after shutdown"):
            pool.submit(int)
        with pytest.raises(TimeoutError):
            pool.shutdown(timeout=timeout)
        assert not any(future.done() for future in futures)
        gate.open()
        assert pool.shutdown(timeout=TIMEOUT) is None
        assert [future.result(timeout=0) for future in futures] == [0, 1]
        assert queued.result(timeout=0) == 6
    assert not any(thread.is_alive() for thread in gate.threads)


@needs_stacks
def test_the_report_shows_where_in_threading_a_task_hangs() -> None:
    def wait_for_it(event: threading.Event) -> None:
        event.wait()

    event = threading.Event()
    with AdaptiveExecutor(2, "report") as pool:
        hanging = [pool.submit(event.wait), pool.submit(wait_for_it, event)]
        eventually(lambda: all(future.running() for future in hanging))
        eventually(
            lambda: [(task.stack or "").count("waiter.acquire()") for task in pool.running(stacks=True)] == [1, 1]
        )
        with pytest.raises(TimeoutError) as caught:
            pool.shutdown(timeout=0)
        event.set()
    first, *rest = str(caught.value).split("\nreport_")
    assert first.startswith("after 0 s these tasks still run:")
    assert len(rest) == 2
    for text, name, lines in zip(sorted(rest), ("threading.Event.wait", "wait_for_it"), (2, 3), strict=True):
        heading, *stack = text.splitlines()
        assert f"{name}, running for " in heading
        places = [line for line in stack if line.startswith('  File "')]
        assert len(places) == lines and "crew.py" not in text and "_core" not in text and "_bootstrap" not in text
        assert [threading.__file__ in place for place in places[-2:]] == [True, True]


@needs_stacks
def test_the_report_shows_which_future_of_the_pool_a_task_waits_for() -> None:
    with AdaptiveExecutor(2, "report") as pool, Gate() as gate:
        inner = gate.hold(pool)
        outer = pool.submit(lambda: inner.result())
        eventually(lambda: pool.stats().blocked == 1)
        with pytest.raises(TimeoutError, match=r"inner\.result"):
            pool.shutdown(timeout=0)
        gate.open()
        assert outer.result(TIMEOUT) is None


def test_the_report_tells_for_how_long_each_task_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = AdaptiveExecutor(1, "report")
    with Gate() as gate:
        pool.submit(stubborn, gate, 1)
        gate.await_begun()
        begun = time.monotonic()
        with pytest.raises(TimeoutError, match=r"report_0.*stubborn.*\d+\.\d+ ?s") as caught:
            pool.shutdown(timeout=0)
        assert time.monotonic() - begun < TIMEOUT
        assert str(caught.value).count("report_0") >= 1
    pool.shutdown()


def test_a_shutdown_with_time_to_spare_reports_nothing() -> None:
    pool = AdaptiveExecutor(2)
    future = pool.submit(pow, 2, 3)
    assert pool.shutdown(timeout=TIMEOUT) is None
    assert future.result(timeout=0) == 8


def test_a_timeout_together_with_cancel_futures() -> None:
    pool = AdaptiveExecutor(1)
    with Gate() as gate:
        gate.hold(pool)
        queued = pool.submit(int)
        with pytest.raises(TimeoutError):
            pool.shutdown(cancel_futures=True, timeout=0)
        assert queued.cancelled()
    pool.shutdown()


def test_a_timeout_is_of_no_use_without_waiting() -> None:
    pool = AdaptiveExecutor(1)
    with Gate() as gate:
        gate.hold(pool)
        assert pool.shutdown(wait=False, timeout=0) is None
    pool.shutdown()


def test_a_task_may_shut_its_own_pool_down() -> None:
    pool = AdaptiveExecutor(2)
    assert pool.submit(pool.shutdown, wait=False).result(TIMEOUT) is None
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(int)
    pool.shutdown()


def test_a_task_that_waits_for_its_own_pool_to_shut_down_does_not_hang() -> None:
    pool = AdaptiveExecutor(2)
    error = pool.submit(pool.shutdown).exception(TIMEOUT)
    assert error is None or isinstance(error, RuntimeError)
    assert pool._shutdown is True
    pool.shutdown(timeout=TIMEOUT)


def test_a_task_that_submits_after_shutdown_gets_the_error() -> None:
    pool = AdaptiveExecutor(1)
    with Gate() as gate:

        def task() -> None:
            gate()
            pool.submit(int)

        future = pool.submit(task)
        gate.await_begun()
        pool.shutdown(wait=False)
        gate.open()
        with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
            future.result(TIMEOUT)
    pool.shutdown()


def test_finalizers_have_run_when_shutdown_returns() -> None:
    finished: list[int] = []
    pool = AdaptiveExecutor(3, finalizer=lambda: finished.append(threading.get_ident()))
    with Gate() as gate:
        gate.hold(pool, 3)
        gate.open()
    pool.shutdown()
    assert len(set(finished)) == len(finished) == 3


def test_a_broken_pool_shuts_down(caplog: pytest.LogCaptureFixture) -> None:
    pool = AdaptiveExecutor(2, initializer=fail)
    assert pool.submit(int).exception(TIMEOUT) is not None
    pool.shutdown(timeout=TIMEOUT)
    assert pool.stats().workers == 0


def test_any_number_of_seconds_will_do() -> None:
    for timeout in (float("inf"), 1e10):
        pool = AdaptiveExecutor(1)
        assert pool.submit(pow, 2, 3).result(TIMEOUT) == 8
        pool.shutdown(timeout=timeout)
        assert not pool._threads
