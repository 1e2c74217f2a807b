"""Submit 5,000 trivial tasks and collect: what does one cost, and how many threads did it take?"""

from __future__ import annotations

from benchmarks.engine.model import Column, Params, Question, Samples, Target, by_workers, nothing, timed
from benchmarks.peers.peer import Peer


def measure(peer: Peer, params: Params) -> Samples:
    assert peer.open is not None
    with peer.open(params["workers"], 10.0) as pool:
        taken = timed(lambda: pool.burst(nothing, params["tasks"]), params["repeats"])
        threads = pool.threads()
    return {"us": [seconds / params["tasks"] * 1e6 for seconds in taken], "threads": [threads]}


QUESTION = Question(
    title="Submit trivial tasks and collect",
    method="one thread submits all, then asks each for its result; the futures are freed inside the time "
    "taken; the pool is warm; threads: the most over all repeats",
    columns=(
        Column("us", "µs a task", digits=3),
        Column("threads", "most threads", digits=0, ratio=False, worst=True),
    ),
    peers=(
        "loop", "simplequeue", "ebbpool", "ebbpool-pure", "stdlib", "multiprocessing", "fastthreadpool",
        "ebbpool-fastthreadpool", "plus", "pebble", "betapool", "flexexecutor", "gevent-threadpool", "gevent", "anyio",
        "trio", "aiomisc", "hypertile", "leasepool",
    ),
    variants=by_workers,
    sizes=lambda quick: {"tasks": 2_000, "repeats": 1} if quick else {"tasks": 5_000, "repeats": 3},
    measure=measure,
    targets=(
        Target("at least 14x faster than ThreadPoolExecutor", "ebbpool", "us", 1 / 14, rival="stdlib"),
        Target("at least 6x faster than ThreadPoolExecutor", "ebbpool-pure", "us", 1 / 6, rival="stdlib", gil=True),
        Target("at most 1.6x the floor, SimpleQueue workers", "ebbpool", "us", 1.6, rival="simplequeue", gil=True),
        Target("never more than 4 threads", "ebbpool ebbpool-pure", "threads", 4, {"workers": 32}),
    ),
    floor="a plain loop, which calls the function at once; bare SimpleQueue workers, which keep no order, errors or "
    "futures",
    limits="making and freeing a future, and the locks between the submitter and the workers, for each task; waking "
    "a thread costs little, as a worker that runs takes the next task itself",
)  # fmt: skip
