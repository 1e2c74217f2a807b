"""All tasks at once, on a cold pool: when is the last one done?"""

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

from benchmarks.engine.model import Column, Params, Question, Samples, compute, timed
from benchmarks.load.serving import Server
from benchmarks.peers import package, ways
from benchmarks.peers.peer import Peer
from benchmarks.peers.pools import Pool, task_group
from benchmarks.peers.table import POOLS

_COLUMNS = (Column("ms", "ms until all are done", 1),)


def _once(peer: Peer, params: Params, work: Callable[[Pool], object]) -> Samples:
    """Time `work` on a pool that is built for it."""
    pools: list[Pool] = []

    def build_and_work() -> None:
        pools.append(peer.open(params["workers"], 10.0))
        work(pools[0])

    (seconds,) = timed(build_and_work, 1, warm_ups=0)
    pools[0].close()
    return {"ms": [seconds * 1e3]}


@Question(
    title="Burst of sleeps on a cold pool",
    columns=_COLUMNS,
    peers=POOLS,
    variants=({"workers": 200},),
    sizes={"tasks": 200, "sleep": 0.05},
    rounds_factor=5 / 3,
)
def cold_burst(peer: Peer, params: Params) -> Samples:
    """200 tasks that sleep 50 ms, all at once, on a cold pool of at most 200: when is the last one done?"""
    return _once(peer, params, lambda pool: pool.burst(lambda: pool.sleep(params["sleep"]), params["tasks"]))


@Question(
    title="Computing tasks of 5 ms",
    columns=_COLUMNS,
    peers=f"loop {POOLS}",
    variants=lambda peer, settings: [{"workers": 64}, {"workers": 2}] if peer == "stdlib" else [{"workers": 64}],
    sizes={"tasks": 100},
    turns=0.005,
    free="workers",
)
def computing(peer: Peer, params: Params) -> Samples:
    """100 tasks that compute for 5 ms each, on pools that may have 64 threads: do more threads make it slower?"""
    turns = params["turns"]
    return _once(peer, params, lambda pool: pool.burst(lambda: compute(turns), params["tasks"]))


Blocked = Callable[[ExitStack, int, float], None]
"""Has so many tasks wait for so many seconds; what closes the pool, after the clock, goes to the stack."""


def _executor(build: Callable[[], AbstractContextManager[Any]], send: str = "submit") -> Blocked:
    def run(after: ExitStack, count: int, seconds: float) -> None:
        submit = getattr(after.enter_context(build()), send)
        call = partial(time.sleep, seconds)
        for future in [submit(call) for _ in range(count)]:
            future.result()

    return run


def _built(module: str, name: str, send: str = "submit") -> Blocked:
    return _executor(lambda: getattr(package(module), name)(), send)


def _multiprocessing(after: ExitStack, count: int, seconds: float) -> None:
    pool = after.enter_context(multiprocessing.pool.ThreadPool())
    pool.map(time.sleep, [seconds] * count, chunksize=1)


def _gevent(threads: bool, after: ExitStack, count: int, seconds: float) -> None:
    gevent = package("gevent")
    pool = gevent.get_hub().threadpool
    spawn = partial(pool.spawn, time.sleep) if threads else partial(gevent.spawn, gevent.sleep)
    gevent.joinall([spawn(seconds) for _ in range(count)], raise_error=True)


def _on_loop(offload: ways.Offload, workers: int = 0) -> Blocked:
    """All gathered on a loop of its own."""

    async def gather(count: int, seconds: float) -> None:
        async with offload(workers) as call:
            await asyncio.gather(*[call(partial(time.sleep, seconds)) for _ in range(count)])

    def run(after: ExitStack, count: int, seconds: float) -> None:
        after.enter_context(asyncio.Runner()).run(gather(count, seconds))

    return run


def _asgiref(workers: int) -> ways.Call:
    sync_to_async = package("asgiref.sync").sync_to_async
    return lambda fn: sync_to_async(fn, thread_sensitive=False)()


def _tasks(module: str) -> Blocked:
    """The tasks of one group, of anyio or trio, with the default limiter."""

    async def main(count: int, seconds: float) -> None:
        found = package(module)
        async with task_group(found) as started:
            for _ in range(count):
                started.start_soon(found.to_thread.run_sync, time.sleep, seconds)

    return lambda after, count, seconds: package(module).run(main, count, seconds)


_MANY_THREADS: dict[str, Blocked] = {
    "ebbpool": _built("ebbpool", "AdaptiveExecutor"),
    "ebbpool-pure": _built("ebbpool", "AdaptiveExecutor"),
    "stdlib-64": _executor(lambda: ThreadPoolExecutor(64)),
    "stdlib-256": _executor(lambda: ThreadPoolExecutor(256)),
    "flexexecutor": _built("flexexecutor", "ThreadPoolExecutor"),
    "gevent": partial(_gevent, False),
    "anyio": _tasks("anyio"),
    "trio": _tasks("trio"),
}
_FEW_THREADS: dict[str, Blocked] = {
    "stdlib-default": _executor(ThreadPoolExecutor),
    "to-thread": _on_loop(ways.default_to_thread),
    "asgiref": _on_loop(ways.simple(_asgiref)),
    "multiprocessing": _multiprocessing,
    "plus": _built("ThreadPoolExecutorPlus", "ThreadPoolExecutor"),
    "pebble": _built("pebble", "ThreadPool", "schedule"),
    "betapool": _built("betapool", "AdaptiveThreadPoolExecutor"),
    "aiomisc": _on_loop(ways.to_thread(lambda *_: package("aiomisc").ThreadPoolExecutor())),
    "hypertile": _on_loop(ways.simple(lambda workers: package("hypertile").to_thread)),
    "leasepool": _on_loop(ways.leasepool, workers=4),  # as many as it has by default
    "gevent-threadpool": partial(_gevent, True),
}


@Question(
    title="Tasks that wait, each pool with its defaults",
    columns=(Column("ms", "ms until all are done", 1), Column("memory", "kB per task", 1)),
    peers=" ".join((*_MANY_THREADS, *_FEW_THREADS)),
    variants=lambda peer, settings: [{"tasks": 200}] if peer in _FEW_THREADS else [{"tasks": 200}, {"tasks": 2000}],
    sizes={"sleep": 0.05},
)
def blocked_tasks(peer: Peer, params: Params) -> Samples:
    """So many tasks that wait 50 ms, handed to each pool as its documentation recommends: when is the last one done?"""
    count, process = params["tasks"], Server(0, os.getpid())
    before = process.status("VmRSS")
    with ExitStack() as after:
        start = time.perf_counter()
        (_MANY_THREADS | _FEW_THREADS)[peer.base](after, count, params["sleep"])
        taken = time.perf_counter() - start
    samples: Samples = {"ms": [taken * 1e3]}
    return samples | ({"memory": [max(0, process.status("VmHWM") - before) / count]} if before else {})
