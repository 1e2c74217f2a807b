"""Pairs of acquire and release: what does one cost alone, what when 4 threads want the same, and does it exclude?"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import repeat
from typing import Any

from benchmarks.engine.model import Column, Params, Question, Samples, Target, always, timed
from benchmarks.peers.peer import Peer

_THREADS = 4
_PATIENCE_SECONDS = 60.0


def _alone(semaphore: Any, pairs: int) -> None:
    acquire, release = semaphore.acquire, semaphore.release
    for _ in repeat(None, pairs):
        acquire()
        release()


def _shared(pairs: int, work: Callable[[int], None]) -> None:
    """Has threads share `pairs` pairs: each calls `work` with its share."""
    threads = [threading.Thread(target=work, args=(pairs // _THREADS,), daemon=True) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_PATIENCE_SECONDS)
        if thread.is_alive():
            raise TimeoutError(f"stuck after {_PATIENCE_SECONDS:g} s")


def _together(semaphore: Any, pairs: int) -> None:
    _shared(pairs, lambda share: _alone(semaphore, share))


def _met(semaphore: Any, pairs: int) -> int:
    """Returns how often a thread found another inside; each gives way there, and outside."""
    inside = met = 0

    def work(share: int) -> None:
        nonlocal inside, met
        for _ in repeat(None, share):
            semaphore.acquire()
            inside += 1
            time.sleep(0)
            met += inside != 1
            inside -= 1
            semaphore.release()
            time.sleep(0)

    _shared(pairs, work)
    return met


def measure(peer: Peer, params: Params) -> Samples:
    assert peer.semaphore is not None
    make, pairs, contended = peer.semaphore, params["pairs"], params["contended"]
    permits = params["permits"]
    alone = timed(lambda: _alone(make(permits), pairs), params["repeats"])
    together = timed(lambda: _together(make(permits), contended), params["repeats"])
    return {
        "alone": [seconds / pairs * 1e6 for seconds in alone],
        "together": [seconds / contended * 1e6 for seconds in together],
        "met": [_met(make(permits), params["checked"])],
    }


def sizes(quick: bool) -> dict[str, Any]:
    if quick:
        return {"pairs": 10_000, "contended": 4_000, "checked": 2_000, "repeats": 1}
    return {"pairs": 100_000, "contended": 100_000, "checked": 20_000, "repeats": 3}


QUESTION = Question(
    title="Semaphores",
    method="one permit; 100,000 pairs in one thread, and shared by 4 threads with nothing in between; met: how often a "
    "thread found another inside, in 20,000 further pairs, where each gives way while it is inside",
    columns=(
        Column("alone", "µs a pair, alone", 3),
        Column("together", "µs a pair, 4 threads", 3),
        Column("met", "met inside", 0, ratio=False, worst=True),
    ),
    peers=("lock", "semaphore", "ebbpool-semaphore", "ebbpool-semaphore-pure", "fastthreadpool-semaphore"),
    variants=always({"permits": 1}),
    sizes=sizes,
    measure=measure,
    targets=(
        Target("alone: at least 13x faster", "ebbpool-semaphore", "alone", 1 / 13, rival="semaphore"),
        Target("4 threads: no slower", "ebbpool-semaphore", "together", 1.0, rival="semaphore"),
        Target("never two inside", "ebbpool-semaphore ebbpool-semaphore-pure", "met", 0),
    ),
    floor="a lock: one permit, no count",
    limits="alone: two calls of methods; together: the GIL, or the kernel, between threads that want the same",
)
