"""What others see of a pool: the tasks that run, the one that has waited longest, and the figures."""

from __future__ import annotations

import threading
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from ebbpool._core import uncompiled as cython

if not TYPE_CHECKING and cython.compiled:
    import cython
if not cython.compiled:
    # For compiled code views_c.pxd declares these.
    from ebbpool._clock import monotonic
    from ebbpool._core.backlog import Backlog
    from ebbpool._core.pool import Pool, is_left
    from ebbpool._core.staff import Staff, Worker
    from ebbpool._core.task import LaneCore, Line, Tally, Task
    from ebbpool._core.uncompiled import (
        AHEAD,
        BLOCKED,
        LEFT,
        LONG,
        PENDING,
        SHORT,
        hold_collector,
        let_collector,
    )

SEARCHED = 10_000  # the oldest task of a lane is looked for in so many at the head of the queue


class Running(NamedTuple):
    """A task that runs. Times are in monotonic seconds."""

    since: float  # when it was taken
    thread: threading.Thread
    lane: LaneCore | None
    blocked: bool  # whether it waits for a future of this very pool
    short: bool  # whether it went ahead of others, as a call that is known to be short
    abandoned: float  # since when nobody wants what it returns; 0 if somebody may
    left: bool  # whether nobody waits for its end, either
    written_off: bool  # whether it does not count towards the ceiling
    call: tuple[Any, Any]  # what is called, and its arguments; None for each where that was not asked for, or is over


class Survey(NamedTuple):
    """What a pool does at one moment: the tasks that run, the oldest that waits, the figures of `PoolStats`."""

    running: list[Running]
    oldest: tuple[float, tuple[Any, Any]] | None  # since when that waits (monotonic seconds), and its call
    threads: list[threading.Thread]
    counts: dict[str, float]


def _call_of(task: Task, known: bool) -> tuple[Any, Any]:
    """Return what a task calls and its arguments; (None, None) if that is not to be `known`."""
    args = task._packed() if known else None
    # Read last: under a GIL the worker drops the call meanwhile, and `_fn` first.
    return task._fn if known else None, args


@cython.locals(pool=Pool, staff=Staff, backlog=Backlog, worker=Worker, task=Task, current=Task)
def survey(pool: Pool, calls: bool = False) -> Survey:
    """Return what the pool does at one moment, and its figures; with what is called if `calls`.

    Without `calls` it refers to nothing of a user's, which might end with the last reference to it.
    """
    # Tuples until the mutex is free: a named one is made by interpreted code.
    seen: list[Any] = []
    threads: list[threading.Thread] = []
    oldest: Any = None
    trash: list[Any] = []
    staff, backlog = pool.staff, pool.backlog
    with pool.mutex:
        collects = hold_collector()
        try:
            backlog.trim(trash)
            now = monotonic()
            queued = backlog.waiting()
            if queued > 0:
                task = backlog.oldest()
                oldest = task._queued_at, _call_of(task, calls and task._code == PENDING)
            for worker in staff.workers:
                threads.append(worker.thread)
                if worker.current is None:
                    continue
                current = worker.current
                scope = current._scope
                since = 0.0 if scope is None else scope.abandoned
                kind = worker.kind
                off = kind in (LEFT, LONG)
                short = kind in (AHEAD, SHORT, LONG)
                place = worker.since, worker.thread, current._lane, worker.waits > 0, short
                seen.append((*place, since, is_left(worker), off, _call_of(current, calls)))
            counts = _counts(pool, len(seen), queued)
        finally:
            let_collector(collects)
    tasks = [Running(*each) for each in seen]
    counts["oldest_wait"] = 0.0 if oldest is None else now - oldest[0]
    left_at = [each.abandoned for each in tasks if each.abandoned > 0.0]
    counts["abandoned"] = len(left_at)
    # A loop may have given one up after `now`.
    counts["longest_abandoned"] = max(0.0, now - min(left_at, default=now))
    counts["longest_running"] = now - min([each.since for each in tasks], default=now)
    return Survey(tasks, oldest, threads, counts)


@cython.locals(staff=Staff, tally=Tally)
def _counts(pool: Pool, running: int, queued: int) -> dict[str, float]:
    """Under the mutex: return the figures of `PoolStats` that are counted."""
    staff, tally = pool.staff, pool.tally
    # Not `headcount`, which counts reserved places too: the thread for one of them may fail to start.
    workers = len(staff.workers)
    return {
        "workers": workers,
        "idle": workers - running,
        "running": running,
        "blocked": staff.counts[BLOCKED],
        "queued": queued,
        "submitted": tally.taken + queued + tally.cancelled,
        "completed": tally.taken - tally.failed - running,
        "failed": tally.failed,
        "cancelled": tally.cancelled,
        "rejected": pool.rejected,
        "expired": tally.expired,
        "went_first": pool.backlog.went_first,
        "started": staff.started,
        "retired": staff.started - workers,
    }


@cython.locals(lane=LaneCore, pool=Pool, backlog=Backlog, worker=Worker, task=Task, line=Line, tally=Tally)
def count_lane(pool: Pool, lane: LaneCore) -> dict[str, float]:
    """Return the figures of `LaneStats`."""
    oldest = 0.0
    running = place = 0
    with pool.mutex:
        collects = hold_collector()
        try:
            now = monotonic()
            for worker in pool.staff.workers:
                if worker.current is None or worker.current._lane is not lane:
                    continue
                running += 1
            # Those in the queue are older than those in the backlog, and both keep their order.
            backlog = pool.backlog
            lines = [backlog.lent, backlog.front, backlog.short, backlog.queue]
            for line in lines if lane.admitted > running else [lane.backlog]:
                # A copy: a handler may submit meanwhile.
                for place, each in enumerate(list(islice(line.tasks, SEARCHED)), 1):
                    task = each
                    if place != SEARCHED and (task._lane is not lane or task._code != PENDING):
                        continue
                    oldest = max(oldest, now - task._queued_at)
                    break
            queued = lane.admitted - running + lane.backlog.live()
            tally = lane.tally
            taken, failed, cancelled, expired = tally.taken, tally.failed, tally.cancelled, tally.expired
        finally:
            let_collector(collects)
    return {
        "limit": lane.limit,
        "running": running,
        "queued": queued,
        "oldest_wait": oldest,
        "submitted": taken + running + queued + cancelled,
        "completed": taken - failed,
        "failed": failed,
        "cancelled": cancelled,
        "expired": expired,
    }


@cython.locals(pool=Pool)
def retry_after(pool: Pool) -> float:
    """Return after how many seconds a caller that is refused may try again: for as long as a task waits now."""
    trash: list[Any] = []
    with pool.mutex:
        collects = hold_collector()
        try:
            pool.backlog.trim(trash)
            waited = monotonic() - pool.backlog.oldest()._queued_at if pool.backlog.waiting() > 0 else 0.0
        finally:
            let_collector(collects)
    return min(waited, pool.max_wait) if pool.max_wait > 0.0 else waited


@cython.locals(pool=Pool, lane=LaneCore, worker=Worker)
def unclaimed(pool: Pool, lane: LaneCore | None) -> int:
    """Return how many tasks, of one lane or of the queue, wait, but for those that a worker is about to take."""
    held = 0
    with pool.mutex:
        queued = pool.backlog.waiting()
        if lane is not None:
            held = lane.backlog.live()
            queued = lane.admitted
            for worker in pool.staff.workers:
                if worker.current is None or worker.current._lane is not lane:
                    continue
                queued -= 1
        return held + max(0, queued - pool._coming())
