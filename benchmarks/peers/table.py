"""Every rival, named once. Its modules are imported only in the process that measures it."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.peers import package, pools, ways
from benchmarks.peers.peer import AT, Peer

_WEB = ("fastapi", "uvicorn", "uvloop", "httptools")
_SOCKETSERVER = ("ebbpool.socketserver",)
_DASK = ("distributed", "ebbpool.dask")
_PREFORK = ("ebbpool.prefork", "ebbpool.socketserver")


def _both(name: str, label: str, *modules: str, **others: Any) -> tuple[Peer, Peer]:
    """Ours twice: with the compiled core, and with the plain one."""
    return (
        Peer(name, f"{label} (compiled)", modules, core=True, **others),
        Peer(f"{name}-pure", f"{label} (plain)", modules, core=False, **others),
    )


def _executor(name: str, label: str, build: pools.Build, *modules: str) -> Peer:
    return Peer(name, label, modules, open=partial(pools.FuturesPool, build), offload=ways.run_in_executor(build))


_POOLS = (
    Peer("loop", "a plain loop (floor)", open=pools.PlainLoop, offload=ways.coroutine),
    Peer("simplequeue", "bare SimpleQueue workers (floor)", open=pools.BareQueue),
    Peer("locks", "two bare locks, ping-pong (floor)", open=pools.PingPong),
    Peer("bare-thread", "a bare thread on a SimpleQueue (floor)", offload=ways.bare_thread),
    Peer("batched", "hand-made workers, batched wake-ups (floor)", offload=ways.batched),
    *_both("run", "ebbpool run", "ebbpool.aio", offload=ways.run),
    *_both("own-loop", "ebbpool loop, run_in_executor(None)", offload=ways.default_executor, new_loop=ways.our_loop),
    Peer(
        "own-loop-to-thread",
        "ebbpool loop, asyncio.to_thread",
        core=True,
        offload=ways.default_to_thread,
        new_loop=ways.our_loop,
    ),
    *_both("ebbpool", "ebbpool", open=pools.EbbPool, offload=ways.run_in_executor(pools.adaptive)),
    Peer("ebbpool-fixed", "ebbpool of a fixed size (floor)", core=True),
    _executor("stdlib", "ThreadPoolExecutor", pools.stdlib),
    Peer("multiprocessing", "multiprocessing ThreadPool", open=pools.MultiprocessingPool),
    Peer("fastthreadpool", "fastthreadpool", ("fastthreadpool",), open=partial(pools.FastThreadPool, "fastthreadpool")),
    Peer(
        "ebbpool-fastthreadpool",
        "ebbpool.fastthreadpool (its names)",
        core=True,
        open=partial(pools.FastThreadPool, "ebbpool.fastthreadpool"),
    ),
    _executor("plus", "ThreadPoolExecutorPlus", pools.plus, "ThreadPoolExecutorPlus"),
    Peer("pebble", "pebble", ("pebble",), open=pools.PebblePool, offload=ways.run_in_executor(pools.pebble)),
    _executor("betapool", "betapool", pools.betapool, "betapool"),
    _executor("flexexecutor", "flexexecutor", pools.flexexecutor, "flexexecutor"),
    Peer(
        "aiomisc",
        "aiomisc ThreadPoolExecutor",
        ("aiomisc",),
        open=partial(pools.Offloaded, ways.run_in_executor(pools.aiomisc)),
        offload=ways.run_in_executor(pools.aiomisc),
    ),
    Peer(
        "hypertile",
        "hypertile.to_thread",
        ("hypertile",),
        open=partial(pools.Hypertile, ways.hypertile),
        offload=ways.hypertile,
    ),
    Peer(
        "leasepool",
        "leasepool, one lease",
        ("leasepool",),
        open=partial(pools.Offloaded, ways.leasepool),
        offload=ways.leasepool,
    ),
    Peer("gevent-threadpool", "gevent.threadpool", ("gevent.threadpool",), open=pools.GeventThreads),
    Peer("gevent", "gevent.spawn (greenlets)", ("gevent",), open=pools.Greenlets),
    Peer("to-thread", "asyncio.to_thread", offload=ways.to_thread(pools.stdlib)),
    Peer("to-thread-ebbpool", "asyncio.to_thread on ebbpool", core=True, offload=ways.to_thread(pools.adaptive)),
    Peer("asgiref", "asgiref sync_to_async", ("asgiref.sync",), offload=ways.asgiref),
    Peer(
        "anyio",
        "anyio.to_thread.run_sync",
        ("anyio", "anyio.to_thread"),
        open=partial(pools.TaskThreads, "anyio"),
        offload=ways.run_sync("anyio"),
    ),
    Peer(
        "trio",
        "trio.to_thread.run_sync",
        ("trio",),
        open=partial(pools.TaskThreads, "trio"),
        offload=ways.run_sync("trio"),
    ),
    Peer("anyio-ebbpool", "ebbpool.anyio.run_sync", ("ebbpool.anyio",), core=True, offload=ways.our_run_sync),
    Peer(
        "anyio-installed",
        "anyio.to_thread.run_sync, ebbpool installed",
        ("ebbpool.anyio",),
        core=True,
        offload=ways.installed,
    ),
    Peer("stdlib-default", "ThreadPoolExecutor()"),
    Peer("stdlib-64", "ThreadPoolExecutor(64)"),
    Peer("stdlib-256", "ThreadPoolExecutor(256)"),
    Peer("to-thread-uvloop", "asyncio.to_thread on uvloop", ("uvloop",)),
    Peer("cluster", "ClusterExecutor", _DASK, core=True),
    Peer("cluster-rerun", "ClusterExecutor(rerun=True)", _DASK, core=True),
    Peer("cluster-spill", "AdaptiveExecutor(spill=...)", _DASK, core=True),
    Peer("cluster-distributed", "distributed's ClientExecutor", _DASK),
    Peer("lock", "threading.Lock (floor)", semaphore=lambda permits: threading.Lock()),
    Peer("semaphore", "threading.Semaphore", semaphore=threading.Semaphore),
    *_both("ebbpool-semaphore", "ebbpool.sync.Semaphore", semaphore=lambda n: package("ebbpool.sync").Semaphore(n)),
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
    Peer("fastapi", "FastAPI, stock", _WEB, program="fastapi stock"),
    Peer("fastapi-256", "FastAPI, 256 tokens", _WEB, program="fastapi stock --tokens 256"),
    *_both("fastapi-installed", "FastAPI, ebbpool installed", *_WEB, "ebbpool.anyio", program="fastapi installed"),
    Peer(
        "fastapi-own-loop",
        "FastAPI, ebbpool installed, its uvloop",
        (*_WEB, "ebbpool.anyio"),
        core=True,
        program="fastapi own-loop",
    ),
    Peer("tcp-sequential", "TCPServer, no threads (floor)", program="tcp sequential"),
    Peer(
        "tcp-bare-thread",
        "a bare thread behind ebbpool's accept loop (floor)",
        _SOCKETSERVER,
        program="tcp bare-thread",
    ),
    *_both("tcp-ebbpool", "ebbpool AdaptivePoolTCPServer", *_SOCKETSERVER, program="tcp adaptive"),
    Peer("tcp-threading", "ThreadingMixIn (a thread a connection)", program="tcp threading"),
    Peer("tcp-executor", "ThreadPoolExecutor(200) as a mix-in", program="tcp executor"),
    Peer("tcp-executor-20", "ThreadPoolExecutor(20) as a mix-in", program="tcp executor --workers 20"),
    Peer("tcp-2008", "the rule of 2008 (2, 200, 20)", program="tcp rule-2008"),
    Peer(
        "tcp-gevent",
        "gevent StreamServer (a greenlet a connection)",
        ("gevent.server",),
        program="tcp gevent",
    ),
    *_both("echo-pool", "threads on ebbpool", *_SOCKETSERVER, program="tcp adaptive"),
    Peer("echo-threading", "ThreadingMixIn, the same handler", program="tcp threading"),
    *(
        Peer(
            f"echo-{loop}-{kind}",
            f"{loop}, {kind}{' protocol' * (kind == 'buffered')}",
            ("uvloop",) * (loop == "uvloop"),
            program=f"tcp {kind} --loop {loop}",
        )
        for loop in ("asyncio", "uvloop")
        for kind in ("streams", "protocol", "buffered")
    ),
    Peer(
        "echo-gevent",
        "gevent StreamServer, the same handler on greenlets",
        ("gevent.server",),
        program="tcp gevent",
    ),
    Peer("slow-adaptive", "ebbpool AdaptivePoolHTTPServer", _SOCKETSERVER, core=True, program="web pool"),
    Peer("slow-threads", "ThreadingHTTPServer", program="web threading"),
    Peer("slow-fixed-20", "HTTPServer on 20 threads", program="web fixed --workers 20"),
    Peer("slow-fixed-200", "HTTPServer on 200 threads", program="web fixed --workers 200"),
    Peer("slow-gevent", "gevent pywsgi", ("gevent.pywsgi",), program="web gevent"),
    Peer("web-threading", "ThreadingHTTPServer (a thread a request)", program="web threading"),
    *_both("web-pool", "ebbpool AdaptivePoolHTTPServer", *_SOCKETSERVER, program="web pool"),
    Peer("web-prefork", "ebbpool prefork, one listener", _PREFORK, core=True, program="web prefork"),
    Peer(
        "web-prefork-reuse-port",
        "ebbpool prefork, reuse_port",
        _PREFORK,
        core=True,
        program="web prefork-reuse-port",
    ),
    Peer("web-gunicorn", "gunicorn, gthread", ("gunicorn",), program="web gunicorn"),
    Peer("gunicorn-gthread", "gunicorn, gthread", ("gunicorn",), program="web gunicorn"),
    Peer(
        "gunicorn-pool",
        "gunicorn, ebbpool's worker",
        ("gunicorn", "ebbpool.gunicorn"),
        core=True,
        program="web gunicorn --worker ebbpool.gunicorn.AdaptiveThreadWorker",
    ),
    Peer("granian", "granian, WSGI", ("granian",), program="web granian"),
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
