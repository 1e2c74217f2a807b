"""Calls in anyio task groups of 200: what does one cost beyond the task that makes it?

The same number of tasks that run an empty coroutine is timed in turn in the same process, and taken off. The garbage
collector is off meanwhile: with thousands of tasks in one group it would be what is measured.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Awaitable, Callable

from benchmarks.engine.model import Column, Params, Question, Samples, Settings, Target, Variant, nothing, on_loop
from benchmarks.peers import package
from benchmarks.peers.peer import Peer

_WORKERS = 40
_GROUP = 200
_LEAST = {"asyncio": 8, "uvloop": 12, "trio": 8}
_OURS = "anyio-ebbpool anyio-installed"


async def _empty(fn: Callable[[], object]) -> None:
    pass


async def _groups(call: Callable[..., Awaitable[object]], count: int) -> float:
    """Returns the seconds that `count` tasks of `call` took, in groups that follow one another."""
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


async def _load(peer: Peer, params: Params) -> Samples:
    assert peer.offload is not None
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


def variants(peer: str, settings: Settings) -> list[Variant]:
    loops = ("trio",) if peer == "trio" else tuple(_LEAST)
    return [{"loop": loop, "workers": _WORKERS} for loop in loops]


QUESTION = Question(
    title="Calls from anyio task groups of 200 tasks",
    method="each task is one call, given to start_soon as it is; net: less the time of as many empty tasks, timed "
    "before and after it; the garbage collector is off while a clock runs; stock has its forty tokens, ebbpool as many "
    "workers",
    columns=(
        Column("net", "µs a call, net", 1),
        Column("empty", "µs an empty task", 1, ratio=False),
    ),
    peers=("anyio", "trio", "anyio-ebbpool", "anyio-installed"),
    variants=variants,
    sizes=lambda quick: {"tasks": 500, "repeats": 1} if quick else {"tasks": 5_000, "repeats": 2},
    measure=on_loop(_load),
    targets=(
        *(
            Target(f"net: at least {times}x faster than stock", _OURS, "net", 1 / times, {"loop": loop}, "anyio")
            for loop, times in _LEAST.items()
        ),
    ),
    floor="the tasks themselves, which are taken off",
    limits="the hand-off of a call and its result; a task of anyio waits for each",
)
