"""max_queue and when_full: block, reject, caller_runs."""

from __future__ import annotations

import threading
import weakref
from _thread import allocate_lock
from concurrent.futures.thread import BrokenThreadPool
from typing import Any

import pytest
from support.common import LONG, TIMEOUT, Background, Boom, Gate, Thing, gone, no_collector, wait_for_idle

import ebbpool
from ebbpool import AdaptiveExecutor, QueueFull

POLICIES = ["block", "reject", "caller_runs"]


def fill(pool: AdaptiveExecutor, gate: Gate, *, workers: int, queued: int) -> list[Any]:
    """Keep every worker at the gate and fill the queue; return all the futures."""
    futures = [pool.submit(gate, number) for number in range(workers)]
    gate.await_begun(workers)
    futures += [pool.submit(gate, number) for number in range(workers, workers + queued)]
    assert pool._work_queue.qsize() == pool.stats().queued == queued
    return futures


def test_queue_full_is_a_runtime_error() -> None:
    assert issubclass(QueueFull, RuntimeError)
    assert ebbpool.QueueFull is QueueFull


def test_without_a_bound_everything_is_taken() -> None:
    with AdaptiveExecutor(1, when_full="reject") as pool, Gate() as gate:
        futures = fill(pool, gate, workers=1, queued=2000)
        gate.open()
        assert [future.result(TIMEOUT) for future in futures] == list(range(2001))


@pytest.mark.parametrize("when_full", POLICIES)
@pytest.mark.parametrize("max_queue", [0, 1, 5])
def test_a_bound_never_hinders_the_pool_from_growing(when_full: Any, max_queue: int) -> None:
    """Below the thread ceiling a worker is started: three tasks that need each other all run."""
    with AdaptiveExecutor(3, max_queue=max_queue, when_full=when_full) as pool:
        barrier = threading.Barrier(3)
        submitting = Background(lambda: [pool.submit(barrier.wait, TIMEOUT) for _ in range(3)])
        assert sorted(future.result(TIMEOUT) for future in submitting.join()) == [0, 1, 2]


@pytest.mark.parametrize("when_full", POLICIES)
def test_an_idle_worker_takes_a_task_though_nothing_may_wait(when_full: Any) -> None:
    with AdaptiveExecutor(1, max_queue=0, when_full=when_full, keep_alive=LONG) as pool:
        worker = pool.submit(threading.current_thread).result(TIMEOUT)
        for _ in range(50):
            wait_for_idle(pool)
            assert pool.submit(threading.current_thread).result(TIMEOUT) is worker


@pytest.mark.parametrize("max_queue", [0, 1, 3])
def test_reject(max_queue: int) -> None:
    ran: list[str] = []
    with AdaptiveExecutor(2, max_queue=max_queue, when_full="reject") as pool, Gate() as gate:
        futures = fill(pool, gate, workers=2, queued=max_queue)
        for _ in range(3):
            with pytest.raises(QueueFull):
                pool.submit(ran.append, "rejected")
        stats = pool.stats()
        assert (stats.rejected, stats.queued, stats.submitted) == (3, max_queue, 2 + max_queue)
        gate.open()
        assert [future.result(TIMEOUT) for future in futures] == list(range(2 + max_queue))
        wait_for_idle(pool)
        assert pool.submit(ran.append, "accepted").result(TIMEOUT) is None
    assert ran == ["accepted"]


@pytest.mark.parametrize("max_queue", [0, 3])
def test_reject_holds_the_bound_in_a_burst(max_queue: int) -> None:
    """Below the ceiling a worker is started for each task too many; nobody waits until it has arrived."""
    with AdaptiveExecutor(4, max_queue=max_queue, when_full="reject") as pool, Gate() as gate:
        accepted = []
        for number in range(1000):
            try:
                accepted.append(pool.submit(gate, number))
            except QueueFull:
                continue
        assert len(accepted) == 4 + max_queue
        gate.await_begun(4)
        gate.open()
        for future in accepted:
            future.result(TIMEOUT)


@pytest.mark.parametrize("when_full", POLICIES)
@pytest.mark.parametrize("max_queue", [0, 2])
def test_a_worker_on_its_way_makes_room_for_one_task(when_full: Any, max_queue: int) -> None:
    gate = Gate()
    with AdaptiveExecutor(1, initializer=gate, max_queue=max_queue, when_full=when_full) as pool, gate:
        futures = [pool.submit(threading.current_thread) for _ in range(1 + max_queue)]
        gate.await_begun()
        one_too_many = Background(lambda: pool.submit(threading.current_thread))
        if when_full == "block":
            assert one_too_many.still_waits()
        elif when_full == "reject":
            with pytest.raises(QueueFull):
                one_too_many.join()
        else:
            assert one_too_many.join().result(timeout=0) is one_too_many.thread
        gate.open()
        assert {future.result(TIMEOUT) for future in futures} == gate.threads
        if when_full == "block":
            assert one_too_many.join().result(TIMEOUT) in gate.threads


def test_a_worker_that_is_one_too_many_makes_no_room() -> None:
    gate = Gate()
    with AdaptiveExecutor(2, initializer=gate, max_queue=1, when_full="reject") as pool, gate:
        futures = [pool.submit(threading.current_thread) for _ in range(3)]
        gate.await_begun(2)
        pool.resize(max_workers=1)
        assert futures.pop().cancel()
        with pytest.raises(QueueFull):
            pool.submit(threading.current_thread)
        gate.open()
        for future in futures:
            assert future.result(TIMEOUT) in gate.threads


def test_reject_keeps_no_reference_to_the_call() -> None:
    with AdaptiveExecutor(1, max_queue=0, when_full="reject") as pool, Gate() as gate, no_collector():
        fill(pool, gate, workers=1, queued=0)
        thing = Thing()
        reference = weakref.ref(thing)
        try:
            pool.submit(thing.method, thing, key=thing)
        except QueueFull:
            pass
        del thing
        gone(reference)


def test_a_cancelled_task_frees_its_place() -> None:
    with AdaptiveExecutor(1, max_queue=2, when_full="reject") as pool, Gate() as gate:
        futures = fill(pool, gate, workers=1, queued=2)
        for _ in range(5):
            with pytest.raises(QueueFull):
                pool.submit(gate)
            assert futures.pop().cancel()
            futures.append(pool.submit(gate, "late"))
        gate.open()
        assert [future.result(TIMEOUT) for future in futures] == [0, 1, "late"]


def test_block_waits_for_room() -> None:
    with AdaptiveExecutor(1, max_queue=1) as pool, Gate() as gate:
        futures = fill(pool, gate, workers=1, queued=1)
        submitting = Background(lambda: pool.submit(gate, 2))
        assert submitting.still_waits()
        assert pool._work_queue.qsize() == 1
        gate.open()
        futures.append(submitting.join())
        assert [future.result(TIMEOUT) for future in futures] == [0, 1, 2]


def test_block_goes_on_when_a_queued_task_is_cancelled() -> None:
    with AdaptiveExecutor(1, max_queue=1) as pool, Gate() as gate:
        futures = fill(pool, gate, workers=1, queued=1)
        submitting = Background(lambda: pool.submit(gate, 2))
        assert submitting.still_waits()
        assert futures[1].cancel()
        last = submitting.join()
        assert not last.done()
        gate.open()
        assert last.result(TIMEOUT) == 2


@pytest.mark.parametrize("settings", [{"max_queue": 2}, {"max_queue": None}, {"max_workers": 2}])
def test_block_goes_on_when_the_bounds_are_widened(settings: dict[str, Any]) -> None:
    with AdaptiveExecutor(1, max_queue=1) as pool, Gate() as gate:
        fill(pool, gate, workers=1, queued=1)
        submitting = Background(lambda: pool.submit(gate, 2))
        assert submitting.still_waits()
        pool.resize(**settings)
        assert not submitting.join().done()
        gate.open()


@pytest.mark.parametrize("cancel_futures", [False, True])
def test_shutdown_ends_a_blocked_submit(cancel_futures: bool) -> None:
    with AdaptiveExecutor(1, max_queue=1) as pool, Gate() as gate:
        futures = fill(pool, gate, workers=1, queued=1)
        submitting = Background(lambda: pool.submit(gate, 2))
        assert submitting.still_waits()
        pool.shutdown(wait=False, cancel_futures=cancel_futures)
        with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
            submitting.join()
        gate.open()
        assert futures[0].result(TIMEOUT) == 0
        assert futures[1].cancelled() is cancel_futures


def test_a_broken_pool_ends_a_blocked_submit(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()

    def fail() -> None:
        gate()
        raise Boom

    with AdaptiveExecutor(1, initializer=fail, max_queue=1) as pool, gate:
        submitting = Background(lambda: [pool.submit(int).exception(TIMEOUT) for _ in range(3)])
        gate.await_begun()
        everybody = [Background(lambda: pool.submit(int).result(TIMEOUT)) for _ in range(5)]
        assert submitting.still_waits()
        gate.open()
        for submitter in everybody:
            with pytest.raises(BrokenThreadPool):
                submitter.join()
        with pytest.raises(BrokenThreadPool):
            submitting.join()


def test_many_blocked_submitters_all_get_through_and_the_bound_holds() -> None:
    lengths: list[int] = []
    with AdaptiveExecutor(2, max_queue=3) as pool:

        def submit_many() -> list[Any]:
            return [pool.submit(lambda: lengths.append(pool._work_queue.qsize())) for _ in range(100)]

        submitters = [Background(submit_many) for _ in range(6)]
        futures = [future for submitter in submitters for future in submitter.join()]
        assert all(future.result(TIMEOUT) is None for future in futures)
    assert len(lengths) == 600
    # One of the two workers looks; a task that the other one is about to take does not count as waiting.
    assert max(lengths) <= 3 + 1


def promised_place(pool: Any) -> Any:
    """Wait for room in the full queue of `pool` as a submitter does, and make room by cancelling what is queued."""
    waiter = allocate_lock()
    waiter.acquire()
    assert pool._pool.seek(waiter, False)
    for future in pool._pool.waiting():
        assert future.cancel()
    assert waiter.acquire(timeout=TIMEOUT)
    return waiter


def test_a_promised_place_is_kept_until_the_submitter_comes_for_it() -> None:
    with AdaptiveExecutor(max_workers=1, max_queue=1) as pool, Gate() as gate:
        fill(pool, gate, workers=1, queued=1)
        waiter = promised_place(pool)
        order: list[str] = []
        late = pool.hold_back(order.append, ("late",), None)
        pool.release(late)
        assert pool.stats().queued == 0
        assert pool._pool.push(pool.hold_back(order.append, ("mine",), None), False, waiter) is None
        assert pool.stats().queued == 1
        gate.open()
        late.result(TIMEOUT)
        assert order == ["mine", "late"]


def test_a_promised_place_goes_to_the_next_if_the_submitter_gives_up() -> None:
    with AdaptiveExecutor(max_workers=1, max_queue=1) as pool, Gate() as gate:
        fill(pool, gate, workers=1, queued=1)
        waiter = promised_place(pool)
        late = pool.hold_back(abs, (-1,), None)
        pool.release(late)
        pool._pool.unseek(waiter)
        pool._pool.unseek(waiter)
        assert pool.stats().queued == 1
        gate.open()
        assert late.result(TIMEOUT) == 1


@pytest.mark.parametrize("max_queue", [0, 1, 2])
def test_a_worker_runs_what_does_not_fit_into_its_own_queue(max_queue: int) -> None:
    with AdaptiveExecutor(1, max_queue=max_queue) as pool:

        def parent() -> tuple[threading.Thread, list[Any]]:
            return threading.current_thread(), [pool.submit(threading.current_thread) for _ in range(5)]

        worker, children = pool.submit(parent).result(TIMEOUT)
        ran_in = [child.result(TIMEOUT) for child in children]
        assert ran_in == [worker] * 5


def test_a_worker_of_another_pool_waits_for_room_like_anybody() -> None:
    with AdaptiveExecutor(1, max_queue=1) as pool, AdaptiveExecutor(1) as other, Gate() as gate:
        fill(pool, gate, workers=1, queued=1)
        outer = other.submit(lambda: pool.submit(threading.current_thread))
        assert Background(lambda: outer.result(TIMEOUT)).still_waits()
        gate.open()
        assert outer.result(TIMEOUT).result(TIMEOUT) in gate.threads


def test_a_recursive_submit_through_a_full_queue_ends() -> None:
    with AdaptiveExecutor(2, max_queue=1) as pool:

        def count(depth: int) -> int:
            if depth == 0:
                return 1
            return sum(future.result(TIMEOUT) for future in [pool.submit(count, depth - 1) for _ in range(2)])

        assert pool.submit(count, 5).result(TIMEOUT) == 32


def test_caller_runs() -> None:
    with AdaptiveExecutor(1, max_queue=1, when_full="caller_runs") as pool, Gate() as gate:
        futures = fill(pool, gate, workers=1, queued=1)
        calls: list[Any] = []
        future = pool.submit(lambda: (threading.current_thread(), len(calls)))
        assert isinstance(future, ebbpool.Future)
        assert future.done()
        assert future.result(timeout=0) == (threading.current_thread(), 0)
        assert pool._work_queue.qsize() == 1
        gate.open()
        assert [each.result(TIMEOUT) for each in futures] == [0, 1]


@pytest.mark.parametrize("error", [Boom("no"), SystemExit(3)])
def test_caller_runs_puts_an_error_into_the_future(error: BaseException) -> None:
    def fail() -> None:
        raise error

    with AdaptiveExecutor(1, max_queue=0, when_full="caller_runs") as pool, Gate() as gate:
        fill(pool, gate, workers=1, queued=0)
        future = pool.submit(fail)
        assert future.done()
        assert future.exception(timeout=0) is error
        gate.open()
        wait_for_idle(pool)
        assert pool.stats().failed == 1


def test_caller_runs_is_counted_and_keeps_no_reference() -> None:
    with AdaptiveExecutor(1, max_queue=0, when_full="caller_runs") as pool, Gate() as gate, no_collector():
        fill(pool, gate, workers=1, queued=0)
        thing = Thing()
        reference = weakref.ref(thing)
        future = pool.submit(thing.method, thing)
        del thing
        gone(reference)
        assert future.result(timeout=0) == 1
        gate.open()
        wait_for_idle(pool)
        stats = pool.stats()
        assert (stats.submitted, stats.completed, stats.rejected) == (2, 2, 0)


def test_a_bounded_map_goes_through() -> None:
    with AdaptiveExecutor(2, max_queue=1) as pool:
        assert list(pool.map(lambda number: number, range(200))) == list(range(200))
