"""Does the pool find its size by itself? The untuned pool beside the best fixed size, under one load after another."""

from __future__ import annotations

import gc
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

from benchmarks import processors
from benchmarks.engine.model import Column, Params, Question, Samples, Settings, Target, Variant
from benchmarks.load.sizing import LOADS
from benchmarks.load.work import turns_in
from benchmarks.peers import package
from benchmarks.peers.peer import Peer

UNTUNED = "untuned"
_RIVALS = {
    "betapool": ("betapool", "AdaptiveThreadPoolExecutor"),
    "flexexecutor": ("flexexecutor", "ThreadPoolExecutor"),
}
_SIZES = (256, 128, 64, 32, 16, 8, 4, 2, 1)
_QUICK_LOADS = ("tiny", "200 x 50 ms", "python")
_SPARE = 6
_MOST = len(processors()) + _SPARE
_ENOUGH_SECONDS = 0.5
_HOPELESS = 3.0


def build(peer: Peer, threads: int | str) -> Executor:
    """Return a new pool that finds its own size, or has so many threads from as many tasks on."""
    if peer.base == "stdlib":
        return ThreadPoolExecutor() if threads == UNTUNED else ThreadPoolExecutor(int(threads))
    module, name = _RIVALS.get(peer.base, ("ebbpool", "AdaptiveExecutor"))
    make = getattr(package(module), name)
    pool: Executor = make() if threads == UNTUNED else make(threads, min_workers=threads)
    return pool


def measure(peer: Peer, params: Params) -> Samples:
    """Run a load on new pools, up to so many times, while that takes half a second at most."""
    run = LOADS[params["load"]].prepare(params["turns"])
    samples: Samples = {"ms": [], "threads": []}
    spent = 0.0
    while len(samples["ms"]) < params["repeats"] and spent < _ENOUGH_SECONDS:
        gc.collect()
        before = threading.active_count()
        start = time.perf_counter()
        with build(peer, params["threads"]) as pool:
            figure = run(pool)
            taken = time.perf_counter() - start
            made: Any = pool
            ours = peer.core is not None
            samples["threads"].append(int(made.stats().started) if ours else threading.active_count() - before)
        spent += taken
        samples["ms"].append((taken if figure is None else figure) * 1e3)
    return samples


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
    found: list[Variant] = []
    for name in _QUICK_LOADS if settings.quick else LOADS:
        load = LOADS[name]
        # betapool takes no more threads before some tasks have ended.
        least = load.stock_least if peer in ("stdlib", "betapool") else 0
        sizes = (32, 2) if settings.quick else sorted({*_SIZES, len(processors())}, reverse=True)
        fixed = [{"load": name, "threads": size} for size in sizes if least <= size <= load.most]
        found += [{"load": name, "threads": UNTUNED}] if peer != "ebbpool-fixed" and not least else []
        found += fixed if peer in ("ebbpool-fixed", "stdlib") else []
    return found


QUESTION = Question(
    title="The untuned pool beside the best fixed size",
    method="the untuned pool is AdaptiveExecutor(), without arguments; a fixed size n is "
    "AdaptiveExecutor(n, min_workers=n), the floor, or ThreadPoolExecutor(n), the rival; every pool is new when the "
    "clock starts, before the pool is made; of 1, 2, 4 ... 256 and the number of processors the best counts, the "
    "least of many medians and so a little better by luck; sizes are asked from the largest down, and "
    "smaller ones no more once one takes 3 times as long as the best; numpy: at most "
    "32 fixed threads, as OpenBLAS serves 64 callers and may abort the process when more call it; nested: "
    "ThreadPoolExecutor only with more threads than there are parents, as it deadlocks with fewer; trickle: ms is the "
    "mean latency of a call",
    columns=(Column("ms", "ms", 1), Column("threads", "threads at most", 0, ratio=False, worst=True)),
    peers=("ebbpool", "ebbpool-fixed", "stdlib", *_RIVALS),
    variants=variants,
    sizes=lambda quick: {"turns": turns_in(0.005), "repeats": 1 if quick else 7},
    measure=measure,
    targets=(
        Target("time at most 1.15 of the best fixed size's", "ebbpool", "ms", 1.15, rival="ebbpool-fixed"),
        *(
            Target(f"at most {_MOST} threads, processors + {_SPARE}", "ebbpool", "threads", _MOST, {"load": name})
            for name, load in LOADS.items()
            if load.computes
        ),
        Target("at most 95 ms", "ebbpool", "ms", 95.0, {"load": "200 x 50 ms"}),
        Target("at most 4 threads", "ebbpool", "threads", 4, {"load": "tiny"}),
    ),
    rounds_factor=1 / 3,
    skip=skip,
    free="threads",
    floor="the best fixed size, which nobody knows beforehand",
    limits="the time to see that tasks wait, and what the kernel and the GIL tell about threads that run",
    quick_cells=0,
)
