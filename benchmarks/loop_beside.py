"""64 clients hand the same function to threads in a loop: how long does the loop's own task wait meanwhile?

A task of the loop sleeps 2 ms again and again. Its lag is how much later than asked it wakes: what a health check or a
WebSocket feels. Calls a second stand beside it, so that no lag is bought with throughput.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
import zlib
from collections.abc import Callable
from typing import Any

from benchmarks import processors
from benchmarks.engine.model import Column, Params, Question, Samples, Settings, Target, Variant, on_loop, percentile
from benchmarks.load.work import compute, turns_in
from benchmarks.peers.peer import Peer

_CLIENTS = 64
_PERIOD = 0.002
_BLOB = 200_000
_LIMITS = {
    "5 ms of Python": 20.0,
    "1 ms of Python": 15.0,
    "20 ms of Python": 20.0,
    "2.5 ms of Python, 2.5 asleep": 10.0,
    "0.5 and 0.5": 5.0,
    "zlib": 10.0,
    "asleep 5 ms": 3.0,
}
"""The handlers, each with the most milliseconds that the lag may have at its 99th percentile."""
_USUAL = min(32, len(processors()) + 4)
_WORKERS = {
    "run": (256,),
    "run-pure": (256,),
    "anyio-installed": (256,),
    "stdlib": (_USUAL, 2),
    "anyio": (40,),
}
_LEAST_RATE = 0.97


def handlers(turns: int) -> dict[str, Callable[[], object]]:
    """Returns what the clients call, by name; `turns` take a millisecond."""
    blob = os.urandom(_BLOB)

    def half(share: float) -> Callable[[], object]:
        def work() -> None:
            compute(round(share * turns))
            time.sleep(share / 1e3)

        return work

    return {
        "5 ms of Python": lambda: compute(5 * turns),
        "1 ms of Python": lambda: compute(turns),
        "20 ms of Python": lambda: compute(20 * turns),
        "2.5 ms of Python, 2.5 asleep": half(2.5),
        "0.5 and 0.5": half(0.5),
        "zlib": lambda: zlib.compress(blob, 6),
        "asleep 5 ms": lambda: time.sleep(0.005),
    }


async def _load(peer: Peer, params: Params) -> Samples:
    assert peer.offload is not None
    work = handlers(params["turns"])[params["handler"]]
    latencies: list[float] = []
    lags: list[float] = []
    async with peer.offload(params["workers"]) as call:
        begun = time.perf_counter()
        stop = begun + params["seconds"]

        async def client() -> None:
            while (start := time.perf_counter()) < stop:
                await call(work)
                latencies.append(time.perf_counter() - start)

        async def tick() -> None:
            while (start := time.perf_counter()) < stop:
                await asyncio.sleep(_PERIOD)
                lags.append(time.perf_counter() - start - _PERIOD)

        await asyncio.gather(tick(), *(client() for _ in range(params["clients"])))
        took = time.perf_counter() - begun
    return {
        "p99": [percentile(lags, 0.99) * 1e3],
        "p50": [statistics.median(lags) * 1e3],
        "rate": [len(latencies) / took],
        "call": [percentile(latencies, 0.99) * 1e3],
    }


def variants(peer: str, settings: Settings) -> list[Variant]:
    return [
        {"handler": handler, "loop": "asyncio", "workers": workers} for handler in _LIMITS for workers in _WORKERS[peer]
    ]


def sizes(quick: bool) -> dict[str, Any]:
    """Counts the turns once and in the parent: every cell computes the same."""
    return {"turns": turns_in(0.001), "clients": _CLIENTS, "seconds": 0.5 if quick else 2.0}


QUESTION = Question(
    title="The loop's lag beside 64 clients",
    method="64 clients of the loop call the handler in a thread, again and again; a task of the loop sleeps 2 ms again "
    "and again, and its lag is how much later it wakes; the threads are those that each way has by default, and two",
    columns=(
        Column("p99", "lag p99, ms", 1),
        Column("p50", "lag p50, ms", 1, ratio=False),
        Column("rate", "calls/s", 0, more=True),
        Column("call", "a call's p99, ms", 0, ratio=False),
    ),
    peers=tuple(_WORKERS),
    variants=variants,
    sizes=sizes,
    measure=on_loop(_load),
    targets=(
        *(
            Target(f"p99 of the lag: at most {limit:g} ms", "run", "p99", limit, {"handler": handler})
            for handler, limit in _LIMITS.items()
        ),
        *(
            Target(f"{_LEAST_RATE} of the calls/s of {size} threads", "run", "rate", _LEAST_RATE, {}, "stdlib", where)
            for size in _WORKERS["stdlib"]
            for where in [{"workers": size}]
        ),
    ),
    free="workers",
    floor="the lag of an idle loop: about 0.1 ms",
    limits="the GIL: a thread that computes gives it up every 5 ms, and the loop needs it several times to wake up",
    quick_cells=2,
)
