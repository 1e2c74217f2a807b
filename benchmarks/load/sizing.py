"""What `sizing` gives a pool to do, from tasks that only sleep to tasks that only compute."""

from __future__ import annotations

import asyncio
import atexit
import math
import os
import shutil
import subprocess
import tempfile
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from time import sleep

from benchmarks.load.work import compute
from benchmarks.peers import package

Run = Callable[[Executor], float | None]
"""Gives a pool the load and returns when all is done: None, or seconds that stand for the time it took."""
Task = Callable[[int], object]
Make = Callable[[int], Task]
"""Makes a task, given how many turns of a loop compute for 5 ms."""
PARENTS = 40


@dataclass(frozen=True, slots=True)
class Load:
    """One load.

    Attributes:
        prepare: Makes what the load needs, before the clock starts, and returns what runs it; takes the turns of a
            loop that compute for 5 ms.
        computes: Whether its tasks do nothing but compute.
        most: The largest fixed size it is tried with.
        stock_least: The stock pool deadlocks with fewer threads; 0 if it never does.
    """

    prepare: Callable[[int], Run]
    computes: bool = False
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

    for future in [pool.submit(parent) for _ in range(PARENTS)]:
        future.result()


async def mean_latency(pool: Executor, calls: int) -> float:
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
    "nested": Load(lambda turns: _nested, stock_least=PARENTS + 1),
    "trickle": Load(lambda turns: lambda pool: asyncio.run(mean_latency(pool, 1000))),
    "python": Load(_burst(200, _computing), computes=True),
    "zlib": Load(_burst(150, _compressing), computes=True),
    "numpy": Load(_burst(400, _multiplying), computes=True, most=32),
    "half python": Load(_burst(200, _half(_computing))),
    "half zlib": Load(_burst(200, _half(_compressing))),
    "late computing": Load(
        _burst(120, lambda turns: lambda number: sleep(0.2) if number < 20 else compute(turns)),
    ),
    "300 files, fsync": Load(_burst(300, _writing)),
    "100 child processes": Load(_burst(100, lambda turns: lambda number: subprocess.run(["true"], check=True))),
    "one lock, 1 ms": Load(_burst(300, _convoy)),
}
