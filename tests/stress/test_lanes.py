"""Lanes under pressure: never one task too many at once, none lost, none twice, order kept, figures that add up."""

from __future__ import annotations

import functools
import importlib
import itertools
import math
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from stress_harness import (
    LONG_ENOUGH,
    PATIENCE,
    SEED,
    Crew,
    Gauge,
    Ledger,
    Ticket,
    add_up,
    bounded,
    bring,
    check_closed,
    close,
    figures,
    rounds,
    storms,
    stuck,
)

from ebbpool import AdaptiveExecutor, Lane
from ebbpool._core import accel

SETTINGS: dict[str, dict[str, Any]] = {
    "wide": {"max_workers": 8},
    "narrow, short keep-alive": {"max_workers": 2, "keep_alive": 0.0005},
    "block": {"max_workers": 4, "max_queue": 5, "when_full": "block"},
    "block, hand to hand": {"max_workers": 3, "max_queue": 0, "when_full": "block", "keep_alive": 0.001},
    "reject": {"max_workers": 4, "max_queue": 5, "when_full": "reject"},
    "caller runs": {"max_workers": 4, "max_queue": 2, "when_full": "caller_runs"},
}
LANES = (("narrow", 1, False), ("middle", 3, False), ("urgent", 2, True))
"""Name, limit, and whether it goes first. A task of one may wait for one of a later lane, or of the pool."""
GROWING = ("submitted", "completed", "failed", "cancelled")
ENDINGS = ("idle", "wait", "cancel", "no wait", "lanes first")
NUMBERS = itertools.count()


class Share(Ledger):
    """A lane, or the pool itself, with every ticket submitted there and a note of who is inside.

    The note is a list that is only appended to and popped from, which is atomic everywhere and orders nothing else.
    """

    def __init__(self, target: AdaptiveExecutor | Lane, blocked: Gauge) -> None:
        super().__init__()
        self.target = target
        self.blocked = blocked
        self.inside: list[None] = []
        self.last: dict[str, float] = {}
        self.bodies["nested"] = self._chain
        if isinstance(target, Lane):
            limit = target.core.limit
            self.bodies = {kind: functools.partial(self._visit, limit, body) for kind, body in self.bodies.items()}

    def ask(self, kind: str = "quick", *args: Any) -> Ticket | None:
        """Submit one task; see `Ledger.submit`."""
        return self.submit(self.target, kind, *args)

    def _visit(self, limit: int, body: Callable[..., object], ticket: Ticket, *args: Any) -> object:
        self.inside.append(None)
        if (entered := len(self.inside)) > limit:
            self.problems.append(f"{entered} tasks at once in a lane for {limit}")
        try:
            return body(ticket, *args)
        finally:
            self.inside.pop()

    def _chain(self, ticket: Ticket, *rest: Share) -> object:
        ticket.runs.append(threading.get_ident())
        share, *later = rest
        try:
            child = share.ask("nested", *later) if later else share.ask()
        except RuntimeError:
            return ticket.token
        if child is not None:
            with self.blocked:
                if not child.read(PATIENCE):
                    self.problems.append(f"a nested task got no result; {share.target.stats()}")
        return ticket.token

    def look(self) -> None:
        """Check the figures of a lane while everything goes on."""
        if not isinstance(self.target, Lane):
            return
        stats = self.target.stats()
        told = figures(stats)
        before, self.last = self.last or told, told
        assert 0 <= stats.running <= stats.limit, stats
        assert min(told.values()) >= 0, stats
        shrunk = {name: (before[name], told[name]) for name in GROWING if told[name] < before[name]}
        assert not shrunk, f"a count went down: {shrunk} in {stats}"

    def close(self, rng: random.Random) -> None:
        """Shut a lane down in one of the ways there are; if that waits, all of its tasks are over then."""
        assert isinstance(self.target, Lane)
        wait = rng.random() < 0.5
        self.target.shutdown(wait, cancel_futures=rng.random() < 0.5, timeout=PATIENCE)
        with pytest.raises(RuntimeError, match="after shutdown"):
            self.ask()
        if wait:
            left = [ticket.future for ticket in list(self.accepted) if not (ticket.future and ticket.future.done())]
            assert not left, f"the lane was waited for, but {left} are under way"
            assert not self.inside

    def check(self) -> None:
        """Check every ticket of a lane in which nothing is under way against the figures of the lane."""
        self.settle()
        if isinstance(self.target, Lane):
            # The last callback may still run.
            self.target.shutdown(timeout=PATIENCE)
            tally = self.tally()
            assert tally.pop("rejected") == 0, "a lane refused a task"
            add_up(self.target.stats(), tally)


class Storm:
    """One pool with its lanes, and what each member of the crew does to them in one step."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.prefix = f"lanes{next(NUMBERS)}"
        self.pool = AdaptiveExecutor(thread_name_prefix=self.prefix, **settings)
        self.highest_ceiling = self.ceiling = settings["max_workers"]
        self.blocked = Gauge()
        self.plain = Share(self.pool, self.blocked)
        self.past: list[Share] = []
        self.lanes = [self.open(number) for number in range(len(LANES))]

    def open(self, number: int) -> Share:
        name, limit, first = LANES[number]
        return Share(self.pool.lane(name, limit=limit, first=first), self.blocked)

    @property
    def shares(self) -> list[Share]:
        return [self.plain, *self.lanes, *self.past]

    def submitter(self, rng: random.Random) -> bool:
        lanes = list(self.lanes)
        number = rng.randrange(len(lanes) + 1)
        share = (self.plain, *lanes)[number]
        kind = rng.choices(("quick", "boom", "sleepy", "nested"), (10, 3, 1, 2))[0]
        rest = [lane for lane in lanes[number:] if rng.random() < 0.5] + [self.plain]
        try:
            ticket = share.ask(kind, *(rest if kind == "nested" else ()))
        except RuntimeError:
            # A lane that is shut down is replaced.
            return not self.pool._shutdown
        if ticket is not None:
            if rng.random() < 0.3:
                ticket.add_callback()
            if rng.random() < 0.2:
                ticket.cancel()
            if share.target.stats().queued > 60 and not ticket.read(PATIENCE):
                stuck(f"a {ticket.kind} task of {share.target!r}; {self.pool.stats()}")
        return True

    def canceller(self, rng: random.Random) -> None:
        for ticket in rng.choice(self.lanes).recent(rng, 3, window=20):
            ticket.cancel()

    def resizer(self, rng: random.Random) -> None:
        ceiling = max(1, self.ceiling + rng.randint(-3, 3))
        self.highest_ceiling = max(self.highest_ceiling, ceiling)
        self.pool.resize(max_workers=ceiling, min_workers=0, keep_alive=rng.choice((0.0, 0.0005, 0.005)))
        time.sleep(rng.random() * 0.002)

    def reader(self, rng: random.Random) -> None:
        stats = self.pool.stats()
        assert 0 <= stats.workers <= self.highest_ceiling + self.blocked.peak, stats
        rng.choice(self.lanes).look()
        time.sleep(rng.random() * 0.001)

    def closer(self, rng: random.Random) -> None:
        number = rng.randrange(len(LANES))
        share = self.lanes[number]
        share.close(rng)
        self.past.append(share)
        self.lanes[number] = self.open(number)
        time.sleep(rng.random() * 0.01)

    def end(self, ending: str, rng: random.Random) -> None:
        if ending == "cancel":
            bounded("shutdown(cancel_futures=True)", self.pool.shutdown, cancel_futures=True)
        elif ending == "no wait":
            self.pool.shutdown(wait=False)
        elif ending == "lanes first":
            for share in list(self.lanes):
                share.close(rng)
        bounded("the last shutdown()", self.pool.shutdown)

    def check_order(self) -> None:
        """In an idle pool, tasks of a lane that goes first overtake the others, and keep their own order."""
        self.pool.resize(max_workers=1, max_queue=None)
        gate = threading.Event()
        order: list[int] = []
        self.plain.ask("call", gate.wait, PATIENCE)
        urgent = self.lanes[-1]
        for share, place in ((self.plain, 3), (urgent, 1), (self.plain, 4), (urgent, 2)):
            share.ask("call", order.append, place)
        with pytest.MonkeyPatch.context() as patch:
            # However long the others have waited: a machine may be slow.
            patch.setattr(importlib.import_module(accel.Pool.__module__), "OVERTAKEN", math.inf)
            gate.set()
            self.plain.settle()
        assert order == [1, 2, 3, 4]


def rage(storm: Storm, ending: str, rng: random.Random) -> None:
    """Let one storm rage for a moment, end it, and settle the accounts."""
    crew = Crew()
    crew.repeat("submitter", storm.submitter, copies=3)
    crew.repeat("canceller", storm.canceller)
    crew.repeat("resizer", storm.resizer)
    crew.repeat("reader", storm.reader)
    crew.repeat("closer", storm.closer)
    crew.stop.wait(0.02 + rng.random() * 0.3)
    if ending == "idle":
        crew.join()
        for share in storm.shares:
            share.settle()
        assert storm.pool.wait_idle(PATIENCE), storm.pool.stats()
        add_up(storm.pool.stats(), *(share.tally() for share in storm.shares))
        storm.check_order()
    storm.end(ending, rng)
    crew.join()
    for share in storm.shares:
        share.check()
        assert share.refusals <= {"cannot schedule new futures after shutdown"}
    check_closed(storm.pool, storm.plain, storm.prefix, *storm.lanes, *storm.past)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_every_task_of_a_lane_has_one_fate(settings: dict[str, Any]) -> None:
    """Whatever happens at once, no lane has too many inside, each task has one outcome, and all figures add up."""
    total = 0
    for storm in storms(lambda: Storm(settings), rage, ENDINGS):
        total += sum(len(share.accepted) for share in (*storm.lanes, *storm.past))
    assert total > 0 or not LONG_ENOUGH


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("max_workers", [1, 6])
def test_a_lane_for_one_keeps_the_order(max_workers: int, first: bool) -> None:
    """Tasks of a lane for one never overlap, and those of each submitter run in the order of their submission."""
    pool = AdaptiveExecutor(max_workers, "one", keep_alive=0.001)
    lane = pool.lane("one", limit=1, first=first)
    noise, ledger = Ledger(), Share(lane, Gauge())
    order: list[tuple[str, int]] = []
    visits = 0
    places = itertools.count()

    def visit(submitter: str, place: int) -> None:
        nonlocal visits
        before = visits
        order.append((submitter, place))
        visits = before + 1

    def submitter(rng: random.Random) -> None:
        name = threading.current_thread().name
        tickets = [ledger.ask("call", visit, name, next(places)) for _ in range(rng.randint(1, 20))]
        for ticket in rng.sample(tickets, rng.randrange(len(tickets))):
            if ticket is not None and rng.random() < 0.3:
                ticket.cancel()
        last = tickets[-1]
        bring(last, "the last of several tasks of a lane", lane)

    def other(rng: random.Random) -> None:
        ticket = noise.submit(pool, rng.choice(("quick", "sleepy")))
        if rng.random() < 0.5 and (ticket is None or not ticket.read(PATIENCE)):
            stuck(f"a task beside {lane!r}; {pool.stats()}")

    crew = Crew()
    crew.repeat("submitter", submitter, copies=3)
    crew.repeat("other", other)
    crew.press()
    ledger.check()
    close(pool, ledger, "one", noise)
    assert order or not LONG_ENOUGH
    assert visits == len(order), "two were in a lane for one and overwrote each other's count"
    for name in {name for name, _ in order}:
        own = [place for submitter, place in order if submitter == name]
        assert own == sorted(own)


@pytest.mark.parametrize("max_workers", [1, 2, 5])
def test_nothing_is_lost_behind_workers_that_wait(max_workers: int) -> None:
    """Tasks that wait for tasks of other lanes, in a pool that is smaller than the number of those who wait."""
    blocked = Gauge()
    pool = AdaptiveExecutor(max_workers, "chain", keep_alive=0.001)
    plain = Share(pool, blocked)
    lanes = [Share(pool.lane(name, limit=limit, first=first), blocked) for name, limit, first in LANES]

    def submitter(rng: random.Random) -> None:
        tickets = []
        for _ in range(rng.randint(1, 12)):
            start = rng.randrange(len(lanes) + 1)
            chain = [*lanes[start:], plain] if rng.random() < 0.5 else [rng.choice(lanes[start:] or [plain]), plain]
            tickets.append((plain, *lanes)[start].ask("nested", *chain))
        for ticket in tickets:
            bring(ticket, "a chain over several lanes", pool, *(share.target for share in lanes))

    crew = Crew()
    crew.repeat("submitter", submitter, copies=3)
    crew.press()
    for share in lanes:
        share.check()
    close(pool, plain, "chain", *lanes)
    assert blocked.peak > 0 or not LONG_ENOUGH


@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize("keep_alive", [0.0, 0.0005, 60.0])
def test_a_lane_never_loses_a_task(keep_alive: float, limit: int) -> None:
    """Small batches, some cancelled, and pauses as long as a worker's patience: nobody else ever calls the pool."""
    pool = AdaptiveExecutor(4, "lone", keep_alive=keep_alive)
    share = Share(pool.lane("lone", limit=limit), Gauge())
    rng = random.Random(SEED)
    for number in rounds():
        tickets = [share.ask(rng.choice(("quick", "quick", "boom", "sleepy"))) for _ in range(rng.randint(1, 12))]
        chosen = [ticket for ticket in tickets if ticket is not None]
        assert len(chosen) == len(tickets)
        for ticket in rng.sample(chosen, rng.randrange(len(chosen))):
            if rng.random() < 0.5:
                ticket.cancel()
        for ticket in chosen:
            bring(ticket, "a task of a lane", share.target, pool)
        if number % 4 == 0:
            time.sleep(rng.random() * 0.001)
    share.check()
    close(pool, share, "lone")


def test_a_lane_ends_in_a_pool_that_never_rests() -> None:
    """The pool's workers always have a task, but those of the lane come to an end: whoever waits for that is told."""
    pool = AdaptiveExecutor(2, "restless")
    noise = Ledger()
    past: list[Share] = []

    over = threading.Event()

    def renew() -> None:
        if not over.is_set():
            noise.submit(pool, "call", renew)

    def closer(rng: random.Random) -> None:
        share = Share(pool.lane("lane", limit=rng.randint(1, 3)), Gauge())
        for _ in range(rng.randint(0, 10)):
            share.ask()
        share.close(rng)
        past.append(share)

    crew = Crew()
    crew.repeat("closer", closer)
    for _ in range(4):
        renew()
    try:
        crew.press()
    finally:
        over.set()
    assert pool.wait_idle(PATIENCE), pool.stats()
    for share in past:
        share.check()
    close(pool, noise, "restless", *past)


def test_guests_come_past_workers_that_wait_for_them() -> None:
    """Every worker waits for what a call in the queue will do; calls that lift the ceiling get through all the same."""
    pool = AdaptiveExecutor(2, "guest", keep_alive=0.001)
    ledger = Ledger()

    def wait(gate: threading.Event) -> None:
        assert gate.wait(PATIENCE), "no guest came"

    def pair(rng: random.Random) -> None:
        gates = [threading.Event() for _ in range(rng.randint(1, 4))]
        waits = [ledger.submit(pool, "call", wait, gate) for gate in gates]
        guests = [
            ledger.hand_in(
                Ticket("call"), lambda fn, *args: pool.hand_in(pool._unlimited, True, fn, args, {}), gate.set
            )
            for gate in gates
        ]
        for ticket in (*waits, *guests):
            bring(ticket, "a call that waits for a guest, or the guest", pool)

    crew = Crew()
    crew.repeat("pair", pair, copies=3)
    crew.press()
    close(pool, ledger, "guest")
    assert (pool._pool.lent, pool._pool.max_workers) == (0, 2)
