"""What users are told of a pool. Five dataclasses are slow to make: it is imported once one of them is asked for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LoopLag:
    """How late an event loop was in the last minute: how long it took to pick up a result.

    Anything else that wakes the loop waits as long: other threads have the CPU or the GIL, or a callback runs on.

    Attributes:
        name: The name of the thread that the loop runs in. Loops of one name are taken together.
        p50: The median, to about 10% (seconds).
        p99: The 99th percentile.
        most: The longest.
    """

    __module__ = "ebbpool"

    name: str
    p50: float
    p99: float
    most: float


@dataclass(frozen=True)
class PoolStats:
    """What a pool is doing, and has done. Times are in seconds.

    Attributes:
        name: The pool's name; see `AdaptiveExecutor.name`.
        workers: Threads of the pool, those just starting included; always `idle` + `running`.
        idle: Workers without a task.
        running: Workers with a task, or with its callbacks.
        blocked: Running workers that wait for a future of this same pool, or for the next call of a session.
        queued: Tasks that wait for a worker.
        oldest_wait: How long the oldest of them has waited.
        submitted: Tasks accepted so far; always `queued` + `running` + `completed` + `failed` + `cancelled`.
        completed: Tasks that returned.
        failed: Tasks that raised, that a broken initializer kept from running, or that waited for too long.
        cancelled: Tasks cancelled before they ran.
        rejected: Tasks refused because the queue was full.
        expired: Failed tasks that waited longer than `max_wait`, or past their deadline.
        went_first: Calls of event loops that were taken for short, so as to go ahead of any others: their function is
            known to be short, or was never measured.
        abandoned: Running tasks whose await was cancelled.
        longest_abandoned: How long ago the first of them was cancelled.
        started: Threads started so far, those just starting included; always `workers` + `retired`. A thread that
            stands in at `shutdown` for one that the system refuses counts once for each task it runs.
        retired: Threads that have left so far.
        longest_running: How long the longest of the running tasks has run.
        delayed: Calls whose time has not come, the next run of each schedule included; not part of `submitted`.
        min_workers: The limit of the settings, as are the next two.
        max_workers: How many threads there may be that count; `AdaptiveExecutor` says which do not.
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


@dataclass(frozen=True)
class RunningTask:
    """A task that runs.

    Attributes:
        name: The module and the name of the function that was to be called, seen through what wraps it: partials,
            contexts, and what anyio, asyncio, Starlette, FastAPI and asgiref put around it. A callable without a name
            goes by that of its type.
        lane: The name of its lane, or None.
        thread: The name of its thread.
        native_id: The number that the operating system gave the thread; None if it gives none.
        seconds: How long it has run, to about 0.05 s.
        blocked: Whether it waits for a future of this same pool.
        stack: The task's own part of the thread's stack, as `traceback` writes it, or a line in parentheses that says
            why there is none: without a GIL it cannot be read safely. None if it was not asked for.
        abandoned: Whether its await was cancelled.
        short: Whether it was taken for short when it began, so as to go ahead of any others: its function was known to
            be short, or never measured.
    """

    __module__ = "ebbpool"

    name: str
    lane: str | None
    thread: str
    native_id: int | None
    seconds: float
    blocked: bool
    stack: str | None
    abandoned: bool = False
    short: bool = False
