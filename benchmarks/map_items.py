"""Map 10,000 trivial items, and items that compute for 20 µs, with each pool's own `map`: what does one cost?"""

from __future__ import annotations

import functools
from typing import Any

from benchmarks.engine.model import Column, Params, Question, Samples, Target, always, timed
from benchmarks.load.work import compute, turns_in
from benchmarks.peers.peer import Peer

_TRIVIAL = {"items": "trivial", "workers": 4}
_COMPUTING = {"items": "20 µs", "workers": 2}
_ITEM_SECONDS = 20e-6


def same(item: int) -> int:
    return item


def work(turns: int, item: int) -> int:
    compute(turns)
    return item


def measure(peer: Peer, params: Params) -> Samples:
    assert peer.open is not None
    trivial = params["items"] == "trivial"
    items = range(params["trivial"] if trivial else params["computing"])
    fn = same if trivial else functools.partial(work, params["turns"])
    with peer.open(params["workers"], 10.0) as pool:
        taken = timed(lambda: pool.map(fn, items), params["repeats"])
    return {"us": [seconds / len(items) * 1e6 for seconds in taken]}


def sizes(quick: bool) -> dict[str, Any]:
    counts = (2_000, 500, 1) if quick else (10_000, 5_000, 3)
    return dict(zip(("trivial", "computing", "repeats"), counts, strict=True)) | {"turns": turns_in(_ITEM_SECONDS)}


QUESTION = Question(
    title="Map items",
    method="each pool's own map, with its own default chunks (multiprocessing, fastthreadpool, bare queue: large "
    "ones), results in a list; fastthreadpool's in no order; the floor is list(map()) in one thread; 20 µs: a loop "
    "of so many turns as take that in the parent",
    columns=(Column("us", "µs an item", digits=3),),
    peers=(
        "loop", "simplequeue", "ebbpool", "ebbpool-pure", "stdlib", "multiprocessing", "fastthreadpool",
        "ebbpool-fastthreadpool", "plus", "pebble", "betapool", "flexexecutor", "hypertile", "gevent-threadpool",
        "gevent",
    ),
    variants=always(_TRIVIAL, _COMPUTING),
    sizes=sizes,
    measure=measure,
    targets=(
        Target("at most 1.5x the time of list(map())", "ebbpool", "us", 1.5, _TRIVIAL, "loop"),
        Target("at most 2.0x the time of list(map())", "ebbpool-pure", "us", 2.0, _TRIVIAL, "loop"),
        Target("ahead of multiprocessing's map", "ebbpool ebbpool-pure", "us", 1.0, _TRIVIAL, "multiprocessing"),
        Target("ahead of fastthreadpool's map", "ebbpool ebbpool-pure", "us", 1.0, _TRIVIAL, "fastthreadpool"),
        Target("at least 1.7x faster than one thread", "ebbpool", "us", 1 / 1.7, _COMPUTING, "loop", gil=False),
    ),
    floor="list(map()) in one thread, and for items that compute no more than that times the processors, if there "
    "is no GIL",
    limits="trivial items: the call itself, as items go in chunks; items that compute: the GIL; without one, the "
    "memory that threads share, reference counts first of all",
)  # fmt: skip
