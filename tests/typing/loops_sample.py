"""What a type checker has to make of the ways from an event loop, and of tasks beyond `submit`. Checked, never run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import assert_type

import ebbpool.anyio
from ebbpool import AdaptiveExecutor, Future, Installed, Lane, LaneStats, ScheduledTask, Session
from ebbpool.aio import new_event_loop, new_uvloop
from ebbpool.sync import BoundedSemaphore, Semaphore


def add(first: int, second: int = 0) -> int:
    return first + second


def count(start: int) -> Iterator[str]:
    yield str(start)


async def names() -> AsyncIterator[str]:
    yield "a name"


async def runs(pool: AdaptiveExecutor) -> None:
    assert_type(await pool.run(add, 1, second=2), int)
    assert_type(pool.run(add, 1), asyncio.Future[int])
    # Arguments are checked against the function.
    pool.run(add, "1")  # type: ignore[arg-type]
    async for number in pool.amap(abs, [1, 2], ordered=False, buffersize=2):
        assert_type(number, int)
    async for length in pool.amap(len, names()):
        assert_type(length, int)
    assert_type(await ebbpool.anyio.run_sync(add, 1, 2, abandon_on_cancel=True, executor=pool), int)
    with ebbpool.anyio.install(pool, keep_default_limiter=True) as installation:
        assert_type(installation.executor, AdaptiveExecutor)


def makes_loops(pool: AdaptiveExecutor) -> None:
    asyncio.Runner(loop_factory=new_event_loop)
    assert_type(new_uvloop(pool), asyncio.AbstractEventLoop)


def delays(pool: AdaptiveExecutor) -> None:
    assert_type(pool.submit_first(add, 1), Future[int])
    assert_type(pool.submit_later(0.5, add, 1, second=2), Future[int])
    task = pool.schedule(1.0, add, 1, first=0, on_error="stop")
    assert_type(task, ScheduledTask)
    assert_type(task.runs, int)
    assert_type(task.last_error, BaseException | None)
    # Only the two policies there are.
    pool.schedule(1.0, add, 1, on_error="ignore")  # type: ignore[arg-type]


def maps(pool: AdaptiveExecutor) -> None:
    assert_type(pool.map_unordered(add, [1, 2], chunksize=2), Iterator[int])
    for text in pool.stream(count, 3, buffersize=2):
        assert_type(text, str)


def lanes(pool: AdaptiveExecutor) -> None:
    lane = pool.lane("slow", limit=2, first=True)
    assert_type(lane, Lane)
    an_executor: ThreadPoolExecutor = lane
    print(an_executor)
    assert_type(lane.submit(add, 1), Future[int])
    assert_type(lane.stats(), LaneStats)


def excludes() -> None:
    with Semaphore(2), BoundedSemaphore():
        pass
    assert_type(Semaphore().acquire(timeout=1.0), bool)


def switches(pool: AdaptiveExecutor) -> None:
    with ebbpool.install(pool, executors=True, streams=False, explain=print) as installed:
        assert_type(installed, Installed)
        assert_type(installed.executor, AdaptiveExecutor)
        assert_type(installed.parts, dict[str, str])
        installed.undo()
    with pool.session(finalizer=print) as session:
        assert_type(session, Session)
        assert_type(session.submit(add, 1).result(), int)
        session.submit(add, "1")  # type: ignore[arg-type]
