"""Book-keeping and bounded waits shared by the stress tests.

Every task that a stress test submits is a `Ticket`. The ticket notes each run, each callback and each
``cancel()`` that returned True; `Ledger.tally` compares the notes with the futures and with ``stats()`` when
all is over. The notes are lists that are only appended to, which is atomic on every build, so that taking
them orders nothing else.
"""

from __future__ import annotations

import faulthandler
import functools
import os
import random
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError
from dataclasses import asdict
from typing import Any, NoReturn

import pytest

from ebbpool import AdaptiveExecutor, Future, Lane, LaneStats, PoolStats, QueueFull

SECONDS = float(os.environ.get("EBBPOOL_STRESS_SECONDS", "3.0"))
"""How long each test keeps the pressure up."""
LONG_ENOUGH = SECONDS >= 1.0
"""Whether the pressure lasts long enough for every race that is looked for to have come about at least once."""
PATIENCE = float(os.environ.get("EBBPOOL_STRESS_PATIENCE", "30.0"))
"""How long a wait that ought to be short may take before the test calls it a hang."""
SEED = int(os.environ.get("EBBPOOL_STRESS_SEED", random.SystemRandom().randrange(2**32)))

TIMEKEEPER = "ebbpool-timekeeper"
stderr_fd = 2


def stuck(what: str) -> NoReturn:
    """Write every thread's stack to standard error, then fail the test."""
    os.write(stderr_fd, f"\n--- stuck: {what}\n".encode())
    faulthandler.dump_traceback(file=stderr_fd, all_threads=True)
    pytest.fail(f"stuck: {what} (seed {SEED}; every thread's stack is on standard error)")


def bounded(what: str, call: Callable[..., Any], /, *args: Any, patience: float | None = None, **kwargs: Any) -> Any:
    """Return ``call(*args, **kwargs)``, made in a thread of its own; fail if that outlasts `patience`."""
    outcome: list[Any] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(call(*args, **kwargs))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name=f"bounded {what}", daemon=True)
    thread.start()
    thread.join(PATIENCE if patience is None else patience)
    if thread.is_alive():
        stuck(what)
    if failure:
        raise failure[0]
    return outcome[0]


def threads_left(before: Iterable[threading.Thread]) -> list[threading.Thread]:
    """Return the threads that are not in `before` and do not end within the patience."""
    known = set(before)
    end = time.monotonic() + PATIENCE
    while True:
        left = [t for t in threading.enumerate() if t not in known and t.name != TIMEKEEPER]
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.005)


def named(prefix: str) -> list[threading.Thread]:
    """Return the live threads whose name starts with `prefix`."""
    return [thread for thread in threading.enumerate() if thread.name.startswith(prefix)]


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
        self.wait()

    def wait(self) -> None:
        """Wait for all of the crew to end by itself, and raise what the first to fail raised."""
        end = time.monotonic() + PATIENCE
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive() and not self.failures:
                stuck(f"the crew's thread {thread.name!r}")
        if self.failures:
            raise self.failures[0]


class Gauge:
    """How many are inside now, and the most there ever were."""

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


class BoomError(Exception):
    """What a task of the kind "boom" raises."""


class Ticket:
    """One task: what was asked of it, and everything that happened to it."""

    __slots__ = ("asked", "cancel_won", "error", "future", "kind", "notices", "runs", "token")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.token = object()
        self.error = BoomError() if kind == "boom" else None
        self.future: Future[Any] | None = None
        self.runs: list[int] = []
        self.cancel_won: list[bool] = []
        self.asked: list[object] = []
        self.notices: list[object] = []

    def add_callback(self) -> None:
        """Ask for one more call back; the audit expects exactly one notice for it."""
        assert self.future is not None
        mark = object()
        self.asked.append(mark)
        self.future.add_done_callback(functools.partial(self._notice, mark))

    def _notice(self, mark: object, future: Future[Any]) -> None:
        if future is self.future and future.done():
            self.notices.append(mark)

    def cancel(self) -> bool:
        assert self.future is not None
        won = self.future.cancel()
        if won:
            self.cancel_won.append(True)
        return won

    def read(self, timeout: float) -> bool:
        """Read the outcome and check it; return False if there was none within `timeout` seconds."""
        assert self.future is not None
        try:
            result = self.future.result(timeout=timeout)
        except TimeoutError:
            return False
        except CancelledError:
            raised: BoomError | None = None
            assert self.future.cancelled()
        except BoomError as error:
            raised = error
        else:
            raised = None
            assert result is self.token
        assert raised is self.error or self.future.cancelled()
        assert self.future.done()
        return True


def bring(ticket: Ticket | None, what: str, *targets: AdaptiveExecutor | Lane) -> None:
    """Read the outcome of an accepted task; if none comes, show what `targets` say of themselves."""
    if ticket is None or not ticket.read(PATIENCE):
        told = [target.stats() for target in targets]
        stuck(f"{what}: {ticket and ticket.future!r}; {told}")


class Ledger:
    """Every ticket of one pool, by what became of its submission."""

    def __init__(self) -> None:
        self.accepted: list[Ticket] = []
        self.full: list[Ticket] = []
        self.late: list[Ticket] = []
        self.refusals: set[str] = set()
        self.problems: list[str] = []
        self.bodies: dict[str, Callable[..., object]] = {
            "quick": self._quick,
            "boom": self._quick,
            "sleepy": self._sleepy,
            "call": self._call,
        }

    def submit(self, pool: AdaptiveExecutor | Lane, kind: str = "quick", *args: Any) -> Ticket | None:
        """Submit one task; return None if the pool refused it. Raises RuntimeError if it was shut down."""
        return self.hand_in(Ticket(kind), pool.submit, *args)

    def hand_in(self, ticket: Ticket, submit: Callable[..., Future[Any]], *args: Any) -> Ticket | None:
        """Do what `submit` does with a given ticket and any function that takes a call and returns a future."""
        try:
            future = submit(self.bodies[ticket.kind], ticket, *args)
        except QueueFull:
            self.full.append(ticket)
            return None
        except RuntimeError as error:
            self.late.append(ticket)
            self.refusals.add(str(error))
            raise
        ticket.future = future
        self.accepted.append(ticket)
        return ticket

    def recent(self, rng: random.Random, count: int = 1, window: int = 60) -> list[Ticket]:
        """Return up to `count` different tickets among the last `window` accepted ones."""
        last = self.accepted[-window:]
        return rng.sample(last, min(count, len(last)))

    def _quick(self, ticket: Ticket) -> object:
        ticket.runs.append(threading.get_ident())
        if ticket.error is not None:
            raise ticket.error
        return ticket.token

    def _sleepy(self, ticket: Ticket, seconds: float = 0.0005) -> object:
        ticket.runs.append(threading.get_ident())
        time.sleep(seconds)
        return ticket.token

    def _call(self, ticket: Ticket, call: Callable[..., object], *args: Any) -> object:
        ticket.runs.append(threading.get_ident())
        call(*args)
        return ticket.token

    def settle(self) -> None:
        """Wait until every accepted future is done."""
        end = time.monotonic() + PATIENCE
        for ticket in list(self.accepted):
            if not ticket.read(max(0.0, end - time.monotonic())):
                runs = len(ticket.runs)
                stuck(f"a {ticket.kind} task that ran {runs} times has no outcome: {ticket.future!r}")

    def tally(self) -> dict[str, int]:
        """Check the notes of every ticket; return what `stats` ought to say once all are done."""
        assert not self.problems, self.problems[0]
        completed = failed = cancelled = 0
        for ticket in self.accepted:
            future = ticket.future
            assert future is not None
            assert future.done(), f"{future!r} is not done"
            if future.cancelled():
                cancelled += 1
                assert not ticket.runs, "a cancelled task ran"
            else:
                error = future.exception(timeout=0)
                assert not ticket.cancel_won, f"cancel() returned True, yet the future is {future!r}"
                assert len(ticket.runs) == 1, f"a {ticket.kind} task ran {len(ticket.runs)} times"
                assert error is ticket.error
                if error is None:
                    completed += 1
                    assert future.result(timeout=0) is ticket.token
                else:
                    failed += 1
            assert len(ticket.notices) == len(ticket.asked), (
                f"{len(ticket.notices)} calls for {len(ticket.asked)} callbacks: {future!r}"
            )
            assert set(ticket.notices) == set(ticket.asked)
        for ticket in (*self.full, *self.late):
            assert not ticket.runs, "a task ran although submit() raised"
        return {
            "submitted": len(self.accepted),
            "completed": completed,
            "failed": failed,
            "cancelled": cancelled,
            "rejected": len(self.full),
        }


class Delays(Ledger):
    """Every delayed call of one pool. Each notes it when it runs before its time."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies["far"] = self._quick
        self.bodies = {kind: functools.partial(self._due, body) for kind, body in self.bodies.items()}

    def _due(self, body: Callable[..., object], ticket: Ticket, due: float, *args: Any) -> object:
        early = due - time.monotonic()
        if early > 0:
            self.problems.append(f"a call ran {early:g} s too early")
        return body(ticket, *args)

    def later(self, pool: AdaptiveExecutor, delay: float, kind: str = "quick", *args: Any) -> Ticket:
        """Submit one delayed call. Raises RuntimeError if the pool was shut down."""
        due = time.monotonic() + delay
        ticket = self.hand_in(Ticket(kind), functools.partial(pool.submit_later, delay), due, *args)
        assert ticket is not None
        return ticket

    def cancel_far(self) -> None:
        for ticket in list(self.accepted):
            if ticket.kind == "far":
                ticket.cancel()


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
            limit = target.stats().limit
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
        stats = self.target.stats()
        assert isinstance(stats, LaneStats)
        told = figures(stats)
        before, self.last = self.last or told, told
        assert 0 <= stats.running <= stats.limit, stats
        assert min(told.values()) >= 0, stats
        shrunk = [name for name in ("submitted", "completed", "failed", "cancelled") if told[name] < before[name]]
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
        assert isinstance(self.target, Lane)
        # The last callback may still run.
        self.target.shutdown(timeout=PATIENCE)
        tally = self.tally()
        assert tally.pop("rejected") == 0, "a lane refused a task"
        add_up(self.target.stats(), tally)


def figures(stats: PoolStats | LaneStats) -> dict[str, float]:
    """Return what `stats` counts and measures, without names and words."""
    return {name: value for name, value in asdict(stats).items() if isinstance(value, int | float)}


def add_up(stats: PoolStats | LaneStats, *tallies: dict[str, int]) -> None:
    """Check that `stats`, taken when nothing was queued or running any more, are the sum of `tallies`."""
    told = figures(stats)
    counted = {name: sum(tally[name] for tally in tallies) for name in tallies[0] if name in told}
    counted |= {name: 0 for name in ("queued", "running", "blocked", "delayed") if name in told}
    assert {name: told[name] for name in counted} == counted
    if isinstance(stats, PoolStats):
        assert stats.started - stats.retired == stats.workers, stats


def check_closed(pool: AdaptiveExecutor, ledger: Ledger, prefix: str, *others: Ledger) -> None:
    """After a shutdown: everything is done, it all adds up, and the workers are gone."""
    ledgers = (ledger, *others)
    for each in ledgers:
        each.settle()
    add_up(pool.stats(), *(each.tally() for each in ledgers))
    assert pool.stats().workers == 0, pool.stats()
    assert not pool._threads
    assert pool._work_queue.qsize() == 0
    end = time.monotonic() + PATIENCE
    while named(f"{prefix}_"):
        if time.monotonic() > end:
            stuck(f"workers outlived shutdown: {[thread.name for thread in named(f'{prefix}_')]}")
        time.sleep(0.001)


def rounds(seconds: float | None = None) -> Iterable[int]:
    """Count rounds until `seconds` (the configured time, unless given) have gone."""
    end = time.monotonic() + (SECONDS if seconds is None else seconds)
    number = 0
    while number == 0 or time.monotonic() < end:
        yield number
        number += 1
