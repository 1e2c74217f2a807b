"""No task is ever left without a thread, and no thread without a pool: barriers, and pools that come and go."""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
import time

import pytest
from stress_harness import PATIENCE, TIMEKEEPER, named, rounds, stuck, until

from ebbpool import AdaptiveExecutor

BARRIERS = int(os.environ.get("EBBPOOL_STRESS_BARRIERS", "2000"))


def meet(pool: AdaptiveExecutor, parties: int) -> None:
    """Run `parties` tasks that end only if all of them run at the same time."""
    barrier = threading.Barrier(parties)
    futures = [pool.submit(barrier.wait, PATIENCE) for _ in range(parties)]
    try:
        arrivals = sorted(future.result(timeout=PATIENCE) for future in futures)
    except (threading.BrokenBarrierError, TimeoutError):
        stuck(f"{parties} tasks never met; {barrier.n_waiting} wait; {pool.stats()}")
    assert arrivals == list(range(parties))


@pytest.fixture
def ten_microseconds() -> None:
    sys.setswitchinterval(1e-5)


@pytest.mark.hard_limit(1200.0)
@pytest.mark.parametrize("parties", [2, 5])
def test_barrier_on_fresh_pools(ten_microseconds: None, parties: int) -> None:
    """N tasks that need each other, on a pool of N: none starves (the failure of cpython#133957).

    The timekeeper's thread ends with each pool and comes back with the next, whatever that gives it first.
    """
    for number in range(BARRIERS):
        with AdaptiveExecutor(max_workers=parties) as pool:
            later = pool.submit_later(number % 3 * 0.0005, pow, 2, 3)
            meet(pool, parties)
            if number % 2:
                assert later.result(PATIENCE) == 8
            else:
                later.cancel()

    until(lambda: "the timekeeper outlives all pools" if named(TIMEKEEPER) else "")


@pytest.mark.hard_limit(1200.0)
@pytest.mark.parametrize(("parties", "keep_alive"), [(5, 0.0), (2, 0.001), (5, 60.0)])
def test_barrier_on_one_pool(ten_microseconds: None, parties: int, keep_alive: float) -> None:
    """The same on one pool, whose workers are parked, searching or retiring whenever the next round comes."""
    with AdaptiveExecutor(max_workers=parties, keep_alive=keep_alive) as pool:
        for number in range(BARRIERS):
            meet(pool, parties)
            if keep_alive and number % 10 == 0:
                time.sleep(random.random() * 0.002)


@pytest.mark.parametrize("keep_alive", [0.0, 3600.0])
def test_forgotten_executors_end_by_themselves(keep_alive: float) -> None:
    made = 0
    for _ in rounds():
        for _ in range(20):
            pool = AdaptiveExecutor(2, "forgotten", keep_alive=keep_alive)
            futures = [pool.submit(pow, made, 2) for _ in range(3)]
            if made % 3:
                del pool
            for future in futures:
                try:
                    assert future.result(timeout=PATIENCE) == made**2
                except TimeoutError:
                    stuck(f"a forgotten executor forgot {future!r}")
            made += 1
        pool = None
        if sys.implementation.name != "cpython":
            gc.collect()
        until(lambda: "workers of forgotten executors pile up" if len(named("forgotten_")) >= 200 else "")
    gc.collect()
    until(
        lambda: f"{len(left)} workers of {made} forgotten executors are left" if (left := named("forgotten_")) else ""
    )
