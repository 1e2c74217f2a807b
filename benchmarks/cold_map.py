"""200 items that sleep 50 ms, by `map` and one by one, on a cold pool of at most 200: when is the last one done?"""

from __future__ import annotations

from benchmarks.cold_burst import once
from benchmarks.engine.model import Column, Params, Question, Samples, Target, pool_variants
from benchmarks.peers.peer import Peer
from benchmarks.peers.pools import Pool

_PEERS = ("ebbpool", "ebbpool-pure", "stdlib", "multiprocessing", "fastthreadpool")
_MAP, _EACH = {"by": "map", "workers": 200}, {"by": "submit", "workers": 200}


def measure(peer: Peer, params: Params) -> Samples:
    def work(pool: Pool) -> None:
        (pool.map if params["by"] == "map" else pool.each)(
            lambda item: pool.sleep(params["sleep"]), range(params["tasks"])
        )

    return once(peer, params, work)


QUESTION = Question(
    module="benchmarks.cold_map",
    title="Map of sleeps on a cold pool",
    method="from building the pool to the last result, once a process; the floor is the 50 ms of the sleep; ratios "
    "are to ThreadPoolExecutor's own; fastthreadpool's threads end with its map",
    columns=(
        Column("ms", "ms for all", digits=1),
        Column("threads", "most threads", digits=0, ratio=False, worst=True),
    ),
    variants=lambda peer, settings: (
        pool_variants("cold_map", _MAP, _EACH)(peer, settings) if peer.name in _PEERS else "see cold_burst"
    ),
    sizes=lambda quick: {"tasks": 200, "sleep": 0.05},
    measure=measure,
    targets=lambda settings: tuple(
        Target("as quick as submitting (at most 1.05 of it)", peer, "ms", 1.05, _MAP, rival=peer, rival_where=_EACH)
        for peer in ("ebbpool", "ebbpool-pure")
    ),
    rounds_factor=5 / 3,
    floor="the 50 ms of the sleep",
    limits="the time to start 200 threads",
)
