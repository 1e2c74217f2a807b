"""Map a trivial function over 20,000 items with each pool's own `map`: what does one item cost?"""

from __future__ import annotations

from benchmarks._model import Column, Params, Question, Samples, pool_variants, timed
from benchmarks._peers import Peer


def same(item: int) -> int:
    return item


def measure(peer: Peer, params: Params) -> Samples:
    assert peer.open is not None
    items = range(params["items"])
    with peer.open(params["workers"], 10.0) as pool:
        taken = timed(lambda: pool.map(same, items), params["repeats"])
    return {"us": [seconds / len(items) * 1e6 for seconds in taken]}


QUESTION = Question(
    module="benchmarks.map_items",
    title="Map trivial items",
    method="each pool's own map, with its own default chunks (multiprocessing, bare queue: large ones)",
    columns=(Column("us", "µs an item", digits=3),),
    variants=pool_variants("map_items", {"workers": 4}),
    sizes=lambda quick: {"items": 2_000, "repeats": 1} if quick else {"items": 20_000, "repeats": 3},
    measure=measure,
)
