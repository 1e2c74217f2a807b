"""Maps in threads: order and errors, batches, buffers, bounds and context; how they end, and what they leave."""

from __future__ import annotations

import concurrent.futures
import gc
import itertools
import sys
import threading
import weakref
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import seams
from support.common import (
    TIMEOUT,
    Background,
    Boom,
    Gate,
    Thing,
    call_of,
    eventually,
    gone,
    no_collector,
    raise_watched,
    wait_for_idle,
)
from support.rules import map_run

from ebbpool import AdaptiveExecutor, QueueFull

ENDS = sys.version_info < (3, 16)
"""Whether the error of a call ends the iterator of `map`."""

FAR = 2_000
"""Trivial items after which claims are large."""

either = pytest.mark.parametrize("method", ["map", "map_unordered"])
kinds = pytest.mark.parametrize("kind", ["pool", "lane", "other submit"])


@contextmanager
def place(kind: str, workers: int = 2, **settings: Any) -> Iterator[Any]:
    """A pool, a lane of one, or a pool that was given another `submit`."""
    with AdaptiveExecutor(workers, **settings) as pool:
        if kind == "other submit":
            vars(pool)["submit"] = partial(AdaptiveExecutor.submit, pool)
        yield pool.lane("lane", limit=workers) if kind == "lane" else pool
        vars(pool).pop("submit", None)


class Source:
    """An iterator over the natural numbers that counts what was taken from it."""

    def __init__(self, stop: int | None = None) -> None:
        self.taken = 0
        self.stop = stop

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> int:
        if self.taken == self.stop:
            raise StopIteration
        self.taken += 1
        return self.taken - 1


def test_a_map_does_after_an_error_what_that_of_the_standard_library_does() -> None:
    with AdaptiveExecutor(1) as pool, ThreadPoolExecutor(1) as stock:
        left = []
        for executor in (pool, stock):
            results = executor.map(lambda number: 1 // number, [1, 0, 1])
            assert next(results) == 1
            with pytest.raises(ZeroDivisionError):
                next(results)
            left.append(list(results))
    assert left[0] == left[1]


@pytest.mark.parametrize("kind", ["pool", "other submit"])
@pytest.mark.parametrize("buffersize", [None, 3])
def test_an_error_cancels_what_has_not_begun_if_it_ends_the_iterator(kind: str, buffersize: int | None) -> None:
    gate, begun = Gate(), []

    def work(number: int) -> None:
        begun.append(number)
        if number == 0:
            raise Boom
        gate()

    with place(kind, 1) as pool, gate:
        results = pool.map(work, range(3), buffersize=buffersize)
        gate.await_begun()
        with pytest.raises(Boom):
            next(results)
        assert (pool.stats().queued == 0) is ENDS
        gate.open()
        wait_for_idle(pool)
        assert begun == ([0, 1] if ENDS else [0, 1, 2])
        assert (pool.stats().cancelled > 0) is ENDS


@pytest.mark.parametrize("buffersize", [1, 5])
def test_a_buffer_is_filled_and_never_overshot(buffersize: int) -> None:
    """While a caller waits for a result, `buffersize` items have been submitted and not handed out."""
    gates = [Gate() for _ in range(12)]
    with AdaptiveExecutor(20) as pool:
        source = Source(12)
        results = pool.map(lambda number: gates[number](number), source, buffersize=buffersize)
        try:
            begun = 0
            for handed_out in range(12):
                waiting = Background(lambda: next(results))
                while begun < min(12, handed_out + buffersize):
                    gates[begun].await_begun()
                    begun += 1
                assert source.taken == begun
                gates[handed_out].open()
                assert waiting.join() == handed_out
        finally:
            for gate in gates:
                gate.open()
    assert source.taken == 12


@either
@pytest.mark.parametrize(("buffersize", "closed"), [(None, False), (1, False), (3, False), (3, True)])
def test_an_input_that_fails_passes_its_error_on_after_the_results(
    method: str, buffersize: int | None, closed: bool
) -> None:
    given = iter(["1", "2", "3", "x", "4"])
    with AdaptiveExecutor(2) as pool:
        with pytest.raises(ValueError, match="'x'"):
            results = getattr(pool, method)(abs, map(int, given), buffersize=buffersize)
            if closed:
                pool.shutdown()
            assert sorted(next(results) for _ in range(3)) == [1, 2, 3]
            next(results)
        assert buffersize is None or list(results) == []
        assert list(given) == ["4"]


@either
def test_a_bad_call_takes_nothing_from_the_input(method: str) -> None:
    with AdaptiveExecutor(2) as pool:
        call, source = getattr(pool, method), Source(3)
        for bad in ({"fn": 17}, {"buffersize": 0}, {"timeout": "soon"}):
            with pytest.raises((TypeError, ValueError)):
                call(bad.pop("fn", int), source, **bad)
        with pytest.raises(TypeError, match="not iterable"):
            call(int, 17)
        assert (source.taken, pool.stats().submitted) == (0, 0)
        assert sorted(call(int, source)) == [0, 1, 2]
        assert list(call(int)) == []


@settings(max_examples=120)
@given(
    method=st.sampled_from(["map", "map_unordered"]),
    count=st.integers(0, 300),
    chunksize=st.none() | st.integers(-1, 50),
    buffersize=st.none() | st.integers(1, 60),
    failing=st.sets(st.integers(0, 299), max_size=20),
    kind=st.sampled_from([Source, range, list, tuple, dict.fromkeys]),
    wide=st.booleans(),
)
def test_every_item_has_its_result_or_its_error_once_and_in_its_place(
    method: str, count: int, chunksize: int | None, buffersize: int | None, failing: set[int], kind: Any, wide: bool
) -> None:
    """The built-in `map` says what there is, and in which order; no buffer is overshot."""

    def work(number: int, *others: int) -> tuple[int, ...] | str:
        if number in failing:
            raise Boom(f"error {number}")
        return (number, *others)

    source = Source(count)
    columns: list[Any] = [source if kind is Source else range(count) if kind is range else kind(range(count))]
    if wide:
        columns.append(range(1, 1000))
    expected: list[Any] = [
        f"error {number}" if number in failing else ((number, number + 1) if wide else (number,))
        for number in range(count)
    ]
    if method == "map" and ENDS:
        del expected[next((place for place, each in enumerate(expected, 1) if isinstance(each, str)), count) :]
    got: list[Any] = []
    with AdaptiveExecutor(3) as pool:
        results = getattr(pool, method)(work, *columns, chunksize=chunksize, buffersize=buffersize)
        while True:
            assert source.taken <= len(got) + (buffersize or count)
            try:
                got.append(next(results))
            except Boom as error:
                got.append(str(error))
            except StopIteration:
                break
        assert list(results) == []
    assert got == expected if method == "map" else Counter(got) == Counter(expected)


def test_trivial_items_share_a_few_tasks() -> None:
    with AdaptiveExecutor(4) as pool:
        assert list(pool.map(abs, range(50_000))) == list(range(50_000))
        wait_for_idle(pool)
        assert pool.stats().submitted < 5_000
        assert pool.stats().failed == 0


@pytest.mark.parametrize("closed", [False, True])
def test_blocking_items_all_run_at_once_though_the_pool_is_closed(closed: bool) -> None:
    with Gate() as gate:
        pool = AdaptiveExecutor(50)
        items = list(range(100))
        results = pool.map(gate, items)
        # They have been read before `map` returned.
        items.clear()
        if closed:
            pool.shutdown(wait=False)
        gate.await_begun(50)
        gate.open()
        assert list(results) == list(range(100))
        assert gate.peak == 50
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


@either
def test_only_one_worker_and_an_item_that_waits_for_the_consumer(method: str) -> None:
    """The results before it are handed out, though its claim has not ended."""
    seen = threading.Event()

    def work(number: int) -> int:
        if number == FAR:
            assert seen.wait(TIMEOUT)
        return number

    with AdaptiveExecutor(1) as pool:
        out = []
        for result in getattr(pool, method)(work, range(FAR + 50)):
            out.append(result)
            if len(out) == FAR:
                seen.set()
        assert sorted(out) == list(range(FAR + 50))


class Loader:
    """A collection that may take long for its next item."""

    def __init__(self, items: Iterator[int]) -> None:
        self.items = items

    def __len__(self) -> int:
        return FAR + 1

    def __iter__(self) -> Iterator[int]:
        return self.items


@either
@pytest.mark.parametrize("kind", [iter, Loader])
def test_an_input_that_pauses_keeps_nobody_from_what_it_has_given(method: str, kind: Any) -> None:
    def source() -> Iterator[int]:
        for number in range(FAR + 1):
            yield number
            if number in done:
                assert done[number].wait(TIMEOUT), f"{number} was not run"

    def work(number: int) -> int:
        if number in done:
            done[number].set()
        return number

    with AdaptiveExecutor(2) as pool:
        for _ in range(5):
            done = {number: threading.Event() for number in [*range(200), FAR - 1]}
            assert sorted(getattr(pool, method)(work, kind(source()))) == list(range(FAR + 1))


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


@pytest.mark.parametrize("error", [StopIteration, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_any_exception_comes_at_its_place_and_cuts_nothing_short(error: type[BaseException]) -> None:
    def work(number: int) -> int:
        if number == FAR:
            raise error("by the call")
        return number

    # What comes out of a generator.
    seen = RuntimeError if error is StopIteration else error
    message = "StopIteration" if error is StopIteration else "by the call"
    with AdaptiveExecutor(1) as pool:
        results = pool.map(work, range(2 * FAR))
        assert [next(results) for _ in range(FAR)] == list(range(FAR))
        with pytest.raises(seen, match=message):
            next(results)
        assert list(results) == ([] if ENDS else list(range(FAR + 1, 2 * FAR)))
        unordered = pool.map_unordered(work, range(2 * FAR))
        out = []
        with pytest.raises(seen, match=message):
            out.extend(unordered)
        out.extend(unordered)
        assert sorted(out) == [number for number in range(2 * FAR) if number != FAR]
        wait_for_idle(pool)
        assert pool.submit(int).result(TIMEOUT) == 0


@kinds
@either
@pytest.mark.parametrize("chunksize", [-1, 0, 2, 8, 0.5])
def test_a_chunksize_has_no_effect_as_in_the_standard_library(kind: str, method: str, chunksize: Any) -> None:
    with place(kind, 8) as executor, Gate() as gate:
        results = getattr(executor, method)(gate, range(8), chunksize=chunksize)
        gate.await_begun(8)
        gate.open()
        assert sorted(results) == list(range(8))


@pytest.mark.parametrize("kind", ["pool", "other submit"])
@pytest.mark.parametrize("max_workers", [1, 5])
@pytest.mark.parametrize("count", [3, FAR])
def test_maps_in_maps(kind: str, max_workers: int, count: int) -> None:
    with place(kind, max_workers) as pool:

        def inner(number: int) -> int:
            return sum(pool.map(abs, range(number % 7)))

        outer = pool.submit(lambda: list(pool.map(inner, range(min(count, 60)))))
        assert outer.result(TIMEOUT) == [sum(range(number % 7)) for number in range(min(count, 60))]
        assert pool.submit(lambda: sorted(pool.map_unordered(abs, range(count)))).result(TIMEOUT) == list(range(count))
        wait_for_idle(pool)
        assert pool.stats().blocked == 0


@pytest.mark.parametrize(
    ("when_full", "max_queue", "buffersize"),
    [*itertools.product(["block", "caller_runs"], [0, 1, 3], [None, 5]), ("reject", 3, None)],
)
def test_a_bounded_queue(when_full: Any, max_queue: int, buffersize: int | None) -> None:
    with AdaptiveExecutor(2, max_queue=max_queue, when_full=when_full) as pool:
        results = pool.map(str, range(500), buffersize=buffersize)
        assert list(results) == [str(number) for number in range(500)]
        nested = pool.submit(lambda: list(pool.map(str, range(50), buffersize=buffersize)))
        assert nested.result(TIMEOUT) == [str(number) for number in range(50)]
        wait_for_idle(pool)
        assert pool.stats().rejected == 0


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
        # Later ones may be the caller's, too, if it finds the worker busy.
        assert threads[1] != threading.get_ident()


def test_a_full_queue_that_rejects_ends_the_map() -> None:
    ran: list[int] = []
    with AdaptiveExecutor(3, max_queue=1, when_full="reject") as pool, Gate() as gate:
        held = [pool.submit(gate) for _ in range(3)]
        gate.await_begun(3)
        with pytest.raises(QueueFull):
            pool.map(ran.append, range(100))
        assert pool.stats().queued == 0
        gate.open()
        concurrent.futures.wait(held, TIMEOUT)
        wait_for_idle(pool)
        assert ran == []


variable: ContextVar[str] = ContextVar("variable", default="unset")


@kinds
@pytest.mark.parametrize("buffersize", [None, 30])
@pytest.mark.parametrize("wide", [False, True])
@either
def test_every_item_has_a_copy_of_the_callers_context_to_itself(
    kind: str, buffersize: int | None, wide: bool, method: str
) -> None:
    def work(*numbers: int) -> str:
        seen = variable.get()
        variable.set(f"{seen}, and {numbers}")
        return seen

    token = variable.set("mine")
    try:
        with place(kind, propagate_context=True) as executor:
            columns = [range(200)] * (1 + wide)
            assert set(getattr(executor, method)(work, *columns, buffersize=buffersize)) == {"mine"}
    finally:
        variable.reset(token)


@kinds
def test_results_come_as_they_are_there_and_errors_end_nothing(kind: str) -> None:
    gates = [Gate() for _ in range(4)]

    def work(number: int) -> int:
        gates[number]()
        return 1 // (number - 1)

    with place(kind, 4) as executor:
        results = executor.map_unordered(work, range(4))
        for number, result in ((2, 1), (0, -1), (1, None), (3, 0)):
            gates[number].open()
            if result is None:
                with pytest.raises(ZeroDivisionError):
                    next(results)
            else:
                assert next(results) == result
        assert list(results) == []


# How maps end.


@pytest.mark.parametrize("kind", ["pool", "other submit"])
@either
@pytest.mark.parametrize("buffersize", [None, 2])
@pytest.mark.parametrize(
    "ending", ["closed", "timed out", pytest.param("forgotten", marks=pytest.mark.counts_references)]
)
def test_a_map_that_ends_early_runs_nothing_more(kind: str, method: str, buffersize: int | None, ending: str) -> None:
    last = 0 if ending == "timed out" else FAR if buffersize is None else 1
    ran: list[int] = []
    with place(kind, 1) as pool, Gate() as gate:

        def work(number: int) -> int:
            ran.append(number)
            if number == last:
                gate()
            return number

        options = {"timeout": 0.001 if ending == "timed out" else None, "buffersize": buffersize}
        results = getattr(pool, method)(work, range(2 * FAR), **options)
        assert ending == "timed out" or next(results) == 0
        gate.await_begun()
        if ending == "closed":
            results.close()
            results.close()
        elif ending == "timed out":
            with pytest.raises(TimeoutError, match=r"a result of .*work was not there in time"):
                list(results)
        assert ending == "forgotten" or list(results) == []
        del results
        assert pool.stats().queued == 0
        gate.open()
        wait_for_idle(pool)
    assert ran == list(range(last + 1))


def test_a_map_that_was_never_read_does_not_end_early() -> None:
    ran: list[int] = []
    with AdaptiveExecutor(1) as pool:
        pool.map(ran.append, range(100))
        wait_for_idle(pool)
        assert ran == list(range(100))


@pytest.mark.parametrize(
    ("where", "method", "max_queue"),
    [
        *itertools.product(["pool"], ["map", "map_unordered"], [None, 100]),
        ("lane", "map", 100),
        ("pool of a lane", "map", 100),
    ],
)
def test_shutdown_that_cancels_cancels_the_rest_whoever_waits_for_it_meanwhile(
    where: str, method: str, max_queue: int | None
) -> None:
    ran: list[int] = []

    def work(number: int) -> int:
        ran.append(number)
        return int(gate(number))

    with AdaptiveExecutor(1, max_queue=max_queue) as pool, Gate() as gate:
        lane = pool.lane("lane", limit=1)
        results = getattr(pool if where == "pool" else lane, method)(work, range(20))
        gate.await_begun()
        executor = lane if where == "lane" else pool
        executor.shutdown(wait=False, cancel_futures=True)
        closer = Background(executor.shutdown)
        closer.waits_for(pool)
        gate.open()
        closer.join()
        assert ran == [0]
        assert next(results) == 0
        with pytest.raises(concurrent.futures.CancelledError):
            next(results)


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
        # Longer than locks can wait.
        assert list(pool.map(str, range(3), timeout=1e30)) == ["0", "1", "2"]


@pytest.mark.counts_references
@pytest.mark.parametrize("buffersize", [None, 3])
@pytest.mark.parametrize("kind", ["pool", "other submit"])
def test_items_and_results_are_let_go_as_they_are_handed_out(kind: str, buffersize: int | None) -> None:
    """Even where a claim brought several at once."""
    with no_collector(), place(kind, 1) as pool:
        things = [Thing() for _ in range(800)]
        references = [weakref.ref(thing) for thing in things]
        items = (things.pop(0) for _ in range(800))
        results = pool.map(lambda thing: thing, items, buffersize=buffersize)
        wait_for_idle(pool)
        for number in range(60):
            next(results)
            gone(references[number], pool=pool)
        deque(itertools.islice(results, 400), 0)
        gone(*references[:400], pool=pool)
        assert references[799]() is not None
        results.close()
        things.clear()
        gone(*references, pool=pool)


@pytest.mark.counts_references
@either
@pytest.mark.parametrize("fails", ["nothing", "a call", "the input"])
def test_a_map_leaves_no_garbage_and_does_not_hold_an_error_that_it_has_raised(method: str, fails: str) -> None:
    class Marked(Boom):
        pass

    def work(thing: Thing) -> Thing:
        if fails == "a call":
            raise Marked
        return thing

    def source(things: list[Thing]) -> Iterator[Thing]:
        yield from things
        if fails == "the input":
            raise Marked

    def raised(results: Iterator[Any]) -> list[weakref.ref[Any]]:
        try:
            deque(results, 0)
        except Marked as error:
            return [weakref.ref(error)]
        return []

    with no_collector(), AdaptiveExecutor(2) as pool:
        things = [Thing() for _ in range(20)]
        references = [weakref.ref(thing) for thing in things]
        results = getattr(pool, method)(work, source(things), buffersize=15 if fails == "the input" else None)
        del things
        count = 0
        while error := raised(results):
            gone(*error, pool=pool)
            count += 1
        assert count == {"nothing": 0, "the input": 1, "a call": 1 if method == "map" and ENDS else 20}[fails]
        del results
        wait_for_idle(pool)
        gone(*references, pool=pool)


@pytest.mark.counts_references
def test_an_error_that_comes_after_the_consumer_has_left_is_no_garbage() -> None:
    errors: list[weakref.ref[Any]] = []

    def work(number: int) -> None:
        if number == 1:
            gate()
        raise_watched(errors)

    with no_collector(), AdaptiveExecutor(2) as pool, Gate() as gate:
        results = pool.map(work, range(2))
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
    cycles = []
    with AdaptiveExecutor(2) as pool:

        def forget() -> None:
            thing: Any = Thing()
            thing.cycle = thing, pool.map(lambda number: [number], range(500))
            assert next(thing.cycle[1]) == [0]
            cycles.append(weakref.ref(thing))

        threshold = gc.get_threshold()
        gc.set_threshold(1)
        try:
            for _ in range(20):
                forget()
            wait_for_idle(pool)
        finally:
            gc.set_threshold(*threshold)
        gc.collect()
        gone(*cycles, pool=pool)


def read_to_the_end(results: Iterator[Any], error: str) -> list[Any]:
    """Return the results until the error, which is the end."""
    got = []
    with pytest.raises(RuntimeError, match=error):
        while True:
            got.append(next(results))
    assert list(results) == []
    return got


@pytest.mark.parametrize("kind", ["pool", "lane"])
@either
@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("state", ["unread", "begun", "running"])
def test_what_was_read_before_a_shutdown_is_handed_out(
    kind: str, method: str, more: bool, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 4
    waits = call_of(monkeypatch, map_run, "wait_counted")
    with place(kind) as executor, Gate() as gate:
        source = Source(count + more)
        results = getattr(executor, method)(gate, source, buffersize=count)
        gate.await_begun()
        got = []
        if state == "running":
            executor.shutdown(wait=False)
            waiting = Background(lambda: next(results))
            assert waits.wait(TIMEOUT)
            assert source.taken == count, "nothing is read for tasks that nobody takes"
            gate.open()
            got.append(waiting.join())
        else:
            gate.open()
            got += [next(results)] if state == "begun" else []
            executor.shutdown()
        if more:
            got += read_to_the_end(results, "cannot schedule new futures after shutdown")
        else:
            got += results
    assert sorted(got) == list(range(count))
    assert source.taken == count + more


@either
def test_what_was_read_before_a_task_was_refused_is_handed_out(method: str) -> None:
    ran: list[int] = []
    with AdaptiveExecutor(2, max_queue=4, when_full="reject") as pool, Gate() as gate:
        results = getattr(pool, method)(ran.append, Source(), buffersize=4)
        wait_for_idle(pool)
        for _ in range(2):
            gate.hold(pool)
        for _ in range(4):
            pool.submit(int)
        assert read_to_the_end(results, "max_queue=4 tasks are waiting") == [None] * 4
        assert sorted(ran) == [0, 1, 2, 3]


@either
def test_a_shutdown_is_heard_of_where_the_caller_has_run_the_last_task(method: str) -> None:
    # No batch is quick, and the next one larger: it might leave nothing to the tasks in the queue.
    with seams.setting(quick=1e-12), Gate() as gate:
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
