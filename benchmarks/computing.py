"""100 tasks that compute for 5 ms each, on pools that may have 64 threads: do more threads make it slower?"""

from __future__ import annotations

from typing import Any

from benchmarks.cold_burst import COLUMNS, once
from benchmarks.engine.model import Params, Question, Samples, Settings, Target, Variant
from benchmarks.load.work import compute, turns_in
from benchmarks.peers.peer import Peer

_MANY, _TWO = {"workers": 64}, {"workers": 2}


def sizes(quick: bool) -> dict[str, Any]:
    """Count the turns once and in the parent: every cell computes the same."""
    return {"turns": turns_in(0.005), "tasks": 40 if quick else 100}


def measure(peer: Peer, params: Params) -> Samples:
    turns = params["turns"]
    return once(peer, params, lambda pool: pool.burst(lambda: compute(turns), params["tasks"]))


def variants(peer: str, settings: Settings) -> list[Variant]:
    return [_MANY, _TWO] if peer == "stdlib" else [_MANY]


QUESTION = Question(
    title="Computing tasks of 5 ms",
    method="a loop of so many turns as take 5 ms in the parent, counted once and the same in every cell; "
    "a cold pool; at most 64 threads, and 2 for the standard library's too",
    columns=COLUMNS,
    peers=(
        "loop", "simplequeue", "ebbpool", "ebbpool-pure", "stdlib", "multiprocessing", "fastthreadpool",
        "ebbpool-fastthreadpool", "plus", "pebble", "betapool", "flexexecutor", "gevent-threadpool", "gevent", "anyio",
        "trio", "aiomisc", "hypertile", "leasepool",
    ),
    variants=variants,
    sizes=sizes,
    measure=measure,
    targets=(
        Target("no slower than ThreadPoolExecutor(2)", "ebbpool ebbpool-pure", "ms", 1.0, {}, "stdlib", _TWO),
        Target("at most 16 threads", "ebbpool ebbpool-pure", "threads", 16),
    ),
    free="workers",
    floor="100 times 5 ms, divided by the processors if there is no GIL",
    limits="the GIL: more threads than processors only add switches",
)  # fmt: skip
