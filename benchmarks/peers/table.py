"""Every rival, named once: how to build its pool, how it offloads, what it serves.

A peer's modules are imported only in the process that measures it.
"""

from __future__ import annotations

import functools
import os
import threading
from typing import Any

from benchmarks import native
from benchmarks.peers import Unavailable, blocking, package, program, ways
from benchmarks.peers.peer import Peer
from benchmarks.peers.pools import (
    BareQueue,
    EbbPool,
    ExecutorPool,
    FastThreadPool,
    GeventThreads,
    Greenlets,
    MultiprocessingPool,
    PebblePool,
    PingPong,
    PlainLoop,
    TaskThreads,
    adaptive,
    pebble,
    plus,
    stdlib,
)

_ASYNCIO = ("asyncio", "uvloop")
_ALL_LOOPS = (*_ASYNCIO, "trio")
_NO_FUTURES = {
    "round_trip": "nothing to wait for one result with",
    "offload": "its results are no futures",
    "memory": "its results are no futures",
}
_ONE_AT_A_TIME = dict.fromkeys(
    ("submit_collect", "map_items", "cold_burst", "computing", "memory", "idle_cost", "offload"),
    "takes one call at a time",
)
_FROM_TASKS = {
    "round_trip": "needs a running event loop: see offload, one after another",
    "map_items": "has no map",
    "memory": "a pending call is a task of the event loop, not a future of the pool",
    "idle_cost": "its threads end with the event loop, or 10 s after it",
}
_WEB = ("fastapi", "uvicorn", "uvloop", "httptools")
_FASTAPI = ("fastapi_burst", "fastapi_rate", "sizing")
_FLASK = ("ebbpool.aio", "flask", "a2wsgi", "uvicorn", "h11")
_SOCKETSERVER = ("ebbpool.socketserver",)
_PREFORK = ("ebbpool.prefork", "ebbpool.socketserver")
_TCP = ("server_sizes", "waiting")
_GO, _JAVA = functools.partial(native.version, "go", "version"), functools.partial(native.version, "java", "-version")


def _both(name: str, compiled: str, plain: str, *modules: str, **others: Any) -> tuple[Peer, Peer]:
    """Ours twice, under two labels: with the compiled core, and with the plain one."""
    return (
        Peer(name, compiled, modules, core=True, **others),
        Peer(f"{name}-pure", plain, modules, core=False, **others),
    )


def _runs(command: str, *questions: str) -> dict[str, tuple[str, ...]]:
    """What listens for these questions: a module of `benchmarks.servers`, and its arguments."""
    module, *arguments = command.split()
    return dict.fromkeys(questions, (f"benchmarks.servers.{module}", *arguments))


def _forks() -> None:
    if not hasattr(os, "fork"):
        raise Unavailable("no fork on this system")


_POOLS = (
    Peer(
        "loop",
        "a plain loop (floor)",
        open=PlainLoop,
        loops=_ALL_LOOPS,
        offload=ways.coroutine,
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
    Peer("locks", "two bare locks, ping-pong (floor)", open=PingPong, against=_ONE_AT_A_TIME),
    Peer("bare-thread", "a bare thread on a SimpleQueue (floor)", loops=_ASYNCIO, offload=ways.bare_thread),
    Peer("batched", "hand-made workers, batched wake-ups (floor)", loops=_ASYNCIO, offload=ways.batched),
    *_both("run", "ebbpool run (compiled)", "ebbpool run (plain)", "ebbpool.aio", loops=_ASYNCIO, offload=ways.run),
    *_both(
        "own-loop",
        "ebbpool loop, run_in_executor(None)",
        "ebbpool loop (plain), run_in_executor(None)",
        "ebbpool.aio",
        loops=_ASYNCIO,
        offload=ways.default_executor,
        new_loop=ways.our_loop,
    ),
    Peer(
        "own-loop-to-thread",
        "ebbpool loop, asyncio.to_thread",
        ("ebbpool.aio",),
        core=True,
        loops=_ASYNCIO,
        offload=ways.default_to_thread,
        new_loop=ways.our_loop,
    ),
    *_both(
        "ebbpool",
        "ebbpool (compiled)",
        "ebbpool (plain)",
        "ebbpool",
        open=EbbPool,
        loops=_ASYNCIO,
        offload=ways.run_in_executor(adaptive),
        blocked=blocking.executor(blocking.ours),
    ),
    Peer(
        "stdlib",
        "ThreadPoolExecutor",
        open=functools.partial(ExecutorPool, stdlib),
        loops=_ASYNCIO,
        offload=ways.run_in_executor(stdlib),
    ),
    Peer("stdlib-default", "ThreadPoolExecutor()", blocked=blocking.executor(blocking.stdlib())),
    *(
        Peer(f"stdlib-{size}", f"ThreadPoolExecutor({size})", blocked=blocking.executor(blocking.stdlib(size)))
        for size in (64, 256)
    ),
    Peer(
        "to-thread-uvloop",
        "asyncio.to_thread on uvloop",
        ("uvloop",),
        blocked=blocking.on_loop("uvloop", blocking.to_thread),
    ),
    Peer("go", "Go, goroutines", needs=native.go, version=_GO, blocked=native.go_burst),
    Peer("java", "Java, virtual threads", needs=native.java, version=_JAVA, blocked=native.java_burst),
    Peer("simulation", "the simulation"),
    Peer(
        "multiprocessing",
        "multiprocessing ThreadPool",
        open=MultiprocessingPool,
        against={"offload": "its results are no futures"},
        blocked=blocking.processes_threads,
    ),
    Peer(
        "fastthreadpool",
        "fastthreadpool",
        ("fastthreadpool",),
        open=functools.partial(FastThreadPool, "fastthreadpool"),
        against=_NO_FUTURES,
    ),
    Peer(
        "ebbpool-fastthreadpool",
        "ebbpool.fastthreadpool (its names)",
        ("ebbpool.fastthreadpool",),
        core=True,
        open=functools.partial(FastThreadPool, "ebbpool.fastthreadpool"),
        against=_NO_FUTURES,
    ),
    Peer(
        "plus",
        "ThreadPoolExecutorPlus",
        ("ThreadPoolExecutorPlus",),
        open=functools.partial(ExecutorPool, plus),
        loops=_ASYNCIO,
        offload=ways.run_in_executor(plus),
        against={"memory": "its queue holds 64 tasks a worker, then submit blocks"},
        blocked=blocking.executor(blocking.plus),
    ),
    Peer(
        "pebble",
        "pebble",
        ("pebble",),
        open=PebblePool,
        loops=_ASYNCIO,
        offload=ways.run_in_executor(pebble),
        blocked=blocking.pebble,
    ),
    Peer(
        "gevent-threadpool",
        "gevent.threadpool",
        ("gevent.threadpool",),
        open=GeventThreads,
        against={
            "offload": "belongs to gevent's own hub",
            "memory": "spawn waits for a free thread: nothing is ever pending",
        },
        blocked=blocking.gevent_threads,
    ),
    Peer(
        "gevent",
        "gevent.spawn (greenlets)",
        ("gevent",),
        open=Greenlets,
        against={"offload": "belongs to gevent's own hub", "idle_cost": "has no threads"},
        blocked=blocking.greenlets,
    ),
    Peer(
        "to-thread",
        "asyncio.to_thread",
        loops=_ASYNCIO,
        offload=ways.to_thread(stdlib),
        blocked=blocking.on_loop("asyncio", blocking.to_thread),
    ),
    Peer(
        "to-thread-ebbpool",
        "asyncio.to_thread on ebbpool",
        ("ebbpool",),
        core=True,
        loops=_ASYNCIO,
        offload=ways.to_thread(adaptive),
    ),
    Peer(
        "asgiref",
        "asgiref sync_to_async",
        ("asgiref.sync",),
        loops=_ASYNCIO,
        offload=ways.asgiref,
        blocked=blocking.on_loop("asyncio", blocking.asgiref),
    ),
    Peer(
        "anyio",
        "anyio.to_thread.run_sync",
        ("anyio", "anyio.to_thread"),
        open=functools.partial(TaskThreads, "anyio", "create_task_group"),
        loops=_ALL_LOOPS,
        offload=ways.run_sync("anyio"),
        against=_FROM_TASKS,
        blocked=blocking.tasks("anyio", "create_task_group"),
    ),
    Peer(
        "trio",
        "trio.to_thread.run_sync",
        ("trio",),
        open=functools.partial(TaskThreads, "trio", "open_nursery"),
        loops=("trio",),
        offload=ways.run_sync("trio"),
        against=_FROM_TASKS,
        blocked=blocking.tasks("trio", "open_nursery"),
    ),
    Peer(
        "anyio-ebbpool",
        "ebbpool.anyio.run_sync",
        ("anyio", "ebbpool.anyio"),
        core=True,
        loops=_ALL_LOOPS,
        offload=ways.our_run_sync,
    ),
    Peer(
        "anyio-installed",
        "anyio.to_thread.run_sync, ebbpool installed",
        ("anyio", "ebbpool.anyio"),
        core=True,
        loops=_ALL_LOOPS,
        offload=ways.installed,
    ),
)

_OTHERS = (
    Peer(
        "fastapi",
        "FastAPI, stock",
        _WEB,
        listens=_runs("fastapi", *_FASTAPI) | _runs("fastapi --computing", "health_beside"),
    ),
    Peer(
        "fastapi-256",
        "FastAPI, 256 tokens",
        _WEB,
        listens=_runs("fastapi --computing --threads 256", "health_beside"),
    ),
    *_both(
        "fastapi-installed",
        "FastAPI, ebbpool installed",
        "FastAPI, ebbpool (plain) installed",
        *_WEB,
        "ebbpool.anyio",
        listens=_runs("fastapi --install", *_FASTAPI) | _runs("fastapi --computing --install", "health_beside"),
    ),
    Peer(
        "fastapi-own-loop",
        "FastAPI, ebbpool installed, its uvloop",
        (*_WEB, "ebbpool.anyio", "ebbpool.aio"),
        core=True,
        listens=_runs("fastapi --install --own-loop", *_FASTAPI)
        | _runs("fastapi --computing --install --own-loop", "health_beside"),
    ),
    Peer("lock", "threading.Lock (floor)", semaphore=lambda permits: threading.Lock()),
    Peer("semaphore", "threading.Semaphore", semaphore=threading.Semaphore),
    *_both(
        "ebbpool-semaphore",
        "ebbpool.sync.Semaphore (compiled)",
        "ebbpool.sync.Semaphore (plain)",
        "ebbpool.sync",
        semaphore=lambda permits: package("ebbpool.sync").Semaphore(permits),
    ),
    Peer(
        "fastthreadpool-semaphore",
        "fastthreadpool.Semaphore",
        ("fastthreadpool",),
        semaphore=lambda permits: package("fastthreadpool").Semaphore(permits),
    ),
    Peer("timer", "threading.Timer (a thread each)"),
    Peer("heap", "heapq.heappush (floor)"),
)

_SERVERS = (
    Peer("tcp-sequential", "TCPServer, no threads (floor)", listens=_runs("tcp sequential", "server_sizes")),
    Peer(
        "tcp-bare-thread",
        "a bare thread behind ebbpool's accept loop (floor)",
        _SOCKETSERVER,
        listens=_runs("tcp bare-thread", "server_sizes"),
    ),
    *_both(
        "tcp-ebbpool",
        "ebbpool AdaptivePoolTCPServer (compiled)",
        "ebbpool AdaptivePoolTCPServer (plain)",
        *_SOCKETSERVER,
        listens=_runs("tcp adaptive --workers 256", "waiting") | _runs("tcp adaptive --workers 200", "server_sizes"),
    ),
    Peer("tcp-threading", "ThreadingMixIn (a thread a connection)", listens=_runs("tcp threading", *_TCP)),
    Peer("tcp-executor", "ThreadPoolExecutor(200) as a mix-in", listens=_runs("tcp executor --workers 200", *_TCP)),
    Peer(
        "tcp-executor-20", "ThreadPoolExecutor(20) as a mix-in", listens=_runs("tcp executor --workers 20", "waiting")
    ),
    Peer("tcp-2008", "the rule of 2008 (2, 200, 20)", listens=_runs("tcp rule-2008 --workers 200", *_TCP)),
    Peer(
        "tcp-gevent",
        "gevent StreamServer (a greenlet a connection)",
        ("gevent.server",),
        listens=_runs("tcp gevent", "waiting"),
    ),
    *_both(
        "echo-pool",
        "threads on ebbpool (compiled)",
        "threads on ebbpool (plain)",
        *_SOCKETSERVER,
        listens=_runs("echo pool", "echo"),
    ),
    Peer("echo-threading", "ThreadingMixIn, the same handler", listens=_runs("echo threading", "echo")),
    *(
        Peer(
            f"echo-{loop}-{kind}",
            f"{loop}, {label}",
            () if loop == "asyncio" else (loop,),
            listens=_runs(f"echo {kind} --loop {loop}", "echo"),
        )
        for loop in _ASYNCIO
        for kind, label in (("streams", "streams"), ("protocol", "protocol"), ("buffered", "buffered protocol"))
    ),
    Peer(
        "echo-gevent",
        "gevent StreamServer, the same handler on greenlets",
        ("gevent.server",),
        listens=_runs("echo gevent", "echo"),
    ),
    Peer(
        "echo-go",
        "Go, a goroutine a connection",
        needs=native.go,
        version=_GO,
        listens=_runs("native go echo", "echo"),
    ),
    Peer(
        "echo-java",
        "Java, a virtual thread a connection",
        needs=native.java,
        version=_JAVA,
        listens=_runs("native java echo", "echo"),
    ),
    Peer(
        "slow-adaptive",
        "ebbpool AdaptivePoolHTTPServer",
        _SOCKETSERVER,
        core=True,
        listens=_runs("slow adaptive", "slow_clients"),
    ),
    Peer(
        "slow-plain-front",
        "asyncio.start_server and pool.run",
        ("ebbpool.aio", "h11"),
        core=True,
        listens=_runs("slow plain-front", "slow_clients"),
    ),
    Peer(
        "slow-flask-front",
        "Flask, a2wsgi, bodies read first, uvicorn",
        _FLASK,
        core=True,
        measured="a2wsgi",
        listens=_runs("slow flask-front", "slow_clients"),
    ),
    Peer(
        "slow-flask-front-bare",
        "Flask, a2wsgi, uvicorn",
        _FLASK,
        core=True,
        measured="a2wsgi",
        listens=_runs("slow flask-front-bare", "slow_clients"),
    ),
    Peer("slow-threads", "ThreadingHTTPServer", listens=_runs("slow threads", "slow_clients")),
    Peer("slow-fixed-20", "HTTPServer on 20 threads", listens=_runs("slow fixed-20", "slow_clients")),
    Peer("slow-fixed-200", "HTTPServer on 200 threads", listens=_runs("slow fixed-200", "slow_clients")),
    Peer("slow-gevent", "gevent pywsgi", ("gevent.pywsgi",), listens=_runs("slow gevent", "slow_clients")),
    Peer("web-threading", "ThreadingHTTPServer (a thread a request)", listens=_runs("web threading", "web_server")),
    *_both(
        "web-pool",
        "ebbpool AdaptivePoolHTTPServer (compiled)",
        "ebbpool AdaptivePoolHTTPServer (plain)",
        *_SOCKETSERVER,
        listens=_runs("web pool", "web_server"),
    ),
    Peer(
        "web-prefork",
        "ebbpool prefork, one listener",
        _PREFORK,
        core=True,
        listens=_runs("web prefork", "web_server", "kill_child"),
    ),
    Peer(
        "web-prefork-reuse-port",
        "ebbpool prefork, reuse_port",
        _PREFORK,
        core=True,
        listens=_runs("web prefork --reuse-port", "web_server", "kill_child"),
    ),
    Peer("web-gunicorn", "gunicorn, gthread", ("gunicorn",), needs=_forks, listens=_runs("web gunicorn", "kill_child")),
    Peer(
        "web-nginx",
        "nginx (ceiling)",
        needs=functools.partial(program, "nginx"),
        version=functools.partial(native.version, "nginx", "-v"),
        listens=_runs("web nginx", "web_server"),
    ),
)

PEERS: tuple[Peer, ...] = _POOLS + _OTHERS + _SERVERS

BY_NAME = {peer.name: peer for peer in PEERS}
