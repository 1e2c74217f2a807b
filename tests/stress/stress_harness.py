"""Book-keeping and bounded waits shared by the stress tests.

Every task that a stress test submits, from a thread or an event loop, is a `Ticket`. The ticket notes each run, each
callback and each ``cancel()`` that returned True; `Ledger.tally` compares the notes with the futures and with
``stats()`` when all is over. The notes are lists that are only appended to, which is atomic on every build, so that
taking them orders nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import functools
import itertools
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError
from dataclasses import asdict
from typing import Any, NoReturn

import pytest
from support.common import Boom
from support.turns import another

from ebbpool import (
    AdaptiveExecutor,
    Lane,
    LaneStats,
    PoolStats,
    QueueFull,
    QueueTimeout,
    cancelled,
    check_cancelled,
    on_cancel,
    time_left,
)

SECONDS = float(os.environ.get("EBBPOOL_STRESS_SECONDS", "3.0"))
"""How long each test keeps the pressure up."""
LONG_ENOUGH = SECONDS >= 1.0
"""Whether the pressure lasts long enough for every race that is looked for to have come about at least once."""
PATIENCE = float(os.environ.get("EBBPOOL_STRESS_PATIENCE", "30.0"))
"""How long a wait that ought to be short may take before the test calls it a hang."""
SEED = int(os.environ.get("EBBPOOL_STRESS_SEED", random.SystemRandom().randrange(2**32)))

GROWING = {"submitted", "completed", "failed", "cancelled", "rejected", "expired", "started", "retired"}
TIMEKEEPER = "ebbpool-timekeeper"
REFUSED = "can't start new thread"
SHUT_DOWN = "cannot schedule new futures after shutdown"
NUMBERS = itertools.count()
stderr_fd = 2


def stuck(what: str) -> NoReturn:
    os.write(stderr_fd, f"\n--- stuck: {what}\n".encode())
    faulthandler.dump_traceback(file=stderr_fd, all_threads=True)
    pytest.fail(f"stuck: {what} (seed {SEED}; every thread's stack is on standard error)")


def until(what: Callable[[], str]) -> None:
    """Wait until `what` says nothing any more; if it goes on, its words are what the test fails of."""
    end = time.monotonic() + PATIENCE
    while said := what():
        if time.monotonic() > end:
            stuck(said)
        time.sleep(0.002)


def named(prefix: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(prefix)]


def rounds(seconds: float | None = None, least: int = 1) -> Iterable[int]:
    """Count rounds until `seconds` (the configured time, unless given) have gone, but `least` of them."""
    end = time.monotonic() + (SECONDS if seconds is None else seconds)
    number = 0
    while number < least or time.monotonic() < end:
        yield number
        number += 1


class Crew:
    """Threads that repeat a step each until told to stop; the first failure of any of them is the crew's."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.failures: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def repeat(self, name: str, step: Callable[[random.Random], object], *, copies: int = 1) -> None:
        """Start `copies` threads that call `step`, once at least, until it returns False or `stop` is set."""
        for copy in range(copies):
            rng = random.Random(f"{SEED} {name} {copy}")
            thread = threading.Thread(target=self._loop, args=(step, rng), name=f"{name} {copy}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _loop(self, step: Callable[[random.Random], object], rng: random.Random) -> None:
        try:
            # A thread may come to this line only after the crew was told to stop.
            while step(rng) is not False and not self.stop.is_set():
                pass
        except BaseException as error:
            self.failures.append(error)
            self.stop.set()

    def join(self) -> None:
        """Stop the crew, wait for all of it, and raise what the first to fail raised."""
        self.stop.set()
        end = time.monotonic() + PATIENCE
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive() and not self.failures:
                stuck(f"the crew's thread {thread.name!r}")
        if self.failures:
            raise self.failures[0]


class Gauge:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = 0
        self.peak = 0

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.peak = max(self.peak, self.now)

    def __exit__(self, *exc_info: object) -> None:
        with self._lock:
            self.now -= 1


class Ticket:
    """One task: what was asked of it, and everything that happened to it.

    Attributes:
        due: The time on the clock before which it must not run.
        loop: The event loop that has called it; None if it was submitted.
        submitter: The thread that did so, and a number by which its tasks are in order.
    """

    def __init__(self, kind: str, due: float = 0.0, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.kind = kind
        self.due = due
        self.loop = loop
        self.submitter = self.number = 0
        self.token = object()
        self.error = Boom() if kind == "boom" else None
        self.future: Any = None
        self.runs: list[int] = []
        self.returned: list[bool] = []
        self.heard: list[bool] = []
        self.told: list[bool] = []
        self.cancel_won: list[bool] = []
        self.asked: list[object] = []
        self.notices: list[object] = []

    def add_callback(self) -> None:
        """Ask for one more call back; the audit expects exactly one notice for it."""
        mark = object()
        self.asked.append(mark)
        self.future.add_done_callback(functools.partial(self._notice, mark))

    def _notice(self, mark: object, future: object) -> None:
        if future is self.future and self.future.done():
            self.notices.append(mark)

    def cancel(self) -> None:
        if self.future.cancel():
            self.cancel_won.append(True)

    def look(self) -> str:
        """Check the outcome of a task that is done; return what became of it."""
        future = self.future
        assert future.done(), f"{future!r} of a {self.kind} task is not done"
        assert len(self.runs) <= 1, f"a {self.kind} task ran {len(self.runs)} times"
        assert len(self.told) <= 1, "a task was told twice that it is cancelled"
        if future.cancelled():
            # A call from a loop goes on without its future.
            assert self.loop or not self.runs, "a cancelled task ran"
            return "cancelled"
        assert self.loop or not self.cancel_won, f"cancel() returned True, yet the future is {future!r}"
        error = future.exception()
        if isinstance(error, QueueTimeout):
            assert not self.runs, "a task ran although it had waited for too long"
            return "expired"
        if str(error) == REFUSED:
            assert self.due and not self.runs, "a task ran, or was accepted, though the system had refused its thread"
            return "refused"
        assert self.runs, f"a {self.kind} task has an outcome and did not run"
        assert self.heard or not self.loop, "an outcome came before what the call had put on the loop"
        if not (self.kind == "asks" and isinstance(error, (CancelledError, asyncio.CancelledError))):
            assert error is self.error
            assert error or future.result() is self.token
        return "ran"

    def read(self, timeout: float) -> bool:
        """Wait in a thread for the outcome and check it; return False if there was none within `timeout` seconds."""
        try:
            self.future.exception(timeout)
        except TimeoutError:
            return False
        except CancelledError:
            pass
        self.look()
        return True

    async def wait(self) -> None:
        with contextlib.suppress(asyncio.CancelledError, CancelledError, Boom, QueueTimeout):
            await self.future
        self.look()


@functools.cache
def _work_of(kind: str) -> Callable[..., object]:
    return another(Ledger._work, kind)


class Ledger:
    """What a pool or a lane was asked to do: every ticket, by what became of its submission.

    Who is inside a lane is a list that is only appended to and popped from, which is atomic everywhere and orders
    nothing else. A lane for one task at a time runs those of each thread in order.
    """

    def __init__(self, target: AdaptiveExecutor | Lane, blocked: Gauge) -> None:
        self.target = target
        self.blocked = blocked
        self.limit = target.stats().limit if isinstance(target, Lane) else None
        self.accepted: list[Ticket] = []
        self.full: list[Ticket] = []
        self.late: list[Ticket] = []
        self.refusals: set[str] = set()
        self.problems: list[str] = []
        self.inside: list[None] = []
        self.in_turn: list[Ticket] = []
        self.last: dict[str, float] = {}
        self.growing = GROWING

    def hand_in(self, ticket: Ticket, submit: Callable[..., Any], *args: Any) -> Ticket | None:
        """Do what `submit` does with a ticket; return None if the pool is full. Raises RuntimeError if it is shut down.

        `submit` is anything that takes a call and returns a future.
        """
        ticket.submitter, ticket.number = threading.get_ident(), next(NUMBERS)
        try:
            # Each kind is a function of its own, which is short or long, and now and then one is not known.
            work = _work_of.__wrapped__ if len(self.accepted) % 20 == 0 else _work_of
            ticket.future = submit(work(ticket.kind), self, ticket, *args)
        except QueueFull:
            self.full.append(ticket)
            return None
        except RuntimeError as error:
            self.late.append(ticket)
            self.refusals.add(str(error))
            raise
        self.accepted.append(ticket)
        return ticket

    def ask(self, kind: str = "quick", *args: Any) -> Ticket | None:
        return self.hand_in(Ticket(kind), self.target.submit, *args)

    def later(self, delay: float, kind: str = "quick") -> Ticket:
        ticket = self.hand_in(
            Ticket(kind, due=time.monotonic() + delay), functools.partial(self.target.submit_later, delay)
        )
        assert ticket is not None
        return ticket

    def recent(self, rng: random.Random, count: int, window: int = 60) -> list[Ticket]:
        """Return up to `count` different tickets, of threads, among the last `window` accepted ones."""
        last = [ticket for ticket in self.accepted[-window:] if ticket.loop is None]
        return rng.sample(last, min(count, len(last)))

    def _work(self, ticket: Ticket, *args: Any) -> object:
        ticket.runs.append(threading.get_ident())
        if (early := ticket.due - time.monotonic()) > 0:
            self.problems.append(f"a call ran {early:g} s too early")
        if ticket.loop is not None:
            # It has to be there before the outcome.
            with contextlib.suppress(RuntimeError):
                ticket.loop.call_soon_threadsafe(ticket.heard.append, True)
        self.inside.append(None)
        if self.limit == 1 and ticket.loop is None:
            self.in_turn.append(ticket)
        if self.limit is not None and (entered := len(self.inside)) > self.limit:
            self.problems.append(f"{entered} tasks at once in a lane for {self.limit}")
        try:
            self._as_its_kind_does(ticket, *args)
        finally:
            self.inside.pop()
        ticket.returned.append(True)
        return ticket.token

    def _as_its_kind_does(self, ticket: Ticket, *chain: Ledger) -> None:
        if ticket.error is not None:
            raise ticket.error
        if ticket.kind == "sleepy":
            time.sleep(0.0005)
        elif ticket.kind == "slow":
            time.sleep(0.003)
        elif ticket.kind == "asks":
            with on_cancel(lambda: ticket.told.append(True)):
                for _ in range(20):
                    if cancelled():
                        break
                check_cancelled()
            left = time_left()
            assert left is None or left >= 0.0
        elif ticket.kind == "nested":
            ledger, *others = chain
            with contextlib.suppress(RuntimeError):
                child = ledger.ask("nested", *others) if others else ledger.ask()
                with self.blocked:
                    if child is not None and not child.read(PATIENCE):
                        self.problems.append(f"a nested task got no result; {ledger.target.stats()}")

    def look(self) -> Any:
        stats = self.target.stats()
        told = figures(stats)
        before, self.last = self.last or told, told
        assert isinstance(stats, PoolStats) or stats.running <= stats.limit, stats
        assert min(told.values()) >= 0, stats
        shrunk = {name: (before[name], told[name]) for name in self.growing & told.keys() if told[name] < before[name]}
        assert not shrunk, f"a count went down: {shrunk} in {stats}"
        return stats

    def close(self, rng: random.Random) -> None:
        """Shut a lane down in one of the ways there are; if that waits, all of its tasks are over then."""
        assert isinstance(self.target, Lane)
        wait = rng.random() < 0.5
        self.target.shutdown(wait, cancel_futures=rng.random() < 0.5, timeout=PATIENCE)
        with pytest.raises(RuntimeError, match="after shutdown"):
            self.ask()
        if wait:
            # The future of a call from a loop is done once its loop has heard of it.
            left = [ticket.future for ticket in list(self.accepted) if not (ticket.loop or ticket.future.done())]
            assert not left, f"the lane was waited for, but {left} are under way"
            assert not self.inside

    def check(self) -> None:
        self.settle()
        assert isinstance(self.target, Lane)
        # The last callback may still run.
        self.target.shutdown(timeout=PATIENCE)
        tally = self.tally()
        assert tally.pop("rejected") == 0, "a lane refused a task"
        add_up(self.target.stats(), tally)

    def settle(self) -> None:
        end = time.monotonic() + PATIENCE
        for ticket in list(self.accepted):
            if ticket.loop is None and not ticket.read(max(0.0, end - time.monotonic())):
                runs = len(ticket.runs)
                stuck(f"a {ticket.kind} task that ran {runs} times has no outcome: {ticket.future!r}")

    def tally(self) -> Counter[str]:
        """Check the notes of every ticket; return what `stats` ought to say once all are done."""
        assert not self.problems, self.problems[0]
        counted = Counter(submitted=len(self.accepted), rejected=len(self.full))
        for ticket in self.accepted:
            counted[ticket.look()] += 1
            fate = "not run" if not ticket.runs else "completed" if ticket.returned else "failed"
            counted[fate] += 1
            assert len(ticket.notices) == len(ticket.asked), (
                f"{len(ticket.notices)} calls for {len(ticket.asked)} callbacks: {ticket.future!r}"
            )
            assert set(ticket.notices) == set(ticket.asked)
        for ticket in (*self.full, *self.late):
            assert not ticket.runs, "a task ran although submit() raised"
        assert self.refusals <= {SHUT_DOWN, REFUSED}
        last: dict[int, int] = {}
        for ticket in self.in_turn:
            assert last.get(ticket.submitter, -1) < ticket.number, "a task has overtaken one of its own thread"
            last[ticket.submitter] = ticket.number
        return counted


def bring(ticket: Ticket | None, what: str, *targets: AdaptiveExecutor | Lane) -> None:
    """Read the outcome of an accepted task; if none comes, show what `targets` say of themselves."""
    if ticket is None or not ticket.read(PATIENCE):
        stuck(f"{what}: {ticket and ticket.future!r}; {[target.stats() for target in targets]}")


def figures(stats: PoolStats | LaneStats) -> dict[str, float]:
    """Return what `stats` counts and measures, without names and words."""
    return {name: value for name, value in asdict(stats).items() if isinstance(value, int | float)}


def add_up(stats: PoolStats | LaneStats, *tallies: Counter[str]) -> None:
    """Check that `stats`, taken when nothing was queued or running any more, are the sum of `tallies`."""
    counted = Counter[str]()
    for tally in tallies:
        counted.update(tally)
    # What has expired counts as failed. If it was given up, too, nobody has seen that it expired before.
    assert counted["expired"] <= stats.expired <= counted["not run"], (stats, counted)
    counted["failed"] += stats.expired
    counted["cancelled"] = counted["not run"] - stats.expired
    over = ("submitted", "completed", "failed", "cancelled", "rejected")
    told = figures(stats)
    names = [name for name in (*over, "queued", "running", "blocked", "delayed", "abandoned") if name in told]
    assert {name: told[name] for name in names} == {name: counted[name] for name in names}
    if isinstance(stats, PoolStats):
        assert stats.started - stats.retired == stats.workers, stats


def check_closed(pool: AdaptiveExecutor, prefix: str, *ledgers: Ledger) -> None:
    """After a shutdown: everything is done, and the workers are gone."""
    for each in ledgers:
        each.settle()
    assert pool.stats().workers == 0, pool.stats()
    assert not pool._threads
    assert pool._work_queue.qsize() == 0
    until(lambda: f"workers outlived shutdown: {left}" if (left := named(f"{prefix}_")) else "")
