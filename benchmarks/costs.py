"""What pools, their threads and their futures hold of memory, and what it costs to look at them."""

from __future__ import annotations

import gc
import os
import threading
import time
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from benchmarks.engine.model import Column, Params, Question, Samples, nothing, us_each
from benchmarks.load.serving import Server
from benchmarks.peers import Unavailable, package
from benchmarks.peers.peer import Peer
from benchmarks.peers.pools import adaptive

_BOTH = "ebbpool ebbpool-pure"


@Question(
    title="The memory of a pending future",
    columns=(
        Column("bytes", "bytes", 0),
        Column("objects", "tracked objects", 1),
        Column("tracked", "after a collection", 1),
    ),
    peers=f"simplequeue {_BOTH} stdlib multiprocessing pebble gevent",
    variants=({"workers": 1},),
    sizes={"tasks": 10_000},
    rounds_factor=0.4,
)
def memory(peer: Peer, params: Params) -> Samples:
    """Tasks queued behind one blocked worker: how many bytes and objects does a pending future keep alive?"""
    # PyPy has none.
    tracemalloc, count = package("tracemalloc"), params["tasks"]
    handles: list[object] = [None] * count
    with peer.open(params["workers"], 10.0) as pool:
        release, submit = pool.block(), pool.submit
        gc.collect()
        gc.disable()
        tracemalloc.start()
        objects = len(gc.get_objects())
        size = tracemalloc.get_traced_memory()[0]
        for index in range(count):
            handles[index] = submit(nothing)
        time.sleep(0.3)  # a pool may have threads of its own that carry tasks on
        kept = tracemalloc.get_traced_memory()[0] - size
        tracemalloc.stop()
        created = len(gc.get_objects()) - objects
        gc.collect()
        tracked = len(gc.get_objects()) - objects
        gc.enable()
        release()
    return {
        "bytes": [kept / count],
        "objects": [max(0, created) / count],
        "tracked": [max(0, tracked) / count],
    }


_STACKS = {"default": None, "1 MiB": 1 << 20, "256 KiB": 256 << 10, "64 KiB": 64 << 10}
_PATIENCE_SECONDS = 60.0


def _with_stacks(peer: Peer, workers: int, stack: int | None) -> Executor:
    if peer.base == "stdlib":
        threading.stack_size(stack or 0)
        return ThreadPoolExecutor(workers)
    executor: Executor = package("ebbpool").AdaptiveExecutor(workers, thread_stack_size=stack)
    return executor


def _kilobytes() -> tuple[int, int]:
    """Return the kB of this process, resident and virtual."""
    process = Server(0, os.getpid())
    found = process.status("VmRSS"), process.status("VmSize")
    if not all(found):
        raise Unavailable("no /proc here")
    return found


@Question(
    title="The memory of waiting workers, by stack size",
    columns=(
        Column("resident", "kB resident per worker", 1),
        Column("virtual", "kB virtual per worker", 0),
    ),
    peers=f"{_BOTH} stdlib",
    variants=[{"waiting": count, "stack": stack} for count in (1, 200, 2000) for stack in _STACKS],
    rounds_factor=0.4,
)
def stacks(peer: Peer, params: Params) -> Samples:
    """What do 1, 200 and 2,000 waiting workers take of memory, by the size of their stacks?"""
    count, usual = params["waiting"], threading.stack_size()
    running, release = threading.Semaphore(0), threading.Event()

    def wait() -> None:
        running.release()
        release.wait()

    with _with_stacks(peer, count, _STACKS[params["stack"]]) as pool:
        before = _kilobytes()
        try:
            futures: list[Any] = [pool.submit(wait) for _ in range(count)]
            for number in range(count):
                if not running.acquire(timeout=_PATIENCE_SECONDS):
                    raise RuntimeError(f"only {number} of {count} tasks run after {_PATIENCE_SECONDS:g} s more")
            after = _kilobytes()
        finally:
            release.set()
            threading.stack_size(usual)
        for future in futures:
            future.result()
    return {
        "resident": [(after[0] - before[0]) / count],
        "virtual": [(after[1] - before[1]) / count],
    }


def _reading(what: str, params: Params) -> list[float]:
    """Return what each look took, in µs, while so many tasks wait."""
    gate = threading.Event()
    with adaptive(1, 10.0) as pool:
        lane = pool.lane("watched", limit=1)
        submit, look = (lane.submit, lane.stats) if what == "lane.stats()" else (pool.submit, pool.stats)
        try:
            submit(gate.wait)
            futures = [submit(nothing) for _ in range(params["waiting"])]
            taken = us_each(lambda: [look() for _ in range(params["looks"])], params["looks"], params["repeats"])
            for future in futures:
                future.cancel()
        finally:
            gate.set()
    return taken


def _scraping(what: str, params: Params) -> list[float]:
    """Return what each scrape of ten pools with five lanes each took, in µs."""
    client, ours = package("prometheus_client"), package("ebbpool.prometheus")
    registry = client.CollectorRegistry()
    collector = ours.PoolCollector()
    registry.register(collector)
    with ExitStack() as stack:
        stack.callback(collector.close)
        pools = [stack.enter_context(adaptive(4, 10.0)) for _ in range(10)]
        # A lane is there for as long as somebody keeps it.
        lanes = [pool.lane(f"lane-{number}", limit=2) for pool in pools for number in range(5)]
        # Tasks are sampled from the first look on.
        collector.collect()
        for lane in lanes * 20:
            lane.submit(nothing).result()
        look = (lambda: client.generate_latest(registry)) if what == "a scrape as text" else collector.collect
        taken = us_each(lambda: [look() for _ in range(params["scrapes"])], params["scrapes"], params["repeats"])
        if sum(len(pool.lanes()) for pool in pools) != len(lanes):
            raise RuntimeError("some lanes were not there")
    return taken


_LOOKS = ("stats()", "lane.stats()", "a scrape", "a scrape as text")


@Question(
    title="The cost of watching pools",
    columns=(Column("us", "µs per look", 1, ratio=False),),
    peers=_BOTH,
    variants=[{"look": what} for what in _LOOKS],
    sizes={"waiting": 1_000_000, "looks": 200, "scrapes": 50, "repeats": 3},
    rounds_factor=0.7,
)
def watching(peer: Peer, params: Params) -> Samples:
    """What does it cost to look at pools, while a million tasks wait and while ten pools are scraped?"""
    what = params["look"]
    return {"us": (_scraping if "scrape" in what else _reading)(what, params)}
