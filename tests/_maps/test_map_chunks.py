"""AdaptiveExecutor.map, its claims: how many items a task takes at once, and what happens when that was too many."""

from __future__ import annotations

import concurrent.futures
import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.common import FREE_THREADED, TIMEOUT, Background, Boom, Gate, eventually, tight_switching, wait_for_idle
from support.maps import FAR, Source, iterators  # noqa: F401  (a fixture)

from ebbpool import AdaptiveExecutor, QueueFull
from ebbpool._maps import ledger, maps

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
        held = gate.hold(pool)
        results = pool.map(lambda number: threading.get_ident(), range(100))
        assert set(results) == {threading.get_ident()}
        gate.open()
        held.result(TIMEOUT)


def test_the_caller_runs_no_more_than_it_has_to() -> None:
    with AdaptiveExecutor(1, max_queue=0, when_full="caller_runs") as pool, Gate() as gate:
        held = gate.hold(pool)

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
        # On a busy machine a map may end before the second worker has begun.
        eventually(lambda: len(set(pool.map(work, range(20_000)))) == 2)


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


@pytest.mark.parametrize("method", ["map", "map_unordered"])
@pytest.mark.parametrize("buffersize", [1, 3, 16, 100])
@pytest.mark.parametrize("chunksize", [None, 1, 8])
def test_a_buffer_is_never_overshot(method: str, buffersize: int, chunksize: int | None) -> None:
    source = Source()
    with AdaptiveExecutor(3) as pool:
        results = getattr(pool, method)(abs, source, buffersize=buffersize, chunksize=chunksize)
        assert source.taken <= buffersize
        seen = set()
        for handed, result in enumerate(itertools.islice(results, 1000)):
            seen.add(result)
            assert result == handed or method == "map_unordered"
            assert source.taken <= handed + 1 + buffersize
        assert len(seen) == 1000
        assert max(seen) < 1000 + buffersize
        results.close()


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


def test_recalls_under_contention_lose_and_repeat_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look recalls everything: workers and the consumer take items from each other all the time."""
    monkeypatch.setattr(ledger, "STALE", 0.0)
    with tight_switching(1e-5), AdaptiveExecutor(4, min_workers=4) as pool:
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


def test_time_is_read_once_a_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = itertools.count()

    def counted() -> float:
        next(reads)
        return time.perf_counter()

    monkeypatch.setattr(ledger, "perf_counter", counted)
    with AdaptiveExecutor(2) as pool:
        assert len(list(pool.map(abs, range(20_000), chunksize=1000))) == 20_000
    assert next(reads) < 20 * 8
