"""`ebbpool.fastthreadpool`: where results and failures go, and what a pool shows of itself."""

from __future__ import annotations

import functools
import logging
import re
import threading
from collections import deque
from collections.abc import Iterator
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import pytest
from support.common import TIMEOUT, Background, Boom, Gate, eventually, output_of
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
        submitters = [
            Background(lambda base=base: {pool.submit(same, base + n): base + n for n in range(500)})
            for base in (0, 1000, 2000, 3000)
        ]
        expected: dict[int, int] = {}
        for submitter in submitters:
            expected |= submitter.join()
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


def test_the_semaphore_shows_its_value() -> None:
    semaphore = Semaphore(2)
    assert isinstance(semaphore, ebbpool.sync.Semaphore)
    with semaphore:
        assert semaphore.acquire() is True and semaphore.value == 0
        semaphore.release()
    assert semaphore.value == 2 and Semaphore().value == 1


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
        assert pool._outlet.caller is not None
        pool._outlet.caller.resize(keep_alive=0)
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


def test_wait_idle_waits_for_the_jobs_that_callbacks_submit() -> None:
    waits = threading.Event()

    def callback(value: Any) -> None:
        if value:
            assert waits.wait(TIMEOUT)
            pool.submit(gate)

    with Gate() as gate, Pool(2, done_callback=callback) as pool:
        pool.submit(same, 1)
        waiting = Background(pool.wait_idle)
        assert waiting.still_waits()
        waits.set()
        gate.await_begun()
        assert waiting.still_waits()
        gate.open()
        assert waiting.join() is True


@pytest.mark.parametrize("result_id", [False, True])
def test_what_runs_has_the_name_of_the_users_function(result_id: bool) -> None:
    with Pool(3, result_id=result_id) as pool, Gate() as gate:
        pool.submit(gate)
        pool.submit_done(gate, same)
        pool.map(gate, [1])
        gate.await_begun(3)
        assert {task.name for task in pool._executor.running()} == {"support.common.Gate"}


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


# Its namesake's example, and the migration page.

PAGE = Path(__file__).parents[2] / "docs" / "migrating.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_more_complex_example() -> None:
    pool = Pool(result_id=True)
    for i in range(100):
        jobid = pool.submit(lambda *args: args, "foo1", i)
    pool.submit_first(same, "foo2")
    cancelled = pool.cancel(jobid)
    pool.submit_later(0.01, same, "foo3")
    pool.schedule(0.01, same, "foo4")
    eventually(lambda: len(pool.done) >= 105)
    pool.cancel(None, True)
    pool.shutdown()
    values = [value for _, value in pool.done]
    jobs = {value[1] for value in values if isinstance(value, tuple)}
    assert jobs == set(range(99 if cancelled else 100))
    assert values.count("foo2") == values.count("foo3") == 1
    assert not pool.failed


def test_the_migration_page_shows_the_same_thing_twice() -> None:
    old, new, thread_pool, ours, standard, *_ = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert output_of(old) == output_of(new)
    assert output_of(thread_pool) == output_of(ours) == ["9 [0, 1, 4, 9, 16] [8, 9]", "[0, 1, 4, 9, 16]"]
    assert sorted(output_of(standard)) == ["ebb 3", "flood 5"]


@pytest.mark.parametrize("pool", [Pool, ThreadPool])
def test_the_migration_page_names_every_public_call(pool: type) -> None:
    text = PAGE.read_text(encoding="utf-8")
    names = [name for name in dir(pool) if not name.startswith("_") and name != "Process"]
    assert len(names) > 10
    assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []
