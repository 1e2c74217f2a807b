"""Semaphores, and calls that are due later."""

from __future__ import annotations

import functools
import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import repeat
from typing import Any

from benchmarks.engine.model import Column, Params, Question, Samples, nothing, percentile, timed, us_each
from benchmarks.peers.peer import Peer
from benchmarks.peers.pools import adaptive

_THREADS = 4
_PATIENCE_SECONDS = 60.0


def _alone(semaphore: Any, pairs: int) -> None:
    acquire, release = semaphore.acquire, semaphore.release
    for _ in repeat(None, pairs):
        acquire()
        release()


def _shared(pairs: int, work: Callable[[int], None]) -> None:
    """Have threads share `pairs` pairs: each calls `work` with its share."""
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
    """Return how often a thread found another inside; each gives way there, and outside."""
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


@Question(
    title="Semaphores",
    columns=(
        Column("alone", "µs per pair, alone", 3),
        Column("together", "µs per pair, 4 threads", 3),
        Column("met", "met inside", 0, ratio=False, worst=True, wrong=True),
    ),
    peers="lock semaphore ebbpool-semaphore ebbpool-semaphore-pure fastthreadpool-semaphore",
    variants=({"permits": 1},),
    sizes={"pairs": 100_000, "contended": 100_000, "checked": 20_000, "repeats": 3},
)
def semaphore(peer: Peer, params: Params) -> Samples:
    """Pairs of acquire and release: what does one cost alone, what among 4 threads, and does it exclude?"""
    make, pairs, contended = peer.semaphore, params["pairs"], params["contended"]
    permits = params["permits"]
    return {
        "alone": us_each(lambda: _alone(make(permits), pairs), pairs, params["repeats"]),
        "together": us_each(lambda: _together(make(permits), contended), contended, params["repeats"]),
        "met": [_met(make(permits), params["checked"])],
    }


_MANY, _FEW = {"pending": 100_000}, {"pending": 1_000}
_FAR_SECONDS = 3_600.0

Later = Callable[[float, Callable[[], object]], Any]


def _thread_each(delay: float, fn: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(delay, fn)
    timer.start()
    return timer


@contextmanager
def _later(peer: Peer) -> Iterator[Later]:
    if peer.core is None:
        yield _thread_each
        return
    with adaptive(4, 10.0) as pool:
        yield pool.submit_later


def _pushed(count: int) -> float:
    """Return how many µs each of so many pushes to a heap took."""
    push, number, clock, heaps = heapq.heappush, itertools.count().__next__, time.monotonic, list[list[Any]]()

    def pushes() -> None:
        heaps.append([])
        heap = heaps[-1]
        for _ in range(count):
            push(heap, (clock() + _FAR_SECONDS, number(), nothing))

    return us_each(pushes, count, 1)[0]


def _submitted(count: int) -> float:
    """Return how many µs each of so many calls took to submit, while no worker was free."""
    gate, futures = threading.Event(), list[Any]()
    with adaptive(1, 10.0) as pool:
        pool.submit(gate.wait)
        submit = pool.submit
        (taken,) = us_each(lambda: futures.append([submit(nothing) for _ in range(count)]), count, 1)
        gate.set()
    return taken


@Question(
    title="Delayed calls",
    columns=(
        Column("schedule", "µs to schedule one", 2),
        Column("submit", "µs to submit one", 2, ratio=False),
        Column("cancel", "µs to cancel one", 2),
        Column("threads", "threads", 0, ratio=False, worst=True),
        Column("lag", "lag p99, ms", 2),
    ),
    peers="ebbpool ebbpool-pure timer heap",
    variants=lambda peer, settings: [_FEW] if peer == "timer" else [_MANY, _FEW],
    sizes={"shots": 400, "spacing": 0.0015},
)
def timers(peer: Peer, params: Params) -> Samples:
    """100,000 delayed calls pending: what does scheduling one take, how many threads wait, how late do others fire?"""
    count, shots = params["pending"], params["shots"]
    if peer.name == "heap":
        return {"schedule": [_pushed(count)]}
    beside: Samples = {} if peer.core is None else {"submit": [_submitted(count)]}
    with _later(peer) as later:
        before, pending = threading.active_count(), list[Any]()
        (scheduling,) = timed(
            lambda: pending.extend([later(_FAR_SECONDS, nothing) for _ in range(count)]), 1, warm_ups=0
        )
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
        "schedule": [scheduling / count * 1e6],
        "cancel": [cancelling / count * 1e6],
        "threads": [threads],
        "lag": [percentile(lags, 0.99) * 1e3],
    }
