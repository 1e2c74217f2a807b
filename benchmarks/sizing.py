"""Does the pool find its size by itself? The untuned pool beside the best fixed size, under one load after another."""

from __future__ import annotations

import gc
import math
import time
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

from benchmarks.computing import turns_in
from benchmarks.engine.model import Params, Question, Samples, Settings, Target, Variant
from benchmarks.engine.runner import processors
from benchmarks.load.http import Clients
from benchmarks.load.sizing import LOADS, USUAL, Lives, Load, Scale, lived, most_at_once
from benchmarks.peers import package
from benchmarks.peers.peer import Peer
from benchmarks.peers.table import BY_NAME
from benchmarks.report import regret
from benchmarks.report.regret import UNTUNED, cell
from benchmarks.servers.fastapi import BODY, ready, target
from benchmarks.servers.serving import Watch, serving
from ebbpool._pool.timekeeper import NAME as TIMEKEEPER

_OURS = ("ebbpool", "ebbpool-pure")
_SERVING = {"stdlib": "fastapi", "ebbpool": "fastapi-installed", "ebbpool-pure": "fastapi-installed-pure"}
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_QUICK_LOADS = ("tiny", "200 x 50 ms", "python")
_QUICK_SIZES = (2, 8, 32, 128)
_COMPUTING_SPARE = 6
_ENOUGH_SECONDS = 0.5


def build(peer: Peer, threads: int | str) -> Executor:
    """Returns a new pool that finds its own size, or has so many threads from as many tasks on."""
    if peer.name == "stdlib":
        return ThreadPoolExecutor() if threads == UNTUNED else ThreadPoolExecutor(int(threads))
    adaptive = package("ebbpool").AdaptiveExecutor
    pool: Executor = adaptive() if threads == UNTUNED else adaptive(threads, min_workers=threads)
    return pool


def _measure_server(peer: Peer, params: Params) -> Samples:
    """The time and thread-seconds of 1,000 requests to a server that starts without workers."""
    server = BY_NAME[_SERVING[peer.name]]
    server.load()
    threads = params["threads"]
    args = () if threads == UNTUNED else ("--threads", str(threads))
    with (
        serving(server, "sizing", *args, ready=ready) as found,
        Clients(found.port, LOADS[params["load"]].clients, target("5 ms"), BODY) as it,
    ):
        # The timekeeper comes with the first worker.
        others = found.threads() + (peer.name != "stdlib")
        with Watch(found, period=0.02) as watch:
            answered = it.load(0.0, params["seconds"])
    if answered.errors or not answered.latencies:
        raise RuntimeError(f"{len(answered.latencies)} right responses, {answered.errors} wrong ones")
    seconds = answered.seconds / len(answered.latencies) * 1000
    workers = max(0.0, watch.mean_threads - others)
    return {"ms": [seconds * 1e3], "threads": [max(0, watch.threads - others)], "thread_seconds": [workers * seconds]}


def measure(peer: Peer, params: Params) -> Samples:
    """Runs a load on new pools, up to so many times, while that takes half a second at most."""
    if LOADS[params["load"]].clients:
        return _measure_server(peer, params)
    run = LOADS[params["load"]].prepare(Scale(params["share"], params["turns"]))
    samples: Samples = {"ms": [], "threads": [], "thread_seconds": []}
    spent = 0.0
    while len(samples["ms"]) < params["repeats"] and spent < _ENOUGH_SECONDS:
        gc.collect()
        with Lives(TIMEKEEPER) as lives:
            start = time.perf_counter()
            with build(peer, params["threads"]) as pool:
                figure = run(pool)
                end = time.perf_counter()
                spans = lives.spans()
        spent += end - start
        samples["ms"].append((end - start if figure is None else figure) * 1e3)
        samples["threads"].append(most_at_once(spans, end))
        samples["thread_seconds"].append(lived(spans, end))
    return samples


def _fixed(load: Load, settings: Settings) -> list[int]:
    sizes = _QUICK_SIZES if settings.quick else sorted({*_SIZES, len(processors())})
    return [size for size in sizes if size <= load.most]


def _loads(settings: Settings) -> tuple[str, ...]:
    return settings.loads or (_QUICK_LOADS if settings.quick else USUAL)


def variants(peer: Peer, settings: Settings) -> list[Variant] | str:
    if peer.name == "ebbpool-pure" and peer.name not in settings.peers:
        return "takes as long again: only if --peers names it"
    if peer.name not in ("stdlib", *_OURS):
        return "sizing is asked of the standard library's pool and of ours"
    found = []
    for name in _loads(settings):
        load, least = LOADS[name], LOADS[name].stock_least if peer.name == "stdlib" else 0
        found += [] if least else [cell(name, UNTUNED)]
        found += [cell(name, size) for size in _fixed(load, settings) if size >= least]
    return found


def order(variant: Variant) -> tuple[int, float]:
    """The loads one after another; of each the untuned pools first, then the sizes from the largest down."""
    threads = variant["threads"]
    return list(LOADS).index(variant["load"]), -math.inf if threads == UNTUNED else -threads


def targets(settings: Settings) -> tuple[Target, ...]:
    """What holds whatever the best size is; `regret.targets` has the rest."""
    most = len(processors()) + _COMPUTING_SPARE
    found = []
    for peer in _OURS:
        if peer == "ebbpool-pure" and peer not in settings.peers:
            continue
        for name in _loads(settings):
            where = cell(name, UNTUNED)
            if LOADS[name].computes:
                text = f"at most {most} threads, processors + {_COMPUTING_SPARE}"
                found.append(Target(text, peer, "threads", most, where))
            if name == "200 x 50 ms":
                found.append(Target("at most 95 ms", peer, "ms", 95.0, where))
            if name == "tiny":
                found.append(Target("at most 4 threads", peer, "threads", 4, where))
    return tuple(found)


def sizes(quick: bool) -> dict[str, Any]:
    """Counts the turns once and in the parent: every cell computes the same."""
    return {"turns": turns_in(0.005), "share": 1.0, "repeats": 7, "seconds": 2.0}


QUESTION = Question(
    module="benchmarks.sizing",
    title="Regret: the untuned pool beside the best fixed size",
    method="the untuned pool is AdaptiveExecutor(), or ThreadPoolExecutor(), without arguments; a fixed size n is "
    "AdaptiveExecutor(n, min_workers=n), or ThreadPoolExecutor(n); every pool is new when the clock starts, before "
    "the pool is made; best fixed: the smallest of 1, 2, 4 ... 256 and the number of processors whose time is within "
    "3% of the least; x: times the best fixed size of the same pool, the least of many medians and so a little better "
    "by luck; x best TPE: times that of ThreadPoolExecutor; thread-seconds: the lives of all workers added up, from "
    "the start of each to its end, or the end of the load; sizes are asked from the largest down: smaller ones no "
    "more once one takes 3 times as long as the best, and those 1.5 times as slow not in later rounds; numpy: at most "
    "32 fixed threads, as OpenBLAS serves 64 callers and may abort the process when more call it; nested: "
    "ThreadPoolExecutor only with more threads than there are parents, as it deadlocks with fewer; trickle: ms is the "
    "mean latency of a call; FastAPI: ms and thread-seconds are those of 1,000 requests, over the first 2 s, with "
    "anyio's own threads, or ebbpool.anyio.install; threads are counted every 20 ms there",
    columns=(regret.MS, regret.THREADS, regret.THREAD_SECONDS),
    variants=variants,
    sizes=sizes,
    measure=measure,
    targets=targets,
    order=order,
    skip=regret.skip,
    findings=regret.findings,
    found_targets=regret.targets,
    contests=regret.contests,
    quick_cells=0,
    rounds_factor=1 / 3,
    floor="the best fixed size, which nobody knows beforehand",
    limits="the time to see that tasks wait, and what the kernel and the GIL tell about threads that run",
)
