"""Every rival, named once: how to build its pool, how it offloads, how it serves, and its version.

A peer's modules are imported only in the process that measures it.
"""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks import _ways
from benchmarks._pools import (
    AnyioThreads,
    BareQueue,
    EbbPool,
    ExecutorPool,
    FastThreadPool,
    GeventThreads,
    Greenlets,
    MultiprocessingPool,
    PebblePool,
    PlainLoop,
    Pool,
    TrioThreads,
    adaptive,
    package,
    pebble,
    plus,
    stdlib,
)

TIMEKEEPER = "ebbpool-timekeeper"


class Unavailable(Exception):
    """The peer cannot run here; the text says why."""


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
        loops: the event loops it offloads from, by `offload`; `new_loop` makes them (trio apart) from a name
            and a ceiling.
        semaphore: makes a semaphore (or a floor of one) with so many permits.
        serves: the arguments of `_web` with which it serves FastAPI, or None.
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
    offload: _ways.Offload | None = None
    new_loop: _ways.NewLoop = _ways.stock_loop
    semaphore: Callable[[int], Any] | None = None
    serves: tuple[str, ...] | None = None
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
_NO_FUTURES = {
    "round_trip": "nothing to wait for one result with",
    "offload": "its results are no futures",
    "memory": "its results are no futures",
}
_LOCK_ONLY = "no pool: see semaphore"
_TIMER_ONLY = "no pool: see timers"
_WEB = ("fastapi", "uvicorn", "uvloop", "httptools")
_WEB_ONLY = "a server: see fastapi_burst, fastapi_rate"
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
        offload=_ways.coroutine,
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
        "batched",
        "hand-made workers, batched wake-ups (floor)",
        loops=_ASYNCIO,
        offload=_ways.batched,
        against={"*": _OFFLOAD_ONLY},
    ),
    Peer(
        "run",
        "ebbpool run (compiled)",
        ("ebbpool.aio",),
        "ebbpool",
        loops=_ASYNCIO,
        offload=_ways.run,
        check=lambda: _core_is(True),
        against={"*": _OFFLOAD_ONLY},
    ),
    Peer(
        "run-pure",
        "ebbpool run (plain)",
        ("ebbpool.aio",),
        "ebbpool",
        loops=_ASYNCIO,
        offload=_ways.run,
        env={"EBBPOOL_PURE": "1"},
        check=lambda: _core_is(False),
        against={"*": _OFFLOAD_ONLY},
    ),
    Peer(
        "own-loop",
        "ebbpool loop, run_in_executor(None)",
        ("ebbpool.aio",),
        "ebbpool",
        loops=_ASYNCIO,
        offload=_ways.default_executor,
        new_loop=_ways.our_loop,
        check=lambda: _core_is(True),
        against={"*": _OFFLOAD_ONLY},
    ),
    Peer(
        "own-loop-pure",
        "ebbpool loop (plain), run_in_executor(None)",
        ("ebbpool.aio",),
        "ebbpool",
        loops=_ASYNCIO,
        offload=_ways.default_executor,
        new_loop=_ways.our_loop,
        env={"EBBPOOL_PURE": "1"},
        check=lambda: _core_is(False),
        against={"*": _OFFLOAD_ONLY},
    ),
    Peer(
        "own-loop-to-thread",
        "ebbpool loop, asyncio.to_thread",
        ("ebbpool.aio",),
        "ebbpool",
        loops=_ASYNCIO,
        offload=_ways.default_to_thread,
        new_loop=_ways.our_loop,
        check=lambda: _core_is(True),
        against={"*": _OFFLOAD_ONLY},
    ),
    Peer(
        "ebbpool",
        "ebbpool (compiled)",
        ("ebbpool",),
        "ebbpool",
        open=EbbPool,
        loops=_ASYNCIO,
        offload=_ways.run_in_executor(adaptive),
        check=lambda: _core_is(True),
    ),
    Peer(
        "ebbpool-pure",
        "ebbpool (plain)",
        ("ebbpool",),
        "ebbpool",
        open=EbbPool,
        loops=_ASYNCIO,
        offload=_ways.run_in_executor(adaptive),
        env={"EBBPOOL_PURE": "1"},
        check=lambda: _core_is(False),
    ),
    Peer(
        "stdlib",
        "ThreadPoolExecutor",
        open=lambda workers, keep_alive: ExecutorPool(stdlib, workers, keep_alive),
        loops=_ASYNCIO,
        offload=_ways.run_in_executor(stdlib),
    ),
    Peer(
        "multiprocessing",
        "multiprocessing ThreadPool",
        open=MultiprocessingPool,
        against={"offload": "its results are no futures"},
    ),
    Peer(
        "fastthreadpool",
        "fastthreadpool",
        ("fastthreadpool",),
        "fastthreadpool",
        open=functools.partial(FastThreadPool, "fastthreadpool"),
        against=_NO_FUTURES,
    ),
    Peer(
        "ebbpool-fastthreadpool",
        "ebbpool.fastthreadpool (its names)",
        ("ebbpool.fastthreadpool",),
        "ebbpool",
        open=functools.partial(FastThreadPool, "ebbpool.fastthreadpool"),
        check=lambda: _core_is(True),
        against=_NO_FUTURES,
    ),
    Peer(
        "plus",
        "ThreadPoolExecutorPlus",
        ("ThreadPoolExecutorPlus",),
        "ThreadPoolExecutorPlus",
        open=lambda workers, keep_alive: ExecutorPool(plus, workers, keep_alive),
        loops=_ASYNCIO,
        offload=_ways.run_in_executor(plus),
        against={"memory": "its queue holds 64 tasks a worker, then submit blocks"},
    ),
    Peer(
        "pebble",
        "pebble",
        ("pebble",),
        "Pebble",
        open=PebblePool,
        loops=_ASYNCIO,
        offload=_ways.run_in_executor(pebble),
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
        offload=_ways.to_thread(stdlib),
        against={"*": _OFFLOAD_ONLY},
    ),
    Peer(
        "to-thread-ebbpool",
        "asyncio.to_thread on ebbpool",
        ("ebbpool",),
        "ebbpool",
        loops=_ASYNCIO,
        offload=_ways.to_thread(adaptive),
        check=lambda: _core_is(True),
        against={"*": _OFFLOAD_ONLY},
    ),
    Peer(
        "asgiref",
        "asgiref sync_to_async",
        ("asgiref.sync",),
        "asgiref",
        loops=_ASYNCIO,
        offload=_ways.asgiref,
        against={"*": _OFFLOAD_ONLY},
    ),
    Peer(
        "anyio",
        "anyio.to_thread.run_sync",
        ("anyio", "anyio.to_thread"),
        "anyio",
        open=AnyioThreads,
        loops=("asyncio", "uvloop", "trio"),
        offload=_ways.run_sync("anyio"),
        against=_FROM_TASKS,
    ),
    Peer(
        "trio",
        "trio.to_thread.run_sync",
        ("trio",),
        "trio",
        open=TrioThreads,
        loops=("trio",),
        offload=_ways.run_sync("trio"),
        against=_FROM_TASKS,
    ),
    Peer(
        "anyio-ebbpool",
        "ebbpool.anyio.run_sync",
        ("anyio", "ebbpool.anyio"),
        "ebbpool",
        loops=("asyncio", "uvloop", "trio"),
        offload=_ways.our_run_sync,
        check=lambda: _core_is(True),
        against={"*": _OFFLOAD_ONLY},
    ),
    Peer(
        "anyio-installed",
        "anyio.to_thread.run_sync, ebbpool installed",
        ("anyio", "ebbpool.anyio"),
        "ebbpool",
        loops=("asyncio", "uvloop", "trio"),
        offload=_ways.installed,
        check=lambda: _core_is(True),
        against={"*": _OFFLOAD_ONLY},
    ),
    Peer(
        "fastapi",
        "FastAPI, stock",
        _WEB,
        "fastapi",
        serves=(),
        against={"*": _WEB_ONLY},
    ),
    Peer(
        "fastapi-installed",
        "FastAPI, ebbpool installed",
        (*_WEB, "ebbpool.anyio"),
        "ebbpool",
        serves=("--install",),
        check=lambda: _core_is(True),
        against={"*": _WEB_ONLY},
    ),
    Peer(
        "fastapi-installed-pure",
        "FastAPI, ebbpool (plain) installed",
        (*_WEB, "ebbpool.anyio"),
        "ebbpool",
        serves=("--install",),
        env={"EBBPOOL_PURE": "1"},
        check=lambda: _core_is(False),
        against={"*": _WEB_ONLY},
    ),
    Peer(
        "fastapi-own-loop",
        "FastAPI, ebbpool installed, its uvloop",
        (*_WEB, "ebbpool.anyio", "ebbpool.aio"),
        "ebbpool",
        serves=("--install", "--own-loop"),
        check=lambda: _core_is(True),
        against={"*": _WEB_ONLY},
    ),
    Peer(
        "lock",
        "threading.Lock (floor)",
        semaphore=lambda permits: threading.Lock(),
        against={"*": _LOCK_ONLY},
    ),
    Peer(
        "semaphore",
        "threading.Semaphore",
        semaphore=threading.Semaphore,
        against={"*": _LOCK_ONLY},
    ),
    Peer(
        "ebbpool-semaphore",
        "ebbpool.sync.Semaphore (compiled)",
        ("ebbpool.sync",),
        "ebbpool",
        semaphore=lambda permits: package("ebbpool.sync").Semaphore(permits),
        check=lambda: _core_is(True),
        against={"*": _LOCK_ONLY},
    ),
    Peer(
        "ebbpool-semaphore-pure",
        "ebbpool.sync.Semaphore (plain)",
        ("ebbpool.sync",),
        "ebbpool",
        semaphore=lambda permits: package("ebbpool.sync").Semaphore(permits),
        env={"EBBPOOL_PURE": "1"},
        check=lambda: _core_is(False),
        against={"*": _LOCK_ONLY},
    ),
    Peer(
        "fastthreadpool-semaphore",
        "fastthreadpool.Semaphore",
        ("fastthreadpool",),
        "fastthreadpool",
        semaphore=lambda permits: package("fastthreadpool").Semaphore(permits),
        against={"*": _LOCK_ONLY},
    ),
    Peer(
        "timer",
        "threading.Timer (a thread each)",
        against={"*": _TIMER_ONLY},
    ),
)

BY_NAME = {peer.name: peer for peer in PEERS}
