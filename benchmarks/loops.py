"""Calls from an event loop: what does one cost, and how long does everything else on the loop wait meanwhile?"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import zlib
from collections.abc import Awaitable, Callable
from functools import partial

from benchmarks import processors
from benchmarks.engine.model import (
    Column,
    Params,
    Question,
    Samples,
    Settings,
    Variant,
    compute,
    nothing,
    on_loop,
    percentile,
    spread,
)
from benchmarks.peers import package
from benchmarks.peers.peer import Peer
from benchmarks.peers.ways import Call

_EVERYWHERE = ("asyncio", "uvloop", "trio")


async def _gather(call: Call, count: int) -> None:
    await asyncio.gather(*[call(nothing) for _ in range(count)])


async def _nursery(call: Call, count: int) -> None:
    async with package("trio").open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(call, nothing)


def _offload_variants(peer: str, settings: Settings) -> list[Variant]:
    loops = _EVERYWHERE if peer in ("anyio", "anyio-ebbpool", "anyio-installed", "loop") else _EVERYWHERE[:2]
    ceilings: tuple[int, ...]
    if peer == "bare-thread":
        ceilings = (min(settings.workers),)
    elif peer in ("batched", "run", "run-pure", "ebbpool", "ebbpool-pure", "stdlib"):
        ceilings = settings.workers
    else:
        ceilings = (4 if 4 in settings.workers else settings.workers[0],)
    return [{"loop": loop, "workers": n} for loop in (("trio",) if peer == "trio" else loops) for n in ceilings]


@Question(
    title="Calls offloaded from an event loop",
    columns=(Column("gathered", "µs per call, gathered", 1), Column("single", "µs per call, one after another", 1)),
    peers="loop bare-thread batched run run-pure own-loop own-loop-pure own-loop-to-thread ebbpool ebbpool-pure stdlib "
    "to-thread to-thread-ebbpool plus pebble betapool flexexecutor aiomisc hypertile leasepool asgiref anyio trio "
    "anyio-ebbpool anyio-installed",
    variants=_offload_variants,
    sizes={"gathered": 5_000, "single": 300, "repeats": 2},
)
@on_loop
async def offload(peer: Peer, params: Params) -> Samples:
    """Blocking calls from an event loop: 5,000 gathered, and one after another; what does one cost?"""
    gather = _nursery if params["loop"] == "trio" else _gather
    gathered, single = params["gathered"], params["single"]
    samples: Samples = {"gathered": [], "single": []}
    async with peer.offload(params["workers"]) as call:
        for repeat in range(params["repeats"] + 1):
            gc.collect()
            start = time.perf_counter()
            await gather(call, gathered)
            middle = time.perf_counter()
            for _ in range(single):
                await call(nothing)
            if repeat:
                samples["gathered"].append((middle - start) / gathered * 1e6)
                samples["single"].append((time.perf_counter() - middle) / single * 1e6)
    return samples


_GROUP = 200


async def _empty(fn: Callable[[], object]) -> None:
    pass


async def _groups(call: Callable[..., Awaitable[object]], count: int) -> float:
    """Return the seconds that `count` tasks of `call` took, in groups that follow one another.

    The garbage collector is off: with thousands of tasks in one group it would be what is measured.
    """
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        for begun in range(0, count, _GROUP):
            async with package("anyio").create_task_group() as group:
                for _ in range(min(_GROUP, count - begun)):
                    group.start_soon(call, nothing)
        return time.perf_counter() - start
    finally:
        gc.enable()


@Question(
    title="Calls from anyio task groups of 200 tasks",
    columns=(Column("net", "µs per call, net", 1), Column("empty", "µs per empty task", 1, ratio=False)),
    peers="anyio trio anyio-ebbpool anyio-installed",
    variants=lambda peer, settings: [
        {"loop": loop, "workers": 40} for loop in (("trio",) if peer == "trio" else _EVERYWHERE)
    ],
    sizes={"tasks": 5_000, "repeats": 2},
)
@on_loop
async def anyio_tasks(peer: Peer, params: Params) -> Samples:
    """Calls in anyio task groups of 200: what does one cost beyond the task that makes it?"""
    tasks = params["tasks"]
    samples: Samples = {"net": [], "empty": []}
    async with peer.offload(params["workers"]) as call:
        for repeat in range(params["repeats"] + 1):
            before = await _groups(_empty, tasks)
            taken = await _groups(call, tasks)
            empty = (before + await _groups(_empty, tasks)) / 2
            if repeat:
                samples["net"].append((taken - empty) / tasks * 1e6)
                samples["empty"].append(empty / tasks * 1e6)
    return samples


_WORKERS = 4
_CHUNK = 100
_SETTLE_SECONDS = 0.1


class Heartbeat:
    """A callback that is due every `period` seconds, and what each of its moments waited.

    Lag is what a callback that is due at a given moment waits until it runs. The moments are on a fixed grid; a loop
    that is held up for 100 ms is late for a hundred of them, by 100, 99, 98, ... ms, and all of these count: were only
    the callbacks that ran counted, the worse the stall, the fewer of the samples would show it.

    `lags` are in seconds. While it waits for a moment it leaves the loop idle.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, period: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._loop, self._period, self._clock, self.lags = loop, period, clock, list[float]()
        self._due = clock() + period
        self._handle: asyncio.Handle = loop.call_later(period, self._beat)

    def _beat(self) -> None:
        self._book(self._clock())
        self._handle = self._loop.call_later(max(0.0, self._due - self._clock()), self._beat)

    def _book(self, now: float) -> None:
        while self._due <= now:
            self.lags.append(now - self._due)
            self._due += self._period

    def cut(self) -> list[float]:
        """Return the lags so far, moments that are due and not yet run among them, and start anew."""
        self._book(self._clock())
        lags, self.lags = self.lags, []
        return lags

    def stop(self) -> None:
        self._handle.cancel()


async def _queue(call: Call, count: int) -> tuple[threading.Event, list[asyncio.Future[object]]]:
    """Queue `count` calls behind workers that wait for the event returned; the loop gets its turn meanwhile."""
    gate = threading.Event()
    pending: list[asyncio.Future[object]] = [asyncio.ensure_future(call(gate.wait)) for _ in range(_WORKERS)]
    await asyncio.sleep(_SETTLE_SECONDS)
    while len(pending) < count + _WORKERS:
        pending += [asyncio.ensure_future(call(nothing)) for _ in range(min(_CHUNK, count + _WORKERS - len(pending)))]
        await asyncio.sleep(0)
    return gate, pending


@Question(
    title="The loop's lag while 10,000 calls finish",
    columns=(
        Column("p99", "lag p99, ms", 2),
        Column("most", "most, ms", 1, ratio=False),
        Column("sum", "total beyond idle p99, ms", 0, ratio=False),
        Column("idle", "idle p99, ms", 2, ratio=False),
    ),
    peers="batched run run-pure ebbpool own-loop own-loop-to-thread stdlib to-thread anyio anyio-installed",
    variants=[{"loop": loop, "workers": _WORKERS} for loop in _EVERYWHERE[:2]],
    sizes={"calls": 10_000, "period": 0.001, "window": 1.0, "repeats": 2},
)
@on_loop
async def loop_lag(peer: Peer, params: Params) -> Samples:
    """10,000 calls finish at once: how long do the loop's other callbacks wait meanwhile?

    The window is the same for all: up to the last result there are twenty moments in one case, and a thousand in
    another, and the 99th percentile of twenty is the most of them.
    """
    samples: Samples = {"p99": [], "most": [], "sum": [], "idle": []}
    async with peer.offload(params["workers"]) as call:
        for repeat in range(params["repeats"] + 1):
            gate, pending = await _queue(call, params["calls"])
            everything = asyncio.gather(*pending)
            gc.collect()
            await asyncio.sleep(_SETTLE_SECONDS)
            heart = Heartbeat(asyncio.get_running_loop(), params["period"])
            await asyncio.sleep(_SETTLE_SECONDS)
            idle = heart.cut()
            window = asyncio.create_task(asyncio.sleep(params["window"]))
            gate.set()
            await everything
            await window
            lags = heart.cut() or [0.0]
            heart.stop()
            if repeat:
                usual = percentile(idle, 0.99)
                samples["p99"].append(percentile(lags, 0.99) * 1e3)
                samples["most"].append(max(lags) * 1e3)
                samples["sum"].append(sum(max(0.0, lag - usual) for lag in lags) * 1e3)
                samples["idle"].append(usual * 1e3)
            del everything, pending
    return samples


_PERIOD = 0.002
_BLOB = os.urandom(200_000)
_USUAL = min(32, len(processors()) + 4)
_THREADS = {
    "run": (256,),
    "run-pure": (256,),
    "anyio-installed": (256,),
    "stdlib": (_USUAL, 2),
    "anyio": (40,),
}


def _half(milliseconds: float, turns: int) -> None:
    compute(round(milliseconds * turns))
    time.sleep(milliseconds / 1e3)


_HANDLERS: dict[str, Callable[[int], object]] = {
    "5 ms of Python": lambda turns: compute(5 * turns),
    "1 ms of Python": compute,
    "20 ms of Python": lambda turns: compute(20 * turns),
    "2.5 ms of Python, 2.5 asleep": partial(_half, 2.5),
    "0.5 and 0.5": partial(_half, 0.5),
    "zlib": lambda turns: zlib.compress(_BLOB, 6),
    "asleep 5 ms": lambda turns: time.sleep(0.005),
}
"""What the clients call: so many `turns` take 1 ms."""


@Question(
    title="The loop's lag beside 64 clients",
    columns=(
        Column("p99", "lag p99, ms", 1),
        Column("p50", "lag p50, ms", 1, ratio=False),
        Column("rate", "calls/s", 0, more=True),
    ),
    peers=" ".join(_THREADS),
    variants=lambda peer, settings: [
        {"handler": handler, "loop": "asyncio", "workers": workers}
        for handler in _HANDLERS
        for workers in _THREADS[peer]
    ],
    sizes={"clients": 64, "seconds": 2.0},
    turns=0.001,
    free="workers",
)
@on_loop
async def loop_beside(peer: Peer, params: Params) -> Samples:
    """64 clients hand the same function to threads in a loop: how long does the loop's own task wait meanwhile?

    That lag is what a health check or a WebSocket feels; calls a second stand beside it, so that none is bought with
    throughput.
    """
    work = partial(_HANDLERS[params["handler"]], params["turns"])
    lags, calls = list[float](), 0
    async with peer.offload(params["workers"]) as call:
        begun = time.perf_counter()
        stop = begun + params["seconds"]

        async def client() -> None:
            nonlocal calls
            while time.perf_counter() < stop:
                await call(work)
                calls += 1

        async def tick() -> None:
            while (start := time.perf_counter()) < stop:
                await asyncio.sleep(_PERIOD)
                lags.append(time.perf_counter() - start - _PERIOD)

        await asyncio.gather(tick(), *(client() for _ in range(params["clients"])))
        took = time.perf_counter() - begun
    return spread(lags) | {"rate": [calls / took]}
