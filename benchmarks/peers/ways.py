"""The ways from an event loop to a thread and back: `table` says which rival has which.

Each is a context manager made from a ceiling; it yields what takes a call and gives something to await.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import Any

from benchmarks.peers import package
from benchmarks.peers.pools import Build, Task, adaptive

Call = Callable[[Task], Awaitable[object]]
Offload = Callable[[int], AbstractAsyncContextManager[Call]]
NewLoop = Callable[[str, int], asyncio.AbstractEventLoop]
_Item = tuple[asyncio.Future[object], Task]


def stock_loop(name: str, workers: int) -> asyncio.AbstractEventLoop:
    loop: asyncio.AbstractEventLoop = package(name).new_event_loop()
    return loop


def our_loop(name: str, workers: int) -> asyncio.AbstractEventLoop:
    loop_class = package("uvloop").Loop if name == "uvloop" else None
    loop: asyncio.AbstractEventLoop = package("ebbpool.aio").new_loop_factory(loop_class, adaptive(workers, 10.0))()
    return loop


def simple(way: Callable[[int], Call]) -> Offload:
    """What needs no end."""

    @asynccontextmanager
    async def offload(workers: int) -> AsyncIterator[Call]:
        yield way(workers)

    return offload


def _ours(way: Callable[[Any], Call]) -> Offload:
    """What goes over a pool of ours."""

    @asynccontextmanager
    async def offload(workers: int) -> AsyncIterator[Call]:
        with adaptive(workers, 10.0) as pool:
            yield way(pool)

    return offload


async def _at_once(fn: Task) -> object:
    return fn()


coroutine = simple(lambda workers: _at_once)
default_executor = simple(lambda workers: partial(asyncio.get_running_loop().run_in_executor, None))
default_to_thread = simple(lambda workers: asyncio.to_thread)
run = _ours(lambda pool: pool.run)
our_run_sync = _ours(lambda pool: partial(package("ebbpool.anyio").run_sync, executor=pool))


def run_in_executor(build: Build) -> Offload:
    @asynccontextmanager
    async def offload(workers: int) -> AsyncIterator[Call]:
        pool, loop = build(workers, 10.0), asyncio.get_running_loop()
        try:
            yield lambda fn: loop.run_in_executor(pool, fn)
        finally:
            close = getattr(pool, "shutdown", None) or pool.close
            close()

    return offload


def to_thread(build: Build) -> Offload:
    def way(workers: int) -> Call:
        asyncio.get_running_loop().set_default_executor(build(workers, 10.0))
        return asyncio.to_thread

    return simple(way)


def run_sync(backend: str) -> Offload:
    """That of anyio, or of trio."""

    def way(workers: int) -> Call:
        found = package(backend)
        return partial(found.to_thread.run_sync, limiter=found.CapacityLimiter(workers))

    return simple(way)


@asynccontextmanager
async def installed(workers: int) -> AsyncIterator[Call]:
    with adaptive(workers, 10.0) as pool, package("ebbpool.anyio").install(pool):
        yield package("anyio.to_thread").run_sync


@asynccontextmanager
async def asgiref(workers: int) -> AsyncIterator[Call]:
    sync_to_async = package("asgiref.sync").sync_to_async
    with ThreadPoolExecutor(workers) as pool:
        yield lambda fn: sync_to_async(fn, thread_sensitive=False, executor=pool)()


def _hypertile(workers: int) -> Call:
    """The pool is the process's, and its size cannot be changed any more once it is used."""
    found = package("hypertile")
    if found.worker_count() != workers:
        found.configure(workers)
    way: Call = found.to_thread
    return way


hypertile = simple(_hypertile)


@asynccontextmanager
async def leasepool(workers: int) -> AsyncIterator[Call]:
    manager = package("leasepool").LeasedExecutorManager(backend="thread", max_pools=1, workers_per_pool=workers)
    await manager.start()
    try:
        async with await manager.acquire() as lease:
            yield lease.run
    finally:
        await manager.stop()


@contextmanager
def _by_hand(work: Callable[[Callable[[], _Item | None]], None], workers: int) -> Iterator[Call]:
    """What a careful user writes to get off an event loop: threads on a SimpleQueue, from which each takes calls."""
    loop = asyncio.get_running_loop()
    calls: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
    threads = [threading.Thread(target=work, args=(calls.get,)) for _ in range(workers)]
    for thread in threads:
        thread.start()

    def call(fn: Task) -> asyncio.Future[object]:
        future = loop.create_future()
        calls.put((future, fn))
        return future

    try:
        yield call
    finally:
        for _ in threads:
            calls.put(None)
        for thread in threads:
            thread.join()


@asynccontextmanager
async def bare_thread(workers: int) -> AsyncIterator[Call]:
    """One thread, a wake-up of the loop for each call: no cancellation, no context."""
    wake = asyncio.get_running_loop().call_soon_threadsafe

    def work(get: Callable[[], _Item | None]) -> None:
        while (item := get()) is not None:
            future, fn = item
            try:
                wake(future.set_result, fn())
            except BaseException as error:
                wake(future.set_exception, error)

    with _by_hand(work, 1) as call:
        yield call


@asynccontextmanager
async def batched(workers: int) -> AsyncIterator[Call]:
    """Fixed workers; whatever has finished is delivered by one wake-up of the loop.

    No cancellation (a cancelled call still runs), no context variables, no slices, no growth, no bound.
    """
    wake, ringing = asyncio.get_running_loop().call_soon_threadsafe, False
    done: deque[tuple[asyncio.Future[object], object, BaseException | None]] = deque()

    def work(get: Callable[[], _Item | None]) -> None:
        nonlocal ringing
        append = done.append
        while (item := get()) is not None:
            future, fn = item
            try:
                append((future, fn(), None))
            except BaseException as error:
                append((future, None, error))
            if not ringing:
                ringing = True
                wake(deliver)

    def deliver() -> None:
        nonlocal ringing
        # Cleared before the look: what is appended later rings again.
        ringing = False
        popleft = done.popleft
        while done:
            future, value, error = popleft()
            if future.done():
                continue
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

    with _by_hand(work, workers) as call:
        yield call
