"""AdaptiveExecutor.map: order, laziness, time-outs, and what happens when it stops half-way."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from support import TIMEOUT, Background, Boom, Gate, Thing, gone, no_collector, wait_for_idle

from ebbpool import AdaptiveExecutor


class Source:
    """An iterator over the natural numbers that counts what was taken from it."""

    def __init__(self, stop: int | None = None) -> None:
        self.taken = 0
        self.stop = stop

    def __iter__(self) -> Source:
        return self

    def __next__(self) -> int:
        if self.taken == self.stop:
            raise StopIteration
        self.taken += 1
        return self.taken - 1


def test_results_come_in_the_order_of_the_items() -> None:
    """The first item finishes last."""
    last_done = threading.Event()

    def work(number: int) -> int:
        if number == 0:
            assert last_done.wait(TIMEOUT)
        if number == 3:
            last_done.set()
        return number * number

    with AdaptiveExecutor(4) as pool:
        assert list(pool.map(work, range(4), timeout=TIMEOUT)) == [0, 1, 4, 9]


@pytest.mark.parametrize("chunksize", [None, 1, 3, 100])
@pytest.mark.parametrize("buffersize", [None, 1, 4, 1000])
def test_many_items(chunksize: int | None, buffersize: int | None) -> None:
    with AdaptiveExecutor(4) as pool:
        results = pool.map(pow, range(300), itertools.repeat(2), chunksize=chunksize, buffersize=buffersize)
        assert list(results) == [number * number for number in range(300)]


@pytest.mark.parametrize("buffersize", [None, 2])
def test_the_shortest_iterable_decides(buffersize: int | None) -> None:
    with AdaptiveExecutor(2) as pool:
        results = pool.map(lambda *items: items, range(3), "abcd", itertools.count(10), buffersize=buffersize)
        assert list(results) == [(0, "a", 10), (1, "b", 11), (2, "c", 12)]


@pytest.mark.parametrize("buffersize", [None, 2])
def test_no_items(buffersize: int | None) -> None:
    with AdaptiveExecutor(2) as pool:
        assert list(pool.map(int, [], buffersize=buffersize)) == []


def test_map_returns_an_iterator() -> None:
    with AdaptiveExecutor(2) as pool:
        results = pool.map(int, "12")
        assert iter(results) is results
        assert next(results) == 1
        assert next(results) == 2
        with pytest.raises(StopIteration):
            next(results)


def test_without_a_buffer_the_work_begins_before_anybody_asks() -> None:
    with AdaptiveExecutor(3) as pool, Gate() as gate:
        source = Source(3)
        results = pool.map(gate, source)
        assert source.taken == 3
        gate.await_begun(3)
        gate.open()
        assert list(results) == [0, 1, 2]


@pytest.mark.parametrize("buffersize", [None, 4])
def test_an_error_comes_in_its_place(buffersize: int | None) -> None:
    def work(number: int) -> int:
        if number == 2:
            raise Boom("two")
        return number

    with AdaptiveExecutor(2) as pool:
        results = pool.map(work, range(4), buffersize=buffersize)
        assert (next(results), next(results)) == (0, 1)
        with pytest.raises(Boom, match="two"):
            next(results)
        with pytest.raises(StopIteration):
            next(results)


@pytest.mark.parametrize("buffersize", [None, 3])
def test_an_error_cancels_what_has_not_begun(buffersize: int | None) -> None:
    gate, begun = Gate(), []

    def work(number: int) -> None:
        begun.append(number)
        if number == 0:
            raise Boom
        gate()

    with AdaptiveExecutor(1) as pool, gate:
        results = pool.map(work, range(3), buffersize=buffersize)
        gate.await_begun()
        with pytest.raises(Boom):
            next(results)
        assert pool._work_queue.qsize() == 0
        gate.open()
        wait_for_idle(pool)
        assert begun == [0, 1]
        assert pool.stats().cancelled == 1


@pytest.mark.parametrize("buffersize", [None, 3])
def test_closing_the_iterator_cancels_what_has_not_begun(buffersize: int | None) -> None:
    with AdaptiveExecutor(1) as pool, Gate() as gate:
        results = pool.map(lambda number: number if number == 0 else gate(number), range(3), buffersize=buffersize)
        assert next(results) == 0
        gate.await_begun()
        results.close()  # type: ignore[attr-defined]
        assert pool._work_queue.qsize() == 0
        gate.open()
        wait_for_idle(pool)
        assert pool.submit(int).result(TIMEOUT) == 0


@pytest.mark.parametrize("timeout", [0, 0.001])
@pytest.mark.parametrize("buffersize", [None, 2])
def test_a_map_that_times_out_cancels_the_rest(buffersize: int | None, timeout: float) -> None:
    with AdaptiveExecutor(1) as pool, Gate() as gate:
        results = pool.map(gate, range(2), timeout=timeout, buffersize=buffersize)
        gate.await_begun()
        with pytest.raises(TimeoutError):
            next(results)
        assert pool._work_queue.qsize() == 0
        gate.open()
        wait_for_idle(pool)
        assert gate.nobody_begins()


def test_results_that_are_there_do_not_time_out() -> None:
    with AdaptiveExecutor(2) as pool:
        assert list(pool.map(int, "123", timeout=TIMEOUT)) == [1, 2, 3]


@pytest.mark.parametrize("buffersize", [1, 2, 5])
def test_a_buffer_takes_the_input_as_the_results_are_taken(buffersize: int) -> None:
    with AdaptiveExecutor(8) as pool:
        source = Source()
        results = pool.map(lambda number: number, source, buffersize=buffersize)
        assert source.taken <= buffersize
        for handed_out in range(50):
            assert next(results) == handed_out
            assert source.taken <= handed_out + 1 + buffersize
        results.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("buffersize", [1, 2, 5])
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
                assert waiting.still_waits()
                assert source.taken == begun
                gates[handed_out].open()
                assert waiting.join() == handed_out
        finally:
            for gate in gates:
                gate.open()
    assert source.taken == 12


def test_a_buffer_bounds_what_runs_at_once() -> None:
    with AdaptiveExecutor(8) as pool, Gate() as gate:
        results = pool.map(gate, itertools.count(), buffersize=3)
        waiting = Background(lambda: next(results))
        gate.await_begun(3)
        assert gate.nobody_begins()
        gate.open()
        assert waiting.join() == 0
        results.close()  # type: ignore[attr-defined]
    assert gate.peak == 3


@pytest.mark.parametrize("buffersize", [None, 2])
def test_an_input_that_fails_passes_its_error_on(buffersize: int | None) -> None:
    def source() -> Iterator[int]:
        yield 1
        raise Boom("input")

    with AdaptiveExecutor(2) as pool:
        with pytest.raises(Boom, match="input"):
            list(pool.map(lambda number: number, source(), buffersize=buffersize))
        assert pool.submit(int).result(TIMEOUT) == 0


def test_shutdown_in_the_middle_of_a_buffered_map() -> None:
    with AdaptiveExecutor(2) as pool:
        results = pool.map(lambda number: number, itertools.count(), buffersize=2)
        assert next(results) == 0
        pool.shutdown()
        with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
            list(results)


def test_map_after_shutdown() -> None:
    pool = AdaptiveExecutor(2)
    pool.shutdown()
    for buffersize in (None, 2):
        with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
            list(pool.map(int, "12", buffersize=buffersize))


@pytest.mark.parametrize(
    ("buffersize", "error"),
    [(0, ValueError), (-1, ValueError), (1.5, TypeError), ("2", TypeError), (True, TypeError)],
)
def test_a_bad_buffersize_takes_nothing_from_the_input(buffersize: Any, error: type[Exception]) -> None:
    with AdaptiveExecutor(2) as pool:
        source = Source(3)
        with pytest.raises(error, match=rf"buffersize.*{buffersize}"):
            pool.map(int, source, buffersize=buffersize)
        assert source.taken == 0
        assert list(pool.map(int, source)) == [0, 1, 2]


@pytest.mark.parametrize("buffersize", [None, 2])
def test_a_function_that_is_none_takes_nothing_from_the_input(buffersize: int | None) -> None:
    with AdaptiveExecutor(2) as pool:
        source = Source(3)
        with pytest.raises(TypeError, match=r"fn.*17"):
            pool.map(17, source, buffersize=buffersize)  # type: ignore[arg-type]
        assert source.taken == 0
        assert pool.stats().submitted == 0


@pytest.mark.parametrize("buffersize", [None, 3])
def test_a_map_lets_go_of_the_results_it_handed_out(buffersize: int | None) -> None:
    with no_collector(), AdaptiveExecutor(2) as pool:
        things = {number: Thing() for number in range(8)}
        references = [weakref.ref(thing) for thing in things.values()]
        results = pool.map(things.pop, range(8), buffersize=buffersize)
        for reference in references:
            next(results)
            gone(reference)


@pytest.mark.parametrize("buffersize", [None, 3])
def test_a_map_lets_go_of_the_items_it_is_done_with(buffersize: int | None) -> None:
    with no_collector(), AdaptiveExecutor(2) as pool:
        things = [Thing() for _ in range(20)]
        references = [weakref.ref(thing) for thing in things]
        results = pool.map(lambda thing: None, (things.pop(0) for _ in range(20)), buffersize=buffersize)
        for reference in references[:10]:
            next(results)
            gone(reference)
        results.close()  # type: ignore[attr-defined]


def test_map_inside_a_worker() -> None:
    with AdaptiveExecutor(1) as pool:
        outer = pool.submit(lambda: list(pool.map(pow, range(4), [2] * 4)))
        assert outer.result(TIMEOUT) == [0, 1, 4, 9]
