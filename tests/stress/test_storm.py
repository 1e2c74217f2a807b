"""Everything at once: a pool, its lanes and its delayed calls, whatever is done to them, and then one of many ends."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import random
import time
from typing import Any

import pytest
from hypothesis.stateful import run_state_machine_as_test
from stress_harness import (
    LONG_ENOUGH,
    PATIENCE,
    SECONDS,
    SEED,
    Crew,
    Delays,
    Gauge,
    Share,
    add_up,
    bounded,
    bring,
    check_closed,
    figures,
    rounds,
    stuck,
)
from support.model import ExecutorModel, profile

from ebbpool import AdaptiveExecutor

SETTINGS: dict[str, dict[str, Any]] = {
    "wide": {"max_workers": 8},
    "narrow, no keep-alive": {"max_workers": 2, "keep_alive": 0.0},
    "short keep-alive": {"max_workers": 12, "min_workers": 1, "keep_alive": 0.0005},
    "spare": {"max_workers": 10, "min_spare_workers": 2, "keep_alive": 0.01},
    "block": {"max_workers": 4, "max_queue": 5, "when_full": "block"},
    "block, hand to hand": {"max_workers": 3, "max_queue": 0, "when_full": "block", "keep_alive": 0.001},
    "reject": {"max_workers": 4, "max_queue": 5, "when_full": "reject"},
    "caller runs": {"max_workers": 4, "max_queue": 2, "when_full": "caller_runs"},
}
LANES = (("narrow", 1, False), ("middle", 3, False), ("urgent", 2, True))
"""Name, limit, and whether it goes first. A task of one may wait for one of a later lane, or of the pool."""
GROWING = ("submitted", "completed", "failed", "cancelled", "rejected", "started", "retired")
ENDINGS = ("idle", "wait", "no wait", "cancel", "with", "twice", "lanes first")
NEAR = (0.0, 0.0001, 0.0005, 0.002, 0.005)
FAR = 3600.0
NUMBERS = itertools.count()


class Storm:
    """One pool, what was handed in to it, and what each member of the crew does to it in one step.

    Attributes:
        bare: Whether there are neither lanes nor delayed calls, so that the figures of one moment add up.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        number = next(NUMBERS)
        self.prefix = f"storm{number}"
        self.bare = number % 2 == 0
        self.pool = AdaptiveExecutor(thread_name_prefix=self.prefix, **settings)
        self.ceiling = self.highest_ceiling = settings["max_workers"]
        self.blocked = Gauge()
        self.plain, self.delays = Share(self.pool, self.blocked), Delays()
        self.past: list[Share] = []
        self.lanes = [] if self.bare else [self.open(place) for place in range(len(LANES))]
        self.last: dict[str, Any] = {}

    def open(self, place: int) -> Share:
        name, limit, first = LANES[place]
        return Share(self.pool.lane(name, limit=limit, first=first), self.blocked)

    @property
    def shares(self) -> list[Share]:
        return [self.plain, *self.lanes, *self.past]

    def submitter(self, rng: random.Random) -> bool:
        lanes = list(self.lanes)
        place = rng.randrange(len(lanes) + 1)
        share = (self.plain, *lanes)[place]
        kind = rng.choices(("quick", "boom", "sleepy", "nested"), (10, 3, 1, 2))[0]
        chain = [lane for lane in lanes[place:] if rng.random() < 0.5] + [self.plain] * rng.randint(1, 3)
        try:
            ticket = share.ask(kind, *(chain if kind == "nested" else ()))
        except RuntimeError:
            # A lane that is shut down is replaced.
            return not self.pool._shutdown
        if ticket is not None:
            if rng.random() < 0.5:
                ticket.add_callback()
            if rng.random() < 0.2:
                ticket.cancel()
            if share.target.stats().queued > 100 and not ticket.read(PATIENCE):
                stuck(f"a {ticket.kind} task of {share.target!r}; {self.pool.stats()}")
        return True

    def later(self, rng: random.Random) -> bool:
        """Add a few that are near, or so many far ones that they are folded in and swept out."""
        near = rng.random() < 0.7
        try:
            if near or len(self.delays.accepted) > 5000:
                kind = rng.choice(("quick", "quick", "boom", "sleepy"))
                tickets = [self.delays.later(self.pool, rng.choice(NEAR), kind) for _ in range(rng.randint(1, 10))]
            else:
                tickets = [self.delays.later(self.pool, FAR, "far") for _ in range(rng.randint(1, 300))]
        except RuntimeError:
            return False
        for ticket in rng.sample(tickets, len(tickets) // (5 if near else 2)):
            ticket.add_callback()
            ticket.cancel()
        if tickets[-1].kind != "far":
            bring(tickets[-1], "a delayed call", self.pool)
        return True

    def canceller(self, rng: random.Random) -> None:
        for ticket in rng.choice([*self.shares, self.delays]).recent(rng, 3, window=20):
            ticket.cancel()

    def waiter(self, rng: random.Random) -> None:
        """Wait in one of the ways there are: a moment, or until the task has to be over."""
        tickets = self.plain.recent(rng, 5)
        futures = [ticket.future for ticket in tickets if ticket.future is not None]
        if not futures:
            time.sleep(0.0001)
            return
        patient = rng.random() < 0.3
        timeout = PATIENCE if patient else rng.random() * 0.002
        way = rng.randrange(4)
        if way == 0:
            told = tickets[0].read(timeout)
        elif way == 1:
            told = not concurrent.futures.wait(futures, timeout).not_done
        elif way == 2:
            told = bool(concurrent.futures.wait(futures, timeout, concurrent.futures.FIRST_COMPLETED).done)
        else:
            seen: list[object] = []
            with contextlib.suppress(TimeoutError):
                for future in concurrent.futures.as_completed(futures, timeout):
                    assert future.done()
                    seen.append(future)
            told = len(seen) == len(futures)
            assert set(seen) == set(futures) or not told
        if patient and not told:
            stuck(f"one that waits in way {way} for {futures!r}; {self.pool.stats()}")

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
        most = self.highest_ceiling + self.blocked.peak
        assert 0 <= stats.workers <= most and threads <= most, (stats, threads, most)
        told = figures(stats)
        assert all(value >= 0 for value in told.values()), stats
        assert stats.workers == stats.idle + stats.running, stats
        if self.bare:
            fates = stats.completed + stats.failed + stats.cancelled
            assert stats.submitted == stats.queued + stats.running + fates, stats
        before, self.last = self.last or told, told
        shrunk = {name: (before[name], told[name]) for name in GROWING if told[name] < before[name]}
        assert not shrunk, f"a count went down: {shrunk} in {stats}"
        for share in self.lanes:
            share.look()
        time.sleep(rng.random() * 0.001)

    def closer(self, rng: random.Random) -> None:
        place = rng.randrange(len(LANES))
        share = self.lanes[place]
        share.close(rng)
        self.past.append(share)
        self.lanes[place] = self.open(place)
        time.sleep(rng.random() * 0.01)

    def rage(self, ending: str, rng: random.Random) -> None:
        """Let the storm rage for a moment, end it, and settle the accounts."""
        crew = Crew()
        crew.repeat("submitter", self.submitter, copies=3)
        crew.repeat("canceller", self.canceller)
        crew.repeat("waiter", self.waiter, copies=2)
        crew.repeat("resizer", self.resizer)
        crew.repeat("reader", self.reader)
        if not self.bare:
            crew.repeat("later", self.later, copies=2)
            crew.repeat("closer", self.closer)
        crew.stop.wait(0.02 + rng.random() * 0.3)
        if ending == "idle":
            crew.join()
            self.delays.cancel_far()
            for ledger in (*self.shares, self.delays):
                ledger.settle()
            assert self.pool.wait_idle(PATIENCE), self.pool.stats()
            add_up(self.pool.stats(), *(ledger.tally() for ledger in (*self.shares, self.delays)))
        self.end(ending, rng)
        crew.join()
        for share in (*self.lanes, *self.past):
            share.check()
        check_closed(self.pool, self.plain, self.prefix, *self.lanes, *self.past, self.delays)
        for ledger in (*self.shares, self.delays):
            assert ledger.refusals <= {"cannot schedule new futures after shutdown"}

    def end(self, ending: str, rng: random.Random) -> None:
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
        elif ending == "lanes first":
            for share in list(self.lanes):
                share.close(rng)
        else:
            pool.shutdown(wait=False)
        bounded("the last shutdown()", pool.shutdown)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_every_task_has_one_fate(settings: dict[str, Any]) -> None:
    """Each task has one outcome, each callback one call, no lane has too many inside, and the figures add up."""
    total = 0
    for number in rounds():
        storm = Storm(settings)
        try:
            storm.rage(ENDINGS[number % len(ENDINGS)], random.Random(f"{SEED} {number}"))
        finally:
            # A failed round is not to leave its workers to the next.
            storm.pool.shutdown(wait=False, cancel_futures=True)
        total += sum(len(share.accepted) for share in storm.shares)
    assert total > 0 or not LONG_ENOUGH


def test_executor_does_what_the_model_says_for_longer() -> None:
    """Other examples each time."""
    for _ in rounds(4 * SECONDS):
        run_state_machine_as_test(ExecutorModel, settings=profile(40, database=None, print_blob=True))
