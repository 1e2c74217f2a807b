"""No task is ever left without a thread: barriers, retiring workers, nested submits."""

from __future__ import annotations

import os
import random
import sys
import threading
import time

import pytest
from stress_harness import LONG_ENOUGH, PATIENCE, Crew, Ledger, bring, close, rounds, stuck

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
    """N tasks that need each other, on a pool of N: none starves (the failure of cpython#133957)."""
    for _ in range(BARRIERS):
        with AdaptiveExecutor(max_workers=parties) as pool:
            meet(pool, parties)


@pytest.mark.hard_limit(1200.0)
@pytest.mark.parametrize("keep_alive", [0.0, 0.001, 60.0])
@pytest.mark.parametrize("parties", [2, 5])
def test_barrier_on_one_pool(ten_microseconds: None, parties: int, keep_alive: float) -> None:
    """The same on one pool, whose workers are parked, searching or retiring whenever the next round comes."""
    with AdaptiveExecutor(max_workers=parties, keep_alive=keep_alive) as pool:
        for number in range(BARRIERS):
            meet(pool, parties)
            if keep_alive and number % 10 == 0:
                time.sleep(random.random() * 0.002)


@pytest.mark.parametrize("min_workers", [0, 1])
@pytest.mark.parametrize("submitters", [1, 3])
@pytest.mark.parametrize("keep_alive", [0.0, 0.0005, 0.002])
def test_a_retiring_worker_never_loses_a_task(keep_alive: float, submitters: int, min_workers: int) -> None:
    """Tasks that come exactly as the workers' keep-alive runs out are all taken."""
    pool = AdaptiveExecutor(4, "retiring", min_workers=min_workers, keep_alive=keep_alive)
    ledger = Ledger()
    crew = Crew()

    def submitter(rng: random.Random) -> None:
        tickets = [ledger.submit(pool) for _ in range(rng.choice((1, 1, 2, 3)))]
        for ticket in tickets:
            assert ticket is not None
            ticket.add_callback()
            bring(ticket, "a task that was lost", pool)
        pause = max(0.0, keep_alive + rng.uniform(-0.0003, 0.0002))
        if rng.random() < 0.8:
            time.sleep(pause)

    crew.repeat("submitter", submitter, copies=submitters)
    crew.press()
    close(pool, ledger, "retiring")
    if keep_alive < 0.001 and min_workers == 0 and submitters == 1:
        assert pool.stats().retired > 5 or not LONG_ENOUGH, "no worker ever retired: the race was not there"


@pytest.mark.parametrize("max_workers", [1, 2, 3])
@pytest.mark.parametrize("keep_alive", [0.0, 1.0])
def test_nested_submits_under_pressure(max_workers: int, keep_alive: float) -> None:
    """Tasks three deep that wait for their children, many at once, on very few workers: all of them end."""
    blocked = told = 0
    for _ in rounds():
        pool = AdaptiveExecutor(max_workers, "nested", keep_alive=keep_alive)
        ledger = Ledger()
        crew = Crew()
        most = [0]

        def submitter(rng: random.Random, pool: AdaptiveExecutor = pool, ledger: Ledger = ledger) -> None:
            tickets = [ledger.submit(pool, "nested", pool, 3) for _ in range(rng.randint(1, 6))]
            for ticket in tickets:
                assert ticket is not None
                bring(ticket, "a nested task", pool)

        def reader(
            rng: random.Random,
            pool: AdaptiveExecutor = pool,
            ledger: Ledger = ledger,
            most: list[int] = most,
        ) -> None:
            stats = pool.stats()
            most[0] = max(most[0], stats.blocked)
            assert stats.workers <= max_workers + ledger.blocked.peak, (stats, ledger.blocked.peak)
            time.sleep(rng.random() * 0.001)

        crew.repeat("submitter", submitter, copies=3)
        crew.repeat("reader", reader)
        crew.stop.wait(0.4)
        crew.join()
        ledger.settle()
        assert pool.wait_idle(PATIENCE), pool.stats()
        ledger.audit(pool.stats())
        close(pool, ledger, "nested")
        blocked, told = max(blocked, ledger.blocked.peak), max(told, most[0])
    # Of all rounds: in one of them the machine may keep the reader waiting until it is over.
    assert blocked > 0 or not LONG_ENOUGH, "nothing ever blocked: the test pressed on nothing"
    assert told > 0 or not LONG_ENOUGH, f"the figures told of no blocked task, and {blocked} were at a time"
