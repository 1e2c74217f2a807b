"""`ebbpool.fastthreadpool`: jobs, where their results and failures go, and what a pool shows of itself."""

from __future__ import annotations

import functools
import logging
import re
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from multiprocessing.pool import ThreadPool
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import seams
from support.common import (
    LONG,
    TIMEOUT,
    Background,
    Boom,
    Gate,
    all_end,
    eventually,
    gone,
    no_collector,
    output_of,
    together,
)

import ebbpool
from ebbpool.fastthreadpool import Pool, PoolCallback, PoolStopped, Semaphore, Shutdown, TimerObj


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool(4) as made:
        yield made


def same(value: Any = None, **kwargs: Any) -> Any:
    return (value, kwargs) if kwargs else value


def boom(*args: Any, **kwargs: Any) -> None:
    raise Boom(*args)


def three(value: Any) -> Iterator[Any]:
    yield value
    yield value + 1
    yield value + 2


def stop(value: Any) -> Any:
    if value % 3 == 0:
        raise StopIteration
    return value


# Results and failures.


def test_results_go_to_one_queue_and_failures_to_another_and_are_counted(pool: Pool) -> None:
    future = pool.submit(same, 1)
    failing = pool.submit(boom, "no")
    assert isinstance(future, ebbpool.Future) and future.result(TIMEOUT) == 1
    assert isinstance(failing.exception(TIMEOUT), Boom)
    assert isinstance(pool.done, deque) and isinstance(pool.failed, deque)
    assert pool.done_cnt.acquire(timeout=TIMEOUT) and pool.done.popleft() == 1
    assert pool.failed_cnt.acquire(timeout=TIMEOUT) and pool.failed.popleft().args == ("no",)
    pool.map(same, range(10))
    for _ in range(10):
        assert pool.done_cnt.acquire(timeout=TIMEOUT)
    assert pool.done_cnt.value == pool.failed_cnt.value == 0 and Semaphore().value == 1
    assert isinstance(pool.done_cnt, Semaphore) and issubclass(Semaphore, ebbpool.sync.Semaphore)
    assert sorted(pool.done) == list(range(10))


@pytest.mark.parametrize("result_id", [False, True])
def test_a_generator_function_has_several_results_and_any_other_one(result_id: bool) -> None:
    def fails() -> Iterator[int]:
        yield 21
        raise SystemExit(1)

    def returns() -> Iterator[int]:
        return (number for number in range(31, 33))

    with Pool(1, result_id=result_id) as pool:
        jobs = [pool.submit(job) for job in (functools.partial(three, 1), functools.partial(three, 11), fails)]
        pool.submit(returns)
        pool.submit_done(returns, True)
        pool.map(lambda _: returns(), [0])
    done = list(pool.done)
    if result_id:
        assert [job for job, _ in done[:7]] == [jobs[0]] * 3 + [jobs[1]] * 3 + [jobs[2]]
        done = [value for _, value in done]
    assert done[:7] == [1, 2, 3, 11, 12, 13, 21]
    assert [list(result) for result in done[7:]] == [[31, 32]] * 3
    assert len(pool.failed) == 1


@pytest.mark.parametrize("result_id", [False, True])
@pytest.mark.parametrize("exc_args", [False, True])
@pytest.mark.parametrize("exc_stack", [False, True])
def test_what_tells_of_a_failure(result_id: bool, exc_args: bool, exc_stack: bool) -> None:
    got: list[Any] = []
    for callback in (None, lambda *entry: got.append(entry)):
        with Pool(result_id=result_id, exc_args=exc_args, exc_stack=exc_stack, failed_callback=callback) as pool:
            job = pool.submit(boom, 1, key=2)
        [entry] = got if callback else pool.failed
        assert callback is None or not pool.failed
        parts = list(entry) if result_id or exc_args or callback else [entry]
        if result_id:
            assert parts.pop(0) == job
        error = parts.pop(0)
        if exc_stack:
            assert error.startswith("Traceback") and error.endswith("Boom: 1\n") and "in boom" in error
        else:
            assert isinstance(error, Boom)
        assert parts == ([(1,), {"key": 2}] if exc_args else [])


def test_ids_are_unique_and_name_their_results() -> None:
    with Pool(4, result_id=True) as pool:
        made = together(lambda base: [(pool.submit(same, (base, n)), (base, n)) for n in range(500)])
    expected = {job: value for each in made for job, value in each}
    assert len(expected) == 2000
    assert dict(pool.done) == expected


# What becomes of a result.


def test_submit_done_says_what_becomes_of_the_result(pool: Pool) -> None:
    got: list[Any] = []
    places: list[Any] = []
    pool.submit_done(same, False, 0)
    pool.submit_done(same, True, 1)
    pool.submit_done(same, got.append, 2)
    pool.submit_done(three, got.append, 10)
    pool.submit_done(threading.current_thread, lambda thread: places.append((thread, threading.current_thread())))
    pool.submit_done(same, boom, 5)
    assert pool.wait_idle(TIMEOUT)
    assert list(pool.done) == [1] and sorted(got) == [2, 10, 11, 12]
    [(worker, caller)] = places
    assert worker is caller
    assert isinstance(pool.failed.popleft(), Boom)


def test_a_pool_that_drops_results_drops_those_of_every_kind_of_job() -> None:
    with Pool(done_callback=False) as pool:
        for submit in (pool.submit, pool.submit_first, functools.partial(pool.submit_later, 0)):
            submit(same, 1)
        pool.submit(boom)
        eventually(lambda: not pool.delayed and pool.pending == 0)
    assert not pool.done and len(pool.failed) == 1


@pytest.mark.parametrize("level", [logging.ERROR, logging.CRITICAL])
def test_log_level_logs_failures_in_place_of_keeping_them(caplog: pytest.LogCaptureFixture, level: int) -> None:
    with Pool(log_level=level) as pool:
        pool.submit(boom)
    told = [(record.name, record.levelname, record.exc_info and record.exc_info[0]) for record in caplog.records]
    assert told == ([("fastthreadpool", "ERROR", Boom)] if level == logging.ERROR else [])
    assert not pool.failed


def test_done_max_bounds_what_waits_for_a_callback() -> None:
    with Gate() as gate:
        got: list[Any] = []
        pool = Pool(2, done_callback=lambda value: got.append(gate(value)), done_max=2)
        for number in range(30):
            pool.submit(same, number)
        gate.await_begun()
        # One result is with the callback, two wait for it, and each thread has one that does not fit.
        eventually(lambda: pool.pending == 27)
        assert not pool.wait_idle(0.02) and pool.pending == 27
        gate.open()
        assert Background(pool.shutdown).join() is True
    assert len(got) == 30


def test_the_pool_s_callback_is_called_with_each_result_in_one_thread_of_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    got: list[Any] = []
    threads: set[Any] = set()

    def callback(value: Any) -> None:
        threads.add(threading.current_thread())
        got.append(value)
        if value == 7:
            raise Boom

    with Pool(4, done_callback=callback) as pool:
        for number in range(200):
            pool.submit(same, number)
        pool.map(same, range(200, 299))
        assert pool.wait_idle(TIMEOUT)
        children = set(pool.children)
        [caller] = [each for each in ebbpool.pools() if each.name == f"ThreadPoolDone{id(pool)}"]
        caller.resize(keep_alive=0)
        for number in range(299, 302):
            pool.submit(same, number)
            assert pool.wait_idle(TIMEOUT)
    assert sorted(got) == list(range(302))
    assert len(threads) == 1 and not threads & children, "the thread stays, however long it is idle"
    assert not pool.done
    told = [(record.name, record.exc_info and record.exc_info[0]) for record in caplog.records]
    assert told == [("fastthreadpool", Boom)], "what a callback raises is logged, and the next one comes"


def test_what_takes_from_a_full_queue_makes_room() -> None:
    pool = Pool(1, done_max=1)
    for number in range(4):
        pool.submit(same, number)
    takes: list[Any] = [pool.done.popleft, pool.done.clear, lambda: next(pool.as_completed())]
    for number, take in enumerate(takes):
        eventually(lambda: list(pool.done) == [number])  # noqa: B023  (used at once)
        take()
    assert pool.shutdown() is True and list(pool.done) == [3]


def test_a_full_done_queue_does_not_hold_up_a_shutdown() -> None:
    pool = Pool(2, done_max=1)
    pool.map(same, range(50))
    assert Background(pool.shutdown).join() is True
    assert sorted(pool.done) == list(range(50))
    pool.clear()
    pool.submit(same)
    pool.submit(same)
    eventually(lambda: len(pool.done) == 1)
    assert not pool.wait_idle(0.02), "the bound holds again"
    assert pool.shutdown(soon=True) is True


# Threads, and what is shown of them.


@pytest.mark.parametrize("result_id", [False, True])
def test_threads_come_on_demand_and_carry_the_prefix_and_jobs_the_name_of_the_users_function(result_id: bool) -> None:
    got: list[Any] = []
    with Pool(3, "worker", result_id=result_id) as pool, Gate() as gate:
        assert pool.children == () and pool.child_cnt == pool.alive == pool.busy == pool.pending == 0
        pool.submit(gate)
        pool.submit_done(gate, same)
        pool.map(gate, [1])
        gate.await_begun(3)
        [executor] = [each for each in ebbpool.pools() if each.name == "worker"]
        assert {task.name for task in executor.running()} == {"support.common.Gate"}
        for submit in (pool.submit, pool.submit_first):
            submit(lambda **named: got.append(named), done_callback=5, first=6)
        assert pool.busy == 3 and pool.pending == 5 and len(pool.jobs) == 2
        assert {thread.name for thread in pool.children} == {"worker_0", "worker_1", "worker_2"}
        gate.open()
        assert pool.wait_idle(TIMEOUT)
        pool.cleanup_children()
        assert pool.busy == pool.pending == 0
    assert got == [{"done_callback": 5, "first": 6}] * 2, "a job may have arguments of any name"


def test_init_callback_prepares_each_thread_or_stops_the_pool_and_finish_callback_tidies_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended: list[Any] = []

    def prepare(thread: Any, word: str) -> None:
        thread.word = word

    def tidy() -> None:
        ended.append(threading.current_thread().word)  # type: ignore[attr-defined]

    with Pool(2, init_callback=prepare, init_args=("ready",), finish_callback=tidy) as pool:
        pool.submit(lambda: threading.current_thread().word)  # type: ignore[attr-defined]
    assert list(pool.done) == ["ready"]
    assert ended and set(ended) == {"ready"}
    pool = Pool(1, init_callback=boom)
    job = pool.submit(same)
    assert isinstance(job.exception(TIMEOUT), ebbpool.BrokenThreadPool)
    with pytest.raises(PoolStopped):
        pool.submit(same)
    assert pool.shutdown() is True


def test_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert Pool().max_children == Pool(-9999).max_children == Pool(-10000).max_children == Pool(0).max_children == 8
    assert Pool(3).max_children == 3 and Pool(-2).max_children == 6
    with pytest.raises(ValueError, match="max_children must leave at least one of 8 threads, not -8"):
        Pool(-8)


def test_wait_idle_waits_for_jobs_callbacks_and_the_jobs_that_these_submit() -> None:
    waits = threading.Event()

    def callback(value: Any) -> None:
        if value:
            assert waits.wait(TIMEOUT)
            pool.submit(gate)

    with Gate() as gate, Pool(2, done_callback=callback) as pool:
        jobs, callbacks = seams.executors_of(pool)
        assert pool.wait_idle(0) is True, "a pool that has done nothing is idle"
        pool.submit(same, 1)
        assert pool.wait_idle(0) is False
        waiting = Background(pool.wait_idle)
        waiting.waits_for(callbacks)
        waits.set()
        gate.await_begun()
        waiting.waits_for(jobs)
        gate.open()
        assert waiting.join() is True


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda pool: Pool("4"), TypeError, "max_children"),
        (lambda pool: Pool(1, 2), TypeError, "child_name_prefix"),
        (lambda pool: Pool(init_callback=1), TypeError, "init_callback"),
        (lambda pool: Pool(init_args=1), TypeError, "init_args"),
        (lambda pool: Pool(finish_callback=1), TypeError, "finish_callback"),
        (lambda pool: Pool(done_callback=1), TypeError, "done_callback"),
        (lambda pool: Pool(failed_callback=1), TypeError, "failed_callback"),
        (lambda pool: Pool(log_level="high"), TypeError, "log_level"),
        (lambda pool: Pool(done_max=-1), ValueError, "done_max"),
        (lambda pool: pool.submit(1), TypeError, "fn must be callable, not 1"),
        (lambda pool: pool.submit_later(1, 1), TypeError, "fn must be callable, not 1"),
        (lambda pool: pool.submit_later("1", same), TypeError, "delay"),
        (lambda pool: pool.submit_later(float("inf"), same), ValueError, "delay"),
        (lambda pool: pool.submit_done(same, None), TypeError, "done_callback"),
        (lambda pool: pool.schedule("1", same), TypeError, "interval"),
        (lambda pool: pool.schedule(1, 1), TypeError, "fn must be callable, not 1"),
        (lambda pool: pool.submit_at("now", 0, same), TypeError, "_runat"),
        (lambda pool: pool.map(1, []), TypeError, "fn must be callable, not 1"),
        (lambda pool: pool.map(same, [1], 2), TypeError, "done_callback"),
        (lambda pool: pool.cancel(True), TypeError, "job_id"),
        (lambda pool: pool.cancel("1"), TypeError, "job_id"),
        (lambda pool: pool.cancel(False, 1), TypeError, "timer"),
        (lambda pool: next(pool.as_completed("1")), TypeError, "wait"),
        (lambda pool: next(pool.as_completed(cnt_max=-1)), ValueError, "cnt_max"),
        (lambda pool: pool.shutdown("1"), TypeError, "timeout"),
        (lambda pool: pool.wait_idle("1"), TypeError, "timeout"),
    ],
)
def test_bad_input_is_named(pool: Pool, call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call(pool)
    assert not pool.is_shutdown


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


def test_jobs_for_later_are_listed_oldest_first_cancelled_and_dropped() -> None:
    got: list[Any] = []
    with Pool() as pool:
        far = [pool.submit_later(LONG, same, number) for number in range(20)]
        other = pool.submit_done_later(LONG, same, got.append, 2)
        timers = [pool.schedule(LONG, same) for _ in range(20)]
        pool.submit_later(0, same, 3)
        pool.submit_done_later(-1.0, same, got.append, 4)
        eventually(lambda: len(pool.done) == 1 and got == [4])
        assert pool.done[0] == 3
        assert isinstance(pool.delayed, deque) and list(pool.delayed) == [*far, other]
        assert isinstance(pool.scheduled, deque) and list(pool.scheduled) == timers
        eventually(lambda: pool.pending == 0, "what is not due does not count")
        assert pool.cancel(False, far[0]) is True
        assert far[0].cancelled() and list(pool.delayed) == [*far[1:], other]
        assert pool.cancel(False, True) is True
        assert other.cancelled() and not pool.delayed and not pool.scheduled
        late = pool.submit_later(LONG, same)
        timer = pool.schedule(LONG, same)
    assert late.cancelled() and not timer.active and len(pool.done) == 1
    assert not pool.delayed and not pool.scheduled


@pytest.mark.parametrize(
    "submit",
    [
        lambda pool: pool.submit,
        lambda pool: pool.submit_first,
        lambda pool: functools.partial(pool.submit_later, 0),
        lambda pool: functools.partial(pool.submit_at, time.time() + 0.01, 0),
        lambda pool: functools.partial(pool.schedule, 0),
    ],
)
def test_a_job_may_have_a_keyword_argument_called_done_callback(pool: Pool, submit: Any) -> None:
    assert submit(pool)(same, 1, done_callback=2).result(TIMEOUT) == (1, {"done_callback": 2})
    assert list(pool.done) == [(1, {"done_callback": 2})]


def test_a_schedule_repeats_until_it_is_cancelled_and_reports_each_failure_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    got: list[Any] = []
    with Pool(result_id=True) as pool:
        timer = pool.schedule(0.001, same, 1)
        other = pool.schedule_done(0.001, same, got.append, 2)
        failing = pool.schedule(0.001, boom)
        assert isinstance(timer, TimerObj) and timer.interval == 0.001
        eventually(lambda: min(map(len, (pool.done, got, pool.failed))) > 3)
        assert set(pool.scheduled) == {timer, other, failing}
        assert pool.cancel(False, timer) is True
        assert set(pool.scheduled) == {other, failing}
        pool.cancel(False, True)
        assert not pool.scheduled and not other.active
    ids = [job for job, _ in (*pool.done, *pool.failed)]
    assert len(set(ids)) == len(ids) and {value for _, value in pool.done} == {1}
    assert not caplog.records


def test_submit_at_takes_a_time_of_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    # However long the test takes.
    stopped = SimpleNamespace(**{**vars(time), "time": lambda: now})
    monkeypatch.setattr("ebbpool.fastthreadpool.time", stopped)
    got: list[Any] = []
    with Pool() as pool:
        pool.submit_at(now + 0.01, 0, same, 1)
        pool.submit_at(time.localtime(now + 2 * 86400), 0.0, same, 2)
        pool.submit_done_at(now + 0.01, 0.001, same, got.append, 3)
        eventually(lambda: len(pool.done) == 1 and len(got) > 2)
        assert len(pool.delayed) == len(pool.scheduled) == 1
        with pytest.raises(ValueError, match="_runat must be in the future"):
            pool.submit_at(now - 1, 0, same)
        pool.cancel(None, True)
        assert not pool.delayed and not pool.scheduled


# map.


def test_map_unpacks_tuples_unless_it_is_told(pool: Pool) -> None:
    pool.map(max, [(1, 2), (3, 4)])
    pool.map(max, [[5, 6], [8, 7]])
    pool.map(same, [(9, 10)], unpack_args=False)
    pool.map(min, [[11, 12], (14, 13), {15, 16}], unpack_args=True)
    pool.map(lambda value, other=0: (value, other), [1, (2, 3), "45", range(2)])
    assert pool.wait_idle(TIMEOUT)
    expected = [2, 4, 6, 8, (9, 10), 11, 13, 15, (1, 0), (2, 3), ("45", 0), (range(2), 0)]
    assert sorted(pool.done, key=str) == sorted(expected, key=str)
    assert not pool.failed
    pool.map(same, [1, 2], unpack_args=True)
    assert pool.wait_idle(TIMEOUT)
    assert [type(error) for error in pool.failed] == [TypeError, TypeError]


def test_map_counts_ids_and_a_stop_iteration_is_a_failure_like_any_other(pool: Pool) -> None:
    def by_five(number: int) -> float:
        return 1 / (number % 5)

    pool.map(stop, range(100))
    assert pool.wait_idle(TIMEOUT)
    assert sorted(pool.done) == [number for number in range(100) if number % 3]
    assert len(pool.failed) == 34
    with Pool(4, result_id=True, exc_args=True) as numbered:
        first = numbered.submit(same, "before")
        ids = numbered.map(by_five, range(20))
        assert ids is not None and len(ids) == 20 and first not in ids
        assert numbered.submit(same, "after") not in ids
    failures = {job: args for job, _, args, _ in numbered.failed}
    assert failures == {ids[number]: (number,) for number in (0, 5, 10, 15)}
    done = dict(numbered.done)
    assert all(done[job] == by_five(number) for number, job in enumerate(ids) if number % 5)


@pytest.mark.parametrize("result_id", [False, True])
def test_map_does_with_its_results_as_it_is_told(result_id: bool) -> None:
    got: list[Any] = []
    with Pool(result_id=result_id) as pool:
        pool.map(same, range(10), got.append)
        pool.map(three, iter([100, 200]), got.append, direct=False)
        pool.map(three, {7})
        pool.map(same, ())
        pool.map(boom, range(3), False)
        pool.map(same, [4], boom)
        pool.map(same, range(10), done_callback=False)
    assert sorted(got) == [*range(10), 100, 101, 102, 200, 201, 202]
    assert [entry[1] if result_id else entry for entry in pool.done] == [7, 8, 9] and len(pool.failed) == 4
    if result_id:
        assert all(isinstance(job, int) for job, _ in pool.failed)


def test_items_are_mapped_in_slices_which_take_a_thread_each_where_they_block(pool: Pool) -> None:
    with Pool(20) as wide, Gate() as gate:
        wide.map(gate, range(20))
        gate.await_begun(20)
        assert wide.busy == wide.child_cnt == wide.alive == 20
    with Gate() as gate:
        pool.map(gate, range(1000))
        gate.await_begun(4)
        assert pool.pending == 16 and len(pool.jobs) == 12
        pool.shutdown_children()
    with Pool(1) as pool, Gate() as gate:
        pool.map(lambda number: gate() if number == 40 else number, range(100))
        gate.await_begun()
        assert 20 <= len(pool.done) <= 40, "results of a slice are there before it ends"
        gate.open()
        assert pool.wait_idle(TIMEOUT)
        assert pool.pending == 0 and len(pool.done) == 100


# as_completed.


def test_as_completed_takes_what_comes_until_the_jobs_are_done_or_a_count_or_a_time_is_reached(pool: Pool) -> None:
    with Gate() as gate:
        gate.hold(pool)
        assert list(pool.as_completed(False)) == list(pool.as_completed(0.01)) == []
        pool.submit(boom)
        taken = pool.as_completed()
        assert isinstance(next(taken), Boom)
        pool.map(same, range(10))
        assert len(list(pool.as_completed(cnt_max=4))) == 4
        eventually(lambda: pool.done_cnt.value == 6)
        assert len(list(pool.as_completed(wait=False))) == 6
        rest = Background(lambda: list(taken))
        rest.waits_for(*seams.executors_of(pool))
        gate.open()
        assert rest.join() == [None]
    assert list(pool.as_completed(True)) == []
    assert pool.done_cnt.value == pool.failed_cnt.value == 0


def test_as_completed_needs_queues_and_a_thread_of_another_pool(pool: Pool) -> None:
    for kept in ({"done_callback": same}, {"failed_callback": same}, {"log_level": 10}):
        with Pool(**kept) as other, pytest.raises(PoolCallback):
            next(other.as_completed())
    pool.submit(same, 1).result(TIMEOUT)
    assert pool.submit_done(lambda: list(pool.as_completed(False)), False).result(TIMEOUT) == [1]
    assert isinstance(pool.submit_done(lambda: list(pool.as_completed()), False).exception(TIMEOUT), RuntimeError)


# cancel, clear, and the end.


@pytest.mark.parametrize("result_id", [True, False])
def test_a_job_is_cancelled_by_its_id_or_by_its_future_or_with_all_that_wait(result_id: bool) -> None:
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
        assert pool.wait_idle(TIMEOUT)
        assert [entry[1] if result_id else entry for entry in pool.done] == [0, 1, 2, 4]
        assert pool.cancel(jobs[0]) is False
    with Pool(1, result_id=result_id) as pool, Gate() as gate:
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
        eventually(lambda: pool.pending == 2)
        job = pool.submit(same, "job")
        assert list(pool.jobs) == [job]
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


@pytest.mark.parametrize("where", ["job", "callback"])
def test_shutdown_gives_up_when_the_time_is_over_and_soon_drops_what_waits(where: str) -> None:
    got: list[Any] = []
    with Gate() as gate:
        pool = Pool(1, done_callback=lambda value: got.append(gate(value) if where == "callback" else value))
        pool.submit(gate if where == "job" else same, 1)
        gate.await_begun()
        with Gate() as other:
            if where == "callback":
                pool.submit_done(other, False)
                other.await_begun()
            for number in range(10):
                pool.submit(same, number)
            assert [pool.shutdown(0.01), pool.shutdown(0), pool.shutdown(-1), pool.join(0.01)] == [False] * 4
            assert pool.pending == 11
            closing = Background(lambda: pool.shutdown(soon=True))
            eventually(lambda: pool.pending == 1)
            other.open()
            gate.open()
            assert closing.join() is True
    assert got == [1]


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
        pool.map(gate, range(10))
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


def test_one_call_shuts_down_all_pools_also_those_that_wait_for_each_other() -> None:
    with Gate() as gate:
        pools = [Pool(1), Pool(1, done_callback=same)]
        for pool in pools:
            pool.submit(gate)
        gate.await_begun(2)
        for pool in pools:
            pool.submit(same)
        all_of_them = Background(Shutdown)
        eventually(lambda: all(pool.is_shutdown and pool.pending == 1 for pool in pools))
        eventually(lambda: any(seams.waiters(each) for pool in pools for each in seams.executors_of(pool)))
        gate.open()
        all_of_them.join()
    assert all(pool.child_cnt == 0 for pool in pools)
    pools = [Pool(2, done_max=1), Pool(2, done_max=1)]
    for pool in pools:
        pool.submit(same).result(TIMEOUT)
    held = [pool.submit(same) for pool in pools]
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
    with no_collector():
        pool = Pool(2, done_callback=got.append)
        pool.map(same, range(10))
        pool.submit(same, 10)
        assert pool.wait_idle(TIMEOUT)
        threads, watch = pool.children, weakref.ref(pool)
        del pool
        gone(watch)
    assert all_end(threads)
    assert sorted(got) == list(range(11))


# The migration page.

PAGE = Path(__file__).parents[1] / "docs" / "migrating.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_migration_page_shows_the_same_thing_twice() -> None:
    standard, thread_pool, ours, _, old, new = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert output_of(old) == output_of(new)
    assert output_of(thread_pool) == output_of(ours) == ["9 [0, 1, 4, 9, 16] [8, 9]", "[0, 1, 4, 9, 16]"]
    assert sorted(output_of(standard)) == ["ebb 3", "flood 5"]


@pytest.mark.parametrize("pool", [Pool, ThreadPool])
def test_the_migration_page_names_every_public_call(pool: type) -> None:
    text = PAGE.read_text(encoding="utf-8")
    names = [name for name in dir(pool) if not name.startswith("_") and name != "Process"]
    assert len(names) > 10
    assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []
