"""20,000 identity jobs, submitted one by one, their results summed: what does one cost, and is the sum right?"""

from __future__ import annotations

from benchmarks.engine.model import Column, Params, Question, Samples, Target, always, timed
from benchmarks.peers.peer import Peer


def same(item: int) -> int:
    return item


def measure(peer: Peer, params: Params) -> Samples:
    assert peer.open is not None
    items = range(params["jobs"])
    sums = []
    with peer.open(params["workers"], 10.0) as pool:
        taken = timed(lambda: sums.append(sum(pool.each(same, items))), params["repeats"])
    wrong = [found for found in sums if found != sum(items)]
    if wrong:
        raise ArithmeticError(f"{len(wrong)} of {len(sums)} sums are wrong")
    return {"us": [seconds / len(items) * 1e6 for seconds in taken]}


QUESTION = Question(
    title="Submit, collect and sum",
    method="fastthreadpool's own example ex_simple_sum, its submit row; there the results come on a deque in any "
    "order, elsewhere by futures; a wrong sum is a failure",
    columns=(Column("us", "µs a job", digits=3),),
    peers=("ebbpool", "ebbpool-pure", "stdlib", "multiprocessing", "fastthreadpool", "ebbpool-fastthreadpool"),
    variants=always({"workers": 4}),
    sizes=lambda quick: {"jobs": 2_000, "repeats": 1} if quick else {"jobs": 20_000, "repeats": 3},
    measure=measure,
    targets=(Target("ahead of fastthreadpool", "ebbpool", "us", 1.0, rival="fastthreadpool"),),
    limits="the future of each job; fastthreadpool has none and puts results on a deque",
)
