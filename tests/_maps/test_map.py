"""AdaptiveExecutor.map: order, laziness, time-outs, and what happens when it stops half-way."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from support.common import TIMEOUT, Background, Boom, Gate, Thing, gone, no_collector, wait_for_idle
from support.maps import Source

from ebbpool import AdaptiveExecutor
from ebbpool._maps import maps


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


@pytest.mark.parametrize("buffersize", [None, 2])
def test_the_shortest_iterable_decides(buffersize: int | None) -> None:
    with AdaptiveExecutor(2) as pool:
        results = pool.map(lambda *items: items, range(3), "abcd", itertools.count(10), buffersize=buffersize)
        assert list(results) == [(0, "a", 10), (1, "b", 11), (2, "c", 12)]


def test_without_a_buffer_the_work_begins_before_anybody_asks() -> None:
    with AdaptiveExecutor(3) as pool, Gate() as gate:
        source = Source(3)
        results = pool.map(gate, source)
        assert source.taken == 3
        gate.await_begun(3)
        gate.open()
        assert list(results) == [0, 1, 2]


either = pytest.mark.parametrize("method", ["map", "map_unordered"])


@pytest.fixture(params=[True, False], ids=["until 3.15", "since 3.16"])
def ends(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the error of a call ends the iterator, as the standard library has it in this or that Python."""
    monkeypatch.setattr(maps, "ENDS", request.param)
    return bool(request.param)


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


@pytest.mark.parametrize("buffersize", [None, 3])
def test_an_error_cancels_what_has_not_begun_if_it_ends_the_iterator(buffersize: int | None, ends: bool) -> None:
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
        assert (pool.stats().queued == 0) is ends
        gate.open()
        wait_for_idle(pool)
        assert begun == ([0, 1] if ends else [0, 1, 2])
        assert pool.stats().cancelled == int(ends)


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


@pytest.mark.parametrize("buffersize", [None, 2])
def test_an_input_that_fails_passes_its_error_on(buffersize: int | None) -> None:
    def source() -> Iterator[int]:
        yield 1
        raise Boom("input")

    with AdaptiveExecutor(2) as pool:
        with pytest.raises(Boom, match="input"):
            list(pool.map(lambda number: number, source(), buffersize=buffersize))
        assert pool.submit(int).result(TIMEOUT) == 0


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


@pytest.mark.parametrize("kind", ["pool", "lane"])
@either
@pytest.mark.parametrize(("chunksize", "count"), [(None, 4), (1, 4), (2, 4), (3, 3)])
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("more", [False, True])
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
@either
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


@either
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


def test_a_runtime_error_of_the_input_is_none_of_submit() -> None:
    def source() -> Iterator[int]:
        yield from range(4)
        raise RuntimeError("input")

    with AdaptiveExecutor(2) as pool, pytest.raises(RuntimeError, match="input"):
        list(pool.map(str, source(), buffersize=4))


@either
@pytest.mark.parametrize("timeout", [0, 0.001])
@pytest.mark.parametrize("buffersize", [None, 2])
def test_a_map_that_times_out_cancels_the_rest(method: str, buffersize: int | None, timeout: float, ends: bool) -> None:
    with AdaptiveExecutor(1) as pool, Gate() as gate:
        results = getattr(pool, method)(gate, range(2), timeout=timeout, buffersize=buffersize)
        gate.await_begun()
        with pytest.raises(TimeoutError):
            next(results)
        assert list(results) == []
        assert pool.stats().queued == 0
        gate.open()
        wait_for_idle(pool)
        assert gate.nobody_begins()


@either
@pytest.mark.parametrize("buffersize", [None, 2])
@pytest.mark.parametrize("chunksize", [None, 1])
def test_map_after_shutdown(method: str, buffersize: int | None, chunksize: int | None) -> None:
    pool = AdaptiveExecutor(2)
    pool.shutdown()
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        getattr(pool, method)(int, iter("12"), buffersize=buffersize, chunksize=chunksize)


@either
@pytest.mark.parametrize("name", ["buffersize", "chunksize"])
@pytest.mark.parametrize(
    ("size", "error", "text"),
    [
        (0, ValueError, "None or > 0, not 0"),
        (-1, ValueError, "None or > 0, not -1"),
        (1.5, TypeError, "an integer or None, not 1.5"),
        ("2", TypeError, "an integer or None, not '2'"),
        (True, TypeError, "an integer or None, not True"),
    ],
)
def test_a_bad_call_takes_nothing_from_the_input(
    method: str, name: str, size: Any, error: type[Exception], text: str
) -> None:
    with AdaptiveExecutor(2) as pool:
        call, source = getattr(pool, method), Source(3)
        with pytest.raises(error, match=f"{name} must be {text}"):
            call(int, source, **{name: size})
        with pytest.raises(TypeError, match=r"fn.*17"):
            call(17, source)
        with pytest.raises(TypeError, match="not iterable"):
            call(int, 17)
        assert (source.taken, pool.stats().submitted) == (0, 0)
        assert sorted(call(int, source)) == [0, 1, 2]
        assert list(call(int)) == []


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
