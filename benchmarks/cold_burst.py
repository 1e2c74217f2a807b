"""200 tasks that sleep 50 ms, all at once, on a cold pool of at most 200: when is the last one done?"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.engine.model import Column, Params, Question, Samples, Target, always, timed
from benchmarks.peers.peer import Peer
from benchmarks.peers.pools import Pool

COLUMNS = (
    Column("ms", "ms for all", digits=1),
    Column("threads", "most threads", digits=0, ratio=False, worst=True),
)
_WHERE = {"workers": 200}


def once(peer: Peer, params: Params, work: Callable[[Pool], object]) -> Samples:
    """Time `work` on a pool that is built for it, and count its threads."""
    pools: list[Pool] = []

    def build_and_work() -> None:
        assert peer.open is not None
        pools.append(peer.open(params["workers"], 10.0))
        work(pools[0])

    (seconds,) = timed(build_and_work, 1, warm_ups=0)
    with pools[0] as pool:
        return {"ms": [seconds * 1e3], "threads": [pool.threads()]}


QUESTION = Question(
    title="Burst of sleeps on a cold pool",
    method="from building the pool to the last result, once a process; the floor is the 50 ms of the sleep; "
    "anyio and trio: the start of the event loop is part of it",
    columns=COLUMNS,
    peers=(
        "simplequeue", "ebbpool", "ebbpool-pure", "stdlib", "multiprocessing", "fastthreadpool",
        "ebbpool-fastthreadpool", "plus", "pebble", "betapool", "flexexecutor", "gevent-threadpool", "gevent", "anyio",
        "trio", "aiomisc", "hypertile", "leasepool",
    ),
    variants=always(_WHERE),
    sizes=lambda quick: {"tasks": 200, "sleep": 0.05},
    measure=lambda peer, params: once(
        peer, params, lambda pool: pool.burst(lambda: pool.sleep(params["sleep"]), params["tasks"])
    ),
    targets=(
        Target("no later than ThreadPoolExecutor(200)", "ebbpool ebbpool-pure", "ms", 1.0, rival="stdlib"),
    ),
    rounds_factor=5 / 3,
    floor="the 50 ms of the sleep",
    limits="the time to start 200 threads, some 60 µs each, beside a GIL that they all want",
)  # fmt: skip
