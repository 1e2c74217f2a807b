"""The figures of a pool and of a lane, and the last decisions of a pool's sizing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import time
from typing import Final

from ebbpool._pool.late import LoopLag

KEPT: Final = 64  # decisions


@dataclass(frozen=True)
class PoolStats:
    """What a pool is doing, and has done. Times are in seconds.

    Attributes:
        name: The pool's name; see `AdaptiveExecutor.name`.
        workers: Threads of the pool, those just starting included; always `idle` + `running`.
        idle: Workers without a task.
        running: Workers with a task, or with its callbacks.
        blocked: Running workers that wait for a future of this same pool.
        queued: Tasks that wait for a worker.
        oldest_wait: How long the oldest of them has waited.
        submitted: Tasks accepted so far; always `queued` + `running` + `completed` + `failed` + `cancelled`.
        completed: Tasks that returned.
        failed: Tasks that raised, that a broken initializer kept from running, or that waited for too long.
        cancelled: Tasks cancelled before they ran.
        rejected: Tasks refused because the queue was full.
        expired: Failed tasks that waited longer than `max_wait`, or past their deadline.
        went_first: Calls of event loops that went ahead of others, because their function is known to be short.
        abandoned: Running tasks whose await was cancelled, so that nobody wants what they return.
        longest_abandoned: How long ago the first of them was cancelled.
        started: Threads started so far, those just starting included; always `workers` + `retired`. A thread that
            stands in at `shutdown` for one that the system refuses counts once for each task it runs.
        retired: Threads that have left so far.
        longest_running: How long the longest of the running tasks has run.
        delayed: Calls whose time has not come, the next run of each schedule included; not part of `submitted`.
        min_workers: The limit of the settings, as are the next two.
        max_workers: How many threads there may be, apart from those that wait for this same pool, those of abandoned
            calls, and those for short ones.
        max_queue: How many tasks may wait; None for no limit.
        max_wait: How many seconds they may wait; None for no limit.
        last_decision: What the sizing decided last, and why; empty before it had to decide.
        loop_lag: How late each event loop of this process was that has sent calls to a pool.
    """

    __module__ = "ebbpool"

    name: str
    workers: int
    idle: int
    running: int
    blocked: int
    queued: int
    oldest_wait: float
    submitted: int
    completed: int
    failed: int
    cancelled: int
    rejected: int
    expired: int
    went_first: int
    abandoned: int
    longest_abandoned: float
    started: int
    retired: int
    longest_running: float
    delayed: int
    min_workers: int
    max_workers: int
    max_queue: int | None
    max_wait: float | None
    last_decision: str
    loop_lag: tuple[LoopLag, ...]


@dataclass(frozen=True)
class LaneStats:
    """What a lane is doing, and has done. Times are in seconds.

    Attributes:
        name: The lane's name.
        limit: How many of its tasks may run at once.
        running: Its tasks that run, or whose callbacks do.
        queued: Its tasks that wait, for their turn in the lane or for a worker.
        oldest_wait: How long the oldest of them has waited. Behind 10,000 tasks in the pool's queue, how long the last
            of these has: an upper bound.
        submitted: Tasks accepted so far; always `queued` + `running` + `completed` + `failed` + `cancelled`.
        completed: Tasks that returned.
        failed: Tasks that raised, or that a broken initializer kept from running.
        cancelled: Tasks cancelled before they ran.
        expired: Failed tasks that waited longer than `max_wait`, or past their deadline.
    """

    __module__ = "ebbpool"

    name: str
    limit: int
    running: int
    queued: int
    oldest_wait: float
    submitted: int
    completed: int
    failed: int
    cancelled: int
    expired: int


@dataclass(frozen=True)
class Decision:
    """A decision of the sizing: that a pool grew, or that it did not although tasks waited.

    Attributes:
        at: When it was made (seconds since the epoch).
        workers: How many threads the pool had.
        grown: How many were to be started.
        reason: The decision and what it rests on, in words.
    """

    __module__ = "ebbpool"

    at: float
    workers: int
    grown: int
    reason: str


class Decisions:
    """What the timekeeper's thread notes, and any thread reads."""

    def __init__(self) -> None:
        # Oldest first; replaced and never changed, so that other threads can read it at any time.
        self.noted: tuple[Decision, ...] = ()

    def note(self, workers: int, grown: int, queued: int, why: Callable[[], str], new: bool = False) -> None:
        """Note a decision; one not to grow only after another, or if it is `new`: there may be a thousand a second."""
        last = self.noted[-1] if self.noted else None
        if grown == 0 and not new and last is not None and (last.workers, last.grown) == (workers, 0):
            return
        what = f"grew by {grown}" if grown else f"stayed at {workers}"
        waiting = f"{queued} waiting, " if queued else ""
        decision = Decision(time(), workers, grown, f"{what}: {waiting}{why()}")
        self.noted = (*self.noted[1 - KEPT :], decision)

    def last(self) -> str:
        """Return the reason of the last decision, or an empty string."""
        noted = self.noted
        return noted[-1].reason if noted else ""
