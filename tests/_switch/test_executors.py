"""`install(executors=True)`: executors that others make, on the threads of the pool, and just as they were."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, CancelledError, ThreadPoolExecutor, wait
from typing import Any

import pytest
from support.common import FORK, TIMEOUT, Background, Boom, Gate, Thing, eventually, fail, gone, needs_fork, output_of

import ebbpool
from ebbpool import AdaptiveExecutor

pytest.importorskip("anyio")


@pytest.fixture
def pool() -> Iterator[AdaptiveExecutor]:
    with AdaptiveExecutor(4, "pool") as pool, ebbpool.install(pool, executors=True):
        yield pool


def on(pool: AdaptiveExecutor) -> bool:
    """Tell whether a thread of the pool's runs this."""
    return threading.current_thread().name in {task.thread for task in pool.running()}


@pytest.mark.parametrize("limit", [1, 3])
def test_one_that_is_made_has_threads_of_the_pool_and_names_of_its_own(pool: AdaptiveExecutor, limit: int) -> None:
    with ThreadPoolExecutor(limit, "mine") as executor:
        assert isinstance(executor, ThreadPoolExecutor)
        assert executor.submit(on, pool).result(TIMEOUT)
        meeting = threading.Barrier(limit)

        def name(_: int) -> str:
            meeting.wait(TIMEOUT)
            return threading.current_thread().name

        assert set(executor.map(name, range(limit * 4))) == {f"mine_{number}" for number in range(limit)}
    assert pool.submit(lambda: threading.current_thread().name).result(TIMEOUT).startswith("pool_")
    with ThreadPoolExecutor() as executor:
        assert executor.submit(lambda: threading.current_thread().name).result(TIMEOUT).startswith("ThreadPoolExecutor")


def test_those_made_elsewhere_are_left_alone() -> None:
    class Own(ThreadPoolExecutor):
        pass

    with ThreadPoolExecutor(2) as before, AdaptiveExecutor() as pool:
        with ebbpool.install(pool):
            assert not type(ThreadPoolExecutor(2)).__module__.startswith("ebbpool")
        with ebbpool.install(pool, executors=True), Own(2) as own, AdaptiveExecutor() as other:
            assert not own.submit(on, pool).result(TIMEOUT)
            assert not before.submit(on, pool).result(TIMEOUT)
            assert not other.submit(on, pool).result(TIMEOUT)
            with pytest.raises(ValueError, match="max_workers"):
                ThreadPoolExecutor(0)
        with ThreadPoolExecutor(2) as after:
            assert type(after) is ThreadPoolExecutor
            assert not after.submit(on, pool).result(TIMEOUT)


def test_the_limit_holds(pool: AdaptiveExecutor) -> None:
    with Gate() as gate, ThreadPoolExecutor(3) as executor:
        for _ in range(9):
            executor.submit(gate)
        gate.await_begun(3)
        assert gate.nobody_begins()
        gate.open()
    assert gate.peak == 3


def test_the_initializer_has_run_in_each_thread(pool: AdaptiveExecutor) -> None:
    here = threading.local()
    begun: list[object] = []

    def begin(mark: str) -> None:
        here.mark = mark
        begun.append(mark)

    for limit in (1, 3):
        with ThreadPoolExecutor(limit, initializer=begin, initargs=("here",)) as executor:
            assert set(executor.map(lambda _: here.mark, range(20))) == {"here"}
        with ThreadPoolExecutor(limit, "", begin, ("again",)) as executor:
            assert set(executor.map(lambda _: here.mark, range(20))) == {"again"}


@pytest.mark.parametrize("limit", [1, 3])
def test_an_initializer_that_fails_breaks_it(pool: AdaptiveExecutor, limit: int) -> None:
    with ThreadPoolExecutor(limit, initializer=fail) as executor:
        futures = [executor.submit(int)]
        with pytest.raises(BrokenExecutor):
            futures[0].result(TIMEOUT)
        with pytest.raises(BrokenExecutor):
            executor.submit(int)
    assert pool.submit(int).result(TIMEOUT) == 0


@pytest.mark.parametrize("limit", [1, 2])
def test_shutdown(pool: AdaptiveExecutor, limit: int) -> None:
    with Gate() as gate:
        executor = ThreadPoolExecutor(limit)
        for _ in range(limit):
            held = gate.hold(executor)
        queued, last = executor.submit(int), executor.submit(int)
        assert queued.cancel()
        shutting = Background(executor.shutdown)
        assert shutting.still_waits()
        with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
            executor.submit(int)
        gate.open()
        shutting.join()
        assert held.done()
        assert last.result(0) == 0
        executor.shutdown()
    with Gate() as gate:
        executor = ThreadPoolExecutor(limit)
        for _ in range(limit):
            gate.hold(executor)
        last = executor.submit(int)
        executor.shutdown(wait=False, cancel_futures=True)
        with pytest.raises(CancelledError):
            last.result(TIMEOUT)
    assert pool.submit(int).result(TIMEOUT) == 0


def test_a_task_cannot_wait_for_its_own_executor(pool: AdaptiveExecutor) -> None:
    executor = ThreadPoolExecutor(2)
    with pytest.raises(RuntimeError):
        executor.submit(executor.shutdown).result(TIMEOUT)


def test_tasks_of_the_pool_make_executors_and_wait_for_them(pool: AdaptiveExecutor) -> None:
    def tree(depth: int) -> int:
        with ThreadPoolExecutor(2) as executor:
            return sum(executor.map(tree if depth > 1 else abs, [depth - 1 if depth > 1 else 1] * 2))

    assert [future.result(TIMEOUT) for future in [pool.submit(tree, 3) for _ in range(20)]] == [8] * 20


def test_more_may_meet_than_the_pool_has_threads(pool: AdaptiveExecutor) -> None:
    meeting = threading.Barrier(30)
    with ThreadPoolExecutor(20) as one, ThreadPoolExecutor(10) as other:
        waiting = [executor.submit(meeting.wait, TIMEOUT) for executor in [one] * 20 + [other] * 10]
        assert sorted(future.result(TIMEOUT) for future in waiting) == [*range(30)]


@pytest.mark.parametrize("limit", [1, 2])
def test_all_of_the_pool_may_wait_for_one_in_ways_that_the_pool_does_not_see(
    pool: AdaptiveExecutor, limit: int
) -> None:
    executor = ThreadPoolExecutor(limit)

    def waits() -> bool:
        done = threading.Event()
        executor.submit(done.set)
        return done.wait(TIMEOUT)

    assert all(future.result(TIMEOUT) for future in [pool.submit(waits) for _ in range(30)])


def test_tasks_that_wait_for_each_other_go_on_where_they_would_with_threads_of_their_own(
    pool: AdaptiveExecutor,
) -> None:
    with ThreadPoolExecutor(2) as executor:

        def outer() -> int:
            return executor.submit(int).result(TIMEOUT)

        assert executor.submit(outer).result(TIMEOUT) == 0
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        assert one.submit(lambda: two.submit(int).result(TIMEOUT)).result(TIMEOUT) == 0


def test_a_flood_does_not_shut_out_the_pools_own_tasks(pool: AdaptiveExecutor) -> None:
    stop = threading.Event()
    executor = ThreadPoolExecutor(2)

    def again() -> None:
        time.thread_time()
        if not stop.is_set():
            executor.submit(again)

    for _ in range(50):
        executor.submit(again)
    try:
        assert [pool.submit(int).result(TIMEOUT) for _ in range(20)] == [0] * 20
    finally:
        stop.set()
        executor.shutdown()


def test_what_libraries_read(pool: AdaptiveExecutor) -> None:
    with ThreadPoolExecutor(2, "mine") as executor, Gate() as gate:
        gate.hold(executor, 2)
        executor.submit(int)
        read: Any = executor
        assert (read._max_workers, read._thread_name_prefix, len(read._threads)) == (2, "mine", 2)
        assert (read._work_queue.qsize(), read._shutdown, read._broken) == (1, False, False)


def test_one_that_nobody_holds_finishes_its_work(pool: AdaptiveExecutor) -> None:
    for limit in (1, 2):
        with Gate() as gate:
            executor = ThreadPoolExecutor(limit)
            futures = [executor.submit(gate) for _ in range(5)]
            gate.await_begun()
            reference = weakref.ref(executor)
            del executor
            gone(reference, pool=pool)
        assert not wait(futures, TIMEOUT).not_done
        eventually(lambda: pool.stats().running == 0, "the threads are given back")


def test_an_error_holds_nothing_for_long(pool: AdaptiveExecutor) -> None:
    with ThreadPoolExecutor(2) as executor:
        thing = Thing()

        def fails(_: Thing) -> None:
            raise Boom

        future = executor.submit(fails, thing)
        assert isinstance(future.exception(TIMEOUT), Boom)
        reference = weakref.ref(thing)
        del thing, future
        gone(reference, pool=pool)


def test_a_pool_that_was_shut_down_leaves_new_ones_alone() -> None:
    with AdaptiveExecutor() as pool, ebbpool.install(pool, executors=True):
        made = ThreadPoolExecutor(2)
        future = made.submit(int)
        pool.shutdown()
        assert future.result(TIMEOUT) == 0
        with pytest.raises(RuntimeError, match="shutdown"):
            made.submit(int)
        with ThreadPoolExecutor(2) as own:
            assert own.submit(int).result(TIMEOUT) == 0


def test_what_is_queued_when_the_process_ends_still_runs() -> None:
    script = """
        import atexit
        from concurrent.futures import ThreadPoolExecutor
        import ebbpool
        ebbpool.install(executors=True)
        done = []
        atexit.register(lambda: print(len(done)))
        for limit in (1, 2):
            executor = ThreadPoolExecutor(limit)
            for _ in range(500):
                executor.submit(done.append, limit)
    """
    assert output_of(script) == ["1000"]


@needs_fork
def test_a_forked_child_uses_them_anew() -> None:
    script = (
        FORK
        + """
    import ebbpool
    from concurrent.futures import ThreadPoolExecutor

    ebbpool.install(executors=True)
    both = [ThreadPoolExecutor(1), ThreadPoolExecutor(2)]

    def again(executor):
        executor.submit(again, executor)

    for executor in both:
        executor.submit(again, executor)
    for _ in range(20):
        assert in_child(lambda: [executor.submit(int).result(10) for executor in both]) == 0
    for executor in both:
        executor.shutdown(wait=False, cancel_futures=True)
    print("done")
"""
    )
    assert output_of(script)[-1] == "done"
