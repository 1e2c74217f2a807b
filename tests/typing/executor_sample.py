"""What a type checker has to make of AdaptiveExecutor. Checked by mypy, never run."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.thread import BrokenThreadPool as StdBrokenThreadPool
from typing import assert_type

import ebbpool
from ebbpool import AdaptiveExecutor, BrokenThreadPool, Future, PoolStats, QueueFull
from ebbpool.testing import no_thread_leaks, wait_idle


def add(first: int, second: int = 0) -> int:
    return first + second


def is_a_thread_pool_executor(pool: AdaptiveExecutor) -> ThreadPoolExecutor:
    return pool


def is_a_standard_future(future: Future[int]) -> concurrent.futures.Future[int]:
    return future


def submits(pool: AdaptiveExecutor) -> None:
    assert_type(pool.submit(add, 1, second=2), Future[int])
    assert_type(pool.submit(add, 1).result(timeout=1.0), int)
    assert_type(pool.submit(add, 1).exception(), BaseException | None)
    assert_type(next(concurrent.futures.as_completed([pool.submit(str, 1)])).result(), str)
    # Arguments are checked against the function.
    pool.submit(add, "1")  # type: ignore[arg-type]
    pool.submit(add)  # type: ignore[call-arg]
    pool.submit(add, 1, third=3)  # type: ignore[call-arg]


def maps(pool: AdaptiveExecutor) -> None:
    assert_type(pool.map(add, [1, 2], [3, 4], timeout=1.0), Iterator[int])
    assert_type(pool.map(str, range(3), buffersize=2), Iterator[str])


def constructs() -> None:
    AdaptiveExecutor(4, "name", print, ("one", 2))
    AdaptiveExecutor(
        max_workers=None,
        min_workers=1,
        min_spare_workers=2,
        keep_alive=0.5,
        max_queue=10,
        when_full="reject",
        finalizer=lambda: None,
        propagate_context=True,
        daemon=True,
    )
    # Only the three policies there are.
    AdaptiveExecutor(when_full="drop")  # type: ignore[arg-type]
    # What is not the standard library's is keyword-only.
    AdaptiveExecutor(4, "name", print, (), 1)  # type: ignore[call-arg]


def manages(pool: AdaptiveExecutor) -> None:
    stats = pool.stats()
    assert_type(stats, PoolStats)
    assert_type(stats.workers, int)
    assert_type(stats.oldest_wait, float)
    assert_type(stats.longest_running, float)
    # The figures are a snapshot.
    stats.workers = 3  # type: ignore[misc]
    assert_type(pool.wait_idle(1.0), bool)
    pool.resize(min_workers=1, max_workers=8, min_spare_workers=0, keep_alive=1.0, max_queue=None)
    pool.shutdown(wait=True, cancel_futures=True, timeout=5.0)
    wait_idle(pool, timeout=1.0)
    with no_thread_leaks(grace=1.0, ignore=["mine"]):
        pass


def enters() -> None:
    with AdaptiveExecutor() as pool:
        assert_type(pool, AdaptiveExecutor)


async def works_with_asyncio() -> None:
    loop = asyncio.get_running_loop()
    async with AdaptiveExecutor() as pool:
        assert_type(pool, AdaptiveExecutor)
        loop.set_default_executor(pool)
        assert_type(await loop.run_in_executor(pool, add, 1), int)
        assert_type(await asyncio.wrap_future(pool.submit(add, 1)), int)
        assert_type(await asyncio.to_thread(add, 1, second=2), int)


def names_its_errors() -> None:
    full: type[RuntimeError] = QueueFull
    broken: type[StdBrokenThreadPool] = BrokenThreadPool
    print(full, broken)
    assert_type(ebbpool.COMPILED, bool)
    assert_type(ebbpool.__version__, str)
