"""How maps end: closed, forgotten, cancelled, timed out, with their pool or their process; and what they leave."""

from __future__ import annotations

import concurrent.futures
import gc
import itertools
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.common import (
    TIMEOUT,
    Background,
    Boom,
    Gate,
    Thing,
    eventually,
    gone,
    no_collector,
    wait_for_idle,
)
from support.maps import FAR, Source, Things

from ebbpool import AdaptiveExecutor


@pytest.mark.parametrize("method", ["map", "map_unordered"])
@pytest.mark.parametrize("chunksize", [None, 3])
def test_closing_keeps_what_has_not_begun_from_running(method: str, chunksize: int | None) -> None:
    ran: list[int] = []
    with AdaptiveExecutor(1) as pool, Gate() as gate:

        def work(number: int) -> int:
            ran.append(number)
            if number == FAR:
                gate()
            return number

        results = getattr(pool, method)(work, range(2 * FAR), chunksize=chunksize)
        assert next(results) == 0
        gate.await_begun()
        results.close()
        results.close()
        assert list(results) == []
        assert pool.stats().queued == 0
        gate.open()
        wait_for_idle(pool)
    assert ran == list(range(FAR + 1))


@pytest.mark.counts_references
def test_a_forgotten_map_stops_and_one_that_was_never_read_does_not() -> None:
    ran: list[int] = []
    with AdaptiveExecutor(1) as pool, Gate() as gate:

        def work(number: int) -> int:
            ran.append(number)
            if number == 1:
                gate()
            return number

        results = pool.map(work, range(100))
        assert next(results) == 0
        gate.await_begun()
        del results
        gate.open()
        wait_for_idle(pool)
        assert ran == [0, 1]
        ran.clear()
        pool.map(work, range(100))
        wait_for_idle(pool)
        assert ran == list(range(100))


@pytest.mark.parametrize(
    ("method", "max_queue", "chunksize"),
    [
        *(("map", *each) for each in ((None, None), (100, 1), (None, 3))),
        *(("map_unordered", *each) for each in ((100, None), (None, 1), (100, 3))),
    ],
)
def test_shutdown_that_cancels_cancels_the_rest(method: str, max_queue: int | None, chunksize: int | None) -> None:
    ran: list[int] = []
    with Gate() as gate:
        pool = AdaptiveExecutor(1, max_queue=max_queue)

        def work(number: int) -> int:
            ran.append(number)
            return int(gate(number))

        results = getattr(pool, method)(work, range(20), chunksize=chunksize)
        gate.await_begun()
        pool.shutdown(wait=False, cancel_futures=True)
        gate.open()
        assert next(results) == 0
        pool.shutdown()
        size = chunksize or 1
        assert ran == list(range(size))
        assert [next(results) for _ in range(size - 1)] == list(range(1, size))
        with pytest.raises(concurrent.futures.CancelledError):
            next(results)


@pytest.mark.parametrize("where", ["pool", "lane", "pool of a lane"])
def test_a_shutdown_that_waits_does_not_take_back_that_another_has_cancelled(where: str) -> None:
    with AdaptiveExecutor(1, max_queue=100) as pool, Gate() as gate:
        lane = pool.lane("lane", limit=1)
        results = (pool if where == "pool" else lane).map(gate, range(20))
        gate.await_begun()
        executor = lane if where == "lane" else pool
        executor.shutdown(wait=False, cancel_futures=True)
        closer = Background(executor.shutdown)
        assert closer.still_waits()
        gate.open()
        closer.join()
        assert next(results) == 0
        with pytest.raises(concurrent.futures.CancelledError):
            next(results)
        assert gate.nobody_begins()


def test_the_pool_may_be_forgotten_once_all_is_submitted() -> None:
    with Gate() as gate:
        pool: Any = AdaptiveExecutor(2)
        results = pool.map(gate, range(10))
        gate.await_begun(2)
        threads = list(pool._threads)
        reference = weakref.ref(pool)
        del pool
        gc.collect()
        eventually(lambda: reference() is None)
        gate.open()
        assert list(results) == list(range(10))
        for thread in threads:
            thread.join(TIMEOUT)


def test_a_map_is_timed_from_the_call_and_takes_what_is_there() -> None:
    with AdaptiveExecutor(2) as pool:
        results = pool.map(str, range(1000), timeout=0)
        wait_for_idle(pool)
        assert list(results) == [str(number) for number in range(1000)]


def test_a_timeout_beyond_what_locks_can_wait() -> None:
    with AdaptiveExecutor(1) as pool:
        assert list(pool.map(str, range(3), timeout=1e30)) == ["0", "1", "2"]


@pytest.mark.parametrize("chunksize", [50, 400])
def test_results_are_let_go_as_they_are_handed_out(chunksize: int) -> None:
    """Even where a claim brought several at once; but those of a large one together."""
    with no_collector(), AdaptiveExecutor(1) as pool:
        make = Things()
        results = pool.map(make, range(800), chunksize=chunksize)
        wait_for_idle(pool)
        for number in range(60):
            next(results)
            if chunksize == 50:
                gone(make.references[number], pool=pool)
        deque(itertools.islice(results, 400), 0)
        gone(*make.references[:400], pool=pool)
        assert make.references[799]() is not None
        results.close()  # type: ignore[attr-defined]
        gone(*make.references, pool=pool)


@pytest.mark.parametrize("fails", [False, True])
def test_a_map_leaves_no_garbage(fails: bool) -> None:
    class Marked(Boom):
        pass

    def work(thing: Thing) -> Thing:
        if fails:
            raise Marked
        return thing

    with no_collector(), AdaptiveExecutor(2) as pool:
        things = [Thing() for _ in range(50)]
        references = [weakref.ref(thing) for thing in things]
        results = pool.map(work, things)
        del things
        errors: list[weakref.ref[Any]] = []
        try:
            for result in results:
                del result
        except Marked as error:
            errors.append(weakref.ref(error))
        del results
        wait_for_idle(pool)
        gone(*references, *errors, pool=pool)


@pytest.mark.counts_references
def test_an_error_that_comes_after_the_consumer_has_left_is_no_garbage() -> None:
    errors: list[weakref.ref[Any]] = []

    def work(number: int) -> None:
        if number == 1:
            gate()
        error = Boom()
        errors.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error

    with no_collector(), AdaptiveExecutor(2) as pool, Gate() as gate:
        results = pool.map(work, range(2), chunksize=1)
        gate.await_begun()
        with pytest.raises(Boom):
            next(results)
        del results
        gate.open()
        wait_for_idle(pool)
        assert len(errors) == 2
        gone(*errors, pool=pool)


@pytest.mark.skipif(not hasattr(gc, "set_threshold"), reason="the collector cannot be told how often to come by here")
def test_an_iterator_in_a_cycle_may_be_collected_anywhere() -> None:
    """Collected by a worker that is about to claim, it must not wait for the lock that this worker holds."""
    with AdaptiveExecutor(2) as pool:

        def forget() -> None:
            results = pool.map(lambda number: [number], range(500))
            next(results)
            cycle: list[Any] = [results]
            cycle.append(cycle)

        threshold = gc.get_threshold()
        gc.set_threshold(1)
        try:
            for _ in range(20):
                forget()
            wait_for_idle(pool)
        finally:
            gc.set_threshold(*threshold)
        gc.collect()


@contextmanager
def place(kind: str) -> Iterator[Any]:
    """A pool, or a lane of one."""
    with AdaptiveExecutor(2) as pool:
        yield pool if kind == "pool" else pool.lane("narrow", limit=2)


def read_to_the_end(results: Iterator[Any], error: str) -> list[Any]:
    """Return the results until the error, which is the end."""
    got = []
    with pytest.raises(RuntimeError, match=error):
        while True:
            got.append(next(results))
    assert list(results) == []
    return got


@pytest.mark.parametrize(
    ("kind", "method", "chunksize", "count", "begun", "more"),
    [
        ("pool", "map", None, 4, False, False),
        ("pool", "map", 1, 4, True, True),
        ("pool", "map_unordered", 2, 4, False, True),
        ("pool", "map_unordered", 3, 3, True, False),
        ("lane", "map", 2, 4, True, False),
        ("lane", "map", 3, 3, False, True),
        ("lane", "map_unordered", None, 4, True, True),
        ("lane", "map_unordered", 1, 4, False, False),
    ],
)
def test_what_was_read_before_a_shutdown_is_handed_out(
    kind: str, method: str, chunksize: int | None, count: int, begun: bool, more: bool
) -> None:
    with place(kind) as executor:
        source = Source(count + more)
        results = getattr(executor, method)(str, source, buffersize=4, chunksize=chunksize)
        got = [next(results)] if begun else []
        executor.shutdown()
        if more:
            got += read_to_the_end(results, "cannot schedule new futures after shutdown")
        else:
            got += results
    assert sorted(got) == [str(number) for number in range(count)]
    assert source.taken == count + more


@pytest.mark.parametrize("kind", ["pool", "lane"])
@pytest.mark.parametrize("method", ["map", "map_unordered"])
@pytest.mark.parametrize("chunksize", [None, 1])
def test_what_runs_or_waits_at_a_shutdown_is_handed_out(kind: str, method: str, chunksize: int | None) -> None:
    with place(kind) as executor, Gate() as gate:
        source = Source()
        results = getattr(executor, method)(gate, source, buffersize=5, chunksize=chunksize)
        gate.await_begun(2)
        executor.shutdown(wait=False)
        waiting = Background(lambda: next(results))
        assert waiting.still_waits()
        assert source.taken == 5, "nothing is read for tasks that nobody takes"
        gate.open()
        got = [waiting.join(), *read_to_the_end(results, "cannot schedule new futures after shutdown")]
    assert sorted(got) == [0, 1, 2, 3, 4]


class Moody(AdaptiveExecutor):
    """An executor that takes tasks, or does not."""

    mood: RuntimeError | None = None

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        if self.mood is not None:
            raise self.mood
        return super().submit(*args, **kwargs)


@pytest.mark.parametrize("method", ["map", "map_unordered"])
@pytest.mark.parametrize("chunksize", [None, 1, 2])
def test_what_was_read_before_a_task_was_refused_is_handed_out(method: str, chunksize: int | None) -> None:
    ran: list[int] = []
    with Moody(2) as pool:
        results = getattr(pool, method)(ran.append, Source(), buffersize=4, chunksize=chunksize)
        wait_for_idle(pool)
        pool.mood = RuntimeError("not in the mood")
        assert read_to_the_end(results, "not in the mood") == [None] * 4
        pool.mood = None
        assert sorted(ran) == [0, 1, 2, 3]


@pytest.mark.parametrize("method", ["map", "map_unordered"])
def test_a_shutdown_is_heard_of_where_the_caller_has_run_the_last_task(method: str) -> None:
    with Gate() as gate:
        pool = AdaptiveExecutor(4, max_queue=2, when_full="caller_runs")
        for _ in range(4):
            gate.hold(pool)
        results = getattr(pool, method)(int, range(10))
        pool.shutdown(wait=False, cancel_futures=True)
        reading = Background(lambda: list(results))
        with pytest.raises(concurrent.futures.CancelledError):
            reading.join()
        gate.open()
        pool.shutdown()


@pytest.mark.parametrize("method", ["map", "map_unordered"])
def test_a_source_may_wait_for_what_it_has_given(method: str) -> None:
    done = threading.Semaphore(0)

    def work(number: int) -> int:
        done.release()
        return number

    def source() -> Iterator[int]:
        for number in range(200):
            yield number
            assert done.acquire(timeout=TIMEOUT)

    with AdaptiveExecutor(2) as pool:
        for _ in range(10):
            assert sorted(getattr(pool, method)(work, source())) == list(range(200))
