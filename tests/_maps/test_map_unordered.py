"""AdaptiveExecutor.map_unordered: results as they come, errors at their turn."""

from __future__ import annotations

import concurrent.futures
import itertools
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.common import TIMEOUT, Background, Boom, Gate, Thing, gone, no_collector, wait_for_idle
from support.maps import Source

from ebbpool import AdaptiveExecutor


def everything(results: Iterator[Any]) -> Counter[Any]:
    """All results and errors, for it goes on after an error."""
    out: Counter[Any] = Counter()
    while True:
        try:
            out[next(results)] += 1
        except StopIteration:
            return out
        except Boom as error:
            out[str(error)] += 1


@settings(max_examples=60)
@given(
    count=st.integers(0, 300),
    chunksize=st.none() | st.integers(1, 50),
    buffersize=st.none() | st.integers(1, 60),
    failing=st.sets(st.integers(0, 299), max_size=20),
    lazy=st.booleans(),
)
def test_every_item_has_its_result_or_its_error_once(
    count: int, chunksize: int | None, buffersize: int | None, failing: set[int], lazy: bool
) -> None:
    def work(number: int) -> int:
        if number in failing:
            raise Boom(f"error {number}")
        return number

    with AdaptiveExecutor(3) as pool:
        items: Any = iter(range(count)) if lazy else range(count)
        results = pool.map_unordered(work, items, chunksize=chunksize, buffersize=buffersize)
        expected = Counter(f"error {number}" if number in failing else number for number in range(count))
        assert everything(results) == expected
        assert list(results) == []


def test_results_come_as_they_are_there() -> None:
    gates = [Gate() for _ in range(4)]
    with AdaptiveExecutor(4) as pool:
        results = pool.map_unordered(lambda number: gates[number](number), range(4))
        for number in (2, 0, 3, 1):
            gates[number].await_begun()
            gates[number].open()
            assert next(results) == number
        with pytest.raises(StopIteration):
            next(results)


def test_an_item_that_blocks_holds_up_no_other() -> None:
    count = 3_000
    with AdaptiveExecutor(2) as pool, Gate() as gate:
        results = pool.map_unordered(lambda number: gate(number) if number == 1_500 else number, range(count))
        others = [next(results) for _ in range(count - 1)]
        assert sorted(others) == [number for number in range(count) if number != 1_500]
        waiting = Background(lambda: next(results))
        assert waiting.still_waits()
        gate.open()
        assert waiting.join() == 1_500
        assert list(results) == []


def test_an_item_that_blocks_the_only_worker_holds_back_nothing_that_was_done() -> None:
    """The results before it are there, though its claim has not ended; and the consumer alone can end it."""
    ready = threading.Event()

    def work(number: int) -> int:
        if number == 2_000:
            assert ready.wait(TIMEOUT)
        return number

    with AdaptiveExecutor(1) as pool:
        seen = set()
        for result in pool.map_unordered(work, range(2_100)):
            seen.add(result)
            if len(seen) == 2_000:
                ready.set()
        assert seen == set(range(2_100))


@pytest.mark.parametrize("buffersize", [None, 3])
def test_it_goes_on_after_an_error(buffersize: int | None) -> None:
    with AdaptiveExecutor(1) as pool:
        results = pool.map_unordered(lambda number: 12 // number, [3, 0, 4], chunksize=1, buffersize=buffersize)
        assert next(results) == 4
        with pytest.raises(ZeroDivisionError):
            next(results)
        assert next(results) == 3
        with pytest.raises(StopIteration):
            next(results)


@pytest.mark.counts_references
def test_a_loop_that_an_error_ends_cancels_the_rest() -> None:
    ran: list[int] = []

    def work(number: int) -> int:
        ran.append(number)
        if number == 0:
            raise Boom
        gate()
        return number

    with AdaptiveExecutor(1) as pool, Gate() as gate:

        def consume() -> None:
            for _ in pool.map_unordered(work, range(50)):
                pass

        with pytest.raises(Boom) as caught:
            consume()
        del caught
        gate.open()
        wait_for_idle(pool)
    assert ran in ([0], [0, 1])


def test_closing_keeps_what_has_not_begun_from_running() -> None:
    ran: list[int] = []
    with AdaptiveExecutor(1) as pool, Gate() as gate:

        def work(number: int) -> int:
            ran.append(number)
            return int(gate(number)) if number else 0

        results = pool.map_unordered(work, range(50))
        assert next(results) == 0
        gate.await_begun()
        results.close()  # type: ignore[attr-defined]
        assert pool._work_queue.qsize() == 0
        assert list(results) == []
        gate.open()
        wait_for_idle(pool)
    assert ran == [0, 1]


@pytest.mark.parametrize("timeout", [0, 0.001])
def test_a_timeout_ends_it(timeout: float) -> None:
    with AdaptiveExecutor(1) as pool, Gate() as gate:
        results = pool.map_unordered(gate, range(2), timeout=timeout)
        gate.await_begun()
        with pytest.raises(TimeoutError):
            next(results)
        assert list(results) == []
        gate.open()
        wait_for_idle(pool)
        assert pool.stats().cancelled == 1


@pytest.mark.parametrize("buffersize", [1, 2, 7])
@pytest.mark.parametrize("chunksize", [None, 1, 3])
def test_a_buffer_is_never_overshot(buffersize: int, chunksize: int | None) -> None:
    source = Source()
    with AdaptiveExecutor(3) as pool:
        results = pool.map_unordered(abs, source, buffersize=buffersize, chunksize=chunksize)
        assert source.taken <= buffersize
        seen = set()
        for handed, result in enumerate(itertools.islice(results, 500)):
            seen.add(result)
            assert source.taken <= handed + 1 + buffersize
        assert len(seen) == 500
        assert max(seen) < 500 + buffersize
        results.close()  # type: ignore[attr-defined]


def test_inside_a_worker() -> None:
    with AdaptiveExecutor(1) as pool:
        outer = pool.submit(lambda: sorted(pool.map_unordered(pow, range(50), [2] * 50)))
        assert outer.result(TIMEOUT) == [number * number for number in range(50)]
        wait_for_idle(pool)
        assert pool.stats().blocked == 0


def test_shutdown_that_cancels_cancels_the_rest() -> None:
    with Gate() as gate:
        pool = AdaptiveExecutor(1)
        results = pool.map_unordered(gate, range(20))
        gate.await_begun()
        pool.shutdown(wait=False, cancel_futures=True)
        gate.open()
        assert next(results) == 0
        with pytest.raises(concurrent.futures.CancelledError):
            next(results)
        pool.shutdown()


def test_after_shutdown() -> None:
    pool = AdaptiveExecutor(2)
    pool.shutdown()
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        pool.map_unordered(int, "12")


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"chunksize": 0}, ValueError, r"chunksize must be None or > 0, not 0"),
        ({"chunksize": 1.5}, TypeError, r"chunksize must be an integer or None, not 1\.5"),
        ({"buffersize": 0}, ValueError, r"buffersize must be None or > 0, not 0"),
        ({"buffersize": "2"}, TypeError, r"buffersize must be an integer or None, not '2'"),
    ],
)
def test_bad_sizes(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with AdaptiveExecutor(2) as pool:
        with pytest.raises(error, match=text):
            pool.map_unordered(int, "12", **arguments)
        with pytest.raises(TypeError, match=r"fn.*17"):
            pool.map_unordered(17, "12")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="not iterable"):
            pool.map_unordered(int, 17)  # type: ignore[arg-type]
        assert list(pool.map_unordered(int)) == []


def test_errors_and_results_are_let_go() -> None:
    class Marked(Exception):
        pass

    references: list[weakref.ref[Any]] = []

    def work(number: int) -> Thing:
        if number % 3 == 0:
            error = Marked()
            references.append(weakref.ref(error))
            try:
                raise error
            finally:
                del error
        result = Thing()
        references.append(weakref.ref(result))
        return result

    def take(results: Iterator[Any]) -> None:
        try:
            next(results)
        except Marked:
            pass

    with no_collector(), AdaptiveExecutor(1) as pool:
        results = pool.map_unordered(work, range(30))
        for _ in range(30):
            take(results)
        del results
        wait_for_idle(pool)
        gone(*references, pool=pool)


def test_an_error_that_was_raised_is_not_held() -> None:
    class Marked(Exception):
        pass

    def work(number: int) -> None:
        raise Marked

    def reference(results: Iterator[Any]) -> weakref.ref[Any]:
        try:
            next(results)
        except Marked as error:
            return weakref.ref(error)
        raise AssertionError("no error")

    with no_collector(), AdaptiveExecutor(1) as pool:
        results = pool.map_unordered(work, range(5))
        for _ in range(5):
            gone(reference(results), pool=pool)
        assert list(results) == []
