"""`amap`: results in order or as they come, over both kinds of iterables, and a clean end wherever it is left."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies
from support.common import TIMEOUT, Boom, Gate, Thing, gone, no_collector, wait_for_idle
from support.loops import Loops, on_every_loop, turns, until

from ebbpool import AdaptiveExecutor, QueueFull

both_orders = pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
both_kinds = pytest.mark.parametrize("kind", ["plain", "async"])


def double(item: int) -> int:
    return 2 * item


class Source:
    """A plain or async iterable of `items` that tells what has been read of it."""

    def __init__(self, kind: str, items: Any, fault: str | None = None) -> None:
        self.kind = kind
        self.items = items
        self.fault = fault
        self.read = 0
        self.closed = False

    def open(self) -> Any:
        return self._plain() if self.kind == "plain" else self._async()

    def _plain(self) -> Iterator[Any]:
        for item in self.items:
            self.read += 1
            yield item
        if self.fault is not None:
            raise Boom(self.fault)

    async def _async(self) -> AsyncIterator[Any]:
        task = id(asyncio.current_task())
        try:
            for item in self.items:
                await asyncio.sleep(0)
                self.read += 1
                yield item
            if self.fault is not None:
                raise Boom(self.fault)
        finally:
            await asyncio.sleep(0)
            assert id(asyncio.current_task()) == task
            self.closed = True


class Waiting:
    """An async iterable that hands on what is put into it, and waits for more."""

    def __init__(self) -> None:
        self.items: asyncio.Queue[Any] = asyncio.Queue()
        self.waits = False
        self.closed = False

    async def open(self) -> AsyncIterator[Any]:
        try:
            while True:
                self.waits = self.items.empty()
                yield await self.items.get()
        finally:
            self.closed = True


class Bare:
    """An async iterator that is not itself iterable."""

    def __init__(self) -> None:
        self._items = iter(range(5))

    async def __anext__(self) -> int:
        for item in self._items:
            return item
        raise StopAsyncIteration


class ByIndex:
    def __getitem__(self, index: int) -> int:
        return range(5)[index]


class OfBothKinds:
    def __iter__(self) -> Iterator[int]:
        raise AssertionError("read as a plain iterable")

    def __aiter__(self) -> Any:
        return Bare()


ITERABLES: list[Callable[[], Any]] = [
    lambda: range(5),
    lambda: list(range(5)),
    lambda: iter(range(5)),
    lambda: Source("plain", range(5)).open(),
    lambda: Source("async", range(5)).open(),
    ByIndex,
    OfBothKinds,
]


@on_every_loop
@both_orders
@pytest.mark.parametrize("buffersize", [1, 3, None])
async def test_results_over_every_kind_of_iterable(ordered: bool, buffersize: int | None) -> None:
    async with AdaptiveExecutor(3) as pool:
        for number, make in enumerate(ITERABLES):
            results = [value async for value in pool.amap(double, make(), ordered=ordered, buffersize=buffersize)]
            assert sorted(results) == [0, 2, 4, 6, 8], number
            assert results == sorted(results) or (not ordered and buffersize != 1), number


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
@pytest.mark.parametrize("way", ["rejected", "shut down", "cancelled"])
async def test_a_refused_call_is_an_error_after_all_results(kind: str, ordered: bool, way: str) -> None:
    """A pool that is full, or shut down, refuses the third call; one that cancels calls has nothing to hand out."""
    source = Source(kind, range(10))
    got: list[int] = []

    async def consume() -> None:
        size = 5 if way == "rejected" else 2
        async for value in pool.amap(double, source.open(), ordered=ordered, buffersize=size):
            got.append(value)

    with AdaptiveExecutor(1, max_queue=2, when_full="reject") as pool, Gate() as gate:
        gate.hold(pool)
        consumer = asyncio.ensure_future(consume())
        await until(lambda: pool.stats().rejected if way == "rejected" else pool.stats().queued == 2)
        if way != "rejected":
            pool.shutdown(wait=False, cancel_futures=way == "cancelled")
        gate.open()
        if way == "cancelled":
            with pytest.raises(asyncio.CancelledError):
                await consumer
        else:
            with pytest.raises(RuntimeError, match="max_queue=2" if way == "rejected" else "after shutdown") as caught:
                await consumer
            assert type(caught.value) is (QueueFull if way == "rejected" else RuntimeError)
            assert (sorted(got), source.read) == ([0, 2], 3)
        assert source.closed is (kind == "async")


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
    assert seen == [("mine", "unset" if kind == "plain" else f"item {number}") for number in range(3)]
    assert (consumer.get(), reader.get()) == ("mine", "unset")


class Held:
    """A pool of one worker whose gate is shut, and an `amap` over it with one call running and three queued."""

    def __init__(self, kind: str, ordered: bool, gate: Gate, fails: bool) -> None:
        self.source = Source(kind, range(10))
        self.ran: list[int] = []
        self.gate = gate
        self.fails = fails
        self.pool = AdaptiveExecutor(1)
        self.results = self.pool.amap(self._call, self.source.open(), ordered=ordered, buffersize=4)

    def _call(self, item: int) -> int:
        if item:
            self.gate()
        self.ran.append(item)
        if item and self.fails:
            raise Boom
        return item

    async def filled(self) -> None:
        await until(lambda: self.pool.stats().running == 1 and self.pool.stats().queued >= 2)
        self.gate.await_begun()

    async def check(self) -> None:
        """What was queued is off the queue, what ran is left to finish, and the source is closed."""
        assert self.pool.stats().queued == 0
        assert self.pool.stats().running == 1
        assert self.source.closed is (self.source.kind == "async")
        read = self.source.read
        self.gate.open()
        wait_for_idle(self.pool)
        # Whatever the call has raised has been delivered by then, and is no report of the loop's.
        await self.pool.run(int)
        assert self.ran == [0, 1]
        assert self.source.read == read
        assert (self.pool.stats().cancelled, self.pool.stats().failed) == (read - 2, self.fails)
        self.pool.shutdown()


WAYS = ("break", "break, and the call fails", "error", "cancelled", "cancelled twice")
# Every way with each kind and each order, but not with each pair of them.
PAIRWISE = [
    (kind, (kind == "plain") == number % 2, way) for number, way in enumerate(WAYS) for kind in ("plain", "async")
]


@on_every_loop
@pytest.mark.parametrize(("kind", "ordered", "way"), PAIRWISE)
async def test_left_in_the_middle(kind: str, ordered: bool, way: str) -> None:
    with Gate() as gate:
        held = Held(kind, ordered, gate, "fails" in way)
        seen = []

        async def consume() -> None:
            results, held.results = held.results, None  # type: ignore[assignment]
            async for value in results:
                seen.append(value)
                if "cancelled" not in way:
                    await held.filled()
                if way == "error":
                    raise Boom
                if "break" in way:
                    break

        if "cancelled" in way:
            consumer = asyncio.ensure_future(consume())
            await held.filled()
            await turns()
            for _ in range(1 + (way == "cancelled twice")):
                consumer.cancel()
                await asyncio.sleep(0)
            with pytest.raises(asyncio.CancelledError):
                await consumer
        else:
            with contextlib.suppress(Boom):
                await consume()
        assert seen == [0]
        await until(lambda: held.pool.stats().queued == 0)
        await until(lambda: held.source.closed is (kind == "async"))
        await held.check()


@on_every_loop
@both_orders
@pytest.mark.parametrize("way", ["goes on", "raises"])
async def test_a_source_that_does_not_end_as_it_is_cancelled(ordered: bool, way: str) -> None:
    async def source() -> AsyncIterator[int]:
        yield 0
        for number in range(1, 10):
            try:
                await asyncio.sleep(TIMEOUT)
            except asyncio.CancelledError:
                if way == "raises":
                    raise Boom("clean-up") from None
            yield number

    async with AdaptiveExecutor(1) as pool:
        results = pool.amap(double, source(), ordered=ordered)
        assert await anext(results) == 0
        await turns()
        with pytest.raises(Boom, match="clean-up") if way == "raises" else contextlib.nullcontext():
            await results.aclose()
        assert pool.stats().submitted == 1


@on_every_loop
@both_orders
async def test_a_second_cancellation_leaves_the_source_s_clean_up_alone(ordered: bool) -> None:
    go_on = asyncio.Event()
    steps: list[str] = []

    async def source() -> AsyncIterator[int]:
        try:
            await asyncio.sleep(TIMEOUT)
            yield 0
        finally:
            steps.append("begun")
            await go_on.wait()
            steps.append("ended")

    async with AdaptiveExecutor(1) as pool:
        waiting = asyncio.ensure_future(anext(pool.amap(double, source(), ordered=ordered)))
        await turns()
        waiting.cancel()
        await until(lambda: steps == ["begun"])
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert steps == ["begun"]
        go_on.set()
        await until(lambda: steps == ["begun", "ended"])


@on_every_loop
async def test_an_iterator_of_the_user_s_own_is_not_closed() -> None:
    class Stream(Bare):
        def __aiter__(self) -> Any:
            return self

        async def aclose(self) -> None:
            raise AssertionError("closed")

    async with AdaptiveExecutor(1) as pool:
        stream = Stream()
        results = pool.amap(double, stream, buffersize=2)
        assert await anext(results) == 0
        await results.aclose()
        assert await anext(stream) < 4


async def next_watched(results: AsyncIterator[Any]) -> weakref.ref[Any]:
    """Return a reference to the next result. A frame that went on could hold it: PyPy's compiled loops do."""
    return weakref.ref(await anext(results))


@pytest.mark.counts_references
@on_every_loop
async def test_an_iterable_that_was_read_is_not_kept() -> None:
    async with AdaptiveExecutor(1) as pool:
        thing = Thing()
        results = pool.amap(abs, map(thing.method, range(2)), buffersize=5)
        read = weakref.ref(thing)
        del thing
        assert await anext(results) == 1
        gone(read, pool=pool)
        await results.aclose()


@pytest.mark.counts_references
@on_every_loop
@both_kinds
@both_orders
async def test_nothing_is_kept_of_what_was_handed_out(kind: str, ordered: bool) -> None:
    async with AdaptiveExecutor(1) as pool:
        # A generator's frame would hold the last one.
        things: Any = itertools.starmap(Thing, [()] * 3)
        source: Any = things if kind == "plain" else Source(kind, things).open()
        results = pool.amap(lambda item: item, source, ordered=ordered, buffersize=1)
        with no_collector():
            for _ in range(3):
                thing = await next_watched(results)
                await turns()
                gone(thing, pool=pool)
        await results.aclose()


@pytest.mark.counts_references
@on_every_loop
@both_kinds
@both_orders
@pytest.mark.parametrize("who", ["call", "source"])
async def test_an_error_is_freed_without_the_collector(kind: str, ordered: bool, who: str) -> None:
    def call(thing: Thing) -> None:
        if who == "call":
            raise Boom

    async with AdaptiveExecutor(1) as pool:

        async def consume() -> weakref.ref[Any]:
            source = Source(kind, [Thing()], "the source")
            results = pool.amap(call, source.open(), ordered=ordered, buffersize=1)
            try:
                async for _ in results:
                    pass
            except Boom as error:
                return weakref.ref(error)
            raise AssertionError("no error")

        with no_collector():
            error = await consume()
            await turns()
            gone(error, pool=pool)


@hypothesis.settings(max_examples=40, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(
    kind=strategies.sampled_from(["plain", "async"]),
    ordered=strategies.booleans(),
    buffersize=strategies.integers(1, 6),
    workers=strategies.integers(1, 4),
    count=strategies.integers(0, 20),
    failing=strategies.none() | strategies.integers(0, 19),
    fault=strategies.sampled_from([None, "the source"]),
    leave_after=strategies.none() | strategies.integers(0, 20),
)
def test_whatever_happens_every_item_has_one_fate(
    loops: Loops,
    kind: str,
    ordered: bool,
    buffersize: int,
    workers: int,
    count: int,
    failing: int | None,
    fault: str | None,
    leave_after: int | None,
) -> None:
    """Each example has a loop of its own: pytest-asyncio would run all on one."""
    ran: list[int] = []
    values: list[int] = []

    def call(item: int) -> int:
        ran.append(item)
        if item == failing:
            raise Boom("the call")
        return item

    async def main() -> None:
        source, error = Source(kind, range(count), fault), None
        async with AdaptiveExecutor(workers) as pool:
            results = pool.amap(call, source.open(), ordered=ordered, buffersize=buffersize)
            await turns(3)
            try:
                while leave_after is None or len(values) < leave_after:
                    values.append(await anext(results))
            except StopAsyncIteration:
                pass
            except Boom as caught:
                error = str(caught)
            await results.aclose()
        stats = pool.stats()
        if ordered:
            assert values == list(range(len(values)))
        assert len(set(values)) == len(values)
        assert source.read <= min(count, len(values) + buffersize)
        assert leave_after != 0 or source.read == 0, "nothing is read before a result is asked for"
        assert len(set(ran)) == len(ran)
        assert set(values) <= set(ran) <= set(range(source.read))
        assert stats.submitted == source.read == len(ran) + stats.cancelled
        if len(values) != leave_after:
            fails = failing is not None and failing < count
            assert error == ("the call" if fails else fault)
            if not fails:
                assert sorted(values) == list(range(count))
            elif ordered:
                assert len(values) == failing

    loops(main)
