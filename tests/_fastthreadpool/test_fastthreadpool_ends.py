"""`ebbpool.fastthreadpool`: cancelling, clearing, and the end of a pool, without the faults of its namesake."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from support.common import LONG, TIMEOUT, Background, Gate, eventually, is_freed, output_of
from support.fastthreadpool import boom, each_pool, same  # noqa: F401  (a fixture)

from ebbpool.fastthreadpool import Pool, PoolStopped, Shutdown

# cancel, clear, and the end.


def test_a_job_is_cancelled_by_its_id_or_by_its_future() -> None:
    for result_id in (True, False):
        with Pool(1, result_id=result_id) as pool, Gate() as gate:
            running = pool.submit_done(gate, False)
            gate.await_begun()
            jobs = [pool.submit(same, number) for number in range(5)]
            assert len(pool.jobs) == 5
            assert pool.cancel(jobs[3]) is True
            assert pool.cancel(jobs[3]) is False
            assert pool.cancel(running) is False
            assert pool.cancel(False) is True
            assert pool.pending == 5
            gate.open()
        assert [entry[1] if result_id else entry for entry in pool.done] == [0, 1, 2, 4]
        assert pool.cancel(jobs[0]) is False


def test_cancel_drops_all_that_waits_and_leaves_timers_alone() -> None:
    with Pool(1, result_id=True) as pool, Gate() as gate:
        gate.hold(pool)
        for _ in range(10):
            pool.submit(same)
        pool.map(same, range(10))
        late = pool.submit_later(LONG, same)
        assert pool.cancel() is True
        assert not pool.jobs and pool.pending == 1
        assert list(pool.delayed) == [late]
        gate.open()
    assert len(pool.done) == 1


def test_cancel_and_clear_leave_a_schedule_alone_whose_run_waits_for_a_thread() -> None:
    with Pool(1) as pool, Gate() as gate:
        pool.submit_done(gate, False)
        gate.await_begun()
        timer = pool.schedule(0.001, same, "run")
        eventually(lambda: len(pool.jobs) == 1)
        job = pool.submit(same, "job")
        pool.cancel()
        pool.clear()
        assert job.cancelled()
        assert timer.active and list(pool.scheduled) == [timer]
        gate.open()
        eventually(lambda: len(pool.done) > 1)
        timer.cancel()


def test_clear_empties_the_queues_and_revives_the_pool() -> None:
    got: list[Any] = []
    pool = Pool(2)
    pool.map(same, range(10))
    pool.submit(boom)
    assert pool.shutdown() is True and pool.is_shutdown
    done = pool.done
    for refused in (
        lambda: pool.submit(same),
        lambda: pool.submit_first(same),
        lambda: pool.submit_later(1, same),
        lambda: pool.schedule(1, same),
        lambda: pool.map(same, [1]),
        lambda: pool.map(same, []),
    ):
        with pytest.raises(PoolStopped):
            refused()
    pool.clear()
    assert pool.done is done and not done and not pool.failed and not pool.is_shutdown
    assert pool.done_cnt.value == pool.failed_cnt.value == 0
    pool.submit_done(same, got.append, 1)
    assert pool.shutdown() is True
    assert got == [1]


def test_clear_revives_the_pool_s_callback_too() -> None:
    got: list[Any] = []
    pool = Pool(2, done_callback=got.append)
    pool.submit(same, 1)
    pool.shutdown()
    pool.clear()
    pool.submit(same, 2)
    pool.shutdown()
    assert got == [1, 2]


def test_shutdown_soon_drops_what_waits() -> None:
    with Gate() as gate:
        pool = Pool(1)
        pool.submit(gate, "running")
        gate.await_begun()
        for number in range(10):
            pool.submit(same, number)
        closing = Background(lambda: pool.shutdown(soon=True))
        eventually(lambda: pool.pending == 1)
        gate.open()
        assert closing.join() is True
    assert list(pool.done) == ["running"]


def test_shutdown_and_join_give_up_when_the_time_is_over() -> None:
    with Gate() as gate:
        pool = Pool(1)
        pool.submit(gate, 1)
        gate.await_begun()
        assert pool.shutdown(0.01) is False
        assert pool.shutdown(0) is False
        assert pool.shutdown(-1) is False
        assert pool.join(0.01) is False
        gate.open()
        assert pool.join() is True
    assert list(pool.done) == [1]


def test_shutdown_gives_up_on_a_callback_when_the_time_is_over() -> None:
    with Gate() as gate:
        pool = Pool(1, done_callback=gate)
        pool.submit(same)
        gate.await_begun()
        assert pool.shutdown(0.05) is False
        gate.open()
        assert pool.shutdown() is True


@pytest.mark.parametrize("where", ["job", "callback"])
def test_a_shutdown_from_within_does_not_hang(where: str) -> None:
    outcome: list[bool] = []
    end = lambda *_: outcome.append(pool.shutdown())  # noqa: E731
    pool = Pool(1, done_callback=end if where == "callback" else same, done_max=1)
    if where == "job":
        pool.submit(end)
    else:
        with Gate() as gate:
            gate.hold(pool)
            # The last of them wait for room in the queue of the callback, which shuts the pool down.
            for _ in range(5):
                pool.submit(same)
    eventually(lambda: outcome)
    assert not any(outcome) and pool.is_shutdown
    assert Background(pool.shutdown).join() is True


@pytest.mark.parametrize("result_id", [False, True])
def test_shutdown_children_drops_jobs_and_ends_a_map_after_its_item(result_id: bool) -> None:
    with Gate() as gate:
        pool = Pool(1, result_id=result_id)
        pool.map(gate, range(10), chunksize=5)
        gate.await_begun()
        pool.submit(same)
        pool.shutdown_children()
        with pytest.raises(PoolStopped):
            pool.submit(same)
        pool.clear()
        gate.open()
        got: list[Any] = []
        pool.submit_done(same, got.append, 7)
        # What was cut short belongs to threads that `clear` has replaced.
        eventually(lambda: len(pool.done) == 1 and got == [7])
        assert pool.shutdown() is True
    assert [entry[1] if result_id else entry for entry in pool.done] == [0]


def test_one_call_shuts_down_all_pools() -> None:
    with Gate() as gate:
        pools = [Pool(1), Pool(1, done_callback=same)]
        for pool in pools:
            pool.submit(gate)
        gate.await_begun(2)
        for pool in pools:
            pool.submit(same)
        all_of_them = Background(Shutdown)
        eventually(lambda: all(pool.is_shutdown and pool.pending == 1 for pool in pools))
        assert all_of_them.still_waits()
        gate.open()
        all_of_them.join()
    assert all(pool.child_cnt == 0 for pool in pools)


def test_shutdown_of_all_pools_may_let_the_jobs_run() -> None:
    with Gate() as gate:
        pool = Pool(1, done_max=1)
        pool.submit(gate)
        for number in range(5):
            pool.submit(same, number)
        gate.await_begun()
        ending = Background(lambda: Shutdown(False))
        assert ending.still_waits()
        gate.open()
        ending.join()
    assert len(pool.done) == 6


def test_shutdown_of_all_pools_lets_them_end_that_wait_for_each_other() -> None:
    pools = [Pool(2, done_max=1), Pool(2, done_max=1)]
    held = []
    for pool in pools:
        pool.submit(same).result(TIMEOUT)
        held.append(pool.submit(same))
    for pool, other in zip(pools, reversed(held), strict=True):
        pool.submit_done(other.result, False)
    Background(lambda: Shutdown(False)).join()
    assert [len(pool.done) for pool in pools] == [2, 2]


def test_at_exit_running_jobs_finish_with_their_callbacks_and_queued_ones_are_dropped() -> None:
    assert output_of(
        """
        import threading, time
        from ebbpool.fastthreadpool import Pool
        begun = threading.Event()
        def job(name):
            begun.set()
            threading.main_thread().join()
            return name
        pool = Pool(1, done_callback=print)
        pool.submit(job, "running")
        pool.submit(job, "queued")
        begun.wait()
        """
    ) == ["running"]


def test_a_forgotten_pool_ends_and_is_freed() -> None:
    got: list[Any] = []
    gc.collect()
    gc.disable()
    try:
        pool = Pool(2, done_callback=got.append)
        pool.map(same, range(10))
        pool.submit(same, 10)
        assert pool.wait_idle(TIMEOUT)
        threads, watch = pool.children, weakref.ref(pool)
        del pool
        assert is_freed(watch)
    finally:
        gc.enable()
    for thread in threads:
        thread.join(TIMEOUT)
        assert not thread.is_alive()
    assert sorted(got) == list(range(11))
