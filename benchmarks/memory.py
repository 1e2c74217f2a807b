"""Tasks queued behind one blocked worker: how many bytes and objects does a pending future keep alive?"""

from __future__ import annotations

import gc
import time

from benchmarks.engine.model import Column, Params, Question, Samples, Target, always, nothing
from benchmarks.peers import package
from benchmarks.peers.peer import Peer

_SETTLE_SECONDS = 0.3


def measure(peer: Peer, params: Params) -> Samples:
    assert peer.open is not None
    # PyPy has none.
    tracemalloc, count = package("tracemalloc"), params["tasks"]
    handles: list[object] = [None] * count
    with peer.open(params["workers"], 10.0) as pool:
        release, submit = pool.block(), pool.submit
        gc.collect()
        gc.disable()
        tracemalloc.start()
        objects = len(gc.get_objects())
        size = tracemalloc.get_traced_memory()[0]
        for index in range(count):
            handles[index] = submit(nothing)
        time.sleep(_SETTLE_SECONDS)  # a pool may have threads of its own that carry tasks on
        kept = tracemalloc.get_traced_memory()[0] - size
        tracemalloc.stop()
        created = len(gc.get_objects()) - objects
        gc.collect()
        tracked = len(gc.get_objects()) - objects
        gc.enable()
        release()
    return {
        "bytes": [kept / count],
        "objects": [max(0, created) / count],
        "tracked": [max(0, tracked) / count],
    }


QUESTION = Question(
    title="The memory of a pending future",
    method="as asked of Python's allocators, before their rounding; the caller's own list of futures is not "
    "counted; the call has no arguments; objects: GC-tracked as created, and after a full collection",
    columns=(
        Column("bytes", "bytes", digits=0),
        Column("objects", "tracked objects", digits=1),
        Column("tracked", "after a collection", digits=1),
    ),
    peers=("simplequeue", "ebbpool", "ebbpool-pure", "stdlib", "multiprocessing", "pebble", "gevent"),
    variants=always({"workers": 1}),
    sizes=lambda quick: {"tasks": 1_000 if quick else 10_000},
    measure=measure,
    targets=(
        Target("at most a third of the bytes", "ebbpool ebbpool-pure", "bytes", 1 / 3, rival="stdlib"),
        Target("at most a third of the objects", "ebbpool ebbpool-pure", "objects", 1 / 3, rival="stdlib"),
        Target("at most a third of the objects left tracked", "ebbpool ebbpool-pure", "tracked", 1 / 3, rival="stdlib"),
    ),
    rounds_factor=0.4,
    floor="a future of one object, which is what ebbpool keeps",
    limits="a future has to hold the call, its result and who waits",
)
