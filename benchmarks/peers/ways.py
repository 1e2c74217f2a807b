"""The ways from an event loop to a thread and back: `table` says which rival has which.

Each is a context manager made from a ceiling; it yields what takes a call and gives something to await.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from benchmarks.peers import package
from benchmarks.peers.floor import BareThread, BatchedWorkers
from benchmarks.peers.pools import Task, adaptive

Call = Callable[[Task], Awaitable[object]]
Offload = Callable[[int], AbstractAsyncContextManager[Call]]
NewLoop = Callable[[str, int], asyncio.AbstractEventLoop]


def run_in_executor(build: Callable[[int, float], Any]) -> Offload:
    @asynccontextmanager
    async def offload(workers: int) -> AsyncIterator[Call]:
        pool, loop = build(workers, 10.0), asyncio.get_running_loop()
        try:
            yield lambda fn: loop.run_in_executor(pool, fn)
        finally:
            close = getattr(pool, "shutdown", None) or pool.close
            close()

    return offload


def stock_loop(name: str, workers: int) -> asyncio.AbstractEventLoop:
    loop: asyncio.AbstractEventLoop = package(name).new_event_loop()
    return loop


def our_loop(name: str, workers: int) -> asyncio.AbstractEventLoop:
    aio = package("ebbpool.aio")
    build = {"asyncio": aio.new_event_loop, "uvloop": aio.new_uvloop}[name]
    loop: asyncio.AbstractEventLoop = build(adaptive(workers, 10.0))
    return loop


@asynccontextmanager
async def default_executor(workers: int) -> AsyncIterator[Call]:
    yield functools.partial(asyncio.get_running_loop().run_in_executor, None)


@asynccontextmanager
async def default_to_thread(workers: int) -> AsyncIterator[Call]:
    yield asyncio.to_thread


@asynccontextmanager
async def run(workers: int) -> AsyncIterator[Call]:
    with adaptive(workers, 10.0) as pool:
        yield pool.run


@asynccontextmanager
async def batched(workers: int) -> AsyncIterator[Call]:
    with contextlib.closing(BatchedWorkers(asyncio.get_running_loop(), workers)) as floor:
        yield floor.call


@asynccontextmanager
async def bare_thread(workers: int) -> AsyncIterator[Call]:
    with contextlib.closing(BareThread(asyncio.get_running_loop())) as floor:
        yield floor.call


@asynccontextmanager
async def our_run_sync(workers: int) -> AsyncIterator[Call]:
    with adaptive(workers, 10.0) as pool:
        yield functools.partial(package("ebbpool.anyio").run_sync, executor=pool)


@asynccontextmanager
async def installed(workers: int) -> AsyncIterator[Call]:
    with adaptive(workers, 10.0) as pool, package("ebbpool.anyio").install(pool):
        yield package("anyio.to_thread").run_sync


def to_thread(build: Callable[[int, float], Any]) -> Offload:
    @asynccontextmanager
    async def offload(workers: int) -> AsyncIterator[Call]:
        asyncio.get_running_loop().set_default_executor(build(workers, 10.0))
        yield asyncio.to_thread

    return offload


@asynccontextmanager
async def coroutine(workers: int) -> AsyncIterator[Call]:
    async def call(fn: Task) -> object:
        return fn()

    yield call


@asynccontextmanager
async def asgiref(workers: int) -> AsyncIterator[Call]:
    sync_to_async = package("asgiref.sync").sync_to_async
    with ThreadPoolExecutor(workers) as pool:
        yield lambda fn: sync_to_async(fn, thread_sensitive=False, executor=pool)()


@asynccontextmanager
async def hypertile(workers: int) -> AsyncIterator[Call]:
    """The pool is the process's, and its size cannot be changed any more once it is used."""
    found = package("hypertile")
    if found.worker_count() != workers:
        found.configure(workers)
    yield found.to_thread


@asynccontextmanager
async def leasepool(workers: int) -> AsyncIterator[Call]:
    manager = package("leasepool").LeasedExecutorManager(backend="thread", max_pools=1, workers_per_pool=workers)
    await manager.start()
    try:
        async with await manager.acquire() as lease:
            yield lease.run
    finally:
        await manager.stop()


def run_sync(backend: str) -> Offload:
    @asynccontextmanager
    async def offload(workers: int) -> AsyncIterator[Call]:
        found = package(backend)
        yield functools.partial(found.to_thread.run_sync, limiter=found.CapacityLimiter(workers))

    return offload
