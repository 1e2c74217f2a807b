"""Submit 5,000 trivial tasks with an argument each and collect: what does one cost?"""

from __future__ import annotations

from benchmarks.engine.model import Column, Params, Question, Samples, Target, by_workers, timed
from benchmarks.peers.peer import Peer


def _take(item: int) -> None:
    """The trivial task."""


def measure(peer: Peer, params: Params) -> Samples:
    assert peer.open is not None
    # None of them is a small number, which never dies.
    items = range(1_000, 1_000 + params["tasks"])
    with peer.open(params["workers"], 10.0) as pool:
        taken = timed(lambda: pool.each(_take, items), params["repeats"])
    return {"us": [seconds / len(items) * 1e6 for seconds in taken]}


QUESTION = Question(
    title="Submit trivial tasks with an argument and collect",
    method="as without an argument, but each has a number of its own, which the submitter makes and the worker lets go",
    columns=(Column("us", "µs a task", digits=3),),
    peers=(
        "simplequeue", "ebbpool", "ebbpool-pure", "stdlib", "multiprocessing", "fastthreadpool", "plus", "betapool",
        "flexexecutor",
    ),
    variants=by_workers,
    sizes=lambda quick: {"tasks": 2_000, "repeats": 1} if quick else {"tasks": 5_000, "repeats": 3},
    measure=measure,
    targets=(Target("at least 14x faster than ThreadPoolExecutor", "ebbpool", "us", 1 / 14, rival="stdlib"),),
    floor="bare SimpleQueue workers, which get the function and its argument, and keep no order, errors or futures",
    limits="the same as without an argument; without a GIL, also counting the references to what two threads hold",
)  # fmt: skip
