"""`ebbpool.fastthreadpool`: where results and failures go, and what a pool shows of itself."""

from __future__ import annotations

import functools
import logging
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
from support.common import TIMEOUT, Background, Boom, Gate, eventually
from support.fastthreadpool import boom, each_pool, same, three  # noqa: F401  (a fixture)

import ebbpool
from ebbpool.fastthreadpool import Pool, PoolStopped, Semaphore

# Results and failures.


def test_results_go_to_one_queue_and_failures_to_another(pool: Pool) -> None:
    future = pool.submit(same, 1)
    pool.submit(same, 2, key="word")
    failing = pool.submit(boom, "no")
    assert pool.wait_idle(TIMEOUT)
    assert isinstance(future, ebbpool.Future) and future.result(0) == 1 and isinstance(failing.exception(0), Boom)
    assert sorted(pool.done, key=str) == [(2, {"key": "word"}), 1]
    [error] = pool.failed
    assert isinstance(error, Boom) and error.args == ("no",)
    assert isinstance(pool.done, deque) and isinstance(pool.failed, deque)


def test_the_semaphores_count_results_and_failures(pool: Pool) -> None:
    pool.submit(same, 1)
    pool.submit(boom)
    assert pool.done_cnt.acquire(timeout=TIMEOUT) and pool.done.popleft() == 1
    assert pool.failed_cnt.acquire(timeout=TIMEOUT) and isinstance(pool.failed.popleft(), Boom)
    pool.map(same, range(10), chunksize=10)
    for _ in range(10):
        assert pool.done_cnt.acquire(timeout=TIMEOUT)
    assert pool.done_cnt.value == pool.failed_cnt.value == 0
    assert sorted(pool.done) == list(range(10))


def test_a_generator_function_yields_several_results(pool: Pool) -> None:
    pool.submit(three, 1)
    pool.submit(functools.partial(three, 11))
    assert pool.wait_idle(TIMEOUT)
    assert sorted(pool.done) == [1, 2, 3, 11, 12, 13]


def test_a_generator_that_a_function_returns_is_one_result(pool: Pool) -> None:
    pool.submit(lambda: (number for number in range(3)))
    pool.submit_done(lambda: (number for number in range(3)), True)
    pool.map(lambda count: (number for number in range(count)), [3])
    assert pool.wait_idle(TIMEOUT)
    assert [list(result) for result in pool.done] == [[0, 1, 2]] * 3


def test_what_a_generator_yielded_before_it_failed_is_kept(pool: Pool) -> None:
    def fails() -> Iterator[int]:
        yield 1
        raise Boom

    pool.submit(fails)
    assert pool.wait_idle(TIMEOUT)
    assert list(pool.done) == [1] and len(pool.failed) == 1


@pytest.mark.parametrize("result_id", [False, True])
def test_what_runs_has_the_name_of_the_users_function(result_id: bool) -> None:
    with Pool(3, result_id=result_id) as pool, Gate() as gate:
        pool.submit(gate)
        pool.submit_done(gate, same)
        pool.map(gate, [1])
        gate.await_begun(3)
        assert {task.name for task in pool._executor.running()} == {"support.common.Gate"}


def test_even_a_system_exit_in_a_job_is_a_failure(pool: Pool) -> None:
    pool.submit(lambda: exec("raise SystemExit(1)"))
    assert pool.wait_idle(TIMEOUT)
    assert isinstance(pool.failed.popleft(), SystemExit)


@pytest.mark.parametrize("result_id", [False, True])
@pytest.mark.parametrize("exc_args", [False, True])
@pytest.mark.parametrize("exc_stack", [False, True])
def test_the_entries_of_the_failed_queue(result_id: bool, exc_args: bool, exc_stack: bool) -> None:
    with Pool(result_id=result_id, exc_args=exc_args, exc_stack=exc_stack) as pool:
        job = pool.submit(boom, 1, key=2)
    [entry] = pool.failed
    parts = list(entry) if result_id or exc_args else [entry]
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
        submitters = [
            Background(lambda base=base: {pool.submit(same, base + n): base + n for n in range(500)})
            for base in (0, 1000, 2000, 3000)
        ]
        expected: dict[int, int] = {}
        for submitter in submitters:
            expected |= submitter.join()
    assert len(expected) == 2000
    assert dict(pool.done) == expected


def test_every_value_of_a_generator_carries_its_job_s_id() -> None:
    with Pool(result_id=True) as pool:
        job = pool.submit(three, 1)
    assert list(pool.done) == [(job, 1), (job, 2), (job, 3)]


# What becomes of a result.


def test_submit_done_says_what_becomes_of_the_result(pool: Pool) -> None:
    got: list[Any] = []
    threads: list[Any] = []
    pool.submit_done(lambda: threads.append(threading.current_thread()), False)
    pool.submit_done(same, True, 1)
    pool.submit_done(same, got.append, 2)
    pool.submit_done(three, got.append, 10)
    assert pool.wait_idle(TIMEOUT)
    assert list(pool.done) == [1] and sorted(got) == [2, 10, 11, 12]


def test_a_callback_given_with_a_job_runs_in_its_thread_and_may_fail_it(pool: Pool) -> None:
    places: list[Any] = []
    pool.submit_done(threading.current_thread, lambda thread: places.append((thread, threading.current_thread())))
    pool.submit_done(same, boom, 5)
    assert pool.wait_idle(TIMEOUT)
    [(worker, caller)] = places
    assert worker is caller
    assert isinstance(pool.failed.popleft(), Boom)


def test_a_pool_that_drops_results_drops_those_of_every_kind_of_job() -> None:
    with Pool(done_callback=False) as pool:
        pool.submit(same, 1)
        pool.submit_first(same, 2)
        pool.submit_later(0, same, 3)
        pool.submit(boom)
        eventually(lambda: not pool.delayed and pool.pending == 0)
    assert not pool.done and len(pool.failed) == 1


def test_the_pool_s_callback_is_called_with_each_result_in_one_thread_of_its_own() -> None:
    got: list[Any] = []
    threads: set[Any] = set()

    def callback(value: Any) -> None:
        threads.add(threading.current_thread())
        got.append(value)

    with Pool(4, done_callback=callback) as pool:
        for number in range(200):
            pool.submit(same, number)
        pool.map(same, range(200, 299))
        assert pool.wait_idle(TIMEOUT)
        children = set(pool.children)
        caller = pool._outlet.caller
        assert caller is not None
        caller.resize(keep_alive=0)
        for number in range(299, 302):
            pool.submit(same, number)
            assert pool.wait_idle(TIMEOUT)
    assert sorted(got) == list(range(302))
    assert len(threads) == 1 and not threads & children, "the thread stays, however long it is idle"
    assert not pool.done


def test_no_callback_is_lost_at_shutdown() -> None:
    with Gate() as gate:
        got: list[Any] = []
        pool = Pool(4, done_callback=lambda value: got.append(gate(value)))
        for number in range(400):
            pool.submit(same, number)
        closing = Background(pool.shutdown)
        gate.await_begun()
        assert closing.still_waits()
        gate.open()
        assert closing.join() is True
    assert sorted(got) == list(range(400))


def test_failures_go_to_the_pool_s_callback_with_what_the_queue_would_hold() -> None:
    got: list[Any] = []
    with Pool(failed_callback=lambda *entry: got.append(entry), result_id=True, exc_args=True) as pool:
        job = pool.submit(boom, 1)
    [(job_id, error, args, kwargs)] = got
    assert (job_id, args, kwargs) == (job, (1,), {}) and isinstance(error, Boom)
    assert not pool.failed
    got.clear()
    with Pool(failed_callback=lambda *entry: got.append(entry)) as pool:
        pool.submit(boom)
    [(error,)] = got
    assert isinstance(error, Boom)


def test_a_callback_that_raises_is_logged_and_the_next_one_comes(caplog: pytest.LogCaptureFixture) -> None:
    got: list[Any] = []

    def callback(value: Any) -> None:
        if value == 0:
            raise Boom
        got.append(value)

    with Pool(1, done_callback=callback) as pool:
        for number in range(3):
            pool.submit(same, number)
    assert got == [1, 2]
    [record] = caplog.records
    assert record.name == "fastthreadpool" and record.exc_info is not None and record.exc_info[0] is Boom


def test_log_level_logs_failures_in_place_of_keeping_them(caplog: pytest.LogCaptureFixture) -> None:
    with Pool(log_level=logging.ERROR) as pool:
        pool.submit(boom)
    [record] = caplog.records
    assert (record.name, record.levelname) == ("fastthreadpool", "ERROR")
    assert record.exc_info is not None and record.exc_info[0] is Boom
    assert not pool.failed
    caplog.clear()
    with Pool(log_level=logging.CRITICAL) as pool:
        pool.submit(boom)
    assert not caplog.records


def test_a_full_done_queue_holds_the_jobs_up_until_something_is_taken() -> None:
    pool = Pool(2, done_max=3)
    for number in range(20):
        pool.submit(same, number)
    eventually(lambda: len(pool.done) == 3)
    assert not pool.wait_idle(0.02) and len(pool.done) == 3
    pool.done.popleft()
    eventually(lambda: len(pool.done) == 3)
    rest = list(pool.as_completed())
    assert len(rest) == 19
    assert pool.shutdown() is True


@pytest.mark.parametrize(
    "take",
    [
        lambda queue: queue.popleft(),
        lambda queue: queue.pop(),
        lambda queue: queue.clear(),
        lambda queue: queue.remove(1),
        lambda queue: queue.__delitem__(0),
    ],
    ids=["popleft", "pop", "clear", "remove", "del"],
)
def test_whatever_takes_from_a_full_queue_makes_room(take: Any) -> None:
    pool = Pool(1, done_max=1)
    pool.submit(same, 1)
    pool.submit(same, 2)
    eventually(lambda: len(pool.done) == 1 and pool.done[0] == 1)
    take(pool.done)
    eventually(lambda: len(pool.done) == 1 and pool.done[0] == 2)
    assert pool.shutdown() is True


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


def test_done_max_bounds_what_waits_for_a_callback() -> None:
    with Gate() as gate:
        pool = Pool(2, done_callback=gate, done_max=2)
        for number in range(30):
            pool.submit(same, number)
        gate.await_begun()
        caller = pool._outlet.caller
        assert caller is not None
        eventually(lambda: caller.stats().queued == 2)
        gate.open()
        assert Background(pool.shutdown).join() is True
        assert caller.stats().completed == 30


# Threads, and what is shown of them.


def test_threads_come_on_demand_and_carry_the_prefix() -> None:
    with Pool(3, "worker") as pool, Gate() as gate:
        assert pool.children == () and pool.child_cnt == pool.alive == pool.busy == pool.pending == 0
        for _ in range(5):
            pool.submit(gate)
        gate.await_begun(3)
        assert pool.busy == 3 and pool.pending == 5 and len(pool.jobs) == 2
        assert {thread.name for thread in pool.children} == {"worker_0", "worker_1", "worker_2"}
        assert "3 of at most 3 threads" in repr(pool)
        gate.open()
        assert pool.wait_idle(TIMEOUT)
        pool.cleanup_children()
        assert pool.busy == pool.pending == 0


def test_init_callback_prepares_each_thread_and_finish_callback_tidies_up() -> None:
    ended: list[Any] = []

    def prepare(thread: Any, word: str) -> None:
        thread.word = word

    def tidy() -> None:
        ended.append(threading.current_thread().word)  # type: ignore[attr-defined]

    with Pool(2, init_callback=prepare, init_args=("ready",), finish_callback=tidy) as pool:
        pool.submit(lambda: threading.current_thread().word)  # type: ignore[attr-defined]
    assert list(pool.done) == ["ready"]
    assert ended and set(ended) == {"ready"}


def test_a_failing_init_callback_stops_the_pool(caplog: pytest.LogCaptureFixture) -> None:
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


def test_wait_idle_waits_for_jobs_and_for_callbacks() -> None:
    with Pool(2) as pool, Gate() as gate:
        assert pool.wait_idle(0) is True, "a pool that has done nothing is idle"
        pool.submit(gate)
        assert pool.wait_idle(0.01) is False
        gate.open()
        assert pool.wait_idle(TIMEOUT) is True
    with Gate() as gate, Pool(2, done_callback=gate) as pool:
        pool.submit(same)
        gate.await_begun()
        assert pool.wait_idle(0.01) is False
        gate.open()
        assert pool.wait_idle() is True


def test_wait_idle_waits_for_the_jobs_that_callbacks_submit(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs_done = threading.Event()

    def callback(value: Any) -> None:
        if value:
            assert jobs_done.wait(TIMEOUT)
            pool.submit(gate)

    with Gate() as gate, Pool(2, done_callback=callback) as pool:
        caller = pool._outlet.caller
        assert caller is not None
        wait = caller.wait_idle

        def tell_and_wait(timeout: float | None) -> bool:
            jobs_done.set()
            return wait(timeout)

        monkeypatch.setattr(caller, "wait_idle", tell_and_wait)
        pool.submit(same, 1)
        waiting = Background(pool.wait_idle)
        gate.await_begun()
        assert waiting.still_waits()
        gate.open()
        assert waiting.join() is True


def test_the_semaphore_shows_its_value_and_excludes() -> None:
    semaphore = Semaphore(2)
    assert isinstance(semaphore, ebbpool.sync.Semaphore)
    assert semaphore.acquire() is True and semaphore.value == 1
    with semaphore:
        assert semaphore.value == 0
        assert semaphore.acquire(False) is False
    semaphore.release()
    assert semaphore.value == 2 and Semaphore().value == 1
    with pytest.raises(ValueError):
        Semaphore(-1)
    alone = Semaphore(1)
    with Pool(3) as pool, Gate() as gate:

        def enter() -> None:
            with alone:
                gate()

        for _ in range(3):
            pool.submit(enter)
        gate.await_begun()
        assert gate.nobody_begins()
        gate.open()
    assert gate.peak == 1 and len(pool.done) == 3


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda pool: Pool("4"), TypeError, "max_children"),
        (lambda pool: Pool(1, 2), TypeError, "child_name_prefix"),
        (lambda pool: Pool(init_callback=1), TypeError, "init_callback"),
        (lambda pool: Pool(finish_callback=1), TypeError, "finish_callback"),
        (lambda pool: Pool(done_callback=1), TypeError, "done_callback"),
        (lambda pool: Pool(failed_callback=1), TypeError, "failed_callback"),
        (lambda pool: Pool(log_level="high"), TypeError, "log_level"),
        (lambda pool: Pool(done_max=-1), ValueError, "done_max"),
        (lambda pool: pool.submit(1), TypeError, "fn must be callable, not 1"),
        (lambda pool: pool.submit_first(1), TypeError, "fn must be callable, not 1"),
        (lambda pool: pool.submit_later(1, 1), TypeError, "fn must be callable, not 1"),
        (lambda pool: pool.submit_later("1", same), TypeError, "delay"),
        (lambda pool: pool.submit_later(float("inf"), same), ValueError, "delay"),
        (lambda pool: pool.submit_done(same, None), TypeError, "done_callback"),
        (lambda pool: pool.schedule("1", same), TypeError, "interval"),
        (lambda pool: pool.schedule(1, 1), TypeError, "fn must be callable, not 1"),
        (lambda pool: pool.submit_at("now", 0, same), TypeError, "_runat"),
        (lambda pool: pool.map(1, []), TypeError, "fn must be callable, not 1"),
        (lambda pool: pool.map(same, [1], chunksize=0), ValueError, "chunksize"),
        (lambda pool: pool.map(same, [1], 2), TypeError, "done_callback"),
        (lambda pool: pool.cancel(True), TypeError, "job_id"),
        (lambda pool: pool.cancel("1"), TypeError, "job_id"),
        (lambda pool: pool.cancel(False, 1), TypeError, "timer"),
        (lambda pool: pool.as_completed("1"), TypeError, "wait"),
        (lambda pool: pool.as_completed(cnt_max=-1), ValueError, "cnt_max"),
        (lambda pool: pool.shutdown("1"), TypeError, "timeout"),
        (lambda pool: pool.wait_idle("1"), TypeError, "timeout"),
    ],
)
def test_bad_input_is_named(pool: Pool, call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call(pool)
    assert not pool.is_shutdown


def test_the_names_belong_to_the_module() -> None:
    import ebbpool.fastthreadpool as module

    assert {getattr(module, name).__module__ for name in module.__all__} == {module.__name__}
