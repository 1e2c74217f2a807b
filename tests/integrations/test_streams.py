"""Starlette's `iterate_in_threadpool` under `ebbpool.install`: batches, and nothing else that could be noticed."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import itertools
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from support.common import TIMEOUT, Boom, Gate, eventually, gone

import ebbpool
from ebbpool import AdaptiveExecutor

concurrency = pytest.importorskip("starlette.concurrency")
responses = pytest.importorskip("starlette.responses")
anyio = pytest.importorskip("anyio")


@pytest.fixture
def pool() -> Iterator[AdaptiveExecutor]:
    with AdaptiveExecutor(thread_name_prefix="pool") as pool, ebbpool.install(pool):
        yield pool


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Any:
    return pytest.importorskip(request.param).run


def iterate(iterator: Any) -> Any:
    return concurrency.iterate_in_threadpool(iterator)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 63, 64, 65, 6400])
def test_all_chunks_in_order_and_many_in_a_hand_over(pool: AdaptiveExecutor, run: Any, count: int) -> None:
    async def main() -> None:
        assert [chunk async for chunk in iterate(range(count))] == [*range(count)]

    run(main())
    assert pool.stats().submitted <= count / 64 + 10


def test_what_the_consumer_waits_for_comes_at_once(pool: AdaptiveExecutor, run: Any) -> None:
    gate = Gate()

    def chunks() -> Iterator[int]:
        for part in range(3):
            yield from range(10 * part, 10 * part + 10)
            gate()

    async def main() -> None:
        with gate:
            stream = iterate(chunks())
            async with asyncio.timeout(TIMEOUT):
                # These are there while the generator is held up, whatever batch they belong to.
                assert [await anext(stream) for _ in range(10)] == [*range(10)]
            gate.open()
            assert [chunk async for chunk in stream] == [*range(10, 30)]

    run(main())


@pytest.mark.parametrize("good", [0, 1, 2, 100])
def test_an_error_comes_at_its_place(pool: AdaptiveExecutor, good: int) -> None:
    def chunks() -> Iterator[int]:
        yield from range(good)
        raise Boom

    async def main() -> None:
        found = []
        with pytest.raises(Boom):
            async for chunk in iterate(chunks()):
                found.append(chunk)
        assert found == [*range(good)]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("chunk", "taken", "ahead"), [(b"", 200, 64 + 1), (bytes(100_000), 100, 4)], ids=["a batch", "large chunks"]
)
def test_a_client_that_does_not_read_holds_no_thread(
    pool: AdaptiveExecutor, chunk: bytes, taken: int, ahead: int
) -> None:
    made: list[int] = []

    def chunks() -> Iterator[bytes]:
        for number in itertools.count():
            made.append(number)
            yield chunk

    async def main() -> None:
        stream = iterate(chunks())
        for _ in range(taken):
            await anext(stream)
        await asyncio.to_thread(eventually, lambda: pool.stats().running <= 1, "the turn ends")
        assert len(made) <= taken + ahead
        await stream.aclose()

    asyncio.run(main())


def test_leaving_waits_for_the_chunk_that_is_made_and_closes_the_generator(pool: AdaptiveExecutor) -> None:
    gate = Gate()
    closed = threading.Event()

    def chunks() -> Iterator[int]:
        try:
            yield 0
            gate()
            yield 1
            yield 2
        finally:
            closed.set()

    async def read(scope: Any) -> None:
        with scope:
            async for _ in iterate(chunks()):
                pass

    async def main() -> None:
        with gate:
            scope = anyio.CancelScope()
            reading = asyncio.ensure_future(read(scope))
            await asyncio.to_thread(gate.await_begun)
            scope.cancel()
            for _ in range(20):
                await asyncio.sleep(0)
            assert not reading.done()
            gate.open()
            await reading
        assert pool.wait_idle(TIMEOUT)

    asyncio.run(main())
    # As with stock, the error that ended the reading holds the generator until the collector comes by.
    gc.collect()
    assert closed.is_set()


def test_the_context_and_the_way_back_to_the_loop(pool: AdaptiveExecutor) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")

    async def in_loop() -> str:
        return threading.current_thread().name

    def chunks() -> Iterator[tuple[str, str]]:
        for _ in range(5):
            yield variable.get(), anyio.from_thread.run(in_loop)

    async def main() -> None:
        variable.set("of the request")
        expected = ("of the request", threading.current_thread().name)
        assert [chunk async for chunk in iterate(chunks())] == [expected] * 5

    asyncio.run(main())


def test_nothing_of_a_stream_is_left(pool: AdaptiveExecutor) -> None:
    class Chunks:
        def __iter__(self) -> Iterator[int]:
            return iter(range(100))

    async def main() -> weakref.ref[Any]:
        chunks = Chunks()
        async for _ in iterate(chunks):
            pass
        return weakref.ref(chunks)

    gone(asyncio.run(main()), pool=pool)


def test_a_pool_that_is_shut_down(pool: AdaptiveExecutor) -> None:
    async def main() -> None:
        stream = iterate(range(100))
        assert await anext(stream) == 0
        pool.shutdown()
        with pytest.raises(RuntimeError, match="shutdown"):
            _ = [chunk async for chunk in stream]

    asyncio.run(main())


def test_trio_has_the_stock_one(pool: AdaptiveExecutor) -> None:
    trio = pytest.importorskip("trio")

    async def main() -> None:
        assert [chunk async for chunk in iterate(range(10))] == [*range(10)]

    trio.run(main)
    assert pool.stats().submitted >= 10


def test_modules_that_imported_iterate_in_threadpool_have_ours_until_it_is_undone() -> None:
    stock = responses.iterate_in_threadpool
    with AdaptiveExecutor() as pool:
        with ebbpool.install(pool):
            assert responses.iterate_in_threadpool is concurrency.iterate_in_threadpool is not stock
        assert responses.iterate_in_threadpool is concurrency.iterate_in_threadpool is stock
        with ebbpool.install(pool, streams=False) as installed:
            assert concurrency.iterate_in_threadpool is stock
            assert "starlette" not in installed.parts
