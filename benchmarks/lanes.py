"""Quick tasks while 10,000 slow ones are queued, in a lane of limit 4 or in the pool itself: how long do they take?"""

from __future__ import annotations

import statistics
import time
from typing import Any

from benchmarks.engine.model import Column, Params, Question, Samples, Settings, Target, Variant, nothing, percentile
from benchmarks.peers.peer import Peer
from benchmarks.peers.pools import adaptive, stdlib

_OURS = ("ebbpool", "ebbpool-pure")
_WORKERS, _LIMIT = 16, 4
_IDLE, _LANE, _POOL = ({"flood": flood} for flood in ("none", "lane", "pool"))


def measure(peer: Peer, params: Params) -> Samples:
    pool: Any = (stdlib if peer.name == "stdlib" else adaptive)(_WORKERS, 10.0)
    slow, taken = params["slow"], list[float]()

    def sleep() -> None:
        time.sleep(params["sleep"])

    try:
        for warm_up in [pool.submit(sleep) for _ in range(_WORKERS)]:
            warm_up.result()
        if params["flood"] != "none":
            flooded = pool.lane("slow", limit=_LIMIT) if params["flood"] == "lane" else pool
            for _ in range(slow):
                flooded.submit(sleep)
        end = time.perf_counter() + params["seconds"]
        while not taken or (len(taken) < params["quick"] and time.perf_counter() < end):
            time.sleep(params["pause"])
            start = time.perf_counter()
            pool.submit(nothing).result()
            taken.append(time.perf_counter() - start)
    finally:
        pool.shutdown(cancel_futures=True)
    return {
        "p50": [statistics.median(taken) * 1e3],
        "p99": [percentile(taken, 0.99) * 1e3],
        "count": [len(taken)],
    }


def variants(peer: str, settings: Settings) -> list[Variant]:
    return [_IDLE, _LANE, _POOL] if peer in _OURS else [_IDLE, _POOL]


QUESTION = Question(
    title="Quick tasks beside a flood of slow ones",
    method=f"a pool of at most {_WORKERS}, all started beforehand; slow tasks sleep 10 ms, in a lane at most {_LIMIT} "
    "at a time; one quick task every 5 ms, each waited for, until there are enough or time is over",
    columns=(
        Column("p50", "p50, ms", 3),
        Column("p99", "p99, ms", 3),
        Column("count", "quick tasks", 0, ratio=False),
    ),
    peers=(*_OURS, "stdlib"),
    variants=variants,
    sizes=lambda quick: {
        "slow": 200 if quick else 10_000,
        "sleep": 0.01,
        "quick": 50 if quick else 300,
        "pause": 0.005,
        "seconds": 3.0,
    },
    measure=measure,
    targets=(Target("p99 within 2x of an idle pool's", "ebbpool ebbpool-pure", "p99", 2.0, _LANE, "", _IDLE),),
    floor="the same quick task in an idle pool",
    limits="the hand-off between two threads; in the pool itself: the queue of slow tasks before it",
)
