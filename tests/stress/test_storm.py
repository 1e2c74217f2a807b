"""Everything at once: submitters, cancellers, waiters, resizers, stats readers and then a shutdown."""

from __future__ import annotations

import concurrent.futures
import itertools
import random
import time
from typing import Any

import pytest
from stress_harness import (
    LONG_ENOUGH,
    PATIENCE,
    Crew,
    Ledger,
    bounded,
    bring,
    check_closed,
    close,
    figures,
    rounds,
    storms,
    stuck,
)

from ebbpool import AdaptiveExecutor

SETTINGS: dict[str, dict[str, Any]] = {
    "wide": {"max_workers": 8},
    "narrow, no keep-alive": {"max_workers": 2, "keep_alive": 0.0},
    "short keep-alive": {"max_workers": 12, "min_workers": 1, "keep_alive": 0.0005},
    "spare": {"max_workers": 10, "min_spare_workers": 2, "keep_alive": 0.01},
    "block": {"max_workers": 4, "max_queue": 5, "when_full": "block"},
    "block, hand to hand": {"max_workers": 3, "max_queue": 0, "when_full": "block", "keep_alive": 0.001},
    "reject": {"max_workers": 4, "max_queue": 5, "when_full": "reject"},
    "caller runs": {"max_workers": 4, "max_queue": 5, "when_full": "caller_runs"},
}
GROWING = ("submitted", "completed", "failed", "cancelled", "rejected", "started", "retired")
ENDINGS = ("idle", "wait", "no wait", "cancel", "with", "twice")
NUMBERS = itertools.count()


class Storm:
    """One pool, its ledger, and what each member of the crew does to it in one step."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.prefix = f"storm{next(NUMBERS)}"
        self.pool = AdaptiveExecutor(thread_name_prefix=self.prefix, **settings)
        self.ledger = Ledger()
        self.ceiling = self.highest_ceiling = settings["max_workers"]
        self.last: dict[str, dict[str, Any]] = {}

    def submitter(self, rng: random.Random) -> bool:
        kind = rng.choices(("quick", "boom", "sleepy", "nested"), (10, 3, 1, 2))[0]
        arguments = (self.pool, rng.randint(1, 3)) if kind == "nested" else ()
        try:
            ticket = self.ledger.submit(self.pool, kind, *arguments)
        except RuntimeError:
            return False
        if ticket is not None:
            if rng.random() < 0.5:
                ticket.add_callback()
            if rng.random() < 0.2:
                ticket.cancel()
            if self.pool._work_queue.qsize() > 150 and not ticket.read(PATIENCE):
                stuck(f"a {ticket.kind} task in a full queue; {self.pool.stats()}")
        return True

    def canceller(self, rng: random.Random) -> None:
        for ticket in self.ledger.recent(rng, 3, window=20):
            ticket.cancel()

    def waiter(self, rng: random.Random) -> None:
        tickets = self.ledger.recent(rng, 5)
        if not tickets:
            time.sleep(0.0001)
            return
        futures = [ticket.future for ticket in tickets]
        way = rng.randrange(5)
        if way == 0:
            tickets[0].read(rng.random() * 0.002)
        elif way == 1:
            tickets[0].add_callback()
        elif way == 2:
            done, not_done = concurrent.futures.wait(futures, timeout=rng.random() * 0.002)
            assert done | not_done == set(futures) and all(future.done() for future in done)
        elif way == 3:
            seen = []
            try:
                for future in concurrent.futures.as_completed(futures, timeout=rng.random() * 0.002):
                    assert future.done()
                    seen.append(future)
            except TimeoutError:
                pass
            else:
                assert set(seen) == set(futures) and len(seen) == len(futures)
        elif not tickets[0].read(PATIENCE):
            stuck(f"a waiter on {tickets[0].future!r}; {self.pool.stats()}")

    def resizer(self, rng: random.Random) -> None:
        ceiling = max(1, self.ceiling + rng.randint(-3, 3))
        self.highest_ceiling = max(self.highest_ceiling, ceiling)
        self.pool.resize(
            max_workers=ceiling,
            min_workers=rng.randint(0, min(2, ceiling)),
            min_spare_workers=rng.randint(0, 1),
            keep_alive=rng.choice((0.0, 0.0005, 0.005)),
        )
        time.sleep(rng.random() * 0.002)

    def reader(self, rng: random.Random) -> None:
        stats = self.pool.stats()
        threads = len(self.pool._threads)
        most = self.highest_ceiling + self.ledger.blocked.peak
        assert 0 <= stats.workers <= most and threads <= most, (stats, threads, most)
        told = figures(stats)
        assert all(value >= 0 for value in told.values()), stats
        assert stats.workers == stats.idle + stats.running, stats
        fates = stats.completed + stats.failed + stats.cancelled
        assert stats.submitted == stats.queued + stats.running + fates, stats
        before = self.last.get("stats", told)
        shrunk = {name: (before[name], told[name]) for name in GROWING if told[name] < before[name]}
        assert not shrunk, f"a count went down: {shrunk} in {stats}"
        self.last["stats"] = told
        time.sleep(rng.random() * 0.001)

    def end(self, ending: str) -> None:
        pool = self.pool
        if ending == "wait":
            bounded("shutdown(wait=True)", pool.shutdown)
        elif ending == "cancel":
            bounded("shutdown(cancel_futures=True)", pool.shutdown, cancel_futures=True)
        elif ending == "with":
            with pool:
                pass
        elif ending == "twice":
            pool.shutdown(wait=False)
            pool.shutdown(wait=False, cancel_futures=True)
        else:
            pool.shutdown(wait=False)
        bounded("the last shutdown()", pool.shutdown)


def rage(storm: Storm, ending: str, rng: random.Random) -> None:
    """Let one storm rage for a moment, end it, and settle the accounts."""
    crew = Crew()
    crew.repeat("submitter", storm.submitter, copies=3)
    crew.repeat("canceller", storm.canceller)
    crew.repeat("waiter", storm.waiter, copies=2)
    crew.repeat("resizer", storm.resizer)
    crew.repeat("reader", storm.reader)
    crew.stop.wait(0.02 + rng.random() * 0.3)
    if ending == "idle":
        crew.join()
        storm.ledger.settle()
        assert storm.pool.wait_idle(PATIENCE), storm.pool.stats()
        storm.ledger.audit(storm.pool.stats())
    storm.end(ending)
    crew.join()
    check_closed(storm.pool, storm.ledger, storm.prefix)
    assert storm.ledger.refusals <= {"cannot schedule new futures after shutdown"}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_every_task_has_one_fate(settings: dict[str, Any]) -> None:
    """Whatever happens at once, each task has one outcome, each callback one call, and the figures add up."""
    total = sum(len(storm.ledger.accepted) for storm in storms(lambda: Storm(settings), rage, ENDINGS))
    assert total > 0 or not LONG_ENOUGH


@pytest.mark.parametrize("max_workers", [1, 3, 8])
def test_threads_never_exceed_the_ceiling(max_workers: int) -> None:
    """Without nested waits and retirement there are never more threads than the ceiling."""
    prefix = f"ceiling{max_workers}"
    for _ in rounds():
        ledger = Ledger()
        crew = Crew()
        pool = AdaptiveExecutor(max_workers, prefix, keep_alive=60.0)

        def submitter(rng: random.Random, pool: AdaptiveExecutor = pool, ledger: Ledger = ledger) -> None:
            for _ in range(rng.randint(1, 20)):
                ledger.submit(pool, rng.choice(("quick", "quick", "sleepy")))
            bring(ledger.accepted[-1], "the last task of a submitter", pool)

        def counter(rng: random.Random, prefix: str = prefix, pool: AdaptiveExecutor = pool) -> None:
            alive = sum(thread.name.startswith(f"{prefix}_") for thread in list(pool._threads))
            assert alive <= max_workers
            stats = pool.stats()
            assert stats.workers <= max_workers and stats.running <= max_workers, stats
            time.sleep(rng.random() * 0.001)

        crew.repeat("submitter", submitter, copies=4)
        crew.repeat("counter", counter)
        crew.stop.wait(0.3)
        crew.join()
        close(pool, ledger, prefix)
        workers = {run for ticket in ledger.accepted for run in ticket.runs}
        assert len(workers) <= max_workers
        assert pool.stats().started <= max_workers
