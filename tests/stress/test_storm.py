"""Everything at once: a pool, lanes, delayed calls, loops, whatever is done to them, and then one of many ends."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import random
import threading
import time
from collections import Counter
from typing import Any

import pytest
from hypothesis.stateful import run_state_machine_as_test
from stress_harness import (
    LONG_ENOUGH,
    PATIENCE,
    SECONDS,
    SEED,
    Crew,
    Gauge,
    Ledger,
    Ticket,
    add_up,
    bring,
    check_closed,
    rounds,
    stuck,
)
from support import seams
from support.common import Boom, no_thread, starting
from support.loops import FACTORIES, Report, why_lacking
from support.model import ExecutorModel, profile
from support.turns import TurnsModel

from ebbpool import AdaptiveExecutor, QueueFull, QueueTimeout

SETTINGS: dict[str, dict[str, Any]] = {
    "wide": {"max_workers": 8},
    "first in, first out": {"max_workers": 8, "short_first": False},
    "several for short calls": {"max_workers": 33, "keep_alive": 0.001},
    "narrow, no keep-alive": {"max_workers": 2, "keep_alive": 0.0},
    "short keep-alive": {"max_workers": 12, "min_workers": 1, "keep_alive": 0.0005},
    "spare": {"max_workers": 10, "min_spare_workers": 2, "keep_alive": 0.01},
    "block": {"max_workers": 4, "max_queue": 5, "when_full": "block"},
    "block, hand to hand": {"max_workers": 3, "max_queue": 0, "when_full": "block", "keep_alive": 0.001},
    "reject": {"max_workers": 4, "max_queue": 5, "when_full": "reject"},
    "caller runs": {"max_workers": 4, "max_queue": 2, "when_full": "caller_runs"},
    "limits": {"max_workers": 3, "max_wait": 0.002},
    "limits, wide": {"max_workers": 32, "max_wait": 0.02, "keep_alive": 0.001},
    "limits, reject": {"max_workers": 4, "max_wait": 0.001, "max_queue": 20, "when_full": "reject"},
}
KINDS = ("threads", "lanes", "loops")
"""What takes part: threads alone; lanes and delayed calls beside them; event loops and lanes."""
LANES = (("narrow", 1, False), ("middle", 3, False), ("urgent", 2, True))
"""Name, limit, and whether it goes first. A task of one may wait for one of a later lane, or of the pool."""
ENDINGS: dict[str, list[dict[str, bool]]] = {
    "idle": [],
    "wait": [{}],
    "no wait": [{"wait": False}],
    "cancel": [{"cancel_futures": True}],
    "cancel, no wait": [{"wait": False, "cancel_futures": True}],
    "twice": [{"wait": False}, {"wait": False, "cancel_futures": True}],
    "lanes first": [],
}
"""How a pool may be shut down, before that is waited for."""
NEAR = (0.0, 0.0001, 0.0005, 0.002, 0.005)
FAR = 3600.0
NUMBERS = itertools.count()
LOOPS = [kind for kind in FACTORIES if not why_lacking(kind)]


class Storm:
    """One pool, what was handed in to it, and what each member of the crew does to it in one step.

    Attributes:
        limited: Whether calls may wait for so long only: then some have limits of their own, and some ask whether they
            are cancelled.
    """

    def __init__(self, settings: dict[str, Any], kind: str) -> None:
        self.prefix = f"storm{next(NUMBERS)}"
        self.settings = settings
        self.kind = kind
        self.limited = "max_wait" in settings
        self.short_first = settings.get("short_first", True)
        self.pool = AdaptiveExecutor(thread_name_prefix=self.prefix, **settings)
        self.ceiling = self.highest_ceiling = settings["max_workers"]
        self.blocked = Gauge()
        self.plain, self.delays = Ledger(self.pool, self.blocked), Ledger(self.pool, self.blocked)
        self.past: list[Ledger] = []
        self.lanes = [] if kind == "threads" else [self.open(place) for place in range(len(LANES))]
        self.crew = Crew()

    def open(self, place: int) -> Ledger:
        name, limit, first = LANES[place]
        max_wait = 0.001 if self.limited and name == "narrow" else None
        return Ledger(self.pool.lane(name, limit=limit, first=first, max_wait=max_wait), self.blocked)

    @property
    def ledgers(self) -> list[Ledger]:
        return [self.plain, self.delays, *self.lanes, *self.past]

    def way(self, ledger: Ledger, rng: random.Random) -> Any:
        """Return what takes a call: the pool or lane, or with limits for this one call."""
        if not self.limited or rng.random() < 0.5:
            return ledger.target
        limit = rng.choice((0.0005, 0.01, 1.0))
        return ledger.target.within(limit) if rng.random() < 0.5 else ledger.target.within(deadline=limit)

    def submitter(self, rng: random.Random) -> bool:
        lanes = list(self.lanes)
        place = rng.randrange(len(lanes) + 1)
        ledger = (self.plain, *lanes)[place]
        kind = rng.choices(("quick", "boom", "sleepy", "nested", "asks"), (10, 3, 1, 2, 5 * self.limited))[0]
        chain = [lane for lane in lanes[place:] if rng.random() < 0.5] + [self.plain] * rng.randint(1, 3)
        try:
            ticket = ledger.hand_in(Ticket(kind), self.way(ledger, rng).submit, *(chain if kind == "nested" else ()))
        except RuntimeError:
            # A lane that is shut down is replaced.
            return not self.pool._shutdown
        if ticket is not None:
            if rng.random() < 0.5:
                ticket.add_callback()
            if rng.random() < 0.2:
                ticket.cancel()
            if ledger.target.stats().queued > 100:
                bring(ticket, f"a {kind} task", ledger.target, self.pool)
        return True

    def later(self, rng: random.Random) -> bool:
        """Add a few that are near, or so many far ones that they are folded in and swept out."""
        near = rng.random() < 0.7
        try:
            if near or len(self.delays.accepted) > 5000:
                kind = rng.choice(("quick", "quick", "boom", "sleepy"))
                tickets = [self.delays.later(rng.choice(NEAR), kind) for _ in range(rng.randint(1, 10))]
            else:
                tickets = [self.delays.later(FAR, "far") for _ in range(rng.randint(1, 300))]
        except RuntimeError:
            return False
        for ticket in rng.sample(tickets, len(tickets) // (5 if near else 2)):
            ticket.add_callback()
            ticket.cancel()
        if tickets[-1].kind != "far":
            bring(tickets[-1], "a delayed call", self.pool)
        return True

    def canceller(self, rng: random.Random) -> None:
        for ticket in rng.choice(self.ledgers).recent(rng, 3, window=20):
            ticket.cancel()

    def waiter(self, rng: random.Random) -> None:
        tickets = self.plain.recent(rng, 5)
        futures = [ticket.future for ticket in tickets]
        if not futures:
            time.sleep(0.0001)
            return
        patient = rng.random() < 0.3
        timeout = PATIENCE if patient else rng.random() * 0.002
        way = rng.randrange(4)
        told = False
        if way == 0:
            told = tickets[0].read(timeout)
        elif way == 1:
            told = not concurrent.futures.wait(futures, timeout).not_done
        elif way == 2:
            told = bool(concurrent.futures.wait(futures, timeout, concurrent.futures.FIRST_COMPLETED).done)
        else:
            with contextlib.suppress(TimeoutError):
                seen = [future for future in concurrent.futures.as_completed(futures, timeout) if future.done()]
                assert len(seen) == len(set(seen)) == len(futures)
                told = True
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
        if "max_queue" in self.settings:
            self.pool.resize(max_queue=rng.randint(0, 6))
        if self.limited:
            self.pool.resize(max_wait=rng.choice((0.0005, 0.01, 1.0)))
        time.sleep(rng.random() * 0.002)

    def most(self) -> int:
        """Return how many threads there may have been at a time."""
        # Short calls of loops have some of their own, and as many as the ceiling may be given up there.
        more = self.highest_ceiling + max(1, self.highest_ceiling // 16) if "loops" in self.kind or self.limited else 0
        return self.highest_ceiling + self.blocked.peak + more

    def add_up(self) -> None:
        add_up(self.pool.stats(), *(ledger.tally() for ledger in self.ledgers))

    def reader(self, rng: random.Random) -> None:
        stats = self.plain.look()
        threads = len(self.pool._threads)
        most = self.most()
        seams.add_up(self.pool)
        assert stats.went_first <= (stats.submitted if "loops" in self.kind and self.short_first else 0), stats
        assert 0 <= stats.workers <= most and threads <= most, (stats, threads, most)
        assert stats.workers == stats.idle + stats.running, stats
        if self.kind == "threads":
            fates = stats.completed + stats.failed + stats.cancelled
            assert stats.submitted == stats.queued + stats.running + fates, stats
        for ledger in self.lanes:
            ledger.look()
        # It harms neither the tasks nor the interpreter, whose threads come and go meanwhile.
        assert all(task.seconds >= 0 for task in self.pool.running(stacks=rng.random() < 0.5))
        time.sleep(rng.random() * 0.001)

    def closer(self, rng: random.Random) -> None:
        place = rng.randrange(len(LANES))
        ledger = self.lanes[place]
        ledger.close(rng)
        self.past.append(ledger)
        self.lanes[place] = self.open(place)
        time.sleep(rng.random() * 0.01)

    def loop(self, kind: str, rng: random.Random) -> bool:
        strays: list[Report] = []

        def hear(loop: asyncio.AbstractEventLoop, report: Report) -> None:
            # Of the errors of calls whose futures were cancelled meanwhile a loop is told, and of no others.
            if not isinstance(report.get("exception"), Boom):
                strays.append(report)

        async def main() -> None:
            asyncio.get_running_loop().set_exception_handler(hear)
            # In debug mode a loop takes a stack for whatever is put on it: a large batch would be all that it does.
            largest = 60 if kind == "debug" else 400
            while not self.crew.stop.is_set() and not self.pool._shutdown:
                await self.batch(rng, rng.choice((1, 5, 60, largest)))

        with asyncio.Runner(loop_factory=FACTORIES[kind]) as runner:
            runner.run(main())
        assert not strays, strays
        return False

    async def batch(self, rng: random.Random, size: int) -> None:
        calls: list[Ticket] = []

        async def some(count: int) -> None:
            """Make some calls, of which none goes ahead of one before it."""
            for _ in range(count):
                ledger = rng.choice((self.plain, self.plain, *self.lanes))
                kind = rng.choices(("quick", "boom", "sleepy", "slow", "asks"), (10, 3, 1, 1, 5 * self.limited))[0]
                ticket = Ticket(kind, loop=asyncio.get_running_loop())
                with contextlib.suppress(RuntimeError):
                    if ledger.hand_in(ticket, self.way(ledger, rng).run):
                        calls.append(ticket)

        each = rng.choice((1, 1, 3, size))
        await asyncio.gather(*[some(min(each, size - done)) for done in range(0, size, each)])
        tasks = [asyncio.ensure_future(ticket.wait()) for ticket in calls]
        for _ in range(rng.randrange(3)):
            await asyncio.sleep(rng.choice((0, 0, 0.0005)))
            for ticket in calls:
                if ticket.future.done():
                    ticket.look()
            # What was submitted is given up here, too.
            self.canceller(rng)
            for number in rng.sample(range(len(calls)), len(calls) // 5):
                (tasks[number] if rng.random() < 0.5 else calls[number]).cancel()
        left = (await asyncio.wait(tasks, timeout=PATIENCE))[1] if tasks else ()
        if left:
            stuck(f"{len(left)} of {len(tasks)} calls of {asyncio.get_running_loop()!r}; {self.pool.stats()}")
        for task in tasks:
            task.result()
        await asyncio.sleep(0)

    def rage(self, ending: str, rng: random.Random) -> None:
        crew = self.crew
        crew.repeat("submitter", self.submitter, copies=3)
        crew.repeat("canceller", self.canceller)
        crew.repeat("waiter", self.waiter, copies=2)
        crew.repeat("resizer", self.resizer)
        crew.repeat("reader", self.reader)
        if "lanes" in self.kind:
            crew.repeat("later", self.later, copies=2)
            crew.repeat("closer", self.closer)
        if "loops" in self.kind:
            for kind in LOOPS:
                crew.repeat(kind, lambda rng, kind=kind: self.loop(kind, rng))
        crew.stop.wait(0.02 + rng.random() * 0.3)
        if ending == "idle":
            crew.join()
            for ticket in self.delays.accepted:
                if ticket.kind == "far":
                    ticket.cancel()
            for ledger in self.ledgers:
                ledger.settle()
            assert self.pool.wait_idle(PATIENCE), self.pool.stats()
            seams.add_up(self.pool)
            self.add_up()
        if ending == "lanes first":
            for ledger in list(self.lanes):
                ledger.close(rng)
        for how in ENDINGS[ending]:
            self.pool.shutdown(**how)
        self.pool.shutdown(timeout=PATIENCE)
        crew.join()
        for ledger in (*self.lanes, *self.past):
            ledger.check()
        check_closed(self.pool, self.prefix, *self.ledgers)
        self.add_up()
        seams.add_up(self.pool)


class Crossing(Storm):
    """A storm in which everything takes part, in a pool of any settings, whose threads the system refuses at times."""

    def __init__(self, rng: random.Random) -> None:
        most = rng.choice((1, 2, 3, 5, 33))
        limits: dict[str, Any] = {"max_queue": rng.choice((0, 1, 6)), "max_wait": rng.choice((0.002, 0.02))}
        super().__init__(
            {
                "max_workers": most,
                "min_workers": rng.randint(0, 1),
                "min_spare_workers": rng.randint(0, 1),
                "keep_alive": rng.choice((0.0, 0.0005, 0.01, 10.0)),
                "when_full": rng.choice(seams.POLICIES),
                "short_first": rng.random() < 0.8,
                **{name: value for name, value in limits.items() if rng.random() < 0.4},
            },
            "lanes and loops",
        )
        # A thread that the system refuses was counted for a moment.
        self.plain.growing = self.plain.growing - {"started", "retired"}
        self.sessions = Gauge()
        self.chance = random.Random(rng.random())

    def refuse(self) -> None:
        if self.chance.random() < 0.05:
            no_thread()

    def most(self) -> int:
        return super().most() + self.sessions.peak

    def add_up(self) -> None:
        """Maps and sessions have tasks of their own, of which there are no tickets."""
        tallies = sum((ledger.tally() for ledger in self.ledgers), Counter[str]())
        stats = self.pool.stats()
        assert stats.submitted == stats.completed + stats.failed + stats.cancelled >= tallies["submitted"], stats
        assert stats.completed >= tallies["completed"], (stats, tallies)
        # A delayed call that is refused a thread when it is due has not come to the queue.
        assert stats.failed - stats.expired == tallies["failed"], (stats, tallies)
        assert stats.started - stats.retired == stats.workers, stats

    def mapper(self, rng: random.Random) -> bool:
        count = rng.choice((1, 7, 100))
        runs: list[list[None]] = [[] for _ in range(count)]
        got: list[int] = []

        def item(number: int) -> int:
            runs[number].append(None)
            if number % 10 == 9:
                time.sleep(0.0003)
            return number

        with contextlib.suppress(RuntimeError, QueueFull, QueueTimeout, concurrent.futures.CancelledError):
            results = self.pool.map(item, range(count), buffersize=rng.choice((None, 3)))
            for value in results:
                got.append(value)
                if rng.random() < 0.01:
                    results.close()
                    raise RuntimeError("no more are wanted")
            assert len(got) == count
        assert got == [*range(len(got))], got
        assert all(len(each) <= 1 for each in runs), runs
        return not self.pool._shutdown

    def session(self, rng: random.Random) -> bool:
        ran: list[tuple[int, int]] = []

        def call(number: int) -> None:
            ran.append((number, threading.get_ident()))
            time.sleep(rng.choice((0.0, 0.0002)))

        futures: list[Any] = []
        with self.sessions, contextlib.suppress(RuntimeError), self.pool.session() as session:
            for number in range(rng.randint(1, 5)):
                futures.append(session.submit(call, number))
            futures[rng.randrange(len(futures))].cancel()
        numbers = [number for number, _ in ran]
        assert numbers == sorted(set(numbers)), ran
        assert len({thread for _, thread in ran}) <= 1, ran
        for number, future in enumerate(futures):
            if not concurrent.futures.wait([future], PATIENCE).done:
                stuck(f"a session's call: {future!r}; {self.pool.stats()}")
            failed = future.cancelled() or future.exception() is not None
            assert failed != (number in numbers), (future, ran)
        return not self.pool._shutdown

    def rage(self, ending: str, rng: random.Random) -> None:
        self.crew.repeat("mapper", self.mapper)
        self.crew.repeat("session", self.session)
        with starting(rf"{self.prefix}_\d+", self.refuse):
            super().rage(ending, rng)


def test_where_features_cross_every_task_has_one_fate() -> None:
    """The same in pools of random settings, with maps and sessions, and threads that the system refuses."""
    total = 0
    for number in rounds(4 * SECONDS):
        rng = random.Random(f"{SEED} {number}")
        storm = Crossing(rng)
        try:
            storm.rage([*ENDINGS][number % len(ENDINGS)], rng)
        except BaseException:
            print(f"round {number}: {storm.settings}")
            raise
        finally:
            storm.pool.shutdown(wait=False, cancel_futures=True)
        total += sum(len(ledger.accepted) for ledger in storm.ledgers)
    print(f"{total:,} tasks")


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_every_task_has_one_fate(settings: dict[str, Any]) -> None:
    """Each task has one outcome, each callback one call, no lane has too many inside, and the figures add up.

    So it is with calls from loops, which hear of each one in order, and with those that may wait for so long only.
    """
    total = 0
    for number in rounds(least=len(KINDS)):
        storm = Storm(settings, KINDS[number % len(KINDS)])
        try:
            storm.rage([*ENDINGS][number % len(ENDINGS)], random.Random(f"{SEED} {number}"))
        finally:
            # A failed round is not to leave its workers to the next.
            storm.pool.shutdown(wait=False, cancel_futures=True)
        total += sum(len(ledger.accepted) for ledger in storm.ledgers)
    print(f"{total:,} tasks")
    assert total > 0 or not LONG_ENOUGH


@pytest.mark.parametrize("model", [ExecutorModel, TurnsModel])
def test_executor_does_what_the_model_says_for_longer(model: Any) -> None:
    for _ in rounds(4 * SECONDS):
        run_state_machine_as_test(model, settings=profile(40, database=None, print_blob=True))
