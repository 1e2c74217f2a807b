"""shutdown(wait, cancel_futures, timeout): what still runs, what is told, and what is left."""

from __future__ import annotations

import threading

import pytest
from support.common import LONG, STACKS, TIMEOUT, Background, Gate, eventually, needs_stacks

from ebbpool import AdaptiveExecutor


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


def test_the_pool_still_grows_for_what_was_queued_before_shutdown() -> None:
    for wait in (True, False):
        pool = AdaptiveExecutor(4)
        barrier = threading.Barrier(4)
        futures = [pool.submit(barrier.wait, TIMEOUT) for _ in range(4)]
        pool.shutdown(wait=wait)
        assert sorted(future.result(TIMEOUT) for future in futures) == [0, 1, 2, 3]
        pool.shutdown()


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
    assert first.startswith("after 0 s these tasks are still running:")
    assert len(rest) == 2
    for text, name, lines in zip(sorted(rest), ("threading.Event.wait", "wait_for_it"), (2, 3), strict=True):
        heading, *stack = text.splitlines()
        assert f"{name}, running for " in heading
        places = [line for line in stack if line.startswith('  File "')]
        assert len(places) == lines and "crew.py" not in text and "_core" not in text and "_bootstrap" not in text
        assert [threading.__file__ in place for place in places[-2:]] == [True, True]


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


def test_any_number_of_seconds_will_do() -> None:
    for timeout in (float("inf"), 1e10):
        pool = AdaptiveExecutor(1)
        assert pool.submit(pow, 2, 3).result(TIMEOUT) == 8
        pool.shutdown(timeout=timeout)
        assert not pool._threads
