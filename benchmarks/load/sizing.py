"""What `sizing` gives a pool to do, from tasks that only sleep to tasks that only compute."""

from __future__ import annotations

import asyncio
import math
import os
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import Self

from benchmarks.computing import compute
from benchmarks.peers import package

Run = Callable[[Executor], float | None]
"""Gives a pool the load and returns when all is done: None, or seconds that stand for the time it took."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of a load there is.

    Attributes:
        share: of the load's tasks, how many are run; 1 for a measurement.
        turns: turns of a loop that compute for 5 ms.
    """

    share: float
    turns: int

    def tasks(self, count: int) -> int:
        return max(2, round(count * self.share))


@dataclass(frozen=True, slots=True)
class Load:
    """One load.

    Attributes:
        text: what it is, in a few words.
        prepare: makes what the load needs, before the clock starts, and returns what runs it.
        computes: whether its tasks do nothing but compute.
        most: the largest fixed size it is tried with.
        stock_least: the stock pool deadlocks with fewer threads; 0 if it never does.
        clients: how many clients ask a FastAPI server whose endpoint sleeps 5 ms; 0 for a load without a server.
    """

    name: str
    text: str
    prepare: Callable[[Scale], Run]
    computes: bool = False
    most: int = 256
    stock_least: int = 0
    clients: int = 0


def _burst(pool: Executor, task: Callable[[int], object], count: int) -> None:
    futures = [pool.submit(task, number) for number in range(count)]
    for future in futures:
        future.result()


def _burst_of(count: int, make: Callable[[Scale], Callable[[int], object]]) -> Callable[[Scale], Run]:
    """Returns a load that submits so many tasks and then waits for each; `make` makes the task."""

    def prepare(scale: Scale) -> Run:
        task = make(scale)
        return lambda pool: _burst(pool, task, scale.tasks(count))

    return prepare


def _sleeping(seconds: float) -> Callable[[Scale], Callable[[int], object]]:
    return lambda scale: lambda number: sleep(seconds)


def _computing(scale: Scale) -> Callable[[int], object]:
    return lambda number: compute(scale.turns)


def _compressing(scale: Scale) -> Callable[[int], object]:
    data = os.urandom(1 << 19)
    return lambda number: len(zlib.compress(data, 1))


def _multiplying(scale: Scale) -> Callable[[int], object]:
    matrix = package("numpy").random.rand(400, 400)
    return lambda number: matrix @ matrix


def _half(work: Callable[[Scale], Callable[[int], object]]) -> Callable[[Scale], Callable[[int], object]]:
    def make(scale: Scale) -> Callable[[int], object]:
        task = work(scale)
        return lambda number: task(number) if number % 2 else sleep(0.05)

    return make


def _bimodal(scale: Scale) -> Callable[[int], object]:
    return lambda number: sleep(0.001 if number % 10 else 0.1)


def _late_computing(scale: Scale) -> Callable[[int], object]:
    sleepers = scale.tasks(120) // 6
    return lambda number: sleep(0.2) if number < sleepers else compute(scale.turns)


def _steady(seconds: float, in_flight: int) -> Callable[[Scale], Run]:
    """1,000 tasks of which so many are under way at any time: the next is submitted when one ends."""

    def prepare(scale: Scale) -> Run:
        def run(pool: Executor) -> None:
            room = threading.Semaphore(in_flight)
            for _ in range(scale.tasks(1000)):
                room.acquire()
                pool.submit(sleep, seconds).add_done_callback(lambda _: room.release())
            for _ in range(in_flight):
                room.acquire()

        return run

    return prepare


PARENTS = 40
CHILDREN = 5


def _nested(scale: Scale) -> Run:
    def run(pool: Executor) -> None:
        def parent(number: int) -> None:
            for child in [pool.submit(sleep, 0.01) for _ in range(CHILDREN)]:
                child.result()

        _burst(pool, parent, scale.tasks(PARENTS))

    return run


async def mean_latency(pool: Executor, calls: int) -> float:
    """A call of 2 ms falls due every millisecond, whatever became of those before; returns their mean latency."""
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


def _trickle(scale: Scale) -> Run:
    return lambda pool: asyncio.run(mean_latency(pool, scale.tasks(1000)))


def _served(scale: Scale) -> Run:
    raise NotImplementedError("a server runs this load, not a pool")


_STEADY = ((0.5, 8), (1, 8), (1, 32), (2, 16), (5, 64), (20, 64))

_ALL = (
    Load("tiny", "20,000 trivial tasks", _burst_of(20_000, lambda scale: abs)),
    Load("200 x 50 ms", "200 sleeps of 50 ms", _burst_of(200, _sleeping(0.05))),
    *(Load(f"{ms:g} ms x {n}", f"sleeps of {ms:g} ms, {n} in flight", _steady(ms / 1e3, n)) for ms, n in _STEADY),
    Load("bimodal", "1,000 sleeps: 100 ms, 9 times 1 ms", _burst_of(1000, _bimodal)),
    Load("nested", "tasks that wait for tasks", _nested, stock_least=PARENTS + 1),
    Load("trickle", "asyncio: 2 ms sleeps, 1,000 a second", _trickle),
    Load("python", "computing in Python", _burst_of(200, _computing), computes=True),
    Load("zlib", "compressing (zlib)", _burst_of(150, _compressing), computes=True),
    Load("numpy", "matrix products (numpy)", _burst_of(400, _multiplying), computes=True, most=32),
    Load("half python", "half sleeping, half Python", _burst_of(200, _half(_computing))),
    Load("half zlib", "half sleeping, half zlib", _burst_of(200, _half(_compressing))),
    Load("late computing", "computing behind 20 sleeps of 200 ms", _burst_of(120, _late_computing)),
    *(Load(f"FastAPI x {n}", f"FastAPI: 5 ms sleeps, {n} clients", _served, clients=n) for n in (64, 128)),
)

LOADS: dict[str, Load] = {load.name: load for load in _ALL}
USUAL = tuple(load.name for load in _ALL if not load.clients)
"""The loads that are run when none is named."""


class Lives:
    """Notes, while it is entered, when each new thread was started and when it ended.

    Args:
        but: threads of these names are left out.
    """

    def __init__(self, *but: str) -> None:
        self._but = but
        self._noted: dict[threading.Thread, list[float]] = {}

    def __enter__(self) -> Self:
        noted, but = self._noted, self._but
        self._kept = kept = (threading.Thread.start, threading.Thread.run)

        def start(thread: threading.Thread) -> None:
            if thread.name not in but:
                noted[thread] = [perf_counter()]
            try:
                kept[0](thread)
            except RuntimeError:
                noted.pop(thread, None)
                raise

        def run(thread: threading.Thread) -> None:
            try:
                kept[1](thread)
            finally:
                if thread in noted:
                    noted[thread].append(perf_counter())

        # Methods are replaced, which is what this class is for.
        threading.Thread.start, threading.Thread.run = start, run  # type: ignore[assignment, method-assign]
        return self

    def __exit__(self, *exc_info: object) -> None:
        threading.Thread.start, threading.Thread.run = self._kept  # type: ignore[method-assign]  # and put back

    def spans(self) -> list[tuple[float, float]]:
        """When each thread was started and when it ended; infinity if it lives."""
        return [(found[0], found[1] if len(found) > 1 else math.inf) for found in list(self._noted.values())]


def most_at_once(spans: list[tuple[float, float]], end: float) -> int:
    """Returns how many of the spans overlap at most, up to the moment `end`."""
    changes = [(start, 1) for start, _ in spans if start <= end] + [(stop, -1) for _, stop in spans if stop <= end]
    now = most = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def lived(spans: list[tuple[float, float]], end: float) -> float:
    """Returns the seconds that all spans last together up to the moment `end`."""
    return math.fsum(max(0.0, min(stop, end) - start) for start, stop in spans)
