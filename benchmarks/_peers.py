"""Every rival, named once: how to build its pool, how it offloads, and its version.

A peer's modules are imported only in the process that measures it.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import platform
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks._pools import (
    AnyioThreads,
    BareQueue,
    EbbPool,
    ExecutorPool,
    GeventThreads,
    Greenlets,
    MultiprocessingPool,
    PebblePool,
    PlainLoop,
    Pool,
    Task,
    TrioThreads,
    adaptive,
    package,
    pebble,
    plus,
    stdlib,
)

Call = Callable[[Task], Awaitable[object]]
Offload = Callable[[int], AbstractAsyncContextManager[Call]]

TIMEKEEPER = "ebbpool-timekeeper"


class Unavailable(Exception):
    """The peer cannot run here; the text says why."""


def _run_in_executor(build: Callable[[int, float], Any]) -> Offload:
    @asynccontextmanager
    async def offload(workers: int) -> AsyncIterator[Call]:
        pool, loop = build(workers, 10.0), asyncio.get_running_loop()
        try:
            yield lambda fn: loop.run_in_executor(pool, fn)
        finally:
            close = pool.shutdown if isinstance(pool, Executor) else pool.close
            close()

    return offload


def _to_thread(build: Callable[[int, float], Any]) -> Offload:
    @asynccontextmanager
    async def offload(workers: int) -> AsyncIterator[Call]:
        asyncio.get_running_loop().set_default_executor(build(workers, 10.0))
        yield asyncio.to_thread

    return offload


@asynccontextmanager
async def _coroutine(workers: int) -> AsyncIterator[Call]:
    async def call(fn: Task) -> object:
        return fn()

    yield call


@asynccontextmanager
async def _asgiref(workers: int) -> AsyncIterator[Call]:
    sync_to_async = package("asgiref.sync").sync_to_async
    with ThreadPoolExecutor(workers) as pool:
        yield lambda fn: sync_to_async(fn, thread_sensitive=False, executor=pool)()


def _run_sync(backend: str) -> Offload:
    @asynccontextmanager
    async def offload(workers: int) -> AsyncIterator[Call]:
        found = package(backend)
        run_sync, limiter = found.to_thread.run_sync, found.CapacityLimiter(workers)
        yield lambda fn: run_sync(fn, limiter=limiter)

    return offload


def _core_is(compiled: bool) -> None:
    if package("ebbpool").COMPILED is not compiled:
        raise Unavailable(f"ebbpool runs its {'plain' if compiled else 'compiled'} core here")


def _anything() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Peer:
    """A rival, or a floor, or ebbpool itself.

    Attributes:
        modules: what has to be importable.
        distribution: whose version is reported; "" for the interpreter's own.
        open: builds a pool from a ceiling and a keep-alive in seconds (heeded where the peer has one); None
            where it has no pool to open.
        loops: the event loops it offloads from, by `offload`.
        env: variables its process gets.
        check: raises Unavailable if what was imported is not what is meant.
        against: by question (or "*"), why it is not asked.
    """

    name: str
    label: str
    modules: tuple[str, ...] = ()
    distribution: str = ""
    open: Callable[[int, float], Pool] | None = None
    loops: tuple[str, ...] = ()
    offload: Offload | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    check: Callable[[], None] = _anything
    against: Mapping[str, str] = field(default_factory=dict)

    def not_for(self, question: str) -> str:
        """Returns why `question` is not asked of this peer, or "" if it is."""
        return self.against.get(question) or self.against.get("*", "")

    def load(self) -> str:
        """Imports the peer and returns its version.

        Raises:
            Unavailable: it is not installed, or not in the form that is meant.
        """
        try:
            for module in self.modules:
                package(module)
        except ImportError as error:
            raise Unavailable(f"not installed: {error}") from error
        self.check()
        return importlib.metadata.version(self.distribution) if self.distribution else platform.python_version()


_ASYNCIO = ("asyncio", "uvloop")
_FROM_A_LOOP = "needs a running event loop: see offload, one after another"
_OFFLOAD_ONLY = "a way into another's pool: see offload"
_LOOP_THREADS = "its threads end with the event loop, or 10 s after it"
_FROM_TASKS = {
    "round_trip": _FROM_A_LOOP,
    "map_items": "has no map",
    "memory": "a pending call is a task of the event loop, not a future of the pool",
    "idle_cost": _LOOP_THREADS,
}

PEERS = (
    Peer(
        "loop",
        "a plain loop (floor)",
        open=PlainLoop,
        loops=("asyncio", "uvloop", "trio"),
        offload=_coroutine,
        against={
            "cold_burst": "one after another: 50 ms times the tasks, by arithmetic",
            "memory": "nothing is ever pending",
            "idle_cost": "has no threads",
        },
    ),
    Peer(
        "simplequeue",
        "bare SimpleQueue workers (floor)",
        open=BareQueue,
        against={"offload": "has no futures to await"},
    ),
    Peer(
        "ebbpool",
        "ebbpool (compiled)",
        ("ebbpool",),
        "ebbpool",
        open=EbbPool,
        loops=_ASYNCIO,
        offload=_run_in_executor(adaptive),
        check=lambda: _core_is(True),
    ),
    Peer(
        "ebbpool-pure",
        "ebbpool (plain)",
        ("ebbpool",),
        "ebbpool",
        open=EbbPool,
        loops=_ASYNCIO,
        offload=_run_in_executor(adaptive),
        env={"EBBPOOL_PURE": "1"},
        check=lambda: _core_is(False),
    ),
    Peer(
        "stdlib",
        "ThreadPoolExecutor",
        open=lambda workers, keep_alive: ExecutorPool(stdlib, workers, keep_alive),
        loops=_ASYNCIO,
        offload=_run_in_executor(stdlib),
    ),
    Peer(
        "multiprocessing",
        "multiprocessing ThreadPool",
        open=MultiprocessingPool,
        against={"offload": "its results are no futures"},
    ),
    Peer(
        "plus",
        "ThreadPoolExecutorPlus",
        ("ThreadPoolExecutorPlus",),
        "ThreadPoolExecutorPlus",
        open=lambda workers, keep_alive: ExecutorPool(plus, workers, keep_alive),
        loops=_ASYNCIO,
        offload=_run_in_executor(plus),
        against={"memory": "its queue holds 64 tasks a worker, then submit blocks"},
    ),
    Peer(
        "pebble",
        "pebble",
        ("pebble",),
        "Pebble",
        open=PebblePool,
        loops=_ASYNCIO,
        offload=_run_in_executor(pebble),
    ),
    Peer(
        "gevent-threadpool",
        "gevent.threadpool",
        ("gevent.threadpool",),
        "gevent",
        open=GeventThreads,
        against={
            "offload": "belongs to gevent's own hub",
            "memory": "spawn waits for a free thread: nothing is ever pending",
        },
    ),
    Peer(
        "gevent",
        "gevent.spawn (greenlets)",
        ("gevent",),
        "gevent",
        open=Greenlets,
        against={"offload": "belongs to gevent's own hub", "idle_cost": "has no threads"},
    ),
    Peer(
        "to-thread",
        "asyncio.to_thread",
        loops=_ASYNCIO,
        offload=_to_thread(stdlib),
        against={"*": _OFFLOAD_ONLY},
    ),
    Peer(
        "to-thread-ebbpool",
        "asyncio.to_thread on ebbpool",
        ("ebbpool",),
        "ebbpool",
        loops=_ASYNCIO,
        offload=_to_thread(adaptive),
        check=lambda: _core_is(True),
        against={"*": _OFFLOAD_ONLY},
    ),
    Peer(
        "asgiref",
        "asgiref sync_to_async",
        ("asgiref.sync",),
        "asgiref",
        loops=_ASYNCIO,
        offload=_asgiref,
        against={"*": _OFFLOAD_ONLY},
    ),
    Peer(
        "anyio",
        "anyio.to_thread.run_sync",
        ("anyio", "anyio.to_thread"),
        "anyio",
        open=AnyioThreads,
        loops=("asyncio", "uvloop", "trio"),
        offload=_run_sync("anyio"),
        against=_FROM_TASKS,
    ),
    Peer(
        "trio",
        "trio.to_thread.run_sync",
        ("trio",),
        "trio",
        open=TrioThreads,
        loops=("trio",),
        offload=_run_sync("trio"),
        against=_FROM_TASKS,
    ),
)

BY_NAME = {peer.name: peer for peer in PEERS}
