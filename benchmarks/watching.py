"""What does it cost to look at pools, while a million tasks wait and while ten pools are scraped?"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

from benchmarks.engine.model import Column, Params, Question, Samples, always, nothing, timed
from benchmarks.peers import package
from benchmarks.peers.peer import Peer
from benchmarks.peers.pools import adaptive

_READING, _RECORDING = ("stats()", "lane.stats()"), ("a scrape", "a scrape with histograms", "a scrape as text")


def _reading(what: str, params: Params) -> list[float]:
    """Return what each look took, in µs, while so many tasks wait."""
    gate = threading.Event()
    with adaptive(1, 10.0) as pool:
        lane = pool.lane("watched", limit=1)
        submit = lane.submit if what == "lane.stats()" else pool.submit
        try:
            submit(gate.wait)
            futures = [submit(nothing) for _ in range(params["waiting"])]
            look = lane.stats if what == "lane.stats()" else pool.stats
            taken = timed(lambda: [look() for _ in range(params["looks"])], params["repeats"])
            for future in futures:
                future.cancel()
        finally:
            gate.set()
    return [seconds / params["looks"] * 1e6 for seconds in taken]


def _scraping(what: str, params: Params) -> list[float]:
    """Return what each scrape of ten pools with five lanes each took, in µs."""
    client, ours = package("prometheus_client"), package("ebbpool.prometheus")
    registry = client.CollectorRegistry()
    options: dict[str, Any] = {"sample": 1 / 64} if what == "a scrape with histograms" else {}
    collector = ours.PoolCollector(registry=registry, **options)
    with ExitStack() as stack:
        stack.callback(collector.close)
        pools = [stack.enter_context(adaptive(4, 10.0)) for _ in range(10)]
        # A lane is there for as long as somebody keeps it.
        lanes = [pool.lane(f"lane-{number}", limit=2) for pool in pools for number in range(5)]
        # Tasks are sampled from the first look on.
        collector.collect()
        for lane in lanes * 20:
            lane.submit(nothing).result()
        look = (lambda: client.generate_latest(registry)) if what == "a scrape as text" else collector.collect
        taken = timed(lambda: [look() for _ in range(params["scrapes"])], params["repeats"])
        if sum(len(pool.lanes()) for pool in pools) != len(lanes):
            raise RuntimeError("some lanes were not there")
    return [seconds / params["scrapes"] * 1e6 for seconds in taken]


def measure(peer: Peer, params: Params) -> Samples:
    what = params["look"]
    return {"us": _reading(what, params) if what in _READING else _scraping(what, params)}


QUESTION = Question(
    title="The cost of watching pools",
    method="stats() while 1,000,000 tasks wait for the one worker, which is held up, those of a lane for the lane; a "
    "scrape: ten pools with five lanes each are read as prometheus-client's families, or written as its text",
    columns=(Column("us", "µs a look", 1, ratio=False),),
    peers=("ebbpool", "ebbpool-pure"),
    variants=always(*({"look": what} for what in (*_READING, *_RECORDING))),
    sizes=lambda quick: {
        "waiting": 100_000 if quick else 1_000_000,
        "looks": 200,
        "scrapes": 5 if quick else 50,
        "repeats": 1 if quick else 3,
    },
    measure=measure,
    limits="stats(): the pool's lock and some twenty numbers; a scrape: the client's own objects for each number",
    rounds_factor=0.7,
)
