"""`amap` ends cleanly wherever its consumer stops: nothing stays queued, unclosed, unreported or referenced."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import weakref
from collections.abc import AsyncIterator
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies
from support.amap_sources import Source, Waiting, both_kinds, both_orders, double
from support.common import TIMEOUT, Boom, Gate, Thing, gone, no_collector, wait_for_idle
from support.loops import Loops, on_every_loop, turns, until

from ebbpool import AdaptiveExecutor


class Held:
    """A pool of one worker whose gate is shut, and an `amap` over it with one call running and three queued."""

    def __init__(self, kind: str, ordered: bool, gate: Gate) -> None:
        self.source = Source(kind, range(10))
        self.ran: list[int] = []
        self.gate = gate
        self.pool = AdaptiveExecutor(1)
        self.results = self.pool.amap(self._call, self.source.open(), ordered=ordered, buffersize=4)

    def _call(self, item: int) -> int:
        if item:
            self.gate()
        self.ran.append(item)
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
        await turns()
        assert self.ran == [0, 1]
        assert self.source.read == read
        assert self.pool.stats().cancelled == read - 2
        self.pool.shutdown()


@on_every_loop
@both_kinds
@both_orders
@pytest.mark.parametrize("way", ["break", "error"])
async def test_left_and_forgotten(kind: str, ordered: bool, way: str) -> None:
    with Gate() as gate:
        held = Held(kind, ordered, gate)
        results, held.results = held.results, None  # type: ignore[assignment]
        with contextlib.suppress(Boom):
            async for _ in results:
                await held.filled()
                if way == "error":
                    raise Boom
                break
        del results
        await until(lambda: held.pool.stats().queued == 0)
        await until(lambda: held.source.closed is (kind == "async"))
        await held.check()


@on_every_loop
@both_kinds
@both_orders
@pytest.mark.parametrize("times", [1, 2])
async def test_cancelled_while_it_waits_for_a_result(kind: str, ordered: bool, times: int) -> None:
    with Gate() as gate:
        held = Held(kind, ordered, gate)
        seen = []

        async def consume() -> None:
            async for value in held.results:
                seen.append(value)

        consumer = asyncio.ensure_future(consume())
        await held.filled()
        await turns()
        for _ in range(times):
            consumer.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await consumer
        assert seen == [0]
        await until(lambda: held.source.closed is (kind == "async"))
        await held.check()


@on_every_loop
@both_orders
async def test_cancelled_while_it_waits_for_the_source(ordered: bool) -> None:
    source = Waiting()
    async with AdaptiveExecutor(1) as pool:
        waiting = asyncio.ensure_future(anext(pool.amap(double, source.open(), ordered=ordered)))
        await until(lambda: source.waits)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert source.closed


@on_every_loop
@both_kinds
@both_orders
async def test_an_error_of_a_call_left_to_finish_makes_no_noise(kind: str, ordered: bool) -> None:
    def fail(item: int) -> int:
        if item:
            gate()
            raise Boom
        return item

    gate = Gate()

    async with AdaptiveExecutor(3) as pool:
        with gate:
            results = pool.amap(fail, Source(kind, range(3)).open(), ordered=ordered, buffersize=3)
            assert await anext(results) == 0
            await until(lambda: gate.peak == 2)
            await results.aclose()
        await until(lambda: pool.stats().failed == 2)
        await pool.run(int)


@on_every_loop
@both_orders
async def test_a_source_that_goes_on_when_it_is_cancelled(ordered: bool) -> None:
    async def stubborn() -> AsyncIterator[int]:
        yield 0
        for number in range(1, 10):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(TIMEOUT)
            yield number

    async with AdaptiveExecutor(1) as pool:
        results = pool.amap(double, stubborn(), ordered=ordered)
        assert await anext(results) == 0
        await turns()
        await results.aclose()
        assert pool.stats().submitted == 1


@on_every_loop
async def test_an_error_of_the_source_s_clean_up_is_raised() -> None:
    async def source() -> AsyncIterator[int]:
        try:
            yield 0
            await asyncio.sleep(TIMEOUT)
        finally:
            raise Boom("clean-up")

    async with AdaptiveExecutor(1) as pool:
        results = pool.amap(double, source())
        assert await anext(results) == 0
        await turns()
        with pytest.raises(Boom, match="clean-up"):
            await results.aclose()


@on_every_loop
async def test_a_second_cancellation_leaves_the_source_s_clean_up_alone() -> None:
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
        waiting = asyncio.ensure_future(anext(pool.amap(double, source())))
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
    class Stream:
        def __init__(self) -> None:
            self.items = iter(range(5))

        def __aiter__(self) -> Any:
            return self

        async def __anext__(self) -> int:
            return next(self.items)

        async def aclose(self) -> None:
            raise AssertionError("closed")

    async with AdaptiveExecutor(1) as pool:
        stream = Stream()
        results = pool.amap(double, stream, buffersize=2)
        assert await anext(results) == 0
        await results.aclose()
        assert next(stream.items) < 4


async def next_watched(results: AsyncIterator[Any]) -> weakref.ref[Any]:
    """Return a reference to the next result. A frame that went on could hold it: PyPy's compiled loops do."""
    return weakref.ref(await anext(results))


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
    broken=strategies.booleans(),
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
    broken: bool,
    leave_after: int | None,
) -> None:
    """Each example has a loop of its own: pytest-asyncio would run all on one."""
    ran: list[int] = []

    def call(item: int) -> int:
        ran.append(item)
        if item == failing:
            raise Boom("the call")
        return item

    async def main() -> None:
        async with AdaptiveExecutor(workers) as pool:
            source = Source(kind, range(count), "the source" if broken else None)
            values: list[int] = []
            error = None
            async with contextlib.aclosing(
                pool.amap(call, source.open(), ordered=ordered, buffersize=buffersize)
            ) as results:
                try:
                    while leave_after is None or len(values) < leave_after:
                        values.append(await anext(results))
                except StopAsyncIteration:
                    pass
                except Boom as caught:
                    error = str(caught)
            wait_for_idle(pool)
            left = leave_after is not None and len(values) == leave_after
            fails = failing is not None and failing < count
            if ordered:
                assert values == list(range(len(values)))
            assert len(set(values)) == len(values)
            assert source.read <= min(count, len(values) + buffersize)
            assert len(set(ran)) == len(ran)
            assert set(values) <= set(ran) <= set(range(source.read))
            stats = pool.stats()
            assert stats.submitted == source.read == len(ran) + stats.cancelled
            if not left:
                assert error == ("the call" if fails else "the source" if broken else None)
                if not fails:
                    assert sorted(values) == list(range(count))
                elif ordered:
                    assert len(values) == failing

    loops(main)
