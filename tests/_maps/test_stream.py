"""AdaptiveExecutor.stream: a generator in a worker, its consumer in a thread, a worker or a loop, and the end."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import itertools
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.common import (
    FREE_THREADED,
    TIMEOUT,
    Background,
    Boom,
    Gate,
    Thing,
    eventually,
    gone,
    no_collector,
    output_of,
    raise_watched,
    wait_for_idle,
)
from support.loops import on_every_loop

from ebbpool import AdaptiveExecutor, QueueFull, Stream


class Source:
    """A generator function that tells what has become of its generator."""

    def __init__(self, count: int | None = None, error: BaseException | None = None) -> None:
        self.count = count
        self.error = error
        self.yielded = 0
        self.threads: set[threading.Thread] = set()
        self.closed = threading.Event()

    def __call__(self) -> Iterator[int]:
        try:
            for number in itertools.count() if self.count is None else range(self.count):
                self.threads.add(threading.current_thread())
                self.yielded += 1
                yield number
            if self.error is not None:
                raise self.error
        finally:
            self.threads.add(threading.current_thread())
            self.closed.set()


@settings(max_examples=50)
@given(
    count=st.integers(0, 200),
    buffersize=st.integers(1, 50),
    error=st.none() | st.sampled_from([Boom, KeyboardInterrupt, SystemExit]),
)
def test_a_stream_is_what_the_generator_yields_and_then_its_error(
    count: int, buffersize: int, error: type[BaseException] | None
) -> None:
    out: list[Any] = []

    async def read() -> None:
        with pytest.raises(error or StopAsyncIteration):
            while True:
                out.append(await anext(stream))
        assert [value async for value in stream] == []

    with AdaptiveExecutor(2) as pool:
        source = Source(count, error and error("end"))
        stream = pool.stream(source, buffersize=buffersize)
        with pytest.raises(error or StopIteration):
            while True:
                out.append(next(stream))
        assert list(stream) == []
        stream = pool.stream(source, buffersize=buffersize)
        asyncio.run(read())
        assert out == [*range(count), *range(count)]


def test_any_callable_that_returns_an_iterable_will_do() -> None:
    def source(*args: int, **kwargs: int) -> Iterator[Any]:
        yield args
        yield kwargs

    with AdaptiveExecutor(2) as pool:
        assert list(pool.stream(source, 1, 2, buffersize=3, step=4)) == [(1, 2), {"step": 4}]
        assert list(pool.stream(range, 3)) == [0, 1, 2]
        with pytest.raises(TypeError, match="not iterable"):
            list(pool.stream(lambda: 17))


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration])
def test_an_error_does_not_pass_for_the_end(kind: type[Exception]) -> None:
    error = kind("no header")

    class Fails:
        """What a generator cannot raise, an iterator can: it ends with a StopIteration, but with nothing else."""

        def __init__(self, at_once: bool) -> None:
            if at_once:
                raise error

        def __iter__(self) -> Iterator[int]:
            return self

        def __next__(self) -> int:
            raise error

    async def read(stream: Stream[int]) -> list[int]:
        return [value async for value in stream]

    with AdaptiveExecutor(1) as pool:
        for at_once in [True, False] if kind is StopAsyncIteration else [True]:
            with pytest.raises(RuntimeError, match=f"genfn raised {kind.__name__}") as caught:
                list(pool.stream(Fails, at_once))
            assert caught.value.__cause__ is error
            with pytest.raises(RuntimeError, match=f"genfn raised {kind.__name__}"):
                asyncio.run(read(pool.stream(Fails, at_once)))
        assert kind is StopAsyncIteration or list(pool.stream(Fails, False)) == []


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


@on_every_loop
async def test_one_consumer_at_a_time() -> None:
    with AdaptiveExecutor(1) as pool, Gate() as gate:
        stream = pool.stream(lambda: iter([gate(1)]))
        waiting = Background(lambda: next(stream))
        eventually(lambda: stream._channel.wake)
        with pytest.raises(RuntimeError, match="read already"):
            next(stream)
        with pytest.raises(RuntimeError, match="read already"):
            await anext(stream)
        gate.open()
        assert waiting.join() == 1


@pytest.mark.parametrize("max_workers", [1, 2])
def test_a_consumer_that_is_a_task_of_the_pool(max_workers: int) -> None:
    with AdaptiveExecutor(max_workers) as pool:
        assert pool.submit(lambda: sum(pool.stream(Source(100), buffersize=2))).result(TIMEOUT) == 4950
        streams = [pool.stream(Source(100), buffersize=2) for _ in range(5)]
        assert [pool.submit(sum, stream).result(TIMEOUT) for stream in streams] == [4950] * 5
        wait_for_idle(pool)
        assert pool.stats().blocked == 0


@on_every_loop
async def test_the_loop_goes_on_while_there_is_always_more() -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    with AdaptiveExecutor(1) as pool:
        stream = pool.stream(Source(5_000), buffersize=5_001)
        wait_for_idle(pool)
        turning = asyncio.ensure_future(turn())
        assert [value async for value in stream] == list(range(5_000))
        assert turns > 50
        turning.cancel()


def test_a_stream_is_refused_where_the_caller_would_run_the_generator() -> None:
    source = Source(5)
    with AdaptiveExecutor(1, max_queue=0, when_full="caller_runs") as pool, Gate() as gate:
        gate.hold(pool)
        with pytest.raises(QueueFull, match="a stream cannot run in the thread that is to read it"):
            next(pool.stream(source))
        assert source.threads == set()
        gate.open()


@pytest.mark.parametrize("way", ["close", "break", "cycle", "unread"])
def test_the_generator_is_closed_in_its_worker_when_the_consumer_leaves(way: str) -> None:
    source = Source()
    with AdaptiveExecutor(1) as pool:
        stream: Any = pool.stream(source)
        if way == "close":
            assert next(stream) == 0
            stream.close()
            stream.close()
            assert list(stream) == []
        elif way == "break":
            assert list(itertools.islice(stream, 100)) == list(range(100))
        elif way == "cycle":
            assert next(stream) == 0
            stream._cycle = stream
        del stream
        gc.collect()
        if way == "unread":
            pool.submit(source.closed.set).result(TIMEOUT)
        eventually(source.closed.is_set)
        wait_for_idle(pool)
        assert len(source.threads) <= 1
        assert threading.current_thread() not in source.threads


def test_a_consumer_that_waits_is_released_by_close() -> None:
    with AdaptiveExecutor(1) as pool, Gate() as gate:
        stream = pool.stream(lambda: iter([gate()]))
        waiting = Background(lambda: list(stream))
        eventually(lambda: stream._channel.wake)
        stream.close()
        assert waiting.join() == []
        gate.open()


def test_a_stream_that_has_not_begun_never_does() -> None:
    source = Source()
    with AdaptiveExecutor(1) as pool, Gate() as gate:
        held = pool.submit(gate)
        stream = pool.stream(source)
        stream.close()
        gate.open()
        held.result(TIMEOUT)
    assert source.yielded == 0


@on_every_loop
async def test_cancelling_the_consumer_closes_the_generator() -> None:
    taken, closed = asyncio.Event(), threading.Event()

    def generator() -> Iterator[int]:
        try:
            yield 0
            gate()
            yield 1
        finally:
            closed.set()

    async def consume() -> None:
        async for value in stream:
            assert value == 0
            taken.set()

    with AdaptiveExecutor(1) as pool, Gate() as gate:
        stream = pool.stream(generator)
        task = asyncio.ensure_future(consume())
        await taken.wait()
        gate.await_begun()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.open()
        assert closed.wait(TIMEOUT)
        assert list(stream) == []


@on_every_loop
async def test_aclose_and_async_with() -> None:
    sources = [Source(), Source()]
    with AdaptiveExecutor(2) as pool:
        stream = pool.stream(sources[0])
        assert await anext(stream) == 0
        await stream.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        async with pool.stream(sources[1]) as stream:
            assert await anext(stream) == 0
        for source in sources:
            assert source.closed.wait(TIMEOUT)


def test_a_loop_that_is_closed_while_a_consumer_waits() -> None:
    source = Source()
    with AdaptiveExecutor(1) as pool, Gate() as gate:

        async def wait() -> None:
            task: Any = asyncio.ensure_future(anext(stream))
            tasks.append(task)
            await asyncio.sleep(0)
            task._log_destroy_pending = False

        tasks: list[Any] = []
        held = pool.submit(gate)
        stream = pool.stream(source, buffersize=1)
        loop = asyncio.new_event_loop()
        loop.run_until_complete(wait())
        loop.close()
        gate.open()
        held.result(TIMEOUT)
        eventually(lambda: pool.stats().blocked == 1, "the buffer is full")
        assert next(stream) == 0
        stream.close()
        assert source.closed.wait(TIMEOUT)


@on_every_loop
async def test_a_stream_cancelled_by_shutdown() -> None:
    with Gate() as gate:
        pool = AdaptiveExecutor(1)
        gate.hold(pool)
        streams = [pool.stream(Source()), pool.stream(Source())]
        waiting = Background(lambda: next(streams[0]))
        eventually(lambda: streams[0]._channel.wake)
        pool.shutdown(wait=False, cancel_futures=True)
        with pytest.raises(concurrent.futures.CancelledError):
            waiting.join()
        with pytest.raises(concurrent.futures.CancelledError):
            await anext(streams[1])
        gate.open()
        pool.shutdown()
        with pytest.raises(RuntimeError, match="after shutdown"):
            pool.stream(Source())


def test_an_error_nobody_is_left_for_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def source() -> Iterator[int]:
        try:
            yield 1
            yield 2
        finally:
            raise Boom("on the way out")

    with AdaptiveExecutor(1) as pool:
        with pool.stream(source, buffersize=1) as stream:
            assert next(stream) == 1
        wait_for_idle(pool)
    assert "whose consumer has left" in caplog.text
    assert "on the way out" in caplog.text


@pytest.mark.parametrize("fails", [False, True])
def test_values_are_let_go_as_they_are_taken_and_nothing_stays_behind(fails: bool) -> None:
    references: list[weakref.ref[Any]] = []

    def source(argument: Thing) -> Iterator[Thing]:
        references.append(weakref.ref(argument))
        for _ in range(10):
            thing = Thing()
            references.append(weakref.ref(thing))
            yield thing
            del thing
        raise_watched(references)

    def consume(pool: AdaptiveExecutor) -> None:
        stream = pool.stream(source, Thing(), buffersize=1)
        for number in range(1, 6):
            next(stream)
            eventually(lambda: len(references) > number + 1)  # noqa: B023  (used at once)
            # Free-threaded, it is freed by the worker, which is not where it would do so.
            if not FREE_THREADED:
                gone(references[number])
        try:
            if fails:
                list(stream)
        except Boom:
            pass

    with no_collector(), AdaptiveExecutor(1) as pool:
        consume(pool)
        wait_for_idle(pool)
        assert len(references) == 12 or not fails
        gone(*references, pool=pool)


def test_a_stream_that_is_held_does_not_keep_the_interpreter_from_exiting() -> None:
    script = """
        import itertools
        from ebbpool import AdaptiveExecutor

        def source():
            try:
                yield from itertools.count()
            finally:
                print("closed", flush=True)

        pool = AdaptiveExecutor(2)
        stream = pool.stream(source)
        print(next(stream), flush=True)
    """
    assert output_of(script) == ["0", "closed"]


def test_a_shutdown_does_not_wait_for_a_stream_of_its_own_thread() -> None:
    source = Source()
    with AdaptiveExecutor(1) as pool:
        streams = [pool.stream(source, buffersize=3), pool.stream(Source(), buffersize=3)]
        assert next(streams[0]) == 0
    assert source.closed.is_set()
    for stream in streams:
        with pytest.raises(RuntimeError, match="shut down before this stream"):
            list(stream)
        assert list(stream) == []


def test_a_stream_that_somebody_else_reads_is_read_to_its_end() -> None:
    with Gate() as gate, AdaptiveExecutor(1) as pool:
        stream = pool.stream(Source(100), buffersize=3)

        def read() -> list[int]:
            out = [next(stream)]
            gate()
            return [*out, *stream]

        reader = Background(read)
        gate.await_begun()
        closer = Background(pool.shutdown)
        eventually(lambda: pool._shutdown)
        gate.open()
        assert reader.join() == list(range(100))
        closer.join()


@on_every_loop
async def test_a_task_that_leaves_the_pool_does_not_wait_for_a_stream_of_its_own() -> None:
    begun, closing = asyncio.Event(), asyncio.Event()

    async def read() -> list[int]:
        out = [await anext(others)]
        begun.set()
        await closing.wait()
        return [*out, *[value async for value in others]]

    with pytest.raises(Boom):
        async with AdaptiveExecutor(2) as pool:
            mine = pool.stream(Source(), buffersize=3)
            others = pool.stream(Source(20), buffersize=3)
            other = asyncio.ensure_future(read())
            await begun.wait()
            assert await anext(mine) == 0
            asyncio.get_running_loop().call_later(0.01, closing.set)
            raise Boom
    assert await other == list(range(20))
