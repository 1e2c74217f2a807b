"""100 tasks that compute for 5 ms each, on pools that may have 64 threads: do more threads make it slower?"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.engine.model import Column, Params, Question, Samples, Settings, Target, Variant, timed
from benchmarks.peers.peer import Peer

_MANY, _TWO = {"workers": 64}, {"workers": 2}
_TASK_SECONDS = 0.005


def compute(turns: int) -> int:
    value = 1
    for _ in range(turns):
        value = value * 1103515245 + 12345 & 0x7FFFFFFF
    return value


def turns_in(seconds: float) -> int:
    """Returns how many turns take so long in this process."""
    turns, best = 20_000, float("inf")
    for _ in range(25):
        start = time.perf_counter()
        compute(turns)
        best = min(best, time.perf_counter() - start)
    return round(turns * seconds / best)


def sizes(quick: bool) -> dict[str, Any]:
    """Counts the turns once and in the parent: every cell computes the same."""
    return {"turns": turns_in(_TASK_SECONDS), "tasks": 40 if quick else 100}


def measure(peer: Peer, params: Params) -> Samples:
    assert peer.open is not None
    turns = params["turns"]
    with peer.open(params["workers"], 10.0) as pool:
        (seconds,) = timed(lambda: pool.burst(lambda: compute(turns), params["tasks"]), 1, warm_ups=0)
        return {"ms": [seconds * 1e3], "threads": [pool.threads()]}


def variants(peer: Peer, settings: Settings) -> list[Variant] | str:
    return peer.not_for("computing") or ([_MANY, _TWO] if peer.name == "stdlib" else [_MANY])


def targets(settings: Settings) -> tuple[Target, ...]:
    found = []
    for peer in ("ebbpool", "ebbpool-pure"):
        text = "no slower than ThreadPoolExecutor(2)"
        found.append(Target(text, peer, "ms", 1.0, _MANY, rival="stdlib", rival_where=_TWO))
        found.append(Target("at most 16 threads", peer, "threads", 16, _MANY))
    return tuple(found)


QUESTION = Question(
    module="benchmarks.computing",
    title="Computing tasks of 5 ms",
    method="a loop of so many turns as take 5 ms in the parent, counted once and the same in every cell; "
    "a cold pool; ratios are to ThreadPoolExecutor(2)",
    columns=(
        Column("ms", "ms for all", digits=0),
        Column("threads", "most threads", digits=0, ratio=False, worst=True),
    ),
    variants=variants,
    sizes=sizes,
    measure=measure,
    targets=targets,
    baseline=_TWO,
    floor="100 times 5 ms, divided by the processors if there is no GIL",
    limits="the GIL: more threads than processors only add switches",
)
