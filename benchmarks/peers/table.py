"""Every rival, named once. Its modules are imported only in the process that measures it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.peers import package, pools, ways
from benchmarks.peers.peer import AT, Peer

_WEB = ("fastapi", "uvicorn", "uvloop", "httptools")
_ANYIO, _SERVER = "ebbpool.anyio", "ebbpool.socketserver"
_DASK = ("distributed", "ebbpool.dask")
_PREFORK = ("ebbpool.prefork", _SERVER)
_FAST = ("fastthreadpool",)
_GUNICORN = "web gunicorn --worker ebbpool.gunicorn.AdaptiveThreadWorker"


def _ours(name: str, label: str, *modules: str, core: bool = True, **others: Any) -> Peer:
    return Peer(name, label, modules, core, **others)


def _both(name: str, label: str, *modules: str, **others: Any) -> tuple[Peer, Peer]:
    """Ours twice: with the compiled core, and with the plain one."""
    return (
        _ours(name, f"{label} (compiled)", *modules, **others),
        _ours(f"{name}-pure", f"{label} (plain)", *modules, core=False, **others),
    )


def _executor(name: str, label: str, build: pools.Build, *modules: str) -> Peer:
    return Peer(name, label, modules, open=partial(pools.FuturesPool, build), offload=ways.run_in_executor(build))


def _awaited(name: str, label: str, way: ways.Offload, pool: Any = pools.Offloaded) -> Peer:
    """What is awaited, and the pool that is made of that."""
    return Peer(name, label, (name,), open=partial(pool, way), offload=way)


def _to_thread(name: str, *modules: str) -> Peer:
    """The threads of anyio, or of trio."""
    pool, way = partial(pools.TaskThreads, name), ways.run_sync(name)
    return Peer(name, f"{name}.to_thread.run_sync", (name, *modules), open=pool, offload=way)


def _server(name: str, label: str, program: str, *modules: str, core: bool | None = None) -> Peer:
    return Peer(name, label, modules, core, program=program)


def _echoes(loop: str, *modules: str) -> tuple[Peer, ...]:
    """The echo servers of an event loop."""
    kinds = {"streams": "streams", "protocol": "protocol", "buffered": "buffered protocol"}
    return tuple(
        _server(f"echo-{loop}-{kind}", f"{loop}, {words}", f"tcp {kind} --loop {loop}", *modules)
        for kind, words in kinds.items()
    )


def _semaphore(module: str) -> Callable[[int], Any]:
    return lambda permits: package(module).Semaphore(permits)


_POOLS = (
    Peer("loop", "a plain loop (floor)", open=pools.PlainLoop, offload=ways.coroutine),
    Peer("simplequeue", "bare SimpleQueue workers (floor)", open=pools.BareQueue),
    Peer("locks", "two bare locks, ping-pong (floor)", open=pools.PingPong),
    Peer("bare-thread", "a bare thread on a SimpleQueue (floor)", offload=ways.bare_thread),
    Peer("batched", "hand-made workers, batched wake-ups (floor)", offload=ways.batched),
    *_both("run", "ebbpool run", "ebbpool.aio", offload=ways.run),
    *_both("own-loop", "ebbpool loop, run_in_executor(None)", offload=ways.default_executor, new_loop=ways.our_loop),
    _ours(
        "own-loop-to-thread", "ebbpool loop, asyncio.to_thread", offload=ways.default_to_thread, new_loop=ways.our_loop
    ),
    *_both("ebbpool", "ebbpool", open=pools.EbbPool, offload=ways.run_in_executor(pools.adaptive)),
    _ours("ebbpool-fixed", "ebbpool of a fixed size (floor)"),
    _executor("stdlib", "ThreadPoolExecutor", pools.stdlib),
    Peer("multiprocessing", "multiprocessing ThreadPool", open=pools.MultiprocessingPool),
    Peer("fastthreadpool", "fastthreadpool", _FAST, open=partial(pools.FastThreadPool, *_FAST)),
    _ours(
        "ebbpool-fastthreadpool",
        "ebbpool.fastthreadpool (its names)",
        open=partial(pools.FastThreadPool, "ebbpool.fastthreadpool"),
    ),
    _executor("plus", "ThreadPoolExecutorPlus", pools.plus, "ThreadPoolExecutorPlus"),
    Peer("pebble", "pebble", ("pebble",), open=pools.PebblePool, offload=ways.run_in_executor(pools.pebble)),
    _executor("betapool", "betapool", pools.betapool, "betapool"),
    _executor("flexexecutor", "flexexecutor", pools.flexexecutor, "flexexecutor"),
    _awaited("aiomisc", "aiomisc ThreadPoolExecutor", ways.run_in_executor(pools.aiomisc)),
    _awaited("hypertile", "hypertile.to_thread", ways.hypertile, pools.Hypertile),
    _awaited("leasepool", "leasepool, one lease", ways.leasepool),
    Peer("gevent-threadpool", "gevent.threadpool", ("gevent.threadpool",), open=pools.GeventThreads),
    Peer("gevent", "gevent.spawn (greenlets)", ("gevent",), open=pools.Greenlets),
    Peer("to-thread", "asyncio.to_thread", offload=ways.to_thread(pools.stdlib)),
    _ours("to-thread-ebbpool", "asyncio.to_thread on ebbpool", offload=ways.to_thread(pools.adaptive)),
    Peer("asgiref", "asgiref sync_to_async", ("asgiref.sync",), offload=ways.asgiref),
    _to_thread("anyio", "anyio.to_thread"),
    _to_thread("trio"),
    _ours("anyio-ebbpool", "ebbpool.anyio.run_sync", _ANYIO, offload=ways.our_run_sync),
    _ours("anyio-installed", "anyio.to_thread.run_sync, ebbpool installed", _ANYIO, offload=ways.installed),
    Peer("stdlib-default", "ThreadPoolExecutor()"),
    Peer("stdlib-64", "ThreadPoolExecutor(64)"),
    Peer("stdlib-256", "ThreadPoolExecutor(256)"),
    _ours("cluster", "ClusterExecutor", *_DASK),
    _ours("cluster-rerun", "ClusterExecutor(rerun=True)", *_DASK),
    Peer("cluster-distributed", "distributed's ClientExecutor", _DASK),
    Peer("lock", "threading.Lock (floor)", semaphore=lambda permits: threading.Lock()),
    Peer("semaphore", "threading.Semaphore", semaphore=threading.Semaphore),
    *_both("ebbpool-semaphore", "ebbpool.sync.Semaphore", semaphore=_semaphore("ebbpool.sync")),
    Peer("fastthreadpool-semaphore", "fastthreadpool.Semaphore", _FAST, semaphore=_semaphore("fastthreadpool")),
    Peer("timer", "threading.Timer (a thread each)"),
    Peer("heap", "heapq.heappush (floor)"),
)

_SERVERS = (
    _server("fastapi", "FastAPI, stock", "fastapi stock", *_WEB),
    _server("fastapi-256", "FastAPI, 256 tokens", "fastapi stock --tokens 256", *_WEB),
    *_both("fastapi-installed", "FastAPI, ebbpool installed", *_WEB, _ANYIO, program="fastapi installed"),
    _ours("fastapi-own-loop", "FastAPI, ebbpool installed, its uvloop", *_WEB, _ANYIO, program="fastapi own-loop"),
    _server("tcp-sequential", "TCPServer, no threads (floor)", "tcp sequential"),
    _server("tcp-bare-thread", "a bare thread behind ebbpool's accept loop (floor)", "tcp bare-thread", _SERVER),
    *_both("tcp-ebbpool", "ebbpool AdaptivePoolTCPServer", _SERVER, program="tcp adaptive"),
    _server("tcp-threading", "ThreadingMixIn (a thread per connection)", "tcp threading"),
    _server("tcp-executor", "ThreadPoolExecutor(200) as a mix-in", "tcp executor"),
    _server("tcp-executor-20", "ThreadPoolExecutor(20) as a mix-in", "tcp executor --workers 20"),
    _server("tcp-2008", "the rule of 2008 (2, 200, 20)", "tcp rule-2008"),
    _server("tcp-gevent", "gevent StreamServer (a greenlet per connection)", "tcp gevent", "gevent.server"),
    *_both("echo-pool", "threads on ebbpool", _SERVER, program="tcp adaptive"),
    _server("echo-threading", "ThreadingMixIn, the same handler", "tcp threading"),
    *_echoes("asyncio"),
    *_echoes("uvloop", "uvloop"),
    _server("echo-gevent", "gevent StreamServer, the same handler on greenlets", "tcp gevent", "gevent.server"),
    _ours("slow-adaptive", "ebbpool AdaptivePoolHTTPServer", _SERVER, program="web pool"),
    _server("slow-threads", "ThreadingHTTPServer", "web threading"),
    _server("slow-gevent", "gevent pywsgi", "web gevent", "gevent.pywsgi"),
    _server("web-threading", "ThreadingHTTPServer (a thread per request)", "web threading"),
    *_both("web-pool", "ebbpool AdaptivePoolHTTPServer", _SERVER, program="web pool"),
    _ours("web-prefork", "ebbpool prefork", *_PREFORK, program="web prefork"),
    _server("web-gunicorn", "gunicorn, gthread", "web gunicorn", "gunicorn"),
    _server("gunicorn-gthread", "gunicorn, gthread", "web gunicorn", "gunicorn"),
    _ours("gunicorn-pool", "gunicorn, ebbpool's worker", "gunicorn", "ebbpool.gunicorn", program=_GUNICORN),
    _server("granian", "granian, WSGI", "web granian", "granian"),
)

PEERS: tuple[Peer, ...] = _POOLS + _SERVERS

POOLS = (
    "simplequeue ebbpool ebbpool-pure stdlib multiprocessing fastthreadpool ebbpool-fastthreadpool plus pebble "
    "betapool flexexecutor gevent-threadpool gevent anyio trio aiomisc hypertile leasepool"
)
"""Those that have a pool, or can pass for one, where all of them are asked."""

_BY_NAME = {peer.name: peer for peer in PEERS}


def known(name: str) -> bool:
    """Return whether there is such a peer, of this checkout or of another."""
    return name.partition(AT)[0] in _BY_NAME


def peer_named(name: str) -> Peer:
    """Return the peer of that name; of another checkout, its environment says where that is."""
    own, _, checkout = name.partition(AT)
    peer = _BY_NAME[own]
    return replace(peer, name=name, label=f"{peer.label}, {checkout}") if checkout else peer
