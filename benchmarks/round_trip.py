"""Submit one task and wait for it, again and again: what does one hand-off there and back cost?"""

from __future__ import annotations

from benchmarks.engine.model import Column, Params, Question, Samples, Target, by_workers, nothing, timed
from benchmarks.peers.peer import Peer


def measure(peer: Peer, params: Params) -> Samples:
    assert peer.open is not None
    trips = params["trips"]
    with peer.open(params["workers"], 10.0) as pool:
        one = pool.one

        def there_and_back() -> None:
            for _ in range(trips):
                one(nothing)

        taken = timed(there_and_back, params["repeats"])
    return {"us": [seconds / trips * 1e6 for seconds in taken]}


QUESTION = Question(
    title="Submit one, wait for it",
    method="a warm pool; free to roam this is bound by the kernel's hand-off between processors, "
    "pinned to one processor it compares software",
    columns=(Column("us", "µs a round trip"),),
    peers=(
        "loop", "simplequeue", "locks", "ebbpool", "ebbpool-pure", "stdlib", "multiprocessing", "plus", "pebble",
        "betapool", "flexexecutor", "gevent-threadpool", "gevent",
    ),
    variants=by_workers,
    sizes=lambda quick: {"trips": 200, "repeats": 1} if quick else {"trips": 1_000, "repeats": 3},
    measure=measure,
    targets=(
        Target("pinned: at most 0.6 of ThreadPoolExecutor's", "ebbpool", "us", 0.6, rival="stdlib", pinned=True),
        Target(
            "pinned: at most 0.25 of what ThreadPoolExecutor adds to two bare locks", "ebbpool", "us", 0.25,
            rival="stdlib", pinned=True, above="locks",
        ),
    ),
    floor="two hand-offs from thread to thread, here by two bare locks; free to roam over processors, the kernel needs "
    "some 30 µs for each",
    limits="the kernel: the pool is a small part of it unless everything is held to one processor",
)  # fmt: skip
