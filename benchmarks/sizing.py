"""Does the pool find its size by itself? From tasks that only sleep to tasks that only compute."""

from __future__ import annotations

import asyncio
import atexit
import gc
import math
import os
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from time import sleep
from typing import Any

from benchmarks import processors
from benchmarks.engine.model import Column, Params, Question, Samples, Settings, Variant, compute
from benchmarks.peers import package
from benchmarks.peers.peer import Peer

UNTUNED = "untuned"
_RIVALS = {
    "betapool": ("betapool", "AdaptiveThreadPoolExecutor"),
    "flexexecutor": ("flexexecutor", "ThreadPoolExecutor"),
}
_SIZES = (256, 128, 64, 32, 16, 8, 4, 2, 1)
_PARENTS = 40
_ENOUGH_SECONDS = 0.5
_HOPELESS = 3.0

Run = Callable[[Executor], float | None]
"""Gives a pool the load and returns when all is done: None, or seconds that stand for the time it took."""
Task = Callable[[int], object]
Make = Callable[[int], Task]
"""Makes a task, given how many turns of a loop compute for 5 ms."""


@dataclass(frozen=True, slots=True)
class Load:
    """One load.

    Attributes:
        prepare: Makes what the load needs, before the clock starts, and returns what runs it; takes the turns of a
            loop that compute for 5 ms.
        most: The largest fixed size it is tried with.
        stock_least: The stock pool deadlocks with fewer threads; 0 if it never does.
    """

    prepare: Callable[[int], Run]
    most: int = 256
    stock_least: int = 0


def _burst(count: int, make: Make) -> Callable[[int], Run]:
    """Return a load that submits so many tasks and then waits for each."""

    def prepare(turns: int) -> Run:
        task = make(turns)

        def run(pool: Executor) -> None:
            for future in [pool.submit(task, number) for number in range(count)]:
                future.result()

        return run

    return prepare


def _computing(turns: int) -> Task:
    return lambda number: compute(turns)


def _compressing(turns: int) -> Task:
    data = os.urandom(1 << 19)
    return lambda number: len(zlib.compress(data, 1))


def _multiplying(turns: int) -> Task:
    matrix = package("numpy").random.rand(400, 400)
    return lambda number: matrix @ matrix


def _half(work: Make) -> Make:
    def make(turns: int) -> Task:
        task = work(turns)
        return lambda number: task(number) if number % 2 else sleep(0.05)

    return make


def _writing(turns: int) -> Task:
    folder, content = tempfile.mkdtemp(prefix="ebbpool-sizing-"), os.urandom(4096)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)

    def write(number: int) -> None:
        with open(os.path.join(folder, str(number)), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    return write


def _convoy(turns: int) -> Task:
    lock = threading.Lock()

    def task(number: int) -> None:
        with lock:
            sleep(0.001)

    return task


def _steady(seconds: float, in_flight: int) -> Callable[[int], Run]:
    """1,000 tasks of which so many are under way at any time: the next is submitted when one ends."""

    def run(pool: Executor) -> None:
        room = threading.Semaphore(in_flight)
        for _ in range(1000):
            room.acquire()
            pool.submit(sleep, seconds).add_done_callback(lambda _: room.release())
        for _ in range(in_flight):
            room.acquire()

    return lambda turns: run


def _nested(pool: Executor) -> None:
    def parent() -> None:
        for child in [pool.submit(sleep, 0.01) for _ in range(5)]:
            child.result()

    for future in [pool.submit(parent) for _ in range(_PARENTS)]:
        future.result()


async def _mean_latency(pool: Executor, calls: int) -> float:
    """A call of 2 ms falls due every millisecond, whatever became of those before; return their mean latency."""
    loop = asyncio.get_running_loop()
    latencies: list[float] = []

    async def call(due: float) -> None:
        await loop.run_in_executor(pool, sleep, 0.002)
        latencies.append(loop.time() - due)

    begin, tasks = loop.time(), []
    for number in range(calls):
        due = begin + number * 0.001
        await asyncio.sleep(max(0.0, due - loop.time()))
        tasks.append(loop.create_task(call(due)))
    await asyncio.gather(*tasks)
    return math.fsum(latencies) / len(latencies)


LOADS: dict[str, Load] = {
    "tiny": Load(_burst(20_000, lambda turns: abs)),
    "200 x 50 ms": Load(_burst(200, lambda turns: lambda number: sleep(0.05))),
    **{
        f"{ms:g} ms x {count}": Load(_steady(ms / 1e3, count))
        for ms, count in ((0.5, 8), (1, 8), (1, 32), (2, 16), (5, 64), (20, 64))
    },
    "bimodal": Load(_burst(1000, lambda turns: lambda number: sleep(0.001 if number % 10 else 0.1))),
    "nested": Load(lambda turns: _nested, stock_least=_PARENTS + 1),
    "trickle": Load(lambda turns: lambda pool: asyncio.run(_mean_latency(pool, 1000))),
    "python": Load(_burst(200, _computing)),
    "zlib": Load(_burst(150, _compressing)),
    "numpy": Load(_burst(400, _multiplying), most=32),
    "half python": Load(_burst(200, _half(_computing))),
    "half zlib": Load(_burst(200, _half(_compressing))),
    "late computing": Load(_burst(120, lambda turns: lambda number: sleep(0.2) if number < 20 else compute(turns))),
    "300 files, fsync": Load(_burst(300, _writing)),
    "100 child processes": Load(_burst(100, lambda turns: lambda number: subprocess.run(["true"], check=True))),
    "one lock, 1 ms": Load(_burst(300, _convoy)),
}


def _build(peer: Peer, threads: int | str) -> Executor:
    """Return a new pool that finds its own size, or has so many threads from as many tasks on."""
    if peer.base == "stdlib":
        return ThreadPoolExecutor() if threads == UNTUNED else ThreadPoolExecutor(int(threads))
    module, name = _RIVALS.get(peer.base, ("ebbpool", "AdaptiveExecutor"))
    make = getattr(package(module), name)
    pool: Executor = make() if threads == UNTUNED else make(threads, min_workers=threads)
    return pool


def skip(cells: Sequence[Mapping[str, Any]], peer: str, variant: Variant) -> str:
    """Return why a fixed size cannot be the best any more, or ""; sizes are asked from the largest down."""
    taken = [
        statistics.median(cell["samples"]["ms"]["1"])
        for cell in cells
        if cell["peer"] == peer and cell["variant"]["load"] == variant["load"]
        if cell["variant"]["threads"] != UNTUNED and "1" in cell["samples"].get("ms", {})
    ]
    hopeless = bool(taken) and variant["threads"] != UNTUNED and taken[-1] > _HOPELESS * min(taken)
    return f"more threads took {taken[-1] / min(taken):.1f} times as long as still more" if hopeless else ""


def variants(peer: str, settings: Settings) -> list[Variant]:
    """Return the cells of a peer."""
    found: list[Variant] = []
    for name in LOADS:
        load = LOADS[name]
        # betapool takes no more threads before some tasks have ended.
        least = load.stock_least if peer in ("stdlib", "betapool") else 0
        sizes = sorted({*_SIZES, len(processors())}, reverse=True)
        fixed = [{"load": name, "threads": size} for size in sizes if least <= size <= load.most]
        found += [{"load": name, "threads": UNTUNED}] if peer != "ebbpool-fixed" and not least else []
        found += fixed if peer in ("ebbpool-fixed", "stdlib") else []
    return found


@Question(
    title="The untuned pool beside the best fixed size",
    columns=(Column("ms", "ms until all are done", 1),),
    peers="ebbpool ebbpool-fixed stdlib betapool flexexecutor",
    variants=variants,
    sizes={"repeats": 7},
    turns=0.005,
    rounds_factor=1 / 3,
    skip=skip,
    free="threads",
)
def sizing(peer: Peer, params: Params) -> Samples:
    """Does the pool find its size by itself? The untuned pool beside the best fixed size, under one load after another.

    Run a load on new pools, up to so many times, while that takes half a second at most.
    """
    run = LOADS[params["load"]].prepare(params["turns"])
    found, spent = list[float](), 0.0
    while len(found) < params["repeats"] and spent < _ENOUGH_SECONDS:
        gc.collect()
        start = time.perf_counter()
        with _build(peer, params["threads"]) as pool:
            figure = run(pool)
            taken = time.perf_counter() - start
        spent += taken
        found.append((taken if figure is None else figure) * 1e3)
    return {"ms": found}
