"""`amap`: results over plain and async iterables, in order or as they come, in bounds, and errors at their place."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from support.amap_sources import Source, Waiting, both_kinds, both_orders, double
from support.common import TIMEOUT, Boom, Gate
from support.loops import on_every_loop, turns, until

from ebbpool import AdaptiveExecutor, QueueFull


class Bare:
    """An iterator of either kind that is not itself iterable."""

    def __init__(self) -> None:
        self._items = iter(range(5))

    def __next__(self) -> int:
        return next(self._items)

    async def __anext__(self) -> int:
        for item in self._items:
            return item
        raise StopAsyncIteration


class PlainOverBare:
    def __iter__(self) -> Any:
        return Bare()


class AsyncOverBare:
    def __aiter__(self) -> Any:
        return Bare()


class ByIndex:
    def __getitem__(self, index: int) -> int:
        return range(5)[index]


class OfBothKinds:
    def __iter__(self) -> Iterator[int]:
        raise AssertionError("read as a plain iterable")

    def __aiter__(self) -> Any:
        return Bare()


@on_every_loop
@both_orders
@pytest.mark.parametrize(
    "items",
    [
        lambda: range(5),
        lambda: list(range(5)),
        lambda: iter(range(5)),
        lambda: Source("plain", range(5)).open(),
        lambda: Source("async", range(5)).open(),
        PlainOverBare,
        AsyncOverBare,
        ByIndex,
        OfBothKinds,
    ],
    ids=["range", "list", "iterator", "generator", "async-generator", "bare", "async-bare", "by-index", "both"],
)
@pytest.mark.parametrize("buffersize", [1, 3, None])
async def test_results_over_every_kind_of_iterable(
    items: Callable[[], Any], ordered: bool, buffersize: int | None
) -> None:
    async with AdaptiveExecutor(3) as pool:
        results = [value async for value in pool.amap(double, items(), ordered=ordered, buffersize=buffersize)]
    assert sorted(results) == [0, 2, 4, 6, 8]
    if ordered or buffersize == 1:
        assert results == sorted(results)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((None, []), {}, TypeError, "fn must be callable, not None"),
        ((double, 17), {}, TypeError, "items must be an iterable or an async iterable, not 17"),
        ((double, [], 3), {}, TypeError, "positional"),
        ((double, []), {"buffersize": 0}, ValueError, "buffersize must be None or > 0, not 0"),
        ((double, []), {"buffersize": -1}, ValueError, "buffersize must be None or > 0, not -1"),
        ((double, []), {"buffersize": 1.5}, TypeError, "buffersize must be an integer or None, not 1.5"),
        ((double, []), {"buffersize": True}, TypeError, "buffersize must be an integer or None, not True"),
        ((double, []), {"buffersize": "3"}, TypeError, "buffersize must be an integer or None, not '3'"),
    ],
)
def test_bad_input_is_refused_by_the_call_itself(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        AdaptiveExecutor(1).amap(*arguments, **options)


@on_every_loop
@both_kinds
async def test_nothing_is_read_before_a_result_is_asked_for(kind: str) -> None:
    source = Source(kind, range(3))
    pool = AdaptiveExecutor(1)
    results = pool.amap(double, source.open())
    await turns()
    assert source.read == 0
    await results.aclose()
    assert source.read == pool.stats().submitted == 0


@on_every_loop
@both_orders
async def test_a_result_that_is_there_does_not_wait_for_a_slow_source(ordered: bool) -> None:
    source = Waiting()
    async with AdaptiveExecutor(2) as pool:
        results = pool.amap(double, source.open(), ordered=ordered, buffersize=4)
        for number in range(3):
            source.items.put_nowait(number)
            assert await anext(results) == 2 * number
        source.items.put_nowait(3)
        source.items.put_nowait(4)
        assert sorted([await anext(results), await anext(results)]) == [6, 8]
        await until(lambda: source.waits)
        await results.aclose()
        assert source.closed


@on_every_loop
@both_kinds
async def test_results_as_they_come_overtake_a_slow_one(kind: str) -> None:
    async with AdaptiveExecutor(2) as pool:
        with Gate() as slow:
            calls = Source(kind, [slow, int, int, int, int]).open()
            results = pool.amap(lambda call: call(), calls, ordered=False, buffersize=2)
            assert [await anext(results) for _ in range(4)] == [0, 0, 0, 0]
            slow.open()
            assert [value async for value in results] == [None]


def fail_at_three(item: int) -> int:
    if item == 3:
        raise Boom(item)
    return item


@on_every_loop
@both_kinds
@both_orders
@pytest.mark.parametrize("error", [StopIteration(1), StopAsyncIteration(1)], ids=["stop", "async-stop"])
async def test_a_call_cannot_end_the_iteration(kind: str, ordered: bool, error: Exception) -> None:
    def fail(item: int) -> None:
        raise error

    async with AdaptiveExecutor(1) as pool:
        # Python 3.11 has TypeError here.
        with pytest.raises((RuntimeError, TypeError)):
            await anext(pool.amap(fail, Source(kind, range(2)).open(), ordered=ordered))


@on_every_loop
@both_kinds
@both_orders
async def test_a_refused_call_is_an_error_after_all_results(kind: str, ordered: bool) -> None:
    source = Source(kind, range(10))
    async with AdaptiveExecutor(1, max_queue=2, when_full="reject") as pool:
        with Gate() as gate:
            running = pool.run(gate)
            gate.await_begun()
            results = pool.amap(double, source.open(), ordered=ordered, buffersize=5)
            first = asyncio.ensure_future(anext(results))
            await until(lambda: pool.stats().rejected)
            gate.open()
            assert sorted([await first, await anext(results)]) == [0, 2]
            with pytest.raises(QueueFull, match="max_queue=2"):
                await anext(results)
            assert source.closed is (kind == "async")
            assert source.read == 3
            await running


@on_every_loop
@both_kinds
@both_orders
async def test_a_pool_that_is_shut_down(kind: str, ordered: bool) -> None:
    source = Source(kind, range(10))
    pool = AdaptiveExecutor(1)
    results = pool.amap(double, source.open(), ordered=ordered, buffersize=2)
    assert await anext(results) == 0
    await turns()
    pool.shutdown()
    values = []
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        async for value in results:
            values.append(value)
    assert sorted(values) == [2 * number for number in range(1, len(values) + 1)]
    assert source.closed is (kind == "async")


@on_every_loop
@both_kinds
@both_orders
async def test_calls_that_a_shutdown_cancels(kind: str, ordered: bool) -> None:
    with Gate() as gate:
        pool = AdaptiveExecutor(1)
        pool.submit(gate)
        gate.await_begun()
        results = pool.amap(double, Source(kind, range(10)).open(), ordered=ordered, buffersize=2)
        first = asyncio.ensure_future(anext(results))
        await until(lambda: pool.stats().queued == 2)
        pool.shutdown(wait=False, cancel_futures=True)
        with pytest.raises(asyncio.CancelledError):
            await first
    pool.shutdown()


@on_every_loop
async def test_timeouts_and_groups_of_a_source_stay_in_one_task() -> None:
    async def source() -> AsyncIterator[int]:
        async with asyncio.timeout(TIMEOUT), asyncio.TaskGroup() as group:
            for number in range(5):
                yield await group.create_task(asyncio.sleep(0, number))

    async with AdaptiveExecutor(1) as pool:
        assert [value async for value in pool.amap(double, source(), buffersize=2)] == [0, 2, 4, 6, 8]


@on_every_loop
@both_kinds
@both_orders
async def test_context_variables_are_carried_in(kind: str, ordered: bool) -> None:
    consumer = contextvars.ContextVar("consumer", default="unset")
    reader = contextvars.ContextVar("reader", default="unset")

    async def numbers() -> AsyncIterator[int]:
        for number in range(3):
            reader.set(f"item {number}")
            yield number

    def look(item: int) -> tuple[str, str]:
        seen = consumer.get(), reader.get()
        consumer.set("leaked")
        return seen

    consumer.set("mine")
    async with AdaptiveExecutor(1) as pool:
        items = range(3) if kind == "plain" else numbers()
        seen = [value async for value in pool.amap(look, items, ordered=ordered)]
    if kind == "plain":
        assert seen == [("mine", "unset")] * 3
    else:
        assert seen == [("mine", f"item {number}") for number in range(3)]
    assert (consumer.get(), reader.get()) == ("mine", "unset")
