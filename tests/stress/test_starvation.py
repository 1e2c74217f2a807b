"""No task is ever left without a thread: barriers, retiring workers, pools that break or come and go."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from typing import Any

import pytest
from stress_harness import (
    LONG_ENOUGH,
    PATIENCE,
    SEED,
    TIMEKEEPER,
    Crew,
    Ledger,
    bounded,
    bring,
    close,
    named,
    rounds,
    stuck,
)

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

    def gone() -> None:
        while named(TIMEKEEPER):
            time.sleep(0.001)

    bounded("the end of the timekeeper", gone)


@pytest.mark.hard_limit(1200.0)
@pytest.mark.parametrize(("parties", "keep_alive"), [(5, 0.0), (2, 0.001), (5, 60.0)])
def test_barrier_on_one_pool(ten_microseconds: None, parties: int, keep_alive: float) -> None:
    """The same on one pool, whose workers are parked, searching or retiring whenever the next round comes."""
    with AdaptiveExecutor(max_workers=parties, keep_alive=keep_alive) as pool:
        for number in range(BARRIERS):
            meet(pool, parties)
            if keep_alive and number % 10 == 0:
                time.sleep(random.random() * 0.002)


@pytest.mark.parametrize(
    ("keep_alive", "submitters", "min_workers"), [(0.0, 1, 0), (0.0005, 1, 1), (0.0005, 3, 0), (0.002, 3, 1)]
)
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


@pytest.mark.parametrize("queue", [{}, {"max_queue": 2}], ids=["unbounded", "blocking"])
def test_initializers_that_fail_at_random(queue: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """A pool that breaks under its submitters fails what did not run and refuses what comes later."""
    caplog.set_level("CRITICAL", logger="concurrent.futures")
    for number in rounds():
        dice = random.Random(f"{SEED} {number}")
        chance = dice.choice((0.05, 0.3, 1.0)) if number else 1.0

        def initializer(dice: random.Random = dice, chance: float = chance) -> None:
            if dice.random() < chance:
                raise ValueError("no")

        pool = AdaptiveExecutor(6, "broken", initializer, keep_alive=0.0005, **queue)
        ledger = Ledger()
        crew = Crew()

        def submitter(rng: random.Random, pool: AdaptiveExecutor = pool, ledger: Ledger = ledger) -> bool:
            ticket = ledger.submit(pool, rng.choice(("quick", "sleepy")))
            if ticket is not None:
                ticket.add_callback()
            return ticket is not None

        crew.repeat("submitter", submitter, copies=4)
        crew.stop.wait(0.1)
        crew.join()
        for ticket in ledger.accepted:
            assert ticket.future is not None
            try:
                ticket.future.exception(timeout=PATIENCE)
            except TimeoutError:
                stuck(f"a future of a broken pool; {pool.stats()}")
        bounded("shutdown of a broken pool", pool.shutdown)
        if ledger.broken or chance == 1.0:
            assert pool._broken
        if pool._broken:
            assert ledger.submit(pool) is None, "a broken pool took a task"
        ledger.audit(pool.stats(), broken=True)
