"""`ebbpool.fastthreadpool`: jobs that come first, later, again and again, or by the slice; their end."""

from __future__ import annotations

import gc
import time
import weakref
from collections import deque
from typing import Any

import pytest
from support.common import LONG, TIMEOUT, Background, Boom, Gate, eventually, is_freed, output_of
from support.fastthreadpool import boom, each_pool, same, stop, stop_the_wall_clock, three  # noqa: F401  (a fixture)

from ebbpool.fastthreadpool import Pool, PoolCallback, PoolStopped, Shutdown, TimerObj

# Order, and later.


@pytest.mark.usefixtures("no_turns")
def test_submit_first_goes_ahead_of_what_waits() -> None:
    with Pool(1) as pool, Gate() as gate:
        pool.submit_done(gate, False)
        gate.await_begun()
        pool.submit(same, "last")
        pool.submit_first(same, "second")
        pool.submit_done_first(same, True, "first")
        gate.open()
        assert pool.wait_idle(TIMEOUT)
        assert list(pool.done) == ["first", "second", "last"]


def test_delayed_jobs_are_listed_and_cancelled() -> None:
    got: list[Any] = []
    with Pool() as pool:
        far = pool.submit_later(LONG, same, 1)
        other = pool.submit_done_later(LONG, same, got.append, 2)
        pool.submit_later(0, same, 3)
        pool.submit_done_later(-1.0, same, got.append, 4)
        eventually(lambda: len(pool.done) == 1 and got == [4])
        assert pool.done[0] == 3
        assert isinstance(pool.delayed, deque) and set(pool.delayed) == {far, other}
        eventually(lambda: pool.pending == 0, "what is not due does not count")
        assert pool.cancel(False, far) is True
        assert far.cancelled() and list(pool.delayed) == [other]
        assert pool.cancel(False, True) is True
        assert other.cancelled() and not pool.delayed


def test_shutdown_drops_what_is_not_due() -> None:
    pool = Pool()
    late = pool.submit_later(LONG, same)
    timer = pool.schedule(LONG, same)
    assert pool.shutdown() is True
    assert late.cancelled() and not timer.active and not pool.done
    assert not pool.delayed and not pool.scheduled


def test_a_schedule_repeats_until_it_is_cancelled() -> None:
    got: list[Any] = []
    with Pool(result_id=True) as pool:
        timer = pool.schedule(0.001, same, 1)
        other = pool.schedule_done(0.001, same, got.append, 2)
        assert isinstance(timer, TimerObj) and timer.timer_id.interval == 0.001
        eventually(lambda: len(pool.done) > 3 and len(got) > 3)
        assert set(pool.scheduled) == {timer, other}
        assert pool.cancel(False, timer) is True
        assert list(pool.scheduled) == [other]
        pool.cancel(False, True)
        assert not pool.scheduled and not other.active
    ids = [job for job, _ in pool.done]
    assert len(set(ids)) == len(ids) and {value for _, value in pool.done} == {1}


def test_a_failing_schedule_goes_on_and_reports_each_failure_once(caplog: pytest.LogCaptureFixture) -> None:
    with Pool() as pool:
        timer = pool.schedule(0.001, boom)
        eventually(lambda: len(pool.failed) > 2)
        timer.cancel()
        assert not pool.scheduled
    assert not caplog.records


def test_submit_at_takes_a_time_of_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_the_wall_clock(monkeypatch, now := time.time())
    got: list[Any] = []
    with Pool() as pool:
        pool.submit_at(now + 0.01, 0, same, 1)
        pool.submit_at(time.localtime(now + 2 * 86400), 0.0, same, 2)
        pool.submit_done_at(now + 0.01, 0.001, same, got.append, 3)
        assert len(pool.scheduled) >= 2
        eventually(lambda: len(pool.done) == 1 and len(got) > 2)
        assert len(pool.scheduled) == 2
        with pytest.raises(ValueError, match="_runat must be a time to come"):
            pool.submit_at(now - 1, 0, same)
        pool.cancel(None, True)
        assert not pool.scheduled


def test_a_schedule_without_an_interval_runs_once() -> None:
    with Pool() as pool:
        timer = pool.schedule(0, same, 1)
        eventually(lambda: not timer.active)
        assert pool.wait_idle(TIMEOUT)
        assert list(pool.done) == [1] and not pool.scheduled


# map.


def test_map_unpacks_tuples_unless_it_is_told(pool: Pool) -> None:
    pool.map(max, [(1, 2), (3, 4)])
    pool.map(max, [[5, 6], [8, 7]])
    pool.map(same, [(9, 10)], unpack_args=False)
    pool.map(min, [[11, 12], (14, 13), {15, 16}], unpack_args=True)
    pool.map(lambda value, other=0: (value, other), [1, (2, 3), "45", range(2)], chunksize=10)
    assert pool.wait_idle(TIMEOUT)
    expected = [2, 4, 6, 8, (9, 10), 11, 13, 15, (1, 0), (2, 3), ("45", 0), (range(2), 0)]
    assert sorted(pool.done, key=str) == sorted(expected, key=str)
    assert not pool.failed
    pool.map(same, [1, 2], unpack_args=True)
    assert pool.wait_idle(TIMEOUT)
    assert [type(error) for error in pool.failed] == [TypeError, TypeError]


def test_a_stop_iteration_in_a_map_is_a_failure_like_any_other(pool: Pool) -> None:
    pool.map(stop, range(100))
    assert pool.wait_idle(TIMEOUT)
    assert sorted(pool.done) == [number for number in range(100) if number % 3]
    assert len(pool.failed) == 34


def test_map_counts_ids() -> None:
    with Pool(4, result_id=True, exc_args=True) as pool:
        first = pool.submit(same, "before")
        ids = pool.map(lambda number: 1 / (number % 5), range(20))
        assert ids is not None and len(ids) == 20 and first not in ids
        assert pool.submit(same, "after") not in ids
    failures = {job: args for job, _, args, _ in pool.failed}
    assert failures == {ids[number]: (number,) for number in (0, 5, 10, 15)}
    done = dict(pool.done)
    assert all(done[job] == 1 / (number % 5) for number, job in enumerate(ids) if number % 5)


@pytest.mark.parametrize("result_id", [False, True])
def test_map_does_with_its_results_as_it_is_told(result_id: bool) -> None:
    got: list[Any] = []
    with Pool(result_id=result_id) as pool:
        pool.map(same, range(10), got.append)
        pool.map(three, iter([100, 200]), got.append, direct=False)
        pool.map(three, {7})
        pool.map(same, ())
        pool.map(boom, range(3), False)
        pool.map(same, range(10), done_callback=False)
    assert sorted(got) == [*range(10), 100, 101, 102, 200, 201, 202]
    assert [entry[1] if result_id else entry for entry in pool.done] == [7, 8, 9] and len(pool.failed) == 3
    if result_id:
        assert all(isinstance(job, int) for job, _ in pool.failed)


@pytest.mark.parametrize("error", [Boom, StopIteration, SystemExit])
@pytest.mark.parametrize("fn", [same, three])
def test_a_callback_that_raises_under_map_fails_the_item(fn: Any, error: type[BaseException]) -> None:
    got: list[Any] = []

    def callback(value: Any) -> None:
        got.append(value)
        raise error(value)

    with Pool(2, result_id=True, exc_args=True) as pool:
        ids = pool.map(fn, range(3), callback)
        assert ids is not None
        assert pool.wait_idle(TIMEOUT)
        failed = {job_id: (caught, args, kwargs) for job_id, caught, args, kwargs in pool.failed}
        assert pool.failed_cnt.value == 3 and not pool.done
    assert sorted(got) == [0, 1, 2]
    assert sorted(failed) == list(ids)
    for item, job_id in enumerate(ids):
        caught, args, kwargs = failed[job_id]
        assert type(caught) is error and caught.args == (item,)
        assert (args, kwargs) == ((item,), {})


def test_blocking_items_of_a_map_get_a_thread_each() -> None:
    with Pool(20) as pool, Gate() as gate:
        pool.map(gate, range(20))
        gate.await_begun(20)
        assert pool.busy == pool.child_cnt == pool.alive == 20
        gate.open()


def test_results_of_a_slice_are_there_before_it_ends() -> None:
    with Pool(1) as pool, Gate() as gate:
        pool.map(lambda number: gate() if number == 40 else number, range(100), chunksize=100)
        gate.await_begun()
        assert 20 <= len(pool.done) <= 40
        gate.open()
        assert pool.wait_idle(TIMEOUT)
        assert pool.pending == 0 and len(pool.done) == 100


def test_items_are_mapped_in_slices(pool: Pool) -> None:
    with Gate() as gate:
        pool.map(gate, range(1000))
        gate.await_begun(4)
        assert pool.pending == 16 and len(pool.jobs) == 12
        pool.shutdown_children()
        gate.open()


# as_completed.


def test_as_completed_takes_all_results_and_failures_until_the_jobs_are_done(pool: Pool) -> None:
    with Gate() as gate:
        pool.submit(gate, 1)
        pool.submit(boom)
        taken = pool.as_completed()
        assert isinstance(next(taken), Boom)
        rest = Background(lambda: list(taken))
        assert rest.still_waits()
        gate.open()
        assert rest.join() == [1]
    assert list(pool.as_completed()) == []
    assert pool.done_cnt.value == pool.failed_cnt.value == 0


def test_as_completed_need_not_wait_and_stops_at_a_count_or_a_time(pool: Pool) -> None:
    with Gate() as gate:
        gate.hold(pool)
        assert list(pool.as_completed(False)) == []
        assert list(pool.as_completed(0.01)) == []
        pool.map(same, range(10))
        assert len(list(pool.as_completed(cnt_max=4))) == 4
        eventually(lambda: len(pool.done) == 6)
        assert sorted(pool.as_completed(wait=False))[5:]
    assert list(pool.as_completed(True)) == [None]


@pytest.mark.parametrize("kept", ["done_callback", "failed_callback", "log_level"])
def test_as_completed_needs_queues(kept: str) -> None:
    with Pool(**{kept: 10 if kept == "log_level" else same}) as pool, pytest.raises(PoolCallback):
        pool.as_completed()


def test_a_job_cannot_wait_for_its_own_pool(pool: Pool) -> None:
    pool.submit(same, 1).result(TIMEOUT)
    assert pool.submit_done(lambda: list(pool.as_completed(False)), False).result(TIMEOUT) == [1]
    assert isinstance(pool.submit_done(lambda: list(pool.as_completed()), False).exception(TIMEOUT), RuntimeError)


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
    called = Pool(1, done_callback=got.append)
    for value in (1, 2):
        called.submit(same, value)
        called.shutdown()
        called.clear()
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
    pool.submit_done(same, got.append, 3)
    assert pool.shutdown() is True
    assert got == [1, 2, 3]


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


@pytest.mark.parametrize("where", ["job", "callback"])
def test_shutdown_and_join_give_up_when_the_time_is_over(where: str) -> None:
    with Gate() as gate:
        pool = Pool(1, done_callback=gate if where == "callback" else None)
        pool.submit(gate if where == "job" else same, 1)
        gate.await_begun()
        assert [pool.shutdown(0.01), pool.shutdown(0), pool.shutdown(-1), pool.join(0.01)] == [False] * 4
        gate.open()
        assert pool.join() is True


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
