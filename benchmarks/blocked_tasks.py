"""So many tasks that wait 50 ms, handed to each pool as its documentation recommends: when is the last one done?"""

from __future__ import annotations

import asyncio
import multiprocessing.pool
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

from benchmarks.engine.model import Column, Params, Question, Samples, Settings, Variant
from benchmarks.load.serving import Server
from benchmarks.peers import go, package, ways
from benchmarks.peers.peer import Peer

_SOME, _MANY = {"tasks": 200}, {"tasks": 2000}

Blocked = Callable[[ExitStack, int, float], dict[str, Any] | None]
"""Has so many tasks wait for so many seconds; what closes the pool, after the clock, goes to the stack."""


def _executor(build: Callable[[], AbstractContextManager[Any]]) -> Blocked:
    def run(after: ExitStack, count: int, seconds: float) -> None:
        pool = after.enter_context(build())
        for future in [pool.submit(time.sleep, seconds) for _ in range(count)]:
            future.result()

    return run


def _multiprocessing(after: ExitStack, count: int, seconds: float) -> None:
    pool = after.enter_context(multiprocessing.pool.ThreadPool())
    pool.map(time.sleep, [seconds] * count, chunksize=1)


def _pebble(after: ExitStack, count: int, seconds: float) -> None:
    pool = after.enter_context(package("pebble").ThreadPool())
    for future in [pool.schedule(time.sleep, args=[seconds]) for _ in range(count)]:
        future.result()


def _gevent(threads: bool, after: ExitStack, count: int, seconds: float) -> None:
    gevent = package("gevent")
    pool = gevent.get_hub().threadpool
    spawn = partial(pool.spawn, time.sleep) if threads else partial(gevent.spawn, gevent.sleep)
    gevent.joinall([spawn(seconds) for _ in range(count)], raise_error=True)


def _on_loop(name: str, call: Callable[[], Callable[..., Any]] = lambda: asyncio.to_thread) -> Blocked:
    """All gathered on a loop of its own."""

    async def gather(count: int, seconds: float) -> None:
        wait = call()
        await asyncio.gather(*[wait(time.sleep, seconds) for _ in range(count)])

    def run(after: ExitStack, count: int, seconds: float) -> None:
        runner = after.enter_context(asyncio.Runner(loop_factory=lambda: package(name).new_event_loop()))
        runner.run(gather(count, seconds))

    return run


def _asgiref() -> Callable[..., Any]:
    sync_to_async = package("asgiref.sync").sync_to_async
    return lambda fn, *args: sync_to_async(fn, thread_sensitive=False)(*args)


def _aiomisc() -> Callable[..., Any]:
    executor = package("aiomisc").ThreadPoolExecutor()
    asyncio.get_running_loop().set_default_executor(executor)
    return partial(asyncio.get_running_loop().run_in_executor, None)


def _leasepool(after: ExitStack, count: int, seconds: float) -> None:
    async def gather() -> None:
        async with ways.leasepool(4) as call:  # as many as it has by default
            await asyncio.gather(*[call(partial(time.sleep, seconds)) for _ in range(count)])

    asyncio.run(gather())


def _tasks(module: str, group: str) -> Blocked:
    """The tasks of one group, of anyio or trio, with the default limiter."""

    async def main(count: int, seconds: float) -> None:
        found = package(module)
        async with getattr(found, group)() as started:
            for _ in range(count):
                started.start_soon(found.to_thread.run_sync, time.sleep, seconds)

    return lambda after, count, seconds: package(module).run(main, count, seconds)


_MANY_THREADS: dict[str, Blocked] = {
    "ebbpool": _executor(lambda: package("ebbpool").AdaptiveExecutor()),
    "ebbpool-pure": _executor(lambda: package("ebbpool").AdaptiveExecutor()),
    "stdlib-64": _executor(lambda: ThreadPoolExecutor(64)),
    "stdlib-256": _executor(lambda: ThreadPoolExecutor(256)),
    "flexexecutor": _executor(lambda: package("flexexecutor").ThreadPoolExecutor()),
    "go": lambda after, count, seconds: go.burst(count, seconds),
    "gevent": partial(_gevent, False),
    "anyio": _tasks("anyio", "create_task_group"),
    "trio": _tasks("trio", "open_nursery"),
}
_FEW_THREADS: dict[str, Blocked] = {
    "stdlib-default": _executor(ThreadPoolExecutor),
    "to-thread": _on_loop("asyncio"),
    "to-thread-uvloop": _on_loop("uvloop"),
    "asgiref": _on_loop("asyncio", _asgiref),
    "multiprocessing": _multiprocessing,
    "plus": _executor(lambda: package("ThreadPoolExecutorPlus").ThreadPoolExecutor()),
    "pebble": _pebble,
    "betapool": _executor(lambda: package("betapool").AdaptiveThreadPoolExecutor()),
    "aiomisc": _on_loop("asyncio", _aiomisc),
    "hypertile": _on_loop("asyncio", lambda: package("hypertile").to_thread),
    "leasepool": _leasepool,
    "gevent-threadpool": partial(_gevent, True),
}


def measure(peer: Peer, params: Params) -> Samples:
    count, process = params["tasks"], Server(0, os.getpid())
    before = process.memory()
    with ExitStack() as after:
        start = time.perf_counter()
        told = (_MANY_THREADS | _FEW_THREADS)[peer.base](after, count, params["sleep"])
        taken = time.perf_counter() - start
    if told is not None:
        # A program of its own has its own clock and its own memory.
        return {"ms": [told["ms"]], "memory": [told["kB"] / count]}
    samples: Samples = {"ms": [taken * 1e3]}
    return samples | ({"memory": [max(0, process.peak_memory() / 1024 - before) / count]} if before else {})


def variants(peer: str, settings: Settings) -> list[Variant]:
    return [_SOME] if peer in _FEW_THREADS else [_SOME, _MANY]


QUESTION = Question(
    title="Tasks that wait, each pool with its defaults",
    method="from building the pool to the last result, once a process; every pool has the ceiling that it has by "
    "default, or the one it is named with; 2,000 tasks take a pool of few threads ten times as long as 200 do, by "
    "arithmetic, and it is not asked; anyio and trio: forty tokens; asyncio.to_thread: the loop's default executor; "
    "greenlets and goroutines wait without a thread of the system; Go is a program of its own, which takes the time "
    "itself, without its start; kB: by how much resident memory grew at most, a task",
    columns=(Column("ms", "ms for all", 1), Column("memory", "kB a task", 1)),
    peers=(*_MANY_THREADS, *_FEW_THREADS),
    variants=variants,
    sizes=lambda quick: {"sleep": 0.05},
    measure=measure,
    floor="the 50 ms that each task waits",
    limits="up to 256 tasks the time to start a thread for each, some 60 µs; beyond that the ceiling: 2,000 tasks "
    "take eight turns of 256 threads. Greenlets and goroutines start no thread of the system, but all that blocks has "
    "to be written for them",
)
