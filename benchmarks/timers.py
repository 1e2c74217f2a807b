"""100,000 delayed calls pending: what does it take to schedule one, how many threads wait, how late do others fire?"""

from __future__ import annotations

import functools
import gc
import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.engine.model import Column, Params, Question, Samples, Settings, Target, Variant, nothing, percentile
from benchmarks.peers.peer import Peer
from benchmarks.peers.pools import adaptive

_OURS = ("ebbpool", "ebbpool-pure")
_FLOOR = "heap"
_MANY, _FEW = {"pending": 100_000}, {"pending": 1_000}
_FAR_SECONDS = 3_600.0
_WORKERS = 4

Later = Callable[[float, Callable[[], object]], Any]


def _thread_each(delay: float, fn: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(delay, fn)
    timer.start()
    return timer


@contextmanager
def _later(peer: Peer) -> Iterator[Later]:
    if peer.base not in _OURS:
        yield _thread_each
        return
    with adaptive(_WORKERS, 10.0) as pool:
        yield pool.submit_later


def _scheduled(later: Later, count: int) -> tuple[float, list[Any]]:
    """Return how many µs each of so many calls took to schedule, and what they gave."""
    gc.collect()
    start = time.perf_counter()
    pending = [later(_FAR_SECONDS, nothing) for _ in range(count)]
    return (time.perf_counter() - start) / count * 1e6, pending


def _pushed(count: int) -> float:
    """Return how many µs each of so many pushes to a heap took; the first pass, which makes room, does not count."""
    push, number, clock = heapq.heappush, itertools.count().__next__, time.monotonic
    for _ in range(2):
        heap: list[tuple[float, int, Callable[[], object]]] = []
        gc.collect()
        start = time.perf_counter()
        for _ in range(count):
            push(heap, (clock() + _FAR_SECONDS, number(), nothing))
        taken = time.perf_counter() - start
    return taken / count * 1e6


def _submitted(count: int) -> float:
    """Return how many µs each of so many calls took to submit, while no worker was free; the second pass of two."""
    for _ in range(2):
        gate = threading.Event()
        with adaptive(1, 10.0) as pool:
            pool.submit(gate.wait)
            submit = pool.submit
            gc.collect()
            start = time.perf_counter()
            futures = [submit(nothing) for _ in range(count)]
            taken = time.perf_counter() - start
            gate.set()
        del futures
    return taken / count * 1e6


def measure(peer: Peer, params: Params) -> Samples:
    count, shots = params["pending"] // params["divisor"], params["shots"]
    if peer.name == _FLOOR:
        return {"schedule": [_pushed(count)]}
    beside: Samples = {"submit": [_submitted(count)]} if peer.base in _OURS else {}
    with _later(peer) as later:
        before = threading.active_count()
        scheduling, pending = _scheduled(later, count)
        threads = threading.active_count() - before

        lags, done = list[float](), threading.Event()

        def fire(due: float) -> None:
            lags.append(time.perf_counter() - due)
            if len(lags) == shots:
                done.set()

        for number in range(shots):
            delay = 0.05 + number * params["spacing"]
            due = time.perf_counter() + delay
            later(delay, functools.partial(fire, due))
        done.wait()
        start = time.perf_counter()
        for call in pending:
            call.cancel()
        cancelling = time.perf_counter() - start
    return beside | {
        "schedule": [scheduling],
        "cancel": [cancelling / count * 1e6],
        "threads": [threads],
        "lag": [percentile(lags, 0.99) * 1e3],
    }


def variants(peer: str, settings: Settings) -> list[Variant]:
    return [_FEW] if peer == "timer" else [_MANY, _FEW]


QUESTION = Question(
    title="Delayed calls",
    method="all are due in an hour; lag: of 400 others that fall due one every 1.5 ms while those are pending; "
    "threads: how many more there are than before; to submit one: beside it, into a pool whose worker is busy",
    columns=(
        Column("schedule", "µs to schedule one", 2),
        Column("submit", "µs to submit one", 2, ratio=False),
        Column("cancel", "µs to cancel one", 2),
        Column("threads", "threads", 0, ratio=False, worst=True),
        Column("lag", "lag p99, ms", 2),
    ),
    peers=(*_OURS, "timer", _FLOOR),
    variants=variants,
    sizes=lambda quick: (
        {"divisor": 10, "shots": 50, "spacing": 0.0015} if quick else {"divisor": 1, "shots": 400, "spacing": 0.0015}
    ),
    measure=measure,
    targets=(
        Target("under 3 µs to schedule one", "ebbpool", "schedule", 3.0, _MANY),
        Target("one thread", "ebbpool ebbpool-pure", "threads", 1, _MANY),
        Target("p99 of the lag: under 5 ms", "ebbpool ebbpool-pure", "lag", 5.0, _MANY),
    ),
    floor="a push of (when, a number, the function) to a heap; and `submit`, which makes a future, too",
    limits="scheduling: a push to a heap; lag: the timer of the system and the turn of a thread",
)
