"""Trivial tasks and items on a warm pool: what does one cost?"""

from __future__ import annotations

import functools

from benchmarks.engine.model import Column, Params, Question, Samples, by_workers, compute, nothing, us_each
from benchmarks.peers.peer import Peer
from benchmarks.peers.table import POOLS

_BOTH = "ebbpool ebbpool-pure"


def _same(item: int) -> int:
    return item


@Question(
    title="Submit trivial tasks and collect",
    columns=(Column("us", "µs per task", 3),),
    peers=f"loop {POOLS}",
    variants=by_workers,
    sizes={"tasks": 5_000, "repeats": 3},
)
def submit_collect(peer: Peer, params: Params) -> Samples:
    """Submit 5,000 trivial tasks and collect: what does one cost?"""
    tasks = params["tasks"]
    with peer.open(params["workers"], 10.0) as pool:
        return {"us": us_each(lambda: pool.burst(nothing, tasks), tasks, params["repeats"])}


@Question(
    title="Submit, collect and sum",
    columns=(Column("us", "µs per job", 3),),
    peers=f"{_BOTH} stdlib multiprocessing fastthreadpool ebbpool-fastthreadpool",
    variants=({"workers": 4},),
    sizes={"jobs": 20_000, "repeats": 3},
)
def simple_sum(peer: Peer, params: Params) -> Samples:
    """20,000 identity jobs, submitted one by one, their results summed: what does one cost, and is the sum right?"""
    items = range(params["jobs"])
    sums: list[int] = []
    with peer.open(params["workers"], 10.0) as pool:
        taken = us_each(lambda: sums.append(sum(pool.each(_same, items))), len(items), params["repeats"])
    wrong = [found for found in sums if found != sum(items)]
    if wrong:
        raise ArithmeticError(f"{len(wrong)} of {len(sums)} sums are wrong")
    return {"us": taken}


@Question(
    title="Submit one, wait for it",
    columns=(Column("us", "µs per round trip"),),
    peers=f"loop simplequeue locks {_BOTH} stdlib multiprocessing plus pebble betapool flexexecutor gevent-threadpool "
    "gevent",
    variants=by_workers,
    sizes={"trips": 1_000, "repeats": 3},
)
def round_trip(peer: Peer, params: Params) -> Samples:
    """Submit one task and wait for it, again and again: what does one hand-off there and back cost?"""
    trips = params["trips"]
    with peer.open(params["workers"], 10.0) as pool:
        one = pool.one

        def there_and_back() -> None:
            for _ in range(trips):
                one(nothing)

        return {"us": us_each(there_and_back, trips, params["repeats"])}


def _work(turns: int, item: int) -> int:
    compute(turns)
    return item


_TRIVIAL = {"items": "trivial", "workers": 4}
_COMPUTING = {"items": "20 µs", "workers": 2}


@Question(
    title="Map items",
    columns=(Column("us", "µs per item", 3),),
    peers=f"loop simplequeue {_BOTH} stdlib multiprocessing fastthreadpool ebbpool-fastthreadpool plus pebble betapool "
    "flexexecutor hypertile gevent-threadpool gevent",
    variants=(_TRIVIAL, _COMPUTING),
    sizes={"trivial": 10_000, "computing": 5_000, "repeats": 3},
    turns=20e-6,
)
def map_items(peer: Peer, params: Params) -> Samples:
    """Map 10,000 trivial items, and items that compute for 20 µs, with each pool's own `map`: what does one cost?"""
    trivial = params["items"] == "trivial"
    items = range(params["trivial"] if trivial else params["computing"])
    fn = _same if trivial else functools.partial(_work, params["turns"])
    with peer.open(params["workers"], 10.0) as pool:
        return {"us": us_each(lambda: pool.map(fn, items), len(items), params["repeats"])}
