"""Calls from event loops under pressure: each has one outcome, delivered in order, to loops that come and go."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from stress_harness import LONG_ENOUGH, PATIENCE, SEED, BoomError, Crew, Ledger, add_up, bounded, rounds, stuck
from support.loops import FACTORIES, Loops, Report, each_loop, why_lacking  # noqa: F401  (a fixture)

from ebbpool import AdaptiveExecutor, Lane, QueueFull

SETTINGS: dict[str, dict[str, Any]] = {
    "wide": {"max_workers": 8},
    "short keep-alive": {"max_workers": 4, "keep_alive": 0.0005},
    "block": {"max_workers": 3, "max_queue": 3, "when_full": "block"},
    "block, hand to hand": {"max_workers": 3, "max_queue": 0, "when_full": "block", "keep_alive": 0.001},
    "reject": {"max_workers": 3, "max_queue": 3, "when_full": "reject"},
    "caller runs": {"max_workers": 3, "max_queue": 3, "when_full": "caller_runs"},
}
ENDINGS = ("idle", "wait", "cancel", "no wait")
NUMBERS = itertools.count()
SHUT_DOWN = "cannot schedule new futures after shutdown"


@pytest.fixture(autouse=True)
def nothing_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """What workers have to log is an error of the pool: none may be met by what was not meant for it."""
    with caplog.at_level(logging.ERROR):
        yield
    logged = [record.getMessage() for record in caplog.get_records("call") if record.name == "concurrent.futures"]
    assert not logged, logged


def kinds() -> list[str]:
    """Return the kinds of event loops that there are here."""
    return [kind for kind in FACTORIES if not why_lacking(kind)]


class Call:
    """One call from a loop: what was asked of it, and everything that happened to it."""

    __slots__ = ("error", "future", "heard", "kind", "runs", "token")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.token = object()
        self.error = BoomError() if kind == "boom" else None
        self.future: asyncio.Future[object] | None = None
        self.runs: list[int] = []
        self.heard: list[bool] = []

    def body(self, loop: asyncio.AbstractEventLoop) -> object:
        """Do the work, in a worker, and put something on the loop that has to come before the result."""
        self.runs.append(threading.get_ident())
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self.heard.append, True)
        if self.kind == "sleepy":
            time.sleep(0.0005)
        if self.error is not None:
            raise self.error
        return self.token

    def look(self) -> None:
        """Check the outcome, if there is one, in the loop's thread."""
        future = self.future
        assert future is not None
        if not future.done():
            return
        assert len(self.runs) <= 1, f"a call ran {len(self.runs)} times"
        if future.cancelled():
            return
        assert self.runs, "a call has an outcome and did not run"
        assert self.heard, "an outcome came before what the call had put on the loop"
        assert future.exception() is self.error
        if self.error is None:
            assert future.result() is self.token

    async def read(self) -> None:
        """Wait for the outcome and check it."""
        assert self.future is not None
        with contextlib.suppress(asyncio.CancelledError, BoomError):
            await self.future
        assert self.future.done()
        self.look()


class Caller:
    """What one event loop asks of a pool and its lanes."""

    def __init__(self, targets: list[AdaptiveExecutor | Lane], rng: random.Random, largest: int = 400) -> None:
        self.targets = targets
        self.largest = largest
        self.rng = rng
        self.accepted: list[Call] = []
        self.full: list[Call] = []
        self.strays: list[Report] = []
        self.open = True

    def start(self) -> Call | None:
        """Make one call; return None if the pool refused it, and note if that was because it is shut down."""
        call = Call(self.rng.choices(("quick", "boom", "sleepy"), (10, 3, 1))[0])
        try:
            call.future = self.rng.choice(self.targets).run(call.body, asyncio.get_running_loop())
        except QueueFull:
            self.full.append(call)
            return None
        except RuntimeError as error:
            assert str(error) == SHUT_DOWN
            self.open = False
            return None
        self.accepted.append(call)
        return call

    def hear(self, loop: asyncio.AbstractEventLoop, report: Report) -> None:
        """Take in what the loop is told: the errors of calls whose futures were cancelled meanwhile, and no others."""
        if not isinstance(report.get("exception"), BoomError):
            self.strays.append(report)

    async def batch(self) -> None:
        """Make some calls, cancel some of them, and wait for all."""
        rng = self.rng
        calls = [call for _ in range(rng.choice((1, 5, 60, self.largest))) if (call := self.start()) is not None]
        tasks = [asyncio.ensure_future(call.read()) for call in calls]
        for _ in range(rng.randrange(3)):
            await asyncio.sleep(rng.choice((0, 0, 0.0005)))
            for call in calls:
                call.look()
            for number in rng.sample(range(len(calls)), len(calls) // 5):
                ending = tasks[number] if rng.random() < 0.5 else calls[number].future
                assert ending is not None
                ending.cancel()
        done, left = await asyncio.wait(tasks, timeout=PATIENCE) if tasks else (set(), set())
        if left:
            stuck(f"{len(left)} of {len(tasks)} calls of {asyncio.get_running_loop()!r}")
        for task in done:
            task.result()
        await asyncio.sleep(0)

    def tally(self) -> dict[str, int]:
        """Check the notes of every call; return what `stats` ought to say once all are over."""
        assert not self.strays, self.strays
        for call in self.accepted:
            assert call.future is not None and call.future.done()
            call.look()
            assert call.runs or call.future.cancelled()
        assert not any(call.runs for call in self.full), "a call ran although it was refused"
        failed = sum(len(call.runs) for call in self.accepted if call.error is not None)
        ran = sum(len(call.runs) for call in self.accepted)
        return {
            "submitted": len(self.accepted),
            "completed": ran - failed,
            "failed": failed,
            "cancelled": len(self.accepted) - ran,
            "rejected": len(self.full),
        }


class Storm:
    """One pool that several loops of all kinds, and a plain thread, call at once."""

    def __init__(self, settings: dict[str, Any], rng: random.Random) -> None:
        self.prefix = f"loops{next(NUMBERS)}"
        self.pool = pool = AdaptiveExecutor(thread_name_prefix=self.prefix, **settings)
        self.bounded = "max_queue" in settings
        lanes = [pool.lane("plain", limit=2), pool.lane("urgent", limit=1, first=True)]
        # In debug mode a loop takes a stack for whatever is put on it: a large batch would be all that it does.
        self.callers = {
            kind: Caller([pool, pool, *lanes], random.Random(rng.random()), 60 if kind == "debug" else 400)
            for kind in kinds()
        }
        self.ledger = Ledger()
        self.crew = Crew()

    def call(self, kind: str) -> None:
        caller = self.callers[kind]

        async def main() -> None:
            asyncio.get_running_loop().set_exception_handler(caller.hear)
            while caller.open and not self.crew.stop.is_set():
                await caller.batch()

        with asyncio.Runner(loop_factory=FACTORIES[kind]) as runner:
            runner.run(main())

    def submitter(self, rng: random.Random) -> bool:
        try:
            ticket = self.ledger.submit(self.pool, rng.choice(("quick", "sleepy")))
        except RuntimeError:
            return False
        if ticket is not None and rng.random() < 0.3 and not ticket.read(PATIENCE):
            stuck(f"a plain task beside calls from loops: {ticket.future!r}; {self.pool.stats()}")
        return True

    def resizer(self, rng: random.Random) -> None:
        if self.bounded:
            self.pool.resize(max_queue=rng.randint(0, 6))
        self.pool.resize(max_workers=rng.randint(1, 6))
        time.sleep(rng.random() * 0.003)

    def rage(self, ending: str, rng: random.Random) -> None:
        """Let the storm rage for a moment, end it, and settle the accounts."""
        for kind in self.callers:
            self.crew.repeat(f"{kind} loop", lambda rng, kind=kind: self.call(kind) or False)
        self.crew.repeat("submitter", self.submitter)
        self.crew.repeat("resizer", self.resizer)
        self.crew.stop.wait(0.05 + rng.random() * 0.3)
        if ending == "cancel":
            bounded("shutdown(cancel_futures=True)", self.pool.shutdown, cancel_futures=True)
        elif ending == "wait":
            bounded("shutdown(wait=True)", self.pool.shutdown)
        elif ending == "no wait":
            self.pool.shutdown(wait=False)
        self.crew.join()
        assert self.pool.wait_idle(PATIENCE), self.pool.stats()
        bounded("the last shutdown()", self.pool.shutdown)
        self.ledger.settle()
        tallies = [caller.tally() for caller in self.callers.values()]
        add_up(self.pool.stats(), self.ledger.tally(), *tallies)
        assert not self.pool._threads


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_every_call_has_one_fate(settings: dict[str, Any]) -> None:
    """Loops of all kinds at once: each call runs once or is taken off the queue, and its loop hears of it in order."""
    total = 0
    for number in rounds():
        rng = random.Random(f"{SEED} {number}")
        storm = Storm(settings, rng)
        try:
            storm.rage(ENDINGS[number % len(ENDINGS)], rng)
        finally:
            # A failed round is not to leave its workers to the next.
            storm.pool.shutdown(wait=False, cancel_futures=True)
        total += sum(len(caller.accepted) for caller in storm.callers.values())
    assert total > 0 or not LONG_ENOUGH
