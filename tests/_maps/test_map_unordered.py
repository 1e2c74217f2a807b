"""AdaptiveExecutor.map_unordered: results as they come, errors at their turn."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.common import TIMEOUT, Background, Boom, Gate, gone, no_collector, wait_for_idle

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
