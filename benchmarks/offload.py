"""Blocking calls from an event loop: 5,000 gathered, and one after another; what does one cost?"""

from __future__ import annotations

import asyncio
import gc
import importlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks._model import Column, Params, Question, Samples, Settings, Target, Variant, nothing
from benchmarks._peers import Call, Peer, Unavailable

_AT_ALL_CEILINGS = ("ebbpool", "ebbpool-pure", "stdlib")

Gather = Callable[[Call, int], Awaitable[object]]


def _ceiling(settings: Settings) -> int:
    return 4 if 4 in settings.workers else settings.workers[0]


async def _gather(call: Call, count: int) -> None:
    await asyncio.gather(*[call(nothing) for _ in range(count)])


async def _nursery(call: Call, count: int) -> None:
    async with importlib.import_module("trio").open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(call, nothing)


async def _load(peer: Peer, params: Params, gather: Gather) -> Samples:
    assert peer.offload is not None
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


def measure(peer: Peer, params: Params) -> Samples:
    loop: str = params["loop"]
    try:
        package: Any = importlib.import_module(loop)
    except ImportError as error:
        raise Unavailable(f"not installed: {error}") from error
    if loop == "trio":
        samples: Samples = package.run(_load, peer, params, _nursery)
        return samples
    with asyncio.Runner(loop_factory=package.new_event_loop) as runner:
        return runner.run(_load(peer, params, _gather))


def variants(peer: Peer, settings: Settings) -> list[Variant] | str:
    ceilings = settings.workers if peer.name in _AT_ALL_CEILINGS else (_ceiling(settings),)
    found = [{"loop": loop, "workers": workers} for loop in peer.loops for workers in ceilings]
    return found or peer.not_for("offload")


def sizes(quick: bool) -> dict[str, Any]:
    if quick:
        return {"gathered": 500, "single": 100, "repeats": 1}
    return {"gathered": 5_000, "single": 1_000, "repeats": 3}


def targets(settings: Settings) -> tuple[Target, ...]:
    text = "gathered: at most 0.6 of ThreadPoolExecutor's"
    return tuple(
        Target(text, "ebbpool", "gathered", 0.6, {"loop": loop, "workers": workers}, rival="stdlib")
        for loop in ("asyncio", "uvloop")
        for workers in settings.workers
    )


QUESTION = Question(
    module="benchmarks.offload",
    title="Calls offloaded from an event loop",
    method="run_in_executor where the peer is a pool; ebbpool and ThreadPoolExecutor at every ceiling, "
    "the others at one; on trio, ratios are to ThreadPoolExecutor on asyncio",
    columns=(
        Column("gathered", "µs a call, gathered", 1),
        Column("single", "µs a call, one after another", 1),
    ),
    variants=variants,
    sizes=sizes,
    measure=measure,
    targets=targets,
)
