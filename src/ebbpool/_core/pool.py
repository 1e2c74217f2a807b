"""The pool: one mutex, and what it guards. Every operation is one visit to it.

A visit changes something and then, last of all, balances: `Pool._balance` reads from the state what is to be done
next, does what can be done under the mutex (it lets tasks in that wait for room, wakes a worker, sends others home),
and returns the rest: START threads for `Staff.unborn`, have the timekeeper LOOK by `next_look`. Both are read off the
state, so the next visit sees what is still to be done if the thread that was to do it has failed. The one promise is
`next_look`, a time.

Nothing that could run foreign code happens under the mutex: no call of a task or callback, no wait, and no drop of a
reference that might be the last one to a user's object.

No loop under a lock ends in an `if`: CPython 3.12 and 3.13 go back from there outside of the `with`, which Ctrl-C then
leaves without its end.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import thread
from concurrent.futures._base import LOGGER
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from ebbpool._clock import AGAIN, HORIZON, TICK
from ebbpool._core import uncompiled as cython
from ebbpool._core.latch import LockType, allocate_lock
from ebbpool._core.scope import Scope
from ebbpool._core.waits import here

if not TYPE_CHECKING and cython.compiled:
    import cython
if not cython.compiled:
    # For compiled code pool_c.pxd declares these.
    from ebbpool._clock import monotonic
    from ebbpool._core.backlog import SORTED, Backlog
    from ebbpool._core.known import Known
    from ebbpool._core.staff import Staff, Worker
    from ebbpool._core.task import LaneCore, Line, Tally, Task
    from ebbpool._core.uncompiled import (
        AHEAD,
        BLOCKED,
        CANCELLED,
        COMING,
        FINISHED,
        GONE,
        LEFT,
        LENT,
        LONG,
        LOOK,
        NOTIFIED,
        PARKED,
        PENDING,
        RUNNING,
        SHORT,
        START,
        STARTING,
        WORKING,
        free_mutex,
        hold_collector,
        let_collector,
        slotted,
    )

from ebbpool._core.staff import ALL

ROOM = 24  # nested calls that a step of the plain core needs at most, which may not be left half done


class Snapshot(NamedTuple):
    """What the timekeeper learns about a pool."""

    may_grow: bool  # whether another worker may be started
    queued: int
    taken: int  # tasks taken off the queue so far
    workers: int
    starting: int  # those of the workers that have not begun to work
    idle: int
    blocked: int  # those that wait for this very pool
    off: int  # those that do not count towards the ceiling, the blocked ones among them
    most: int  # how many workers there may be, as tasks wait now
    spare: bool  # whether idle ones are missing
    late: bool  # whether more tasks are late than one look ends
    expired: int  # tasks of those taken that were late
    stands: bool  # see `Backlog.stands`
    moved: Known | None  # the function whose calls, by what is known now, go first


def _leave_room(depth: int) -> None:
    """Raise RecursionError, in the plain core, if `depth` nested calls would raise it; nothing has been changed yet."""
    if depth > 0:
        _leave_room(depth - 1)


def is_left(worker: Worker) -> bool:
    """Return whether nobody waits for the call that a worker runs; under the mutex."""
    current: Any = worker.current
    # Read once: under a GIL the worker drops it meanwhile.
    scope = None if current is None or current._code != RUNNING else current._scope
    return scope is not None and scope.left


class Wrapping:
    """What is done with a call before it is queued: it gets a context, or is measured."""

    def __init__(self) -> None:
        self.wraps: bool = False  # whether anything is
        self.every: int = 0  # one task out of so many is measured, and told to `record`
        self.record: Callable[[float, float], object] | None = None
        self.skip: int = 0  # tasks before the next that is measured; threads that submit at once may miscount

    def skip_some(self) -> None:
        """Begin to count to the next call that is measured: one in `every`, whatever pattern they follow."""
        # Imported here, so that only those pay for it who measure.
        from random import random

        self.skip = int(random() * (2 * self.every - 1)) if self.every > 0 else 0


class Pool:
    """What an executor and its workers share. Times are monotonic."""

    def __init__(self, crew: Any) -> None:
        if not cython.compiled:
            # Re-entrant: a finaliser or a signal handler may submit while its own thread is in a critical section.
            self.mutex: Any = threading.RLock()
        # Returns the `Crew`. Weakly, or there would be a cycle: executor and threads hold the crew, the crew the pool.
        self.crew: Callable[[], Any] = (lambda: None) if crew is None else weakref.ref(crew)
        self.wrapping: Wrapping = Wrapping()
        self.contextual: bool = False  # whether tasks run in their submitter's context
        self.staff: Staff = Staff()
        self.backlog: Backlog = Backlog()
        self.tally: Tally = Tally()
        # Right to about a tick while tasks wait, and when a worker wakes up. A clock call for each task would be a
        # tenth of its cost.
        self.clock: float = 0.0
        self.max_queue: int = -1
        self.max_wait: float = 0.0
        self.grows_when_full: bool = False
        self.special: bool = False  # whether `push` has to look closer
        self.closed: bool = False
        self.broken: bool = False
        self.deserted: bool = False  # whether threads are excused from waiting: the exit waits for them, not for this
        self.rejected: int = 0
        self.refused: float = -inf  # when the system has refused a thread
        self._begin()

    def _begin(self) -> None:
        self.room: Line = Line(False)  # tasks that wait for a place in the queue
        # Whose submitters are blocked: the lock that such a one waits for, and whether its task goes first.
        self.submitters: dict[Task, tuple[LockType, bool]] = {}
        self.idlers: list[LockType] = []
        self.next_look: float = inf  # by when the timekeeper has promised to look

    @cython.locals(worker=Worker)
    def configure(
        self,
        min_workers: int,
        max_workers: int,
        min_spare_workers: int,
        keep_alive: float,
        max_queue: int,
        grows_when_full: bool,
        max_wait: float,
    ) -> None:
        """Apply new settings; `keep_alive` and `max_queue` below zero mean without limit, and `max_wait` of zero.

        A pool that `grows_when_full` starts a worker at once for a task that would be lost.
        """
        if not cython.compiled:
            _leave_room(ROOM)
        with self.mutex:
            self.staff.configure(min_workers, max_workers, min_spare_workers, keep_alive)
            self.max_queue = max_queue
            self.grows_when_full = grows_when_full
            self.max_wait = max_wait
            self.backlog.stale = 0.0
            self.backlog.newest = False
            self._special()
            self._write_off_abandoned()
            for worker in self.staff.parked:
                # It applies the new `keep_alive` and `min_workers`.
                worker.ring()
            actions = self._balance(False)
        self._perform(actions, None)

    def _special(self) -> None:
        self.special = self.closed or self.max_queue >= 0 or self.max_wait > 0.0

    def carry_context(self) -> None:
        """Run tasks in copies of their submitter's context from now on."""
        self.contextual = self.wrapping.wraps = True

    def observe(self, every: int, record: Callable[[float, float], object] | None) -> None:
        """Have `record(seconds waited, seconds run)` called in the worker after one in `every` tasks; 0 for none."""
        wrapping = self.wrapping
        with self.mutex:
            # The last `record` may end with the call, but not under the mutex.
            before, wrapping.record = wrapping.record, record
            wrapping.every = every
            wrapping.wraps = self.contextual or every > 0
        wrapping.skip_some()
        del before

    def admit(self, allowed: int) -> None:
        """Let `allowed` workers run at a time (`ALL`: every one); those beyond it park as their tasks end."""
        with self.mutex:
            # The workers of a closed pool leave instead of parking.
            self.staff.admit(ALL if self.closed else max(1, allowed))
            actions = self._balance(False)
        self._perform(actions, None)

    # Submitting.

    @cython.locals(lane=LaneCore)
    def push(
        self, task: Task, first: bool = False, waits: bool = False, submitter: LockType | None = None
    ) -> str | None:
        """Queue a pending task, at the head if it is to be `first`, and make sure that a worker will take it.

        While the queue is full it waits for room if it `waits`; so does its submitter, if it has a lock, which is
        released once the task has left the room. Short calls have room of their own.

        Return why the task was not taken ("closed", "broken" or "full"), or None. Raise RuntimeError if there is no
        worker and none could be started.
        """
        lane: Any = task._lane
        wait = lane.max_wait if lane is not None and lane.max_wait != 0.0 else self.max_wait
        if wait > 0.0:
            scope = task._scope or Scope()
            scope.restrict(wait)
            task.limit(scope)
        waiter = None if submitter is None else (submitter, first)
        actions = 0
        with self.mutex:
            if task._code != PENDING:
                return None
            if task._known is not None:
                # Where calls may change their places, it has to be known which is older.
                self.clock = monotonic()
            enters = lane is None or (lane.admitted < lane.limit and not lane.closed)
            refusal = self._refusal(enters) if self.special else None
            if refusal in (None, "full") and task._known is not None and self.backlog.goes_first(task, self.clock):
                refusal = "full" if not waits and self._lacks_short_room() else None
            if lane is not None:
                # Its limit bounds what it adds to a bounded queue.
                refusal = "closed" if refusal in (None, "full") and lane.closed else refusal
                refusal = None if refusal == "full" else refusal
            if refusal is not None and (refusal != "full" or not waits):
                return refusal
            if refusal is not None:
                self._wait_for_room(task, waiter)
            elif enters:
                if lane is not None:
                    lane.admitted += 1
                self.backlog.add(task, first, self.clock)
            else:
                task._queued_at = self.clock
                lane.backlog.add(task)
            if task._latest > 0.0 and (waiter is None or refusal is None):
                self.backlog.limit(task)
            # Otherwise there is nothing to do: see `_balance`.
            staff = self.staff
            asks = staff.parked or self.next_look > self.clock + HORIZON or first or task._line is self.backlog.short
            if refusal is not None or task._latest > 0.0 or staff.unborn > 0 or (asks and staff.counts[COMING] == 0):
                try:
                    actions = self._balance(False)
                except BaseException:
                    self._withdraw(task)
                    raise
            if task._known is None:
                # The clock may have been set meanwhile.
                task._queued_at = self.clock
        if actions:
            try:
                self._perform(actions, task)
            except BaseException:
                self.make_up()
                raise
        if refusal is None and submitter is not None:
            submitter.release()
        return None

    def _wait_for_room(self, task: Task, waiter: tuple[LockType, bool] | None) -> None:
        task._queued_at = self.clock
        self.room.add(task)
        self.backlog.mixed = True
        if waiter is not None:
            self.submitters[task] = waiter
        if task._known is not None:
            task._short = False
            self.backlog.count(task, 1)

    @cython.locals(task=Task)
    def leave_room(self, task: Task) -> bool:
        """Take back a task that waits for room; return False if it does so no longer, or was let in."""
        with self.mutex:
            waits = task._line is self.room and task._code == PENDING and task in self.submitters
            if waits:
                self._withdraw(task)
        return waits

    @cython.locals(task=Task)
    def wait_left(self, task: Task) -> float:
        """Return for how many seconds a task may wait from now on; -1 for ever."""
        return -1.0 if task._latest == 0.0 else max(0.0, task._latest - monotonic())

    @cython.locals(task=Task)
    def was_refused(self, task: Task) -> bool:
        """Return whether a pending task is not to be queued: the pool was closed while it waited for room."""
        with self.mutex:
            return task._code == PENDING and task._line is None

    @cython.locals(head=Task, task=Task)
    def _settle(self) -> None:
        """Under the mutex: let in those that have waited longest for a place in the queue."""
        room = self.room
        while True:
            # A handler or a finaliser may let some in as the loop turns, and in `_refusal`.
            head: Any = room.tasks[0] if room.tasks else None
            if head is None or (head._code == PENDING and self._refusal(False) == "full") or not room.tasks:
                return
            task = room.popleft()
            if task._code == PENDING:
                task._line = None
                self._let_in(task)
            else:
                room.dead -= 1
                self._keep_dead(task)

    def _keep_dead(self, task: Task) -> None:
        """Under the mutex, where it may not be dropped: keep a dead task in the queue until it is come across."""
        task._line = self.backlog.queue
        self.backlog.queue.dead += 1
        self.backlog.queue.append(task)

    @cython.locals(since=cython.double)
    def _let_in(self, task: Task) -> None:
        first = False
        if task in self.submitters:
            waiter, first = self.submitters.pop(task)
            waiter.release()
            if self.closed:
                # The submitter raises an error.
                task._line = None
                return
            if task._latest > 0.0:
                self.backlog.limit(task)
        if task._known is not None:
            self.backlog.count(task, -1)
        # It keeps its age, by which those of one asyncio task are in order.
        since = task._queued_at
        self.backlog.add(task, first, since)
        task._queued_at = since

    def _refusal(self, grows: bool) -> str | None:
        """Under the mutex: return why a task cannot be queued, or None.

        If it `grows`, there is at once one more worker for a task that would be refused, or has to wait.
        """
        if self.broken:
            return "broken"
        if self.closed:
            return "closed"
        if self.max_queue < 0:
            return None
        staff, backlog = self.staff, self.backlog
        if self._in_queue() < self.max_queue:
            return None
        if staff.headcount == 0 and backlog.waiting() == 0:
            return None
        most = min(staff.ceiling, max(staff.allowed, staff.min_workers))
        if grows and (self.grows_when_full or self.max_queue == 0) and staff.active() < most:
            self._hire(1)
            return None
        return "full"

    def _in_queue(self) -> int:
        """Return how many tasks wait that `max_queue` bounds; below zero if more workers come than such tasks."""
        return self.backlog.waiting() - self.backlog.short.live() - self._coming()

    def _lacks_short_room(self) -> bool:
        """Under the mutex: return whether the queue has no room for another call that goes first."""
        staff, backlog = self.staff, self.backlog
        short = backlog.short.live()
        others = backlog.waiting() - short
        if staff.headcount == 0 and short + others == 0:
            return False
        return 0 <= self.max_queue <= short - max(0, self._coming() - others)

    def _coming(self) -> int:
        """Return how many tasks idle or arriving workers are about to take: these do not count as waiting."""
        staff = self.staff
        arriving = staff.on_their_way()
        # Surplus workers take none.
        idle = staff.counts[PARKED] + arriving - self._surplus()
        return max(0, min(idle, staff.limit - staff.engaged() + arriving))

    def _withdraw(self, task: Task) -> None:
        """Under the mutex: take a pending task off the queue, wherever it waits."""
        line = task._line
        if line is None:
            return
        line.tasks.remove(task)
        task._line = None
        self.submitters.pop(task, None)
        self.backlog.unlimit(task)
        if line.queued or line is self.room:
            self.backlog.forget(task)
        if line.queued and task._lane is not None:
            self._leave_lane(task._lane)

    # How tasks end that wait, and lanes.

    def end(self, task: Task, code: int, late: bool) -> None:
        """Under the mutex: count a task that ended without running, expired if `late`; let in the next of its lane.

        Its state is set, and it is among the dead of its line. In the plain core there has to be room on the stack.
        """
        lane, line = task._lane, task._line
        if task._fn is None:
            # It was counted as it was handed back.
            return
        try:
            self._count(self.tally, code, late)
            if lane is not None:
                self._count(lane.tally, code, late)
            if line is not None:
                self.backlog.unlimit(task)
                if line.queued or line is self.room:
                    self.backlog.forget(task)
                    if task in self.submitters:
                        waiter, _ = self.submitters.pop(task)
                        waiter.release()
        finally:
            # If Ctrl-C comes, too. Without a line a signal handler ends it while its lane lets it in.
            if lane is not None and (line is None or line.queued):
                self._leave_lane(lane)

    def _count(self, tally: Tally, code: int, late: bool) -> None:
        if code == NOTIFIED:
            tally.cancelled += 1
        else:
            tally.taken += 1
            tally.failed += 1
            tally.expired += late

    def _vacate(self, lane: LaneCore, failed: bool) -> None:
        """Under the mutex: count a task of `lane` that has been run, and let in the next."""
        lane.tally.taken += 1
        lane.tally.failed += failed
        self._leave_lane(lane)

    @cython.locals(task=Task, backlog=Line)
    def _leave_lane(self, lane: LaneCore) -> None:
        """Under the mutex: count off a task that is no longer queued or in hand, and let the lane's next ones in."""
        backlog = lane.backlog
        lane.admitted -= 1
        if backlog.tasks and lane.admitted < lane.limit:
            # With an empty queue nobody has set it since the lane's last task was taken.
            self.clock = monotonic()
        while True:
            # A handler may let some in as the loop turns.
            if lane.admitted >= lane.limit or not backlog.tasks:
                break
            task = backlog.popleft()
            if task._code == PENDING:
                task._line = None
                lane.admitted += 1
                self.backlog.add(task, lane.first, self.clock)
            else:
                backlog.dead -= 1
                self._keep_dead(task)
        if lane.admitted == 0:
            self._tell_idlers()

    @cython.locals(lane=LaneCore)
    def close_lane(self, lane: LaneCore) -> None:
        """Have a lane take no more tasks."""
        with self.mutex:
            lane.closed = True

    def sweep(self, task: Task) -> None:
        """Throw dead tasks out of the line where one has ended, if they are many and at least half of it."""
        trash: list[Any] = []
        with self.mutex:
            collects = hold_collector()
            try:
                line = task._line
                if line is not None:
                    line.compact(trash)
            finally:
                let_collector(collects)

    # What is to be done next.

    @cython.locals(worker=Worker)
    def _balance(self, arrived: bool, refused: bool = False) -> int:
        """Do what has to happen next, and return what has to be done once the mutex is free: the end of every visit.

        A worker that has `arrived` may be one more that computes. Where one was `refused`, no other is started.
        """
        staff, backlog = self.staff, self.backlog
        if self.room.tasks:
            self._settle()
        waiting = backlog.waiting() if backlog.mixed else len(backlog.queue.tasks) - backlog.queue.dead
        if staff.parked and (self.closed or staff.headcount > staff.ceiling):
            self._send_home(waiting)
        wanted = backlog.soonest() if backlog.times else inf
        if waiting > 0 or self.room.tasks:
            self.clock = monotonic()
            if staff.counts[COMING] == 0:
                if waiting > 0 and staff.parked and (staff.headcount <= staff.limit or self._has_room(1)):
                    # No call from this look up to the bell's: no handler, nor an error of one, comes in between.
                    if staff.parked and staff.counts[COMING] == 0:
                        worker = staff.parked[-1]
                        del staff.parked[-1]
                        staff.counts[PARKED] -= 1
                        staff.counts[COMING] += 1
                        worker.state = COMING
                        try:
                            worker.bell.release()
                        except RuntimeError:
                            # It is free. `contextlib.suppress` would make calls.
                            pass
                else:
                    while not refused and self._needs_worker():
                        self._hire(1)
            if staff.counts[COMING] == 0:
                wanted = min(wanted, self.clock + (TICK if staff.active() < self._most() else HORIZON))
            if self.room.tasks:
                # What is on its way takes tasks off the queue.
                self._settle()
        elif staff.min_spare_workers > 0 and staff.lacks_spare() and not self.closed:
            wanted = min(wanted, monotonic() + TICK)
        if arrived and staff.headcount > staff.many and staff.engaged() > staff.many:
            wanted = min(wanted, monotonic() + HORIZON)
        if self.idlers and (waiting == 0 or self.closed):
            self._tell_idlers()
        actions = START if staff.unborn > 0 else 0
        if wanted < self.next_look:
            if not cython.compiled:
                _leave_room(ROOM)
            self.next_look = wanted
            actions |= LOOK
        elif waiting == 0 and (staff.headcount <= staff.off or staff.headcount < staff.min_workers):
            # The next task needs a worker at once, and not by the next look.
            self.next_look = wanted
        return actions

    def _send_home(self, waiting: int) -> None:
        staff = self.staff
        if not cython.compiled:
            _leave_room(ROOM)
        # Some may stay for the next short calls.
        most = staff.ceiling + staff.short_room + self.backlog.lent.live()
        while (staff.active() > most or (self.closed and waiting == 0)) and staff.parked:
            # Off the line at once, as `Staff.leave` does it: a handler may send others home.
            worker = staff.parked[0]
            del staff.parked[0]
            staff.counts[PARKED] -= 1
            staff.headcount -= 1
            worker.state = GONE
            try:
                worker.bell.release()
            except RuntimeError:
                # It is free.
                pass
            finally:
                # Ctrl-C may come after the release.
                staff.workers.remove(worker)

    def _hire(self, count: int) -> None:
        if not cython.compiled:
            _leave_room(ROOM)
        self.staff.hire(count)

    def _needs_worker(self) -> bool:
        """Return whether a worker is to be started at once, without asking the timekeeper."""
        staff = self.staff
        active = staff.active()
        if not staff.counts[STARTING] and (active <= 0 or staff.headcount < staff.min_workers):
            return active < staff.ceiling and not self.broken and not staff.parked
        return self._needs_one_beyond()

    def _needs_one_beyond(self) -> bool:
        """Return whether there has to be a worker beyond the ceiling for a task that has one, or for a short call."""
        staff, backlog = self.staff, self.backlog
        if self.broken or staff.parked or self.clock - self.refused < AGAIN:
            return False
        starting = staff.counts[STARTING]
        short = backlog.short.live() if staff.ceiling <= staff.active() < staff.ceiling + staff.short_room else 0
        return short > starting or backlog.lent.live() > starting

    def _most(self) -> int:
        """Return how many workers there may be that count towards the ceiling."""
        short = self.staff.short_room if self.backlog.short.live() > 0 else 0
        return self.staff.ceiling + self.backlog.lent.live() + short

    def _surplus(self) -> int:
        """Return how many workers should leave as soon as they have no task in hand."""
        # Those beyond the ceiling stay as long as calls wait of which some may be short.
        room = self.staff.short_room if self.backlog.measured else 0
        return max(0, self.staff.active() - self.staff.ceiling - self.backlog.lent.live() - room)

    def _has_room(self, more: int) -> bool:
        """Return whether a task may be taken by a worker: one that is engaged, or a parked one that is one `more`."""
        staff, backlog = self.staff, self.backlog
        if staff.headcount <= staff.limit or backlog.lent.live() > 0:
            return True
        return staff.has_place(more) or (backlog.short.live() > 0 and staff.has_short_place())

    def make_up(self) -> None:
        """Do what an error has kept a visit from doing, in a signal handler maybe, whatever has been promised."""
        with self.mutex:
            self.next_look = inf
            actions = self._balance(False, True)
        self._perform(actions, None)

    def _perform(self, actions: int, task: Task | None) -> None:
        """Do what `_balance` has returned, not under the mutex, for the submitter of `task` maybe."""
        try:
            if actions & START:
                self._start(task)
        finally:
            if actions & LOOK:
                self._watch()

    def _start(self, task: Task | None) -> BaseException | None:
        """Start the threads for which there are places; return why the system has refused one.

        Withdraw `task`, and raise the error, if it may not stay without them.
        """
        while True:
            claimed = False
            try:
                with self.mutex:
                    if self.staff.unborn > 0:
                        self.staff.unborn -= 1
                        claimed = True
                if not claimed:
                    return None
                crew = self.crew()
                if crew is None:
                    raise RuntimeError("the executor is gone")
                interruption = crew.start()
            except BaseException as error:
                # No thread was started, whatever the reason: the place reserved for it must not be lost.
                withdrawn = claimed and self._give_back(task)
                if withdrawn or not isinstance(error, (RuntimeError, MemoryError)):
                    raise
                # Without its frames, which hold the crew.
                error.__traceback__ = None
                return error
            if interruption is not None:
                try:
                    raise interruption
                finally:
                    # The traceback holds this frame.
                    interruption = None

    def _give_back(self, task: Task | None) -> bool:
        """Give back the places of workers that cannot be started; the timekeeper tries again while tasks wait.

        Return whether `task` was withdrawn, because no worker is left or it has no place in the queue.
        """
        staff = self.staff
        call = None if task is None else (task._fn, task._args, task._kwargs)
        with self.mutex:
            self.refused = monotonic()
            staff.unhire(1 + staff.unborn)
            staff.unborn = 0
            withdrawn = self._too_many(task)
            if withdrawn and task is not None:
                self._withdraw(task)
                # Whatever ends it now does not count.
                task._fn = task._args = task._kwargs = None
            self._tell_idlers()
            actions = self._balance(False, True)
        del call
        self._perform(actions, None)
        return withdrawn

    def _too_many(self, task: Task | None) -> bool:
        """Return whether a task may not stay where it waits, now that a worker was refused."""
        if task is None or task._code != PENDING or task._line is None:
            return False
        if self.staff.headcount == 0:
            return True
        return task._line.queued and task._lane is None and 0 <= self.max_queue < self._in_queue()

    def start_workers(self, count: int) -> BaseException | None:
        """Start up to `count` workers, as many as there may be; return why the system has refused one."""
        staff = self.staff
        with self.mutex:
            room = self._most() - staff.active()
            if self.closed:
                room = min(room, self.backlog.waiting())
            count = max(0, min(count, room))
            self._hire(count)
            actions = self._balance(False)
        self._perform(actions & LOOK, None)
        return self._start(None)

    def _watch(self) -> None:
        crew = self.crew()
        if crew is None:
            return
        try:
            crew.watch()
        except (RuntimeError, MemoryError) as refusal:
            # There is no timekeeper that would try again.
            with self.mutex:
                self.next_look = inf
            self.give_up(refusal)
        except BaseException:
            # A signal handler's error may have come before the timekeeper knew of this pool.
            try:
                crew.watch()
            except BaseException:
                with self.mutex:
                    self.next_look = inf
            raise

    # Workers.

    def enlist(self, worker: Worker) -> None:
        """Count a worker for which there is a place, before its thread starts."""
        with self.mutex:
            self.staff.workers.append(worker)
            self.staff.started += 1

    def delist(self, worker: Worker) -> None:
        """Take back `enlist`, if it was called, because the worker's thread could not be started."""
        with self.mutex:
            if worker in self.staff.workers:
                self.staff.workers.remove(worker)
                self.staff.started -= 1

    @cython.locals(task=Task)
    @cython.nonecheck(False)
    def turn(self, worker: Worker, done: Task | None, failed: bool) -> Task | None:
        """Under the mutex: count the task that a worker has done, if any, and take the next; else it parks or leaves.

        What is returned is in hand if it is `worker.current`; a dead task is for the caller to drop. What remains to be
        done is in `worker.actions`.
        """
        staff, backlog = self.staff, self.backlog
        # Where one that simply works ends one task and takes another, there is nothing to do: see `_balance`.
        changes = worker.state != WORKING
        if done is not None:
            worker.current = None
            if failed:
                self.tally.failed += 1
            if changes or worker.known is not None:
                self._note_end(worker)
            if done._lane is not None:
                self._vacate(done._lane, failed)
                changes = True
        elif worker.state == PARKED:
            staff.move(worker, COMING)
        elif worker.state == GONE:
            return None
        else:
            worker.expired = False
        task: Any = None
        queue = backlog.queue
        if backlog.mixed or staff.headcount > staff.limit:
            task = self._choose(worker)
            changes = changes or worker.state != WORKING or len(self.room.tasks) > 0
        elif queue.tasks:
            task = queue.popleft()
            if task._code == PENDING:
                task._code = RUNNING
                worker.current = task
        if task is None:
            self._rest(worker)
            worker.actions = self._balance(False)
            return None
        if worker.current is None:
            task._line.dead -= 1
            if worker.state == WORKING:
                staff.move(worker, COMING)
            worker.actions = self._balance(False)
            return task  # type: ignore[no-any-return]  # it is one
        self.tally.taken += 1
        if task._latest > 0.0:
            backlog.unlimit(task)
        if changes:
            worker.actions = self._take_up(worker, done is None)
        worker.since = self.clock
        return task  # type: ignore[no-any-return]  # it is one

    def _take_up(self, worker: Worker, arrives: bool) -> int:
        """Under the mutex: balance where a worker has taken a task that `arrives`, or has not simply ended another."""
        if arrives:
            worker.expired = False
            self.clock = monotonic()
            if worker.state <= COMING:
                # As `Staff.move` does it, without a call.
                self.staff.counts[worker.state] -= 1
                self.staff.counts[WORKING] += 1
                worker.state = WORKING
        return self._balance(arrives)

    @cython.locals(task=Task)
    def _choose(self, worker: Worker) -> Task | None:
        """Under the mutex: take a task for a worker where not all wait in one line, or not all workers may take one."""
        staff, backlog = self.staff, self.backlog
        if not backlog.measured:
            backlog.unmix(len(self.room.tasks) > 0)
        if backlog.is_empty():
            return None
        others = shares = True
        if staff.headcount > staff.limit:
            if backlog.waiting() > 0 and backlog.lent.live() == 0 and (self._surplus() > 0 or not self._has_room(0)):
                return None
            # Where only dead ones are left, any of them will do.
            others = staff.has_place(0) or backlog.waiting() == 0
        if backlog.short.tasks and backlog.queue.tasks:
            shares = 2 * (staff.engaged() - staff.counts[AHEAD] - staff.counts[SHORT] - 1) < staff.limit
        task = backlog.next(self.clock, others, shares)
        if task._code != PENDING:
            return task
        task._code = RUNNING
        worker.current = task
        kind = WORKING
        if task._known is not None:
            backlog.count(task, -1)
            self.clock = worker.begun = monotonic()
            worker.known = task._known
            backlog.functions.begin(worker.known, worker.begun)
            if task._short:
                kind = AHEAD if others else SHORT
                backlog.went_first += 1
        elif task._lane is not None and task._lane.lifts_ceiling:
            kind = LENT
        if kind != worker.kind:
            staff.become(worker, kind)
        return task

    def _note_end(self, worker: Worker) -> None:
        """Under the mutex: count a call that is measured, or has a worker that is not simply working, and has ended."""
        known: Any = worker.known
        if known is not None:
            # Its future, which the worker has, refers to it, too.
            worker.known = None
            self.backlog.functions.end(known, worker.begun, monotonic())
        was_left = worker.kind == LEFT
        self.staff.become(worker, WORKING)
        if was_left:
            # Another may be written off in its place.
            self._write_off_abandoned()

    def _rest(self, worker: Worker) -> None:
        """Under the mutex: have a worker without a task park or leave."""
        staff = self.staff
        expired = worker.expired or staff.keep_alive == 0
        worker.expired = False
        if (
            self.closed
            or (staff.headcount > staff.limit and self._surplus() > 0)
            or (expired and staff.headcount > staff.min_workers and staff.counts[PARKED] >= staff.min_spare_workers)
        ):
            staff.leave(worker)
        else:
            # A worker that has waited and has to stay parks without a time limit, and does not wake for nothing.
            worker.keep_alive = -1.0 if expired else staff.keep_alive
            staff.move(worker, PARKED)
        if not self.backlog.queue.tasks:
            self.backlog.newest = False

    @cython.locals(worker=Worker, current=Task)
    def dismiss(self, worker: Worker, error: BaseException | None) -> None:
        """Remove a worker that has not left by itself; `error` becomes the outcome of its task if that is not done."""
        with self.mutex:
            done: Any = worker.current
            worker.current = None
            if done is not None:
                self.tally.failed += error is not None
                self._note_end(worker)
                current = done
                if current._lane is not None:
                    self._vacate(current._lane, error is not None)
            if worker.state != GONE:
                self.staff.leave(worker)
            actions = self._balance(False)
        if done is not None:
            done._drop_call()
            done._conclude(RUNNING, RUNNING, FINISHED, None, error)
        self._perform(actions, None)

    def runs_here(self) -> bool:
        """Return whether the calling thread is one of the workers."""
        worker = here.worker
        return worker is not None and worker.pool is self

    @cython.locals(worker=Worker)
    def wait_counted(self, wait: Callable[..., Any], *args: Any) -> Any:
        """Return `wait(*args)`; a worker that calls this counts as blocked meanwhile, and another may stand in."""
        worker = here.worker
        # Without a task in hand it drops the result of its last one, and what ends with that waits.
        if worker is None or worker.pool is not self or worker.current is None:
            return wait(*args)
        if not cython.compiled:
            _leave_room(ROOM)
        with self.mutex:
            worker.waits += 1
            if worker.waits == 1:
                self.staff.move(worker, BLOCKED)
            actions = self._balance(False)
        try:
            self._perform(actions, None)
            return wait(*args)
        finally:
            with self.mutex:
                worker.waits -= 1
                if worker.waits == 0:
                    self.staff.move(worker, worker.kind)
                actions = self._balance(False)
            self._perform(actions, None)

    # Calls that do not count.

    def abandon(self, scope: Scope, left: bool) -> None:
        """Note that nobody wants what the call of `scope` returns, nor waits for its end if it is `left`."""
        scope.abandoned = monotonic()
        scope.left = left
        if not cython.compiled:
            _leave_room(ROOM)
        with self.mutex:
            self._write_off_abandoned()
            # They may wait for such calls alone.
            self._tell_idlers()
            actions = self._balance(False)
        self._perform(actions, None)

    @cython.locals(worker=Worker)
    def _write_off_abandoned(self) -> None:
        """Under the mutex: workers whose calls nobody waits for do not count, as many as the ceiling at most."""
        staff = self.staff
        most = staff.ceiling if staff.ceiling > 1 else 0
        for worker in staff.workers:
            if worker.kind == LEFT or worker.kind == LONG:
                if staff.written_off > most:
                    staff.become(worker, WORKING)
            elif staff.may_write_off(worker) and is_left(worker):
                staff.become(worker, LEFT)

    @cython.locals(worker=Worker, known=Known)
    def _write_off_long(self, now: float) -> None:
        """Under the mutex: workers do not count that have threads for short calls, and calls that have turned out long.

        As many as there are such threads: where others hold these, too, none is left.
        """
        staff = self.staff
        for worker in staff.workers:
            known: Any = worker.known
            # One whose call was late has no such thing any more.
            if worker.state == SHORT and known is not None and now - worker.begun >= SORTED:
                within = staff.counts[LONG] < staff.short_room and staff.may_write_off(worker)
                if within and not self.backlog.functions.is_short(known, now):
                    staff.become(worker, LONG)

    def hung(self) -> str:
        """Return which abandoned calls have threads, if no more can be written off; else an empty text."""
        staff = self.staff
        with self.mutex:
            exhausted = staff.written_off >= staff.ceiling or staff.ceiling == 1
        crew = self.crew() if exhausted else None
        return "" if crew is None else str(crew.hung())

    # The timekeeper's look.

    @cython.locals(known=Known)
    def look(self, now: float) -> Snapshot | None:
        """End what is late; return what there is to decide at `now` (monotonic seconds), None if nothing is."""
        trash: list[Any] = []
        staff, backlog = self.staff, self.backlog
        with self.mutex:
            collects = hold_collector()
            try:
                self.clock = max(self.clock, min(now, monotonic()))
                self.next_look = inf
                backlog.trim(trash)
                self.room.trim(trash)
                late = backlog.late(now)
                if self.max_wait > 0.0:
                    backlog.choose_end(now, self.max_wait, self.tally.taken)
                moved: Any = None
                if backlog.measured and now >= backlog.sorted:
                    if staff.counts[SHORT] >= staff.short_room:
                        self._write_off_long(now)
                    moved = backlog.changes(now)
                    if moved is not None:
                        backlog.sort(self.room, trash)
                queued = backlog.waiting() + self.room.live()
                # For the others it is decided by what this returns.
                while True:
                    if staff.counts[COMING] > 0 or not self._needs_one_beyond():
                        break
                    self._hire(1)
                actions = self._balance(True, True)
                idle = staff.counts[PARKED] + staff.counts[COMING]
                most = self._most()
                spare = staff.lacks_spare() and not self.closed
                more = backlog.soonest() <= now
                # A tuple until the mutex is free: a named one is made by interpreted code.
                workers = staff.headcount, staff.counts[STARTING], idle, staff.counts[BLOCKED], staff.off
                stands = backlog.stands(now)
                tally = self.tally
                seen = (staff.active() < most, queued, tally.taken, *workers, most, spare, more, tally.expired, stands)
                looks = self.next_look < inf
            finally:
                let_collector(collects)
        self._perform(actions & START, None)
        if late:
            self._refuse(late)
        if moved is not None:
            known = moved
            moved = known if known.short else None
        return Snapshot(*seen, moved) if looks else None

    @cython.locals(task=Task)
    def _refuse(self, late: list[Any]) -> None:
        crew, why = self.crew(), self.hung()
        for each in late:
            task = each
            with self.mutex:
                # One that has been withdrawn has told its submitter so.
                scope = None if task._line is None else task._scope
            if scope is not None:
                each.reject(scope.refusal(crew, why))

    def leave_alone(self) -> float:
        """Have no look just because many workers run, until one is woken; return by when to look for other reasons."""
        with self.mutex:
            self.next_look = inf
            # The timekeeper starts what is missing as it looks.
            self._balance(False, True)
            return self.next_look

    # Ends.

    def close(self, broken: bool = False) -> None:
        """Take no more tasks, also if workers cannot be initialised; workers leave once the queue is empty."""
        with self.mutex:
            self.broken = self.broken or broken
            self.closed = True
            self.staff.admit(ALL)
            self._special()
            self._tell_idlers()
            actions = self._balance(False)
        self._perform(actions, None)

    def desert(self) -> None:
        """Have no thread but the main one wait for the workers or the tasks, from now on."""
        with self.mutex:
            self.deserted = True
            self._tell_idlers()

    def excused(self) -> bool:
        """Return whether the calling thread is not to wait, because the interpreter's exit waits for it."""
        return self.deserted and threading.get_ident() != threading.main_thread().ident

    def _tell_idlers(self) -> None:
        while self.idlers:
            self.idlers.pop().release()

    def forbids(self) -> str | None:
        """Return why the calling thread must not wait for this pool, or None."""
        if here.keeps_time:
            return "ebbpool's timekeeper thread must not block"
        if not cython.compiled and self.mutex._is_owned():
            return "this signal handler or finaliser has interrupted the pool's own code, which waits for it"
        return None

    def stranded(self) -> int:
        """Return how many tasks wait that no worker will take: none is there, or all are blocked on this very pool."""
        with self.mutex:
            helpless = self.staff.headcount <= self.staff.counts[BLOCKED] and not self.broken
            return self.backlog.waiting() + self.room.live() if helpless else 0

    def give_up(self, refusal: BaseException) -> None:
        """Fail all tasks that wait, if no worker will take them; `refusal` is why the system starts none."""
        if self.stranded() == 0:
            return
        # Without the frames in which it was raised, which futures would keep alive.
        refusal.__traceback__ = None
        reason = f"no worker can run this task: {refusal}"
        waiting = self.waiting()
        LOGGER.critical("%d tasks have failed: %s", len(waiting), reason)
        for future in waiting:
            error = thread.BrokenThreadPool(reason)
            error.__cause__ = refusal
            future.reject(error)

    @cython.locals(lane=LaneCore, worker=Worker)
    def await_idle(
        self, timeout: float, lane: LaneCore | None = None, remaining: int = -1, leaving: bool = False
    ) -> bool:
        """Wait up to `timeout` seconds (-1: for ever) until nothing, or nothing of `lane`, is queued or runs.

        With a number of `remaining` workers, until no task waits and there are no more than so many. If `leaving`,
        workers whose calls nobody waits for do not count, nor do tasks that have no others to wait for. Return whether
        that was so: False after `timeout`, and where the thread is `excused`.
        """
        reason = None if timeout == 0 else self.forbids()
        deadline = monotonic() + timeout
        elsewhere = threading.get_ident() != threading.main_thread().ident
        staff = self.staff
        told = True
        while told:
            waiter = allocate_lock()
            waiter.acquire()
            with self.mutex:
                waiting = self.backlog.waiting()
                if lane is not None:
                    over = lane.admitted == 0
                elif remaining < 0:
                    over = waiting == 0 and staff.headcount == staff.counts[PARKED] + staff.on_their_way()
                else:
                    workers = staff.headcount
                    for worker in staff.workers if leaving else ():
                        workers -= is_left(worker)
                    stuck = leaving and staff.active() >= staff.ceiling
                    over = workers <= remaining and (self.broken or stuck or waiting == 0)
                if over or (elsewhere and self.deserted):
                    return over
                if reason is None:
                    self.idlers.append(waiter)
            if reason is not None:
                raise RuntimeError(f"cannot wait for the pool here: {reason}")
            told = False
            try:
                told = waiter.acquire(True, timeout if timeout < 0 else max(0.0, deadline - monotonic()))
            finally:
                if not told:
                    with self.mutex:
                        if waiter in self.idlers:
                            self.idlers.remove(waiter)
        return False

    def call_soon(self, call: Callable[[], None]) -> None:
        """Have `call()` called in the timekeeper's thread; here, if there is none."""
        crew = self.crew()
        try:
            if crew is not None:
                crew.call_soon(call)
                return
        except RuntimeError:
            # There is no such thread, and none can be started.
            pass
        call()

    # What others see.

    def taken(self) -> int:
        """Return how many tasks were taken off the queue so far."""
        with self.mutex:
            return self.tally.taken

    def finds_idle(self) -> bool:
        """Return whether a task that comes now has an idle worker."""
        staff = self.staff
        with self.mutex:
            return len(staff.parked) > 0 and staff.headcount <= staff.limit and self.backlog.waiting() == 0

    def count_reject(self) -> None:
        """Count a task that was refused."""
        with self.mutex:
            self.rejected += 1

    @cython.locals(task=Task, worker=Worker, line=Line, lane=LaneCore)
    def waiting(self, lane: LaneCore | None = None, in_hand: bool = False) -> list[Any]:
        """Return the pending futures, of one lane or of all, oldest first; those that workers have `in_hand` follow.

        Those that wait for room are there, too, but for those whose submitters wait.
        """
        found: list[Any] = []
        last = RUNNING if in_hand else PENDING
        held: list[Any] = []
        queued: list[Any] = []
        running: list[Any] = []
        backlogs: list[Line] = []
        with self.mutex:
            collects = hold_collector()
            try:
                for worker in self.staff.workers:
                    if worker.current is None:
                        continue
                    running.append(worker.current)
                backlog = self.backlog
                for line in (backlog.lent, backlog.front, backlog.short, backlog.queue):
                    queued.extend(line.tasks)
                # This finds every lane in which tasks wait: such a lane has others queued or running.
                for task in [*queued, *running]:
                    if task._lane is None or task._lane.backlog in backlogs:
                        continue
                    backlogs.append(task._lane.backlog)
                for line in backlogs:
                    held.extend(line.tasks)
                for task in list(self.room.tasks):
                    if task in self.submitters:
                        continue
                    queued.append(task)
                for task in [*held, *queued, *running]:
                    if task._code > last or (lane is not None and task._lane is not lane):
                        continue
                    found.append(task)
            finally:
                let_collector(collects)
        return found

    @cython.locals(found=Task)
    def hand_back(self, lane: LaneCore | None) -> tuple[Any, Any, Any, Any] | None:
        """Take off the queue what a worker would take next, of one lane or of all; return its future and its call.

        The future stays pending, for the caller to end it; the pool counts it as cancelled.
        """
        trash: list[Any] = []
        call = None
        # The last reference to a lane may not go under the mutex: a weak dictionary's callback is Python code.
        left: Any = None
        actions = 0
        if not cython.compiled:
            _leave_room(ROOM)
        with self.mutex:
            collects = hold_collector()
            try:
                self.backlog.trim(trash)
                taken: Any = self._next_of(lane)
                if taken is not None:
                    found = taken
                    call = found, found._fn, found._packed(), found._kwargs
                    self._withdraw(found)
                    self.tally.cancelled += 1
                    if found._lane is not None:
                        found._lane.tally.cancelled += 1
                    left, found._lane = found._lane, None
                    found._fn = found._args = found._kwargs = None
                    self._tell_idlers()
                    actions = self._balance(False)
            finally:
                let_collector(collects)
        del left
        self._perform(actions, None)
        return call

    @cython.locals(task=Task, line=Line)
    def _next_of(self, lane: LaneCore | None) -> Task | None:
        """Under the mutex: return what a worker would take next, of one lane or of all; None if nothing waits."""
        backlog = self.backlog
        lines = [backlog.lent, backlog.front, backlog.short, backlog.queue]
        for line in lines if lane is None else [*lines, lane.backlog]:
            if lane is None and line.tasks:
                # No line is copied for its head.
                task = line.tasks[0]
                if task._code == PENDING:
                    return task
            for task in list(line.tasks):
                if task._code == PENDING and (lane is None or task._lane is lane):
                    return task
        return None

    # Forks.

    def reopen(self) -> bool:
        """In a forked child: free the mutex if a thread that stayed with the parent held it; return whether one did."""
        if cython.compiled:
            return bool(free_mutex(self))
        if self.mutex.acquire(False):
            # The mutex was free, or the calling thread holds it.
            self.mutex.release()
            return False
        self.mutex = threading.RLock()
        return True

    @cython.locals(task=Task, mine=Task, lane=LaneCore, worker=Worker)
    def renew(self, error: BaseException) -> None:
        """In a forked child: forget the threads that stayed with the parent, and fail the futures they left behind.

        Callbacks of these futures belong to the parent and do not run here. A worker that itself forked exists in the
        child, and stays. State that a thread may have been changing when the process forked is not trusted.
        """
        caught = self.reopen()
        me = here.worker
        lost = [each for each in self.waiting() if each not in self.submitters]
        lanes: set[LaneCore] = set()
        # They refer to a user's code, and may not go under the mutex.
        kept = self.backlog.functions, self.backlog.measured, self.backlog.times, self.submitters
        stayed = []
        mine: Any = None
        for worker in self.staff.workers:
            if worker.current is not None:
                lost.append(worker.current)
            if worker is me:
                stayed.append(worker)
                mine = worker.current
        if caught:
            _search(self, lost, lanes)
        for task in lost:
            if task._lane is not None:
                lanes.add(task._lane)
        with self.mutex:
            collects = hold_collector()
            try:
                self.backlog.begin()
                self._begin()
                self.staff.begin(stayed)
                for lane in lanes:
                    lane.renew()
                if mine is not None and mine._lane is not None:
                    mine._lane.admitted += 1
                    if mine._lane.lifts_ceiling:
                        self.staff.become(stayed[0], LENT)
                self._special()
            finally:
                let_collector(collects)
        del kept
        for each in lost:
            if each is not mine:
                each.disown(error)


if not cython.compiled:
    Pool = slotted(Pool, None)  # type: ignore[misc]  # the same class


@cython.locals(task=Task, lane=LaneCore)
def _search(pool: Pool, futures: list[Any], lanes: set[LaneCore]) -> None:
    """Add all unfinished futures, and the lanes, of a pool: a thread of the parent may have been moving some."""
    for thing in gc.get_objects():
        # Not isinstance, which reads `__class__` of the object: a proxy would run code of its own.
        if issubclass(type(thing), Task):
            task = thing
            try:
                if task._pool is pool and task._code < CANCELLED:
                    futures.append(task)
            except AttributeError:
                # In the plain core, a future without fields is just being made, and nothing else refers to it.
                continue
        elif type(thing) is LaneCore:
            lane = thing
            if lane.pool is pool:
                lanes.add(lane)


_ORPHANS = Pool(None)
"""The closed pool of futures that no executor made, and of executors whose `__init__` was not called."""
_ORPHANS.close()

orphans = _ORPHANS
