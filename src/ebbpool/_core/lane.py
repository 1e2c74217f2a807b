"""A lane: a limit on how many of its tasks run at a time (a bulkhead), its backlog and its counts."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from ebbpool._core import uncompiled as cython

if not TYPE_CHECKING and cython.compiled:
    import cython
if not cython.compiled:
    # For compiled code lane_c.pxd declares these.
    from ebbpool._clock import monotonic

    if TYPE_CHECKING:
        from ebbpool._core.future import FutureCore
        from ebbpool._core.pool import Pool
    from ebbpool._core.uncompiled import PENDING, hold_collector, let_collector


SEARCHED = 10_000
"""The oldest task of a lane is looked for in so many tasks at the head of the queue; the mutex is held meanwhile."""


class LaneCore:
    """A limited share of a pool, whose mutex guards it: tasks wait in its backlog until it lets them into the queue."""

    def __init__(
        self,
        pool: Pool,
        limit: int,
        first: bool,
        lifts_ceiling: bool = False,
        name: str | None = None,
        max_wait: float = 0.0,
    ) -> None:
        self.pool = pool
        self.limit = limit
        self.first = first  # whether its tasks go to the head of the pool's queue
        self.lifts_ceiling = lifts_ceiling  # whether each task lifts the pool's by one while it is queued or runs
        self.name = name  # None for one of ebbpool's own
        self.max_wait = max_wait  # in seconds; 0 for that of the pool, below zero for none
        self.closed: bool = False
        self.backlog: deque[FutureCore] = deque()  # held futures, oldest first
        # Tasks in the pool's queue or running. Invariant: where tasks wait in the backlog, this is `limit`.
        self.admitted: int = 0
        self.dead: int = 0  # futures in the backlog that are done: cancelled, or failed by `reject`
        self.taken: int = 0  # tasks that have left the pool, run or refused
        self.failed: int = 0
        self.cancelled: int = 0
        self.expired: int = 0

    def enlist(self, future: FutureCore, refusal: str | None) -> str | None:
        """Under the mutex: admit a future, or hold it; return why it is refused; `refusal` is why the pool would."""
        # A full queue is no reason for a lane.
        if refusal is not None and refusal != "full":
            return refusal
        if self.closed:
            return "closed"
        # A lane may exceed the pool's `max_queue`: its limit bounds what it adds to the queue.
        if self.admitted < self.limit:
            self.enter()
        else:
            future._held = True
            future._queued_at = self.pool.clock
            self.backlog.append(future)
        return None

    def enter(self) -> None:
        """Under the mutex: count a task that goes to the pool's queue."""
        self.admitted += 1
        if self.lifts_ceiling:
            self.pool._lend(1)

    def leave(self) -> None:
        """Under the mutex: count off a task that has left the pool."""
        self.admitted -= 1
        if self.lifts_ceiling:
            self.pool._lend(-1)

    def renew(self) -> None:
        """In a forked child: forget all tasks, which stayed with the parent."""
        self.backlog = deque()
        self.admitted = self.dead = 0

    def close(self) -> None:
        """Take no more tasks."""
        with self.pool.mutex:
            self.closed = True

    def counts(self) -> dict[str, float]:
        """Return the figures of `LaneStats`."""
        oldest = 0.0
        running = 0
        with self.pool.mutex:
            collects = hold_collector()
            try:
                now = monotonic()
                for worker in self.pool.workers:
                    if worker.current is not None and worker.current._lane is self:
                        running += 1
                # Those in the queue are older than those in the backlog, and both keep their order.
                lines = [self.pool.front] if self.first else [self.pool.short, self.pool.queue]
                for line in lines if self.admitted > running else [self.backlog]:
                    for place, future in enumerate(islice(line, SEARCHED), 1):
                        if place == SEARCHED or (future._lane is self and future._code == PENDING):
                            oldest = max(oldest, now - future._queued_at)
                            break
                queued = self.admitted - running + len(self.backlog) - self.dead
                taken, failed, cancelled, expired = self.taken, self.failed, self.cancelled, self.expired
            finally:
                let_collector(collects)
        return {
            "limit": self.limit,
            "running": running,
            "queued": queued,
            "oldest_wait": oldest,
            "submitted": taken + running + queued + cancelled,
            "completed": taken - failed,
            "failed": failed,
            "cancelled": cancelled,
            "expired": expired,
        }
