"""Blocking calls from an event loop: 5,000 gathered, and one after another; what does one cost?"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from benchmarks.engine.model import Column, Params, Question, Samples, Settings, Target, Variant, nothing, on_loop
from benchmarks.peers.peer import Peer
from benchmarks.peers.ways import Call

_ONE = {"workers": 1}
_ASYNCIO = ("asyncio", "uvloop")
_ALL = (*_ASYNCIO, "trio")
_AT_ALL_CEILINGS = ("batched", "run", "run-pure", "ebbpool", "ebbpool-pure", "stdlib")
_PEERS = (
    "loop", "bare-thread", "batched", "run", "run-pure", "own-loop", "own-loop-pure", "own-loop-to-thread", "ebbpool",
    "ebbpool-pure", "stdlib", "to-thread", "to-thread-ebbpool", "plus", "pebble", "betapool", "flexexecutor",
    "aiomisc", "hypertile", "leasepool", "asgiref", "anyio", "trio", "anyio-ebbpool", "anyio-installed",
)  # fmt: skip

Gather = Callable[[Call, int], Awaitable[object]]


def _ceiling(workers: Sequence[int]) -> int:
    return 4 if 4 in workers else workers[0]


async def _gather(call: Call, count: int) -> None:
    await asyncio.gather(*[call(nothing) for _ in range(count)])


async def _nursery(call: Call, count: int) -> None:
    import trio

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(call, nothing)


async def _load(peer: Peer, params: Params) -> Samples:
    assert peer.offload is not None
    gather: Gather = _nursery if params["loop"] == "trio" else _gather
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


def variants(peer: str, settings: Settings) -> list[Variant]:
    loops = {"trio": ("trio",), "anyio": _ALL, "anyio-ebbpool": _ALL, "anyio-installed": _ALL, "loop": _ALL}
    few = (min(settings.workers) if peer == "bare-thread" else _ceiling(settings.workers),)
    ceilings = settings.workers if peer in _AT_ALL_CEILINGS else few
    return [{"loop": loop, "workers": n} for loop in loops.get(peer, _ASYNCIO) for n in ceilings]


def sizes(quick: bool) -> dict[str, Any]:
    if quick:
        return {"gathered": 500, "single": 100, "repeats": 1}
    return {"gathered": 5_000, "single": 300, "repeats": 2}


QUESTION = Question(
    title="Calls offloaded from an event loop",
    method="run_in_executor where the peer is a pool; some at every ceiling, the others at one; "
    "anyio: with a limiter of as many tokens as others have workers",
    columns=(
        Column("gathered", "µs a call, gathered", 1),
        Column("single", "µs a call, one after another", 1),
    ),
    peers=_PEERS,
    variants=variants,
    sizes=sizes,
    measure=on_loop(_load),
    targets=(
        Target("gathered: at most 0.6 of ThreadPoolExecutor's", "ebbpool", "gathered", 0.6, rival="stdlib"),
        Target("gathered: 8x faster than ThreadPoolExecutor", "run", "gathered", 1 / 8, rival="stdlib"),
        Target("gathered: at most 1.15x the floor of 1", "run", "gathered", 1.15, {}, "batched", _ONE),
        Target("pinned, one by one: at most 0.6 of it", "run", "single", 0.6, rival="stdlib", pinned=True),
        Target("free, one by one: no slower", "run", "single", 1.0, rival="stdlib", pinned=False),
        Target(
            "pinned, one by one: at most 0.15 of what it adds to a bare thread", "run", "single", 0.15, {}, "stdlib",
            pinned=True, above="bare-thread", above_where=_ONE,
        ),
        Target("gathered: 20x faster than anyio", "run", "gathered", 1 / 20, {"workers": 4}, "anyio"),
        Target("gathered: 5x faster than the stock loop", "own-loop", "gathered", 1 / 5, rival="stdlib"),
    ),
    floor="a coroutine without a thread; hand-made workers with batched wake-ups, and a bare thread that wakes the "
    "loop for each call, both without cancelling or context variables",
    limits="gathered: the future of the loop, its callbacks and the switches of the GIL; one after another: two "
    "hand-offs between threads, which is the kernel",
    quick_cells=2,
)  # fmt: skip
