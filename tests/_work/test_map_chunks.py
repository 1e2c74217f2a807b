"""AdaptiveExecutor.map, its claims: how many items a task takes at once, and what happens when that was too many."""

from __future__ import annotations

import concurrent.futures
import gc
import itertools
import os
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.common import (
    A_MOMENT,
    FREE_THREADED,
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

from ebbpool import AdaptiveExecutor, BrokenThreadPool, QueueFull
from ebbpool._work import map_ledger, map_turns, maps
from ebbpool._work.map_ledger import ANY, STALE, Batch
from ebbpool._work.map_turns import MapRun
from ebbpool._work.maps import PORTION

FAR = 2_000
"""Trivial items after which claims are large."""


@pytest.fixture(params=[True, False], ids=["iterators", "deques"])
def iterators(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Both ways to hold the items of a claim, where the interpreter allows both."""
    if request.param and not map_ledger.ITERATORS:
        pytest.skip("list iterators do not exclude each other here")
    monkeypatch.setattr(map_ledger, "ITERATORS", request.param)
    return bool(request.param)


pytestmark = pytest.mark.usefixtures("iterators")


def outcome(results: Iterator[Any]) -> tuple[list[Any], str | None]:
    """What an iterator hands out, and the error that ends it."""
    out = []
    try:
        for result in results:
            out.append(result)
    except Boom as error:
        return out, str(error)
    return out, None


@settings(max_examples=60)
@given(
    count=st.integers(0, 300),
    chunksize=st.none() | st.integers(1, 50),
    buffersize=st.none() | st.integers(1, 60),
    failing=st.sets(st.integers(0, 299), max_size=3),
    lazy=st.booleans(),
    wide=st.booleans(),
    ends=st.booleans(),
)
def test_a_map_is_what_map_is(
    count: int, chunksize: int | None, buffersize: int | None, failing: set[int], lazy: bool, wide: bool, ends: bool
) -> None:
    """`map` goes on after an error, and so does that of an executor from Python 3.16 on."""

    def work(number: int, *others: int) -> tuple[int, ...]:
        if number in failing:
            raise Boom(str(number))
        return (number, *others)

    def inputs() -> list[Any]:
        columns: list[Any] = [range(count), range(1, count + 1)] if wide else [range(count)]
        return [iter(column) for column in columns] if lazy else columns

    with AdaptiveExecutor(3) as pool, patch.object(maps, "ENDS", ends):
        results = pool.map(work, *inputs(), chunksize=chunksize, buffersize=buffersize)
        expected = map(work, *inputs())
        assert outcome(results) == outcome(expected)
        for _ in failing:
            assert outcome(results) == (([], None) if ends else outcome(expected))
        assert list(results) == []


@pytest.mark.parametrize("kind", [list, tuple, range, iter, dict.fromkeys])
def test_every_kind_of_input(kind: Any) -> None:
    items = kind(5_000) if kind is range else kind(range(5_000))
    with AdaptiveExecutor(4) as pool:
        assert list(pool.map(str, items)) == [str(number) for number in range(5_000)]


def test_the_input_is_read_before_map_returns() -> None:
    items = [1, 2, 3]
    with AdaptiveExecutor(1) as pool, Gate() as gate:
        held = pool.submit(gate)
        results = pool.map(str, items)
        items.clear()
        gate.open()
        assert held.result(TIMEOUT) is None
        assert list(results) == ["1", "2", "3"]


def test_trivial_items_share_a_few_tasks() -> None:
    with AdaptiveExecutor(4) as pool:
        assert list(pool.map(abs, range(50_000))) == list(range(50_000))
        wait_for_idle(pool)
        assert pool.stats().submitted < 5_000
        assert pool.stats().failed == 0


def test_blocking_items_all_run_at_once() -> None:
    with AdaptiveExecutor(50) as pool, Gate() as gate:
        results = pool.map(gate, range(50))
        gate.await_begun(50)
        gate.open()
        assert list(results) == list(range(50))


def test_blocking_items_all_run_at_once_though_the_pool_is_closed() -> None:
    with Gate() as gate:
        pool = AdaptiveExecutor(50)
        results = pool.map(gate, range(100))
        pool.shutdown(wait=False)
        gate.await_begun(50)
        assert gate.nobody_begins()
        gate.open()
        assert list(results) == list(range(100))
        pool.shutdown()


@pytest.mark.parametrize("consumes", [True, False])
@pytest.mark.parametrize("closed", [True, False])
def test_items_claimed_with_one_that_blocks_run_elsewhere(consumes: bool, closed: bool) -> None:
    """Trivial items have made claims large; the last ones block all at once, each in a worker of its own."""
    with AdaptiveExecutor(12) as pool, Gate() as gate, Gate() as ahead:
        # No turn ends before the pool is closed, which would take no other in its place.
        results = pool.map(
            lambda number: (ahead if number < 12 else int if number < FAR else gate)(number), range(FAR + 8)
        )
        if closed:
            pool.shutdown(wait=False)
        waiting = Background(lambda: list(results)) if consumes else None
        ahead.open()
        gate.await_begun(8)
        assert gate.peak == 8
        gate.open()
        assert (waiting.join() if waiting is not None else list(results)) == list(range(FAR + 8))


def test_results_before_an_item_that_blocks_are_handed_out() -> None:
    with AdaptiveExecutor(2) as pool, Gate() as gate:
        results = pool.map(lambda number: gate(number) if number == FAR else number, range(FAR + 1))
        assert [next(results) for _ in range(FAR)] == list(range(FAR))
        waiting = Background(lambda: next(results))
        assert waiting.still_waits()
        gate.open()
        assert waiting.join() == FAR


def test_only_one_worker_and_an_item_that_waits_for_the_consumer() -> None:
    """The results before it are handed out, though its claim has not ended."""
    seen = threading.Event()

    def work(number: int) -> int:
        if number == FAR:
            assert seen.wait(TIMEOUT)
        return number

    with AdaptiveExecutor(1) as pool:
        out = []
        for result in pool.map(work, range(FAR + 50)):
            out.append(result)
            if result == FAR - 1:
                seen.set()
        assert out == list(range(FAR + 50))


def test_an_iterator_that_pauses_keeps_nobody_from_what_it_has_given() -> None:
    gate = Gate()
    done = threading.Event()

    def source() -> Iterator[int]:
        yield from range(FAR)
        assert done.wait(TIMEOUT), "the items before were not run"
        yield FAR

    def work(number: int) -> int:
        if number == FAR - 1:
            done.set()
        return number

    with AdaptiveExecutor(2) as pool, gate:
        assert list(pool.map(work, source())) == list(range(FAR + 1))


def test_a_collection_that_pauses_keeps_nobody_from_what_it_has_given() -> None:
    done = threading.Event()

    class Loader:
        def __len__(self) -> int:
            return 2

        def __iter__(self) -> Iterator[int]:
            yield 0
            assert done.wait(TIMEOUT), "the item before was not run"
            yield 1

    with AdaptiveExecutor(2) as pool:
        assert list(pool.map(lambda number: done.set() or number, Loader())) == [0, 1]  # type: ignore[func-returns-value]


@pytest.mark.parametrize("buffersize", [None, 2])
def test_an_item_that_is_read_while_all_workers_are_busy_is_in_the_queue(buffersize: int | None) -> None:
    with AdaptiveExecutor(1) as pool, Gate() as gate:

        def source() -> Iterator[int]:
            yield 0
            gate.await_begun()
            yield 1

        results = pool.map(gate, source(), buffersize=buffersize)
        assert pool.stats().queued == 1
        pool.resize(max_workers=2)
        gate.await_begun()
        gate.open()
        assert list(results) == [0, 1]


@pytest.mark.parametrize("chunksize", [None, 7])
def test_a_failing_item_does_not_keep_its_neighbours_from_running(chunksize: int | None) -> None:
    ran: list[int] = []

    def work(number: int) -> int:
        ran.append(number)
        if number % 10 == 3:
            raise Boom(str(number))
        return number

    with AdaptiveExecutor(1) as pool:
        results = pool.map(work, range(100), chunksize=chunksize)
        eventually(lambda: len(ran) == 100)
        assert ran == list(range(100))
        assert outcome(results) == ([0, 1, 2], "3")


def test_stop_iteration_does_not_cut_a_map_short() -> None:
    def work(number: int) -> int:
        if number == FAR:
            raise StopIteration(number)
        return number

    with AdaptiveExecutor(1) as pool:
        results = pool.map(work, range(2 * FAR))
        assert [next(results) for _ in range(FAR)] == list(range(FAR))
        with pytest.raises(RuntimeError, match="StopIteration"):
            next(results)
        assert list(results) == ([] if maps.ENDS else list(range(FAR + 1, 2 * FAR)))
        unordered = pool.map_unordered(work, range(2 * FAR))
        out = []
        with pytest.raises(RuntimeError, match="StopIteration"):
            out.extend(unordered)
        out.extend(unordered)
        assert sorted(out) == [number for number in range(2 * FAR) if number != FAR]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_any_exception_comes_at_its_place(error: type[BaseException]) -> None:
    def work(number: int) -> int:
        if number == 5:
            raise error
        return number

    with AdaptiveExecutor(2) as pool:
        results = pool.map(work, range(10))
        assert [next(results) for _ in range(5)] == list(range(5))
        with pytest.raises(error):
            next(results)
        wait_for_idle(pool)
        assert pool.submit(int).result(TIMEOUT) == 0


@pytest.mark.parametrize(("count", "chunksize", "tasks"), [(10, 1, 10), (10, 3, 4), (9, 3, 3), (2, 100, 1)])
def test_a_given_chunksize_is_the_items_of_a_task(count: int, chunksize: int, tasks: int) -> None:
    threads: dict[int, list[int]] = {}
    pool = AdaptiveExecutor(50)
    with pool, Gate() as gate:

        def work(number: int) -> int:
            threads.setdefault(threading.get_ident(), []).append(number)
            gate()
            return number

        results = pool.map(work, range(count), chunksize=chunksize)
        gate.await_begun(tasks)
        assert gate.nobody_begins()
        assert pool.stats().submitted == tasks
        gate.open()
        assert list(results) == list(range(count))
        chunks = sorted(threads.values())
        wait_for_idle(pool)
        assert pool.stats().completed == tasks
    assert chunks == [list(range(first, min(first + chunksize, count))) for first in range(0, count, chunksize)]


@pytest.mark.parametrize("chunksize", [None, 3])
def test_closing_keeps_what_has_not_begun_from_running(chunksize: int | None) -> None:
    ran: list[int] = []
    with AdaptiveExecutor(1) as pool, Gate() as gate:

        def work(number: int) -> int:
            ran.append(number)
            if number == FAR:
                gate()
            return number

        results = pool.map(work, range(2 * FAR), chunksize=chunksize)
        assert next(results) == 0
        gate.await_begun()
        results.close()  # type: ignore[attr-defined]
        assert list(results) == []
        assert pool._work_queue.qsize() == 0
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


def test_closing_drops_what_was_there_to_take() -> None:
    with AdaptiveExecutor(1) as pool:
        results = pool.map(str, range(FAR))
        assert [next(results) for _ in range(FAR // 2)] == [str(number) for number in range(FAR // 2)]
        results.close()  # type: ignore[attr-defined]
        results.close()  # type: ignore[attr-defined]
        assert list(results) == []


@pytest.mark.parametrize("max_workers", [1, 2, 5])
@pytest.mark.parametrize("count", [3, FAR])
def test_maps_in_maps(max_workers: int, count: int) -> None:
    with AdaptiveExecutor(max_workers) as pool:

        def inner(number: int) -> int:
            return sum(pool.map(abs, range(number % 7)))

        outer = pool.submit(lambda: list(pool.map(inner, range(min(count, 60)))))
        assert outer.result(TIMEOUT) == [sum(range(number % 7)) for number in range(min(count, 60))]
        assert pool.submit(lambda: list(pool.map(abs, range(count)))).result(TIMEOUT) == list(range(count))
        wait_for_idle(pool)
        assert pool.stats().blocked == 0


def test_an_item_may_wait_for_a_later_one_where_it_waits_for_a_future() -> None:
    """A worker that waits for its own pool is replaced, and its place taken by one that claims the next item."""
    met = threading.Event()

    with AdaptiveExecutor(1) as pool:

        def work(number: int) -> int:
            if number == 0:
                assert pool.submit(met.wait, TIMEOUT).result(TIMEOUT)
            if number == 1:
                met.set()
            return number

        assert list(pool.map(work, range(3))) == [0, 1, 2]


@pytest.mark.parametrize("when_full", ["block", "caller_runs"])
@pytest.mark.parametrize("max_queue", [0, 1, 3])
@pytest.mark.parametrize("chunksize", [None, 1, 4])
@pytest.mark.parametrize("buffersize", [None, 5])
def test_a_bounded_queue(when_full: Any, max_queue: int, chunksize: int | None, buffersize: int | None) -> None:
    with AdaptiveExecutor(2, max_queue=max_queue, when_full=when_full) as pool:
        results = pool.map(str, range(500), chunksize=chunksize, buffersize=buffersize)
        assert list(results) == [str(number) for number in range(500)]
        nested = pool.submit(lambda: list(pool.map(str, range(50), chunksize=chunksize, buffersize=buffersize)))
        assert nested.result(TIMEOUT) == [str(number) for number in range(50)]
        wait_for_idle(pool)
        assert pool.stats().rejected == 0


def test_the_caller_runs_it_all_where_the_pool_is_busy() -> None:
    with AdaptiveExecutor(1, max_queue=0, when_full="caller_runs") as pool, Gate() as gate:
        held = pool.submit(gate)
        gate.await_begun()
        results = pool.map(lambda number: threading.get_ident(), range(100))
        assert set(results) == {threading.get_ident()}
        gate.open()
        held.result(TIMEOUT)


def test_the_caller_runs_no_more_than_it_has_to() -> None:
    with AdaptiveExecutor(1, max_queue=0, when_full="caller_runs") as pool, Gate() as gate:
        held = pool.submit(gate)
        gate.await_begun()

        def work(number: int) -> int:
            if number == 0:
                gate.open()
                held.result(TIMEOUT)
                wait_for_idle(pool)
            return threading.get_ident()

        threads = list(pool.map(work, range(100)))
        assert threads[0] == threading.get_ident()
        assert threads[-1] != threading.get_ident()


@pytest.mark.skipif(not FREE_THREADED, reason="threads do not make computing faster under a GIL")
def test_computing_items_get_a_second_worker() -> None:
    def work(number: int) -> int:
        for _ in range(500):
            number = (number * 31 + 7) & 1023
        return threading.get_ident()

    with AdaptiveExecutor(2) as pool:
        assert len(set(pool.map(work, range(20_000)))) == 2


@pytest.mark.parametrize("chunksize", [None, 1])
def test_a_full_queue_that_rejects_ends_the_map(chunksize: int | None) -> None:
    ran: list[int] = []
    with AdaptiveExecutor(3, max_queue=1, when_full="reject") as pool, Gate() as gate:
        held = [pool.submit(gate) for _ in range(3)]
        gate.await_begun(3)
        with pytest.raises(QueueFull):
            pool.map(ran.append, range(100), chunksize=chunksize)
        assert pool.stats().queued == 0
        gate.open()
        concurrent.futures.wait(held, TIMEOUT)
        wait_for_idle(pool)
        assert ran == []


def test_a_queue_that_rejects_is_enough_for_a_map_of_any_length() -> None:
    with AdaptiveExecutor(3, max_queue=3, when_full="reject") as pool:
        assert list(pool.map(str, range(1000))) == [str(number) for number in range(1000)]
        assert pool.stats().rejected == 0


@pytest.mark.parametrize("max_queue", [None, 100])
@pytest.mark.parametrize("chunksize", [None, 1, 3])
def test_shutdown_that_cancels_cancels_the_rest(max_queue: int | None, chunksize: int | None) -> None:
    ran: list[int] = []
    with Gate() as gate:
        pool = AdaptiveExecutor(1, max_queue=max_queue)

        def work(number: int) -> int:
            ran.append(number)
            return int(gate(number))

        results = pool.map(work, range(20), chunksize=chunksize)
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


def test_a_pool_that_breaks_breaks_its_maps() -> None:
    def fail() -> None:
        raise Boom

    with AdaptiveExecutor(1, initializer=fail) as pool:
        for call in (pool.map, pool.map_unordered):
            with pytest.raises(BrokenThreadPool):
                list(call(str, range(10)))
        assert pool.stats().queued == 0


def test_a_broken_pool_is_heard_of_while_waiting() -> None:
    with Gate() as gate:

        def fail() -> None:
            gate()
            raise Boom

        with AdaptiveExecutor(1, initializer=fail) as pool:
            results = pool.map(str, range(10))
            waiting = Background(lambda: next(results))
            gate.await_begun()
            gate.open()
            with pytest.raises(BrokenThreadPool):
                waiting.join()


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


variable: ContextVar[str] = ContextVar("variable", default="unset")


@pytest.mark.parametrize("chunksize", [None, 1, 10])
def test_every_claim_runs_in_a_copy_of_the_callers_context(chunksize: int | None) -> None:
    def work(number: int) -> str:
        seen = variable.get()
        variable.set(f"{seen}, and {number}")
        return seen

    token = variable.set("mine")
    try:
        with AdaptiveExecutor(2, propagate_context=True) as pool:
            results = list(pool.map(work, range(200), chunksize=chunksize))
    finally:
        variable.reset(token)
    assert all(result.startswith("mine") for result in results)
    if chunksize == 1:
        assert set(results) == {"mine"}
    assert results.count("mine") >= (20 if chunksize == 10 else 2)


def test_a_map_is_timed_from_the_call_and_takes_what_is_there() -> None:
    with AdaptiveExecutor(2) as pool:
        results = pool.map(str, range(1000), timeout=0.05)
        wait_for_idle(pool)
        assert next(results) == "0"
        tick = threading.Event()
        tick.wait(0.06)
        assert list(results) == [str(number) for number in range(1, 1000)]


def test_a_map_times_out_in_the_middle_of_a_claim() -> None:
    with AdaptiveExecutor(1) as pool, Gate() as gate:
        results = pool.map(lambda number: gate() if number == FAR else number, range(2 * FAR), timeout=0.2)
        out: list[int] = []
        with pytest.raises(TimeoutError):
            out.extend(results)
        assert len(out) <= FAR
        assert list(results) == []
        gate.open()


def test_a_timeout_beyond_what_locks_can_wait() -> None:
    with AdaptiveExecutor(1) as pool:
        assert list(pool.map(str, range(3), timeout=1e30)) == ["0", "1", "2"]


@pytest.mark.parametrize("buffersize", [1, 3, 16, 100])
@pytest.mark.parametrize("chunksize", [None, 1, 8])
def test_a_buffer_is_never_overshot(buffersize: int, chunksize: int | None) -> None:
    taken = 0

    def source() -> Iterator[int]:
        nonlocal taken
        for number in itertools.count():
            taken += 1
            yield number

    with AdaptiveExecutor(3) as pool:
        results = pool.map(abs, source(), buffersize=buffersize, chunksize=chunksize)
        assert taken <= buffersize
        for handed, result in enumerate(itertools.islice(results, 1000)):
            assert result == handed
            assert taken <= handed + 1 + buffersize
        results.close()  # type: ignore[attr-defined]


def test_results_are_let_go_as_they_are_handed_out() -> None:
    """Even where a claim brought many at once."""
    with no_collector(), AdaptiveExecutor(1) as pool:
        references: list[weakref.ref[Thing]] = []

        def make(number: int) -> Thing:
            thing = Thing()
            references.append(weakref.ref(thing))
            return thing

        results = pool.map(make, range(400))
        wait_for_idle(pool)
        for number in range(60):
            next(results)
            gone(references[number], pool=pool)
        assert references[399]() is not None
        results.close()  # type: ignore[attr-defined]
        gone(*references, pool=pool)


def test_a_brisk_consumer_leaves_only_the_last_portion_behind() -> None:
    with no_collector(), AdaptiveExecutor(1) as pool:
        references: list[weakref.ref[Thing]] = []

        def make(number: int) -> Thing:
            thing = Thing()
            references.append(weakref.ref(thing))
            return thing

        results = pool.map(make, range(3000))
        deque(itertools.islice(results, 2000), 0)
        gone(*references[: 2000 - PORTION], pool=pool)
        next(results)
        results.close()  # type: ignore[attr-defined]
        wait_for_idle(pool)
        gone(*references, pool=pool)


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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform cannot fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_ends_the_childs_iterators() -> None:
    with AdaptiveExecutor(1) as pool, Gate() as gate:
        maps = [pool.map(gate, range(3)), pool.map_unordered(gate, range(3))]
        gate.await_begun()
        child = os.fork()
        if child == 0:
            code = 0
            for results in maps:
                try:
                    next(results)
                except BrokenThreadPool:
                    continue
                except BaseException:
                    pass
                code = 1
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        gate.open()
        assert sorted(maps[1]) == list(maps[0]) == [0, 1, 2]


def test_one_iterator_one_reader() -> None:
    with AdaptiveExecutor(1) as pool, Gate() as gate:
        results = pool.map(gate, range(2))
        waiting = Background(lambda: next(results))
        gate.await_begun()
        eventually(lambda: results._pieces.gi_running)  # type: ignore[attr-defined]
        with pytest.raises(ValueError, match="already executing"):
            next(results)
        gate.open()
        assert waiting.join() == 0


# The claims themselves, without threads and with a clock of the test's own.


class Script:
    """A `MapRun` whose tasks the test runs by hand."""

    def __init__(self, items: Any, *, ordered: bool = True, buffersize: int | None = None) -> None:
        self.tasks: deque[Callable[[], None]] = deque()
        self._max_workers = 1000
        self._shutdown = False
        self.claims = MapRun(self, lambda item: item, False, None, buffersize, ordered)  # type: ignore[arg-type]
        self.claims.read_all(self, items)  # type: ignore[arg-type]

    def submit(self, task: Callable[[], None]) -> concurrent.futures.Future[None]:
        self.tasks.append(task)
        return concurrent.futures.Future()

    def lay(self, now: float) -> Batch:
        with self.claims.lock:
            claim = self.claims._lay(now)
        assert claim is not None
        return claim


@settings(max_examples=100)
@given(
    count=st.integers(1, 200),
    steps=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 40), st.integers(0, 8)), max_size=40),
    as_range=st.booleans(),
)
def test_whatever_is_claimed_and_recalled_every_item_is_had_once_and_in_its_place(
    count: int, steps: list[tuple[int, int, int]], as_range: bool
) -> None:
    script = Script(range(count) if as_range else list(range(count)))
    claims = script.claims
    under_way: list[Batch] = []
    now = 0.0
    begun: Counter[int] = Counter()

    def begin(claim: Batch, most: int) -> None:
        for _ in range(most):
            item = next(claim.source, None) if not isinstance(claim.source, deque) else None
            if isinstance(claim.source, deque) and claim.source:
                item = claim.source.popleft()
            if item is None:
                return
            assert item == claim.start + len(claim.out)
            begun[item] += 1
            claim.out.append(item)

    for which, size, progress in steps:
        now += STALE * which / 6
        claims.size = size
        if which < 5 and sum(len(rest) for _, rest in claims.segments):
            under_way.append(script.lay(now))
        elif under_way:
            with claims.lock:
                claims._recall(now)
        if under_way:
            begin(under_way[which % len(under_way)], progress)
        positions = [start for start, _ in claims.segments]
        assert positions == sorted(positions, reverse=True)
    claims.size = 7
    while claims.segments:
        under_way.append(script.lay(now))
    for claim in under_way:
        begin(claim, count)
        assert len(claim.out) == claim.size
    assert begun == Counter(range(count))
    assert sorted(under_way, key=lambda claim: claim.start)
    spans = sorted((claim.start, claim.size) for claim in under_way)
    assert [start for start, _ in spans] == list(itertools.accumulate([size for _, size in spans[:-1]], initial=0))


@pytest.mark.parametrize("ordered", [True, False])
def test_a_claim_that_is_recalled_as_it_ends_does_not_stand_in_the_place_of_the_next(ordered: bool) -> None:
    script = Script(range(10), ordered=ordered)
    claims = script.claims
    claims.size = 5
    first, second = script.lay(0.0), script.lay(STALE / 2)
    first.out.extend(range(5))
    first.drain()
    with claims.lock:
        claims._recall(STALE)
        assert claims._ready(0 if ordered else ANY) == [list(range(5))]
        assert claims.claims == {5: second}
    assert not claims._finish_claim(first, aside=False, until=0.0)
    assert claims.claims == {5: second}
    assert not claims.finished


@pytest.mark.parametrize("ordered", [True, False])
def test_a_claim_that_was_recalled_before_it_began_leaves_its_place_to_the_next(ordered: bool) -> None:
    script = Script(range(10), ordered=ordered)
    claims = script.claims
    claims.size = 5
    first = script.lay(0.0)
    with claims.lock:
        claims._recall(STALE)
    claims.size = 5
    second = script.lay(STALE)
    assert first.start == second.start
    assert not claims._finish_claim(first, aside=False, until=0.0)
    assert claims.claims == {0: second}
    assert claims.divided == {0: second}, "nothing would be recalled of it any more"
    assert not claims.finished


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("recalled", [True, False])
def test_a_map_that_fails_before_a_claim_has_begun_ends(ordered: bool, recalled: bool) -> None:
    script = Script(range(10), ordered=ordered)
    claims = script.claims
    claims.size = 5
    claim = script.lay(0.0)
    if recalled:
        with claims.lock:
            claims._recall(STALE)
    claims.fail(Boom("the rest"))
    claims._finish_claim(claim, aside=False, until=0.0)
    with pytest.raises(Boom, match="the rest"):
        claims.wait_for_pieces(0 if ordered else ANY, time.perf_counter() + TIMEOUT)


def test_the_consumer_does_not_rely_on_what_a_worker_has_yet_to_submit() -> None:
    """The pool may be closed before the worker comes to it."""

    class Closing(Script):
        def submit(self, task: Callable[[], None]) -> concurrent.futures.Future[None]:
            if not self._shutdown and self.claims.running and self.claims.submitter is None:
                # A worker is about to submit: just now the consumer sees to what it has read.
                self.claims.recruit(self)  # type: ignore[arg-type]
                self._shutdown = True
            if self._shutdown:
                raise RuntimeError("closed")
            return super().submit(task)

    script = Closing([])
    claims = script.claims
    claims.inbox.extend(range(6))
    claims.queued = 1
    claims.work()
    assert len(script.tasks) == 5
    assert (claims.queued, claims.pledged, claims.running) == (5, 0, 0)


def test_a_consumer_that_is_interrupted_as_the_bell_rings_waits_for_no_other() -> None:
    script = Script(range(2))
    claims = script.claims

    class Interrupted:
        def __init__(self, bell: Any) -> None:
            self.bell = bell
            self.release = bell.release

        def acquire(self, blocking: bool = True, timeout: float = -1.0) -> bool:
            heard: bool = self.bell.acquire(blocking, timeout)
            if heard and blocking:
                raise KeyboardInterrupt
            return heard

    claims.bell = Interrupted(claims.bell)
    waiting = Background(lambda: claims.wait_for_pieces(0, None))
    eventually(lambda: claims.wanted == 0)
    script.tasks.popleft()()
    with pytest.raises(KeyboardInterrupt):
        waiting.join()
    assert claims.wait_for_pieces(0, None) == [[0]]


def test_a_claim_grows_while_items_are_tiny_and_shrinks_at_once() -> None:
    script = Script(range(10**6))
    claims = script.claims
    sizes = []
    for _ in range(8):
        sizes.append(claims.size)
        claims._adapt(claims.size, map_ledger.QUICK * 0.9)
    assert sizes == [1, 2, 4, 8, 16, 32, 64, 128]
    claims._adapt(256, 1.0)
    assert claims.size == 1
    claims._adapt(1, map_ledger.QUICK / 100)
    assert claims.size == 4
    claims._adapt(1, map_ledger.QUICK / 2)
    assert claims.size == 4, "a smaller claim says nothing about larger ones"
    claims._adapt(4, 10.0)
    assert claims.size == 1


def test_a_claim_leaves_room_in_the_buffer() -> None:
    script = Script(range(100), buffersize=20)
    for _ in range(20):
        script.claims._adapt(script.claims.size, 0.0)
    assert script.claims.size == 5


@pytest.mark.skipif(not map_ledger.ITERATORS, reason="a deque serves instead")
def test_a_list_iterator_is_emptied_in_one_step() -> None:
    """The promise of the interpreter that claims rest on: nothing is lost, nothing comes twice."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(50):
            source = iter(range(20_000) if _ % 2 else list(range(20_000)))
            front: list[int] = []
            worker = Background(lambda s=source, f=front: f.extend(map(int, s)))  # type: ignore[misc]
            rest = list(source)
            worker.join()
            assert front + rest == list(range(20_000))
    finally:
        sys.setswitchinterval(interval)


def test_recalls_under_contention_lose_and_repeat_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look recalls everything: workers and the consumer take items from each other all the time."""
    monkeypatch.setattr(map_ledger, "STALE", 0.0)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with AdaptiveExecutor(4, min_workers=4) as pool:
            for size in (1, 50, 3_000):
                ran: Counter[int] = Counter()
                begun: list[int] = []

                def work(number: int, begun: list[int] = begun) -> int:
                    begun.append(number)
                    return number

                assert list(pool.map(work, range(size))) == list(range(size))
                ran.update(begun)
                assert ran == Counter(range(size))
                assert sorted(pool.map_unordered(work, range(size))) == list(range(size))
    finally:
        sys.setswitchinterval(interval)


def test_time_is_read_once_a_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = itertools.count()

    def counted() -> float:
        next(reads)
        return time.perf_counter()

    monkeypatch.setattr(map_turns, "perf_counter", counted)
    with AdaptiveExecutor(2) as pool:
        assert len(list(pool.map(abs, range(20_000), chunksize=1000))) == 20_000
    assert next(reads) < 20 * 8


def test_nothing_waits_on_an_idle_map() -> None:
    """A map that has been taken in whole leaves neither tasks nor threads in use."""
    with AdaptiveExecutor(8) as pool:
        assert len(list(pool.map(abs, range(5_000)))) == 5_000
        wait_for_idle(pool)
        threading.Event().wait(A_MOMENT)
        stats = pool.stats()
        assert (stats.queued, stats.running, stats.blocked) == (0, 0, 0)
