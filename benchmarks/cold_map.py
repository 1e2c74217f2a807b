"""200 items that sleep 50 ms, by `map` and one by one, on a cold pool of at most 200: when is the last one done?"""

from __future__ import annotations

from benchmarks.cold_burst import COLUMNS, once
from benchmarks.engine.model import Params, Question, Samples, Target, always
from benchmarks.peers.peer import Peer
from benchmarks.peers.pools import Pool

_MAP, _EACH = {"by": "map", "workers": 200}, {"by": "submit", "workers": 200}


def measure(peer: Peer, params: Params) -> Samples:
    def work(pool: Pool) -> None:
        (pool.map if params["by"] == "map" else pool.each)(
            lambda item: pool.sleep(params["sleep"]), range(params["tasks"])
        )

    return once(peer, params, work)


QUESTION = Question(
    title="Map of sleeps on a cold pool",
    method="from building the pool to the last result, once a process; the floor is the 50 ms of the sleep; "
    "fastthreadpool's threads end with its map",
    columns=COLUMNS,
    peers=("ebbpool", "ebbpool-pure", "stdlib", "multiprocessing", "fastthreadpool"),
    variants=always(_MAP, _EACH),
    sizes=lambda quick: {"tasks": 200, "sleep": 0.05},
    measure=measure,
    targets=(
        Target("as quick as submitting (at most 1.05 of it)", "ebbpool ebbpool-pure", "ms", 1.05, _MAP, "", _EACH),
    ),
    rounds_factor=5 / 3,
    floor="the 50 ms of the sleep",
    limits="the time to start 200 threads",
)
