"""So many tasks that wait, on each pool as its documentation has it: what `blocked_tasks` asks for."""

from __future__ import annotations

import asyncio
import multiprocessing.pool
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

from benchmarks.peers import package

Blocked = Callable[[int, float], dict[str, Any] | None]


def executor(build: Callable[[], Executor]) -> Blocked:
    def run(count: int, seconds: float) -> None:
        with build() as pool:
            for future in [pool.submit(time.sleep, seconds) for _ in range(count)]:
                future.result()

    return run


def ours() -> Any:
    return package("ebbpool").AdaptiveExecutor()


def plus() -> Any:
    return package("ThreadPoolExecutorPlus").ThreadPoolExecutor()


def stdlib(*size: int) -> Callable[[], Executor]:
    return lambda: ThreadPoolExecutor(*size)


def processes_threads(count: int, seconds: float) -> None:
    with multiprocessing.pool.ThreadPool() as pool:
        pool.map(time.sleep, [seconds] * count, chunksize=1)


def pebble(count: int, seconds: float) -> None:
    with package("pebble").ThreadPool() as pool:
        for future in [pool.schedule(time.sleep, args=[seconds]) for _ in range(count)]:
            future.result()


def greenlets(count: int, seconds: float) -> None:
    gevent = package("gevent")
    gevent.joinall([gevent.spawn(gevent.sleep, seconds) for _ in range(count)], raise_error=True)


def gevent_threads(count: int, seconds: float) -> None:
    gevent = package("gevent")
    pool = gevent.get_hub().threadpool
    gevent.joinall([pool.spawn(time.sleep, seconds) for _ in range(count)], raise_error=True)


def on_loop(name: str, call: Callable[[], Callable[..., Any]]) -> Blocked:
    """All gathered on a loop of its own."""

    async def gather(count: int, seconds: float) -> None:
        wait = call()
        await asyncio.gather(*[wait(time.sleep, seconds) for _ in range(count)])

    def run(count: int, seconds: float) -> None:
        with asyncio.Runner(loop_factory=lambda: package(name).new_event_loop()) as runner:
            runner.run(gather(count, seconds))

    return run


def to_thread() -> Callable[..., Any]:
    return asyncio.to_thread


def asgiref() -> Callable[..., Any]:
    sync_to_async = package("asgiref.sync").sync_to_async
    return lambda fn, *args: sync_to_async(fn, thread_sensitive=False)(*args)


def tasks(module: str, group: str) -> Blocked:
    """The tasks of one group, of anyio or trio, with the default limiter."""

    async def main(count: int, seconds: float) -> None:
        found = package(module)
        async with getattr(found, group)() as started:
            for _ in range(count):
                started.start_soon(found.to_thread.run_sync, time.sleep, seconds)

    return lambda count, seconds: package(module).run(main, count, seconds)
