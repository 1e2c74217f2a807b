"""Who holds what: nothing outlives its use, and nothing needs the cyclic garbage collector."""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from support.common import (
    COUNTS_REFERENCES,
    FREE_THREADED,
    LONG,
    TIMEOUT,
    Boom,
    Gate,
    Thing,
    eventually,
    fail,
    gone,
    no_collector,
    output_of,
    wait_for_idle,
)

from ebbpool import AdaptiveExecutor


class Call(Thing):
    """A callable object that can be watched."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if args else None


@pytest.fixture
def pool() -> Iterator[AdaptiveExecutor]:
    """A pool of one worker that stays; the garbage collector is off for the length of the test."""
    with no_collector(), AdaptiveExecutor(1, keep_alive=LONG) as pool:
        yield pool


def test_a_pending_task_is_held_by_the_pool_alone(pool: AdaptiveExecutor) -> None:
    with Gate() as gate:
        gate.hold(pool)
        ran: list[object] = []
        reference = weakref.ref(pool.submit(ran.append, 1))
        assert reference() is not None
        gate.open()
        wait_for_idle(pool)
    assert ran == [1]
    gone(reference)


def test_a_finished_future_keeps_only_its_result_and_the_idle_pool_nothing(pool: AdaptiveExecutor) -> None:
    call, result, other, keyword = Call(), Thing(), Thing(), Thing()
    references = [weakref.ref(call), weakref.ref(other), weakref.ref(keyword)]
    future = pool.submit(call, result, other, keyword=keyword)
    assert future.result(TIMEOUT) is result
    del call, other, keyword
    gone(*references)
    kept = weakref.ref(result)
    del result
    assert kept() is future.result()
    del future
    gone(kept)


def test_a_cancelled_future_drops_its_call_at_once(pool: AdaptiveExecutor) -> None:
    with Gate() as gate:
        gate.hold(pool)
        call, argument, keyword = Call(), Thing(), Thing()
        references = [weakref.ref(thing) for thing in (call, argument, keyword)]
        future = pool.submit(call, argument, keyword=keyword)
        del call, argument, keyword
        assert all(reference() is not None for reference in references)
        assert future.cancel()
        if not COUNTS_REFERENCES:
            gc.collect()
        assert not any(reference() for reference in references)
        assert future.cancelled()


def test_a_queue_of_cancelled_futures_does_not_pile_up(pool: AdaptiveExecutor) -> None:
    """Somebody who submits and cancels behind one long task must not fill the memory."""
    with Gate() as gate:
        gate.hold(pool)
        first = pool.submit(int, 7)
        references = []
        for _ in range(5000):
            future = pool.submit(int)
            references.append(weakref.ref(future))
            assert future.cancel()
        del future
        if not COUNTS_REFERENCES:
            gc.collect()
        alive = sum(reference() is not None for reference in references)
        assert alive < 500, f"{alive} cancelled futures are still held"
        assert pool._work_queue.qsize() == 1
        gate.open()
        assert first.result(TIMEOUT) == 7


def swallow(future: Any) -> None:
    try:
        future.result(TIMEOUT)
    except Boom:
        pass
    finally:
        del future


def test_an_exception_makes_no_cycle_through_its_traceback(pool: AdaptiveExecutor) -> None:
    """A frame of the worker's loop in the traceback would keep the future alive as long as its exception."""
    thing = Thing()
    future = pool.submit(fail, thing)
    error = future.exception(TIMEOUT)
    assert isinstance(error, Boom) and error.__traceback__ is not None
    assert error.__traceback__.tb_frame.f_code is fail.__code__, "it shows the task, and not the pool's variables"
    assert error.__traceback__.tb_next is None
    of_future, *references = weakref.ref(future), weakref.ref(thing), weakref.ref(error)
    for _ in range(2):
        swallow(future)
    del future
    gone(of_future, pool=pool)
    del thing, error
    gone(*references, pool=pool)


@pytest.mark.skipif(not hasattr(sys, "getallocatedblocks"), reason="the interpreter does not tell")
@pytest.mark.parametrize("method", ["result", "exception"])
def test_waits_that_time_out_pile_nothing_up(pool: AdaptiveExecutor, method: str) -> None:
    def blocks_after(waits: int) -> int:
        for _ in range(waits):
            with contextlib.suppress(TimeoutError):
                getattr(future, method)(0)
        return sys.getallocatedblocks()

    with Gate() as gate:
        future = gate.hold(pool)
        assert -blocks_after(100) + blocks_after(2000) < 500, "each wait left something behind"


@pytest.mark.parametrize("ends", ["shutdown", "is forgotten"])
def test_a_pool_that_is_over_holds_nothing(ends: str) -> None:
    with no_collector():
        thing = Thing()
        pool = AdaptiveExecutor(1, initializer=Call(), initargs=(thing,), keep_alive=LONG)
        references = [weakref.ref(thing), weakref.ref(pool)]
        assert pool.submit(int).result(TIMEOUT) == 0
        threads = set(pool._threads)
        del thing
        assert references[0]() is not None
        if ends == "shutdown":
            pool.shutdown()
        del pool
        gone(*references)
        eventually(lambda: not any(thread.is_alive() for thread in threads))


@pytest.mark.counts_references
@pytest.mark.skipif(FREE_THREADED, reason="gc.get_objects sees other threads' objects late there")
def test_ten_thousand_tasks_leave_no_garbage() -> None:
    def work(pool: AdaptiveExecutor) -> None:
        for future in [pool.submit(pow, 2, 3) for _ in range(5000)]:
            assert future.result(TIMEOUT) == 8
        for future in [pool.submit(fail) for _ in range(500)]:
            assert isinstance(future.exception(TIMEOUT), Boom)
        wait_for_idle(pool)

    with AdaptiveExecutor(1, keep_alive=LONG) as pool:
        work(pool)
        with no_collector():
            blocks = sys.getallocatedblocks()
            work(pool)
            assert gc.collect() < 100
            assert sys.getallocatedblocks() - blocks < 1000


@pytest.mark.counts_references
@pytest.mark.parametrize("way", ["submit", "submit_first", "within"])
def test_an_error_of_a_call_in_the_submitters_thread_keeps_no_cycle(way: str) -> None:
    def raised(thing: Thing) -> None:
        raise Boom

    def give(pool: AdaptiveExecutor) -> weakref.ref[Thing]:
        thing = Thing()
        place: Any = pool.within(max_wait=LONG) if way == "within" else pool
        getattr(place, "submit" if way == "within" else way)(raised, thing)
        return weakref.ref(thing)

    with no_collector(), AdaptiveExecutor(1, max_queue=0, when_full="caller_runs") as pool, Gate() as gate:
        gate.hold(pool)
        reference = give(pool)
        assert reference() is None
        gate.open()


def test_an_error_of_a_sessions_call_does_not_keep_the_executor() -> None:
    def raised() -> None:
        raise Boom

    pool = AdaptiveExecutor(1)
    with pool.session() as session:
        error = session.submit(raised).exception(TIMEOUT)
    reference = weakref.ref(pool)
    del pool, session
    gone(reference)
    assert isinstance(error, Boom)


def test_a_finished_future_does_not_keep_the_callback_for_a_call_that_is_not_made() -> None:
    with AdaptiveExecutor(1) as pool, Gate() as gate:
        gate.hold(pool)
        kept: Any = pool.submit(int)
        thing = Thing()
        kept.tell_unless_returned(lambda _, thing=thing: None)
        reference = weakref.ref(thing)
        del thing
        gate.open()
        assert kept.result(TIMEOUT) == 0
        gone(reference)


@pytest.mark.counts_references
def test_the_deadline_of_a_call_that_is_over_keeps_no_thread() -> None:
    script = """
        import threading
        from ebbpool import AdaptiveExecutor

        with AdaptiveExecutor(1) as pool:
            later = pool.submit_later(1000, int)
            later.cancel()
            kept = pool.within(deadline=1000).submit(int)
            kept.result()
        print([thread.name for thread in threading.enumerate()])
        """
    assert output_of(script) == ["['MainThread']"]
