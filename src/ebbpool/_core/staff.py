"""The workers of a pool by what they do, and how many there may be. All of it is guarded by the pool's mutex."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

from ebbpool._core import uncompiled as cython
from ebbpool._core.latch import LockType, allocate_lock

if not TYPE_CHECKING and cython.compiled:
    import cython
if not cython.compiled:
    # For compiled code staff_c.pxd declares these.
    from ebbpool._core.uncompiled import (
        AHEAD,
        BLOCKED,
        COMING,
        GONE,
        LEFT,
        LENT,
        LONG,
        PARKED,
        SHORT,
        STARTING,
        STATES,
        WORKING,
        slotted,
    )

    if TYPE_CHECKING:
        from ebbpool._core.known import Known
        from ebbpool._core.task import Task

ALL = sys.maxsize  # as many workers as there are: nobody is held back
SHORT_ROOM = 16  # short calls have one worker of their own, at least, for each so many of the ceiling


class Worker:
    """One thread's place in a pool. Its state is the message, its bell only says that it should look."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.bell: LockType = allocate_lock()  # free only when the worker is to look at its state
        self.bell.acquire()
        self.thread: threading.Thread = threading.main_thread()
        self.state: int = STARTING
        self.kind: int = WORKING  # its state while it has a task in hand and does not wait for the pool
        self.current: Task | None = None  # the task in hand, until its callbacks are done
        self.since: float = 0.0  # when that was taken (monotonic seconds)
        self.known: Known | None = None  # what is known of what that calls, if it is measured
        self.begun: float = 0.0  # when that began, if it is measured (monotonic seconds)
        self.keep_alive: float = 0.0  # seconds to stay parked; below zero, for ever
        self.expired: bool = False  # whether it has been parked for so long
        self.waits: int = 0  # waits for its own pool, one within the other
        self.actions: int = 0  # what its last visit to the mutex has left to be done; see `Pool._balance`
        self.error: BaseException | None = None  # what the call that it has just made has raised

    def ring(self) -> None:
        """Have it look at its state; under the mutex, where alone bells are rung."""
        try:
            self.bell.release()
        except RuntimeError:
            # It is free. `contextlib.suppress` would make calls.
            pass


class Staff:
    """The workers by state, places for those that are about to start included: the sum of `counts` is `headcount`.

    Workers that are LENT, LONG, LEFT or BLOCKED do not count towards the ceiling: they are `off`.
    """

    def __init__(self) -> None:
        if not cython.compiled:
            self.counts = [0] * STATES
        self.min_workers: int = 0
        self.ceiling: int = 1  # the most workers that the settings allow
        self.min_spare_workers: int = 0
        self.keep_alive: float = 10.0
        self.short_first: bool = True
        self.short_room: int = 0  # workers beyond the ceiling, for short calls
        self.started: int = 0
        self.many: int = ALL  # above this many running workers the pool is looked at even with an empty queue
        self.begin([])

    def begin(self, workers: list[Worker]) -> None:
        """Start with the workers that there are."""
        for state in range(STATES):
            self.counts[state] = 0
        self.workers: list[Worker] = workers
        self.parked: list[Worker] = []  # the last to park is the first to wake
        self.headcount: int = len(workers)
        self.unborn: int = 0  # those STARTING whose thread nobody is about to start yet
        self.off: int = 0
        self.written_off: int = 0  # workers whose kind is LONG or LEFT
        for worker in workers:
            worker.kind = WORKING
            worker.known = None
            worker.state = BLOCKED if worker.waits > 0 else WORKING
            self.counts[worker.state] += 1
            self.off += worker.state >= LENT
        self.admit(ALL)

    def configure(self, min_workers: int, ceiling: int, min_spare_workers: int, keep_alive: float) -> None:
        """Apply new settings; `keep_alive` below zero means without limit."""
        self.min_workers, self.ceiling = min_workers, ceiling
        self.min_spare_workers, self.keep_alive = min_spare_workers, keep_alive
        # In a pool of one all keep their order.
        self.short_room = max(1, ceiling // SHORT_ROOM) if self.short_first and ceiling > 1 else 0
        self.admit(self.allowed)

    def admit(self, allowed: int) -> None:
        """Let so many workers have a task in hand, or be on their way to one, that are not off."""
        self.allowed: int = allowed
        self.limit: int = min(allowed, self.ceiling)  # up to so many workers all may take tasks

    def move(self, worker: Worker, state: int) -> None:
        """Change what a worker does."""
        parked = worker.state == PARKED
        # No call but the last: nothing of the same thread comes in between, and Ctrl-C may come after a call.
        self.counts[worker.state] -= 1
        self.counts[state] += 1
        self.off += (state >= LENT) - (worker.state >= LENT)
        worker.state = state
        if parked:
            self.parked.remove(worker)
        elif state == PARKED:
            self.parked.append(worker)

    def become(self, worker: Worker, kind: int) -> None:
        """Change what a worker with a task in hand counts as."""
        self.written_off += (kind in (LONG, LEFT)) - (worker.kind in (LONG, LEFT))
        worker.kind = kind
        if worker.state != BLOCKED:
            self.move(worker, kind)

    def hire(self, count: int) -> None:
        """Reserve places for workers that are about to be started."""
        self.headcount += count
        self.counts[STARTING] += count
        self.unborn += count

    def unhire(self, count: int) -> None:
        """Give back the places of workers that could not be started."""
        self.headcount -= count
        self.counts[STARTING] -= count

    def leave(self, worker: Worker) -> None:
        """Count a worker off; one that is parked is told."""
        parked = worker.state == PARKED
        self.move(worker, GONE)
        self.counts[GONE] -= 1
        self.off -= 1
        self.headcount -= 1
        self.workers.remove(worker)
        if parked:
            worker.ring()

    def active(self) -> int:
        """Return how many workers count towards the ceiling."""
        return self.headcount - self.off

    def engaged(self) -> int:
        """Return how many of these have a task in hand, or are on their way to one."""
        return self.headcount - self.off - self.counts[PARKED]

    def on_their_way(self) -> int:
        """Return how many workers will come to the queue without having a task in hand."""
        return self.counts[STARTING] + self.counts[COMING]

    def has_place(self, more: int) -> bool:
        """Return whether an ordinary task may be taken: by one that is engaged, or by one `more`."""
        return self.engaged() + more - self.counts[SHORT] <= self.limit

    def has_short_place(self) -> bool:
        """Return whether a short call may be taken although there is no place for an ordinary task."""
        # Where workers are held back, one short call may run beside them.
        return self.counts[SHORT] < (1 if self.allowed < self.ceiling else self.short_room)

    def lacks_spare(self) -> bool:
        """Return whether fewer workers are idle than there should be, once there is a worker, and there may be more."""
        lacks = self.headcount > 0 and self.counts[PARKED] + self.counts[STARTING] < self.min_spare_workers
        return lacks and self.active() < self.ceiling

    def may_write_off(self, worker: Worker) -> bool:
        """Return whether the task of a worker may become one that does not count."""
        # None in a pool of one, where people count on one call at a time.
        within = self.written_off < self.ceiling and self.ceiling > 1
        return within and worker.current is not None and worker.kind in (WORKING, AHEAD, SHORT)


if not cython.compiled:
    Worker = slotted(Worker, None)  # type: ignore[misc]  # the same class
