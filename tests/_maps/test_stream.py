"""AdaptiveExecutor.stream: a generator in a worker, and its consumer in a thread, a worker or an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.common import TIMEOUT, Background, Boom, Gate, eventually, wait_for_idle
from support.streams import Run, Source, each_run  # noqa: F401  (a fixture)

from ebbpool import AdaptiveExecutor, QueueFull
from ebbpool._maps import streams


@settings(max_examples=50)
@given(count=st.integers(0, 200), buffersize=st.integers(1, 50), fails=st.booleans())
def test_a_stream_is_what_the_generator_yields(count: int, buffersize: int, fails: bool) -> None:
    with AdaptiveExecutor(2) as pool:
        stream = pool.stream(Source(count, Boom("end") if fails else None), buffersize=buffersize)
        out = []
        try:
            for value in stream:
                out.append(value)
        except Boom:
            assert fails
        else:
            assert not fails
        assert out == list(range(count))
        assert list(stream) == []


@pytest.mark.parametrize("buffersize", [1, 2, 16])
def test_async_for(run: Run, buffersize: int) -> None:
    async def main(pool: AdaptiveExecutor) -> list[int]:
        return [value async for value in pool.stream(Source(500), buffersize=buffersize)]

    with AdaptiveExecutor(2) as pool:
        assert run(main(pool)) == list(range(500))


def test_arguments_reach_the_generator() -> None:
    def source(*args: int, **kwargs: int) -> Iterator[Any]:
        yield args
        yield kwargs

    with AdaptiveExecutor(2) as pool:
        assert list(pool.stream(source, 1, 2, buffersize=3, step=4)) == [(1, 2), {"step": 4}]


def test_anything_iterable_will_do() -> None:
    with AdaptiveExecutor(2) as pool:
        assert list(pool.stream(range, 3)) == [0, 1, 2]
        with pytest.raises(TypeError, match="not iterable"):
            list(pool.stream(lambda: 17))


def test_it_runs_in_one_worker() -> None:
    source = Source(100)
    with AdaptiveExecutor(4) as pool:
        assert list(pool.stream(source)) == list(range(100))
        wait_for_idle(pool)
        assert source.threads <= set(pool._threads)
    assert len(source.threads) == 1


@pytest.mark.parametrize("buffersize", [1, 2, 5])
def test_the_worker_is_ahead_by_the_buffer_and_no_more(buffersize: int) -> None:
    source = Source()
    with AdaptiveExecutor(2) as pool, pool.stream(source, buffersize=buffersize) as stream:
        for taken in range(30):
            assert source.yielded <= taken + buffersize
            # The worker fills the buffer, and goes on once half of it has been taken.
            least = buffersize if taken == 0 else buffersize // 2 + 1
            eventually(lambda: source.yielded >= taken + least)  # noqa: B023  (used at once)
            assert next(stream) == taken


def test_values_come_as_they_are_yielded() -> None:
    gate = Gate()

    def source() -> Iterator[int]:
        yield 1
        gate()
        yield 2

    with AdaptiveExecutor(2) as pool, gate:
        stream = pool.stream(source)
        assert next(stream) == 1
        waiting = Background(lambda: next(stream))
        gate.await_begun()
        assert waiting.still_waits()
        gate.open()
        assert waiting.join() == 2


def test_one_consumer_at_a_time(run: Run) -> None:
    with AdaptiveExecutor(1) as pool, Gate() as gate:
        stream = pool.stream(lambda: iter([gate(1)]))
        waiting = Background(lambda: next(stream))
        eventually(lambda: stream._channel.reader is not None)
        with pytest.raises(RuntimeError, match="read already"):
            next(stream)

        async def main() -> None:
            with pytest.raises(RuntimeError, match="read already"):
                await anext(stream)

        run(main())
        gate.open()
        assert waiting.join() == 1


@pytest.mark.parametrize("error", [Boom, KeyboardInterrupt, SystemExit])
def test_an_error_comes_after_the_values_before_it(run: Run, error: type[BaseException]) -> None:
    async def main(pool: AdaptiveExecutor) -> None:
        stream = pool.stream(Source(3, error("end")))
        assert [await anext(stream) for _ in range(3)] == [0, 1, 2]
        try:
            await anext(stream)
        except error:
            pass
        else:
            raise AssertionError("no error")
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    with AdaptiveExecutor(1) as pool:
        run(main(pool))
        stream = pool.stream(Source(3, error("end")))
        assert [next(stream) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(error, match="end"):
            next(stream)
        assert list(stream) == []


@pytest.mark.parametrize("max_workers", [1, 2])
def test_a_consumer_that_is_a_task_of_the_pool(max_workers: int) -> None:
    with AdaptiveExecutor(max_workers) as pool:
        assert pool.submit(lambda: sum(pool.stream(Source(100), buffersize=2))).result(TIMEOUT) == 4950
        streams = [pool.stream(Source(100), buffersize=2) for _ in range(5)]
        assert [pool.submit(sum, stream).result(TIMEOUT) for stream in streams] == [4950] * 5
        wait_for_idle(pool)
        assert pool.stats().blocked == 0


def test_streams_of_streams() -> None:
    with AdaptiveExecutor(1) as pool:

        def nested(depth: int) -> Iterator[int]:
            yield depth
            if depth:
                yield from pool.stream(nested, depth - 1, buffersize=1)

        assert list(pool.stream(nested, 8, buffersize=1)) == list(range(8, -1, -1))


def test_the_loop_goes_on_while_a_consumer_waits(run: Run) -> None:
    with AdaptiveExecutor(1) as pool, Gate() as gate:

        async def main() -> int:
            stream = pool.stream(lambda: iter([gate(7)]))
            waiting = asyncio.ensure_future(anext(stream))
            for _ in range(10):
                await asyncio.sleep(0)
            assert not waiting.done()
            gate.open()
            return await waiting

        assert run(main()) == 7


def test_the_loop_goes_on_while_there_is_always_more(run: Run) -> None:
    async def main(pool: AdaptiveExecutor) -> None:
        stream = pool.stream(Source(5_000), buffersize=5_001)
        wait_for_idle(pool)
        turns = 0

        def turn() -> None:
            nonlocal turns
            turns += 1
            asyncio.get_running_loop().call_soon(turn)

        turn()
        assert [value async for value in stream] == list(range(5_000))
        assert turns > 50

    with AdaptiveExecutor(1) as pool:
        run(main(pool))


def test_the_caller_runs_the_generator_as_it_reads() -> None:
    source = Source(5)
    with AdaptiveExecutor(1, max_queue=0, when_full="caller_runs") as pool, Gate() as gate:
        held = gate.hold(pool)
        stream = pool.stream(source, buffersize=1)
        assert source.yielded == 0
        assert list(stream) == list(range(5))
        assert source.threads == {threading.current_thread()}
        other = Source()
        stream = pool.stream(other, buffersize=1)
        assert next(stream) == 0
        stream.close()
        assert other.closed.is_set()
        assert list(stream) == []
        gate.open()
        held.result(TIMEOUT)


def test_a_task_in_a_bounded_pool_runs_its_stream_itself() -> None:
    with AdaptiveExecutor(1, max_queue=0) as pool:
        assert pool.submit(lambda: list(pool.stream(Source(50), buffersize=1))).result(TIMEOUT) == list(range(50))


def test_a_full_queue_that_rejects() -> None:
    with AdaptiveExecutor(1, max_queue=0, when_full="reject") as pool, Gate() as gate:
        held = gate.hold(pool)
        with pytest.raises(QueueFull):
            pool.stream(Source())
        gate.open()
        held.result(TIMEOUT)


@pytest.mark.parametrize(
    ("genfn", "buffersize", "error", "text"),
    [
        (17, 1, TypeError, r"genfn.*17"),
        (range, 0, ValueError, r"buffersize.*0"),
        (range, 1.5, TypeError, r"buffersize.*1\.5"),
        (range, None, TypeError, r"buffersize.*None"),
    ],
)
def test_bad_arguments(genfn: Any, buffersize: Any, error: type[Exception], text: str) -> None:
    with AdaptiveExecutor(1) as pool:
        with pytest.raises(error, match=text):
            pool.stream(genfn, 3, buffersize=buffersize)
        assert pool.stats().submitted == 0


def test_an_async_generator_function_is_refused() -> None:
    async def source() -> Any:
        yield 1

    async def coroutine() -> None: ...

    with AdaptiveExecutor(1) as pool:
        for genfn in (source, coroutine):
            with pytest.raises(TypeError, match=r"genfn.*plain generator"):
                pool.stream(genfn)  # type: ignore[arg-type]


def test_many_streams_under_contention() -> None:
    """Every hand-over races with a wait at the other end; nothing is lost, and nobody is left waiting."""
    with AdaptiveExecutor(8) as pool:
        readers = [
            Background(lambda size=size: list(pool.stream(Source(2_000), buffersize=size)))  # type: ignore[misc]
            for size in (1, 1, 2, 3, 16)
        ]
        for reader in readers:
            assert reader.join() == list(range(2_000))
    assert not streams._open
