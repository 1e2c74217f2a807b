"""The pool: its mutex, its queue, its parked workers, who may run, and when an idle worker leaves.

One mutex per pool guards the queue, the stack of parked workers and every state change of the pool's futures. Two rules
keep that safe:

* Nothing that could run foreign code happens under the mutex: no call of a task or callback, no wait, and no drop of
  a reference that might be the last one to a user's object.
* What follows from a decision made under the mutex and takes time (to start a worker, to call the timekeeper) is
  returned as an *errand* and done after the mutex is free.
"""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import thread
from concurrent.futures._base import LOGGER
from typing import TYPE_CHECKING, Any, NamedTuple

from ebbpool._core import uncompiled as cython
from ebbpool._core.latch import LockType, allocate_lock
from ebbpool._core.scope import Scope

if not TYPE_CHECKING and cython.compiled:
    import cython
if not cython.compiled:
    # For compiled code pool_c.pxd declares these.
    from ebbpool._clock import monotonic
    from ebbpool._core import future as futures
    from ebbpool._core.future import FutureCore, _here
    from ebbpool._core.known import Functions, Known
    from ebbpool._core.lane import LaneCore
    from ebbpool._core.uncompiled import (
        CANCELLED,
        FINISHED,
        NOTIFIED,
        PENDING,
        RUNNING,
        free_mutex,
        hold_collector,
        let_collector,
        slotted,
    )
    from ebbpool._core.worker import Worker, gap

START = "start"
EXTRA = "extra"
HASTE = "haste"
WATCH = "watch"

COMPACT = 64  # a queue with at least so many dead futures is looked through for them
OVERTAKEN = 0.1  # seconds for which tasks that go first may hold up the others; then the two kinds take turns
SHORT_ROOM = 16  # short calls have one worker of their own, at least, for each so many of the ceiling
SORTED = 0.01  # seconds between looks for calls that have become short or long, to which each task adds `LOOK`
STALE = 0.1  # the queue is stale while its oldest task has waited for longer than this share of `max_wait`
STANDING = 0.1  # the newest tasks go first once every look for so many seconds has found the queue stale
TURN = 8  # while the newest go first, one old task that may wait for longer is taken after so many others
LOOKS = 0.05  # seconds between looks for tasks that have waited for too long, to which each task that waits adds `LOOK`
LOOK = 2e-6
ALL = sys.maxsize  # as many workers as there are: nobody is held back
ROOM = 24  # nested calls that the plain core needs at most to take back a start that failed


class Snapshot(NamedTuple):
    """What the timekeeper learns about a pool."""

    may_grow: bool  # whether another worker may be started
    queued: int
    taken: int  # tasks taken off the queue so far
    workers: int
    starting: int  # those of the workers that have not begun to work
    idle: int
    blocked: int  # those that wait for this very pool, or are written off
    written_off: int
    moved: Known | None  # the function whose calls, by what is known now, go first


class Task(NamedTuple):
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

    running: list[Task]
    oldest: tuple[float, tuple[Any, Any]] | None  # since when that waits (monotonic seconds), and its call
    threads: list[threading.Thread]
    counts: dict[str, float]


def _leave_room(depth: int) -> None:
    """Raise RecursionError, in the plain core, if `depth` nested calls would raise it; nothing has been changed yet."""
    if depth > 0:
        _leave_room(depth - 1)


def _call_of(future: FutureCore, known: bool) -> tuple[Any, Any]:
    """Return what a future calls and its arguments; (None, None) if that is not to be `known`."""
    args = future._packed() if known else None
    # Read last: under a GIL the worker drops the call meanwhile, and `_fn` first.
    return future._fn if known else None, args


def _age(future: FutureCore) -> float:
    return future._queued_at


def _is_lent(future: FutureCore) -> bool:
    """Return whether a thread beyond the ceiling is lent to this very task."""
    return future._lane is not None and future._lane.lifts_ceiling


def _is_left(worker: Worker) -> bool:
    """Return whether nobody waits for the call that a worker runs; under the mutex."""
    current: Any = worker.current
    # Read once: under a GIL the worker drops it meanwhile.
    scope = None if current is None or current._code != RUNNING else current._scope
    return scope is not None and scope.left


class Pool:
    """What an executor and its workers share: the queue, the parked workers and the counts. Times are monotonic."""

    def __init__(self, crew: Any) -> None:
        if not cython.compiled:
            # Re-entrant: a finaliser or a signal handler may submit while its own thread is in a critical section.
            self.mutex: Any = threading.RLock()
        # Returns the `Crew`. Weakly, or there would be a cycle: executor and threads hold the crew, the crew the pool.
        self.crew: Callable[[], Any] = (lambda: None) if crew is None else weakref.ref(crew)
        # Right to about a tick while tasks wait, and when a worker wakes up: `_arrange`, such workers and the
        # timekeeper set it. A clock call per task would be a tenth of its cost.
        self.clock: float = 0.0
        self.min_workers: int = 0
        self.min_spare_workers: int = 0
        self.ceiling: int = 1  # the most workers that the settings allow
        self.patience: float = 10.0
        self.max_queue: int = -1
        self.max_wait: float = 0.0
        self.slow_start: bool = False
        self.rejecting: bool = False
        self.contextual: bool = False  # whether tasks run in their submitter's context
        self.wrapping: bool = False  # whether `_prepare` does more: for contexts or `record`
        self.special: bool = False  # whether `push` has to look closer
        self.closed: bool = False
        self.broken: bool = False
        self.deserted: bool = False  # whether threads are excused from waiting: the exit waits for them, not for this
        self.every: int = 0  # one task out of so many is measured, and told to `record`
        self.record: Callable[[float, float], object] | None = None
        self.skip: int = 0  # tasks before the next that is measured; threads that submit at once may miscount
        self.crowd: int = ALL  # if more workers run, the timekeeper looks although no task waits: they may all compute
        self.passed: bool = False  # whether one that goes first was taken since the last turn of one overtaken
        self.turned_at: float = 0.0  # when that turn was
        self.short_first: bool = True
        self.sorted: float = 0.0  # when it is looked which waiting calls are short
        self.went_first: int = 0
        self.sought: float = 0.0  # when all that waits is looked through for those that have waited for too long
        self.turned: int = -TURN  # `taken` when an old one last had its turn, see `_choose_end`
        self.taken: int = 0
        self.failed: int = 0
        self.cancelled: int = 0
        self.rejected: int = 0
        self.expired: int = 0
        self.started: int = 0
        self._begin([])

    def _begin(self, workers: list[Worker]) -> None:
        """Start without a task, and with the workers that there are."""
        self.workers: list[Worker] = workers
        self.front: deque[FutureCore] = deque()  # those that were to go first
        self.short: deque[FutureCore] = deque()  # calls of loops that are known to be short, oldest first
        self.queue: deque[FutureCore] = deque()
        self.enqueue: Callable[[FutureCore], None] = self.queue.append
        self.oldest_first: Callable[[], FutureCore] = self.queue.popleft
        self.dequeue: Callable[[], FutureCore] = self.oldest_first
        # Whether one must look closer which task is next than at the head of `queue`: always, where others wait.
        self.mixed: bool = False
        self.functions: Functions = Functions()
        self.measured: set[Known] = set()  # those of which calls wait
        self.behind: dict[int, int] = {}  # how many calls of one asyncio task wait in `queue`, if any do
        self.dead: int = 0  # futures in `front`, `short` and `queue` that are done: cancelled, or failed by `reject`
        self.parked: list[Worker] = []
        # What waits for room in a full queue, in order: the locks of blocked submitters, and held futures.
        self.seekers: OrderedDict[LockType | FutureCore, None] = OrderedDict()
        self.promised: list[LockType] = []  # the locks of submitters for whom a place is kept
        self.idlers: list[LockType] = []
        self.timed: bool = False  # whether tasks wait that may do so for a limited time only
        self.backlogs: list[LaneCore] = []  # the lanes in which such tasks wait
        self.stale: float = 0.0  # since when the oldest has waited for too long at every look; 0 if it has not
        self.allowed: int = ALL  # workers that may have a task in hand, or be on their way to one, and are not blocked
        self.max_workers: int = self.ceiling  # and one more for each task of a lane that lifts it
        self.limit: int = self.ceiling  # the lesser of these two: up to so many workers all may take tasks
        # More of them, for short calls.
        self.short_room: int = self._short_room()
        self.headcount: int = len(workers)
        self.starting: int = 0
        self.roused: int = 0  # workers that were woken and have not come to the queue yet
        self.searching: bool = False  # whether a woken or newly started worker is on its way to the queue
        self.blocked: int = 0
        # Workers that are counted as blocked, because nobody waits for their calls, or because these have threads for
        # short calls and have turned out long. As many as the ceiling at most; none in a pool of one, where people
        # count on one call at a time.
        self.written_off: int = 0
        self.ahead: int = 0  # workers with a short call in hand
        self.shorts: int = 0  # workers that are not blocked, with a short call in hand for which others had no place
        self.covered: bool = False  # whether the timekeeper watches the pool, so that it need not be called
        self.at_ceiling: bool = False  # whether the timekeeper looks rarely; it is called once the pool may grow
        self.minded: bool = False  # whether the timekeeper looks at a crowd only; it is to be called once a task waits
        self.turned_away: bool = False  # whether a task has found the queue full since the timekeeper looked

    def configure(
        self,
        min_workers: int,
        max_workers: int,
        min_spare_workers: int,
        patience: float,
        max_queue: int,
        rejecting: bool,
        max_wait: float,
    ) -> None:
        """Apply new settings; `patience` and `max_queue` below zero mean without limit, and `max_wait` of zero."""
        with self.mutex:
            self.min_workers = min_workers
            self._lend(max_workers - self.ceiling)
            self.ceiling = max_workers
            self.short_room = self._short_room()
            self._write_off_abandoned()
            self.max_wait = max_wait
            self.stale = 0.0
            self.dequeue = self.oldest_first
            self.min_spare_workers = min_spare_workers
            self.patience = patience
            self.max_queue = max_queue
            self.rejecting = rejecting
            self._special()
            self._uncover()
            # Woken, so that they apply the new `patience` and `min_workers` when they park again.
            self._rouse_all()
            self._make_room()
            errand = self._staff()
            if errand is None and self.headcount > 0:
                errand = self._spare()
        self._run(errand, None)

    def _short_room(self) -> int:
        # In a pool of one all keep their order.
        return max(1, self.ceiling // SHORT_ROOM) if self.short_first and self.ceiling > 1 else 0

    def carry_context(self) -> None:
        """Run tasks in copies of their submitter's context from now on."""
        self.contextual = self.wrapping = True

    def observe(self, every: int, record: Callable[[float, float], object] | None) -> None:
        """Have `record(seconds waited, seconds run)` called in the worker after one in `every` tasks; 0 for none."""
        skip = gap(every)
        with self.mutex:
            # The last `record` may end with the call, but not under the mutex.
            before, self.record = self.record, record
            self.every = every
            self.skip = skip
            self.wrapping = self.contextual or every > 0
        del before

    def push(
        self,
        future: FutureCore,
        first: bool = False,
        waiter: LockType | None = None,
        in_line: bool = False,
    ) -> str | None:
        """Queue a pending task, at the head if it is to be `first`, and make sure that a worker will take it.

        A submitter that waited for room with `waiter` takes the place that was kept for it. A task that is to wait
        `in_line` is held among the seekers while the queue is full; short calls have room of their own.

        Return why the task was not taken ("closed", "broken" or "full"), or None. Raise RuntimeError if there is no
        worker and none could be started.
        """
        errand = None
        lane = future._lane
        wait = lane.max_wait if lane is not None and lane.max_wait != 0.0 else self.max_wait
        if wait > 0.0:
            scope = future._scope or Scope()
            scope.restrict(wait)
            future.limit(scope)
        with self.mutex:
            if waiter is not None and waiter in self.promised:
                self.promised.remove(waiter)
            if future._code != PENDING:
                return None
            self.timed = self.timed or future._latest > 0.0
            refusal = self._refusal() if self.special else None
            grows = refusal == "grow"
            if grows:
                refusal = None
            elif refusal in (None, "full") and future._known is not None and self._goes_first(future):
                refusal = "full" if not in_line and self._short_full() else None
            holds = False
            if lane is not None:
                refusal = lane.enlist(future, refusal)
                holds = refusal is None and future._held
            if refusal is not None and refusal != "full":
                return refusal
            if holds:
                errand = self._keep_time(future)
            elif refusal is None:
                self._enter(future, first)
            elif in_line:
                refusal = None
                future._held = True
                self.seekers[future] = None
                if future._known is not None:
                    future._short = False
                    self._count(future, 1)
            else:
                self.turned_away = True
            try:
                if grows and not holds:
                    self._reserve(1)
                    errand = HASTE
                elif not holds and not self.searching and (self.parked or not self.covered or self._wants_more()):
                    errand = self._arrange()
            except BaseException:
                if refusal is None:
                    self._withdraw(future)
                raise
            future._queued_at = self.clock
        if errand is not None:
            self._run(errand, future)
        return refusal

    def _enter(self, future: FutureCore, first: bool) -> None:
        future._held = False
        future._queued_at = self.clock
        lane = future._lane
        if not first:
            if future._known is None:
                self.enqueue(future)
            else:
                self._line_up(future)
            return
        self.mixed = True
        if lane is not None and not lane.lifts_ceiling:
            # Tasks of a lane keep their order.
            self.front.append(future)
            return
        # Ahead of all, but for those that a thread is lent to.
        place = 0
        while place < len(self.front) and _is_lent(self.front[place]):
            place += 1
        self.front.insert(place, future)

    def _keep_time(self, future: FutureCore) -> str | None:
        """Under the mutex: if a task may not wait in its lane for ever, have the timekeeper look; return an errand."""
        lane = future._lane
        if lane is None or future._latest == 0.0:
            return None
        if lane not in self.backlogs:
            self.backlogs.append(lane)
        if self.covered or self.minded:
            return None
        self.minded = True
        return WATCH

    @cython.locals(known=Known, goes=cython.bint)
    def _line_up(self, call: FutureCore) -> None:
        """Under the mutex: queue a call that is measured, with the short ones if it is known to be one.

        Of a function of which nothing is known one call at a time is taken for short. No call goes ahead of one of the
        same asyncio task.
        """
        known: Any = call._known
        # Where calls may change their places, it has to be known which is older.
        self.clock = monotonic()
        goes = self._goes_first(call)
        call._queued_at = self.clock
        self.mixed = True
        call._short = goes
        if goes:
            known.tried = True
            self.short.append(call)
        else:
            self.enqueue(call)
        self._count(call, 1)

    @cython.locals(known=Known)
    def _count(self, call: FutureCore, count: int) -> None:
        """Under the mutex: count a measured call that waits (1), queued or held, or no longer (-1)."""
        known: Any = call._known
        known.waiting += count
        if known.waiting > 0:
            self.measured.add(known)
        else:
            self.measured.discard(known)
        if not call._short:
            self._hold_others(call, count)

    def _hold_others(self, call: FutureCore, count: int) -> None:
        """Under the mutex: have later calls of its task wait behind one that is not short (1), or no longer (-1)."""
        if call._task != 0:
            left = self.behind.get(call._task, 0) + count
            if left > 0:
                self.behind[call._task] = left
            else:
                self.behind.pop(call._task, None)

    def _give_up_place(self, call: FutureCore) -> None:
        """Under the mutex: take a held call from the seekers, if it is there."""
        if call in self.seekers:
            del self.seekers[call]
            self._leave_line(call)

    def _leave_line(self, call: FutureCore) -> None:
        """Under the mutex: count off a call that ends before its turn, if it is measured."""
        if call._known is not None:
            self._count(call, -1)
            self._untry(call)

    @cython.locals(known=Known)
    def _untry(self, call: FutureCore) -> None:
        """Under the mutex: let another call be taken for short in place of one that ends before its turn."""
        known: Any = call._known
        if call._short:
            known.tried = False

    @cython.locals(known=Known)
    def _goes_first(self, call: FutureCore) -> bool:
        """Under the mutex: return whether a measured call goes first, by what is known now."""
        known: Any = call._known
        if known.waiting == 0:
            # Those of one function that wait do so in one line.
            known.short = self.functions.is_short(known, self.clock)
        if self._owes():
            # One that is not measured may be of the same task. The next look moves this one up.
            known.short = False
            return False
        return self._may_lead(call)

    @cython.locals(known=Known)
    def _may_lead(self, call: FutureCore) -> bool:
        """Under the mutex: return whether a measured call may go ahead, by what was known at the last look."""
        known: Any = call._known
        if call._task in self.behind:
            return False
        return known.short or (known.ended == 0.0 and not known.tried)

    @cython.locals(oldest=FutureCore)
    def _owes(self) -> bool:
        """Under the mutex: return whether the oldest call is one that has found an idle worker, and is not measured."""
        oldest: Any = self.queue[0] if self.queue else None
        return oldest is not None and oldest._looped and oldest._known is None and oldest._short

    def _short_full(self) -> bool:
        """Return whether the queue has no room for another short call: it has as much as for all others."""
        return 0 <= self.max_queue <= len(self.short)

    @cython.locals(known=Known, future=FutureCore, short=cython.bint, moves=cython.bint)
    def _sort(self, now: float, trash: list[Any]) -> Known | None:
        """Under the mutex: have waiting calls go first that are known to be short by now, and the others no longer.

        Return the function whose calls have moved up, or one of them.
        """
        self.sorted = now + SORTED + LOOK * self._waiting()
        if self.shorts >= self.short_room:
            self._write_off_long(now)
        moved: Any = None
        moves = False
        for known in self.measured:
            short = self.functions.is_short(known, now)
            if short != known.short:
                known.short = short
                moves = True
                if short:
                    moved = known
        if not moves:
            return None
        for future in self.short:
            # One that was taken for short may have to stay behind another of its task: it is chosen anew.
            if future._known is not None and future._code == PENDING and future._known.ended == 0.0:
                self._untry(future)
        held: list[Any] = [each for each in self.seekers if type(each) is not LockType]
        lines: list[Any] = [*self.short, *self.queue, *held]
        lines.sort(key=_age)
        trash.append(lines)
        self.short.clear()
        self.queue.clear()
        self.behind.clear()
        for future in lines:
            known = future._known
            if known is None or future._code != PENDING:
                if not future._held:
                    self.queue.append(future)
                continue
            future._short = self._may_lead(future)
            if future._short:
                known.tried = True
                if future._held:
                    del self.seekers[future]
                    future._held = False
                    self.mixed = True
                self.short.append(future)
            else:
                if not future._held:
                    self.queue.append(future)
                self._hold_others(future, 1)
        result: Known | None = moved
        return result

    @cython.locals(oldest=FutureCore, first=FutureCore, future=FutureCore, others=cython.bint)
    def _next(self, worker: Worker) -> FutureCore:
        """Under the mutex: take a task for `worker` where not all wait in one line.

        First one that a thread is lent to: all others may wait for that one. A call that has found an idle worker is
        not measured, and gets that worker. Then those that were to go first, then short calls. But once the oldest of
        the others has waited for `OVERTAKEN`, these and the others take turns. Where the others have half of the
        threads, short calls give them a turn only each `OVERTAKEN`: they may all wait for what a short call frees.
        """
        oldest: Any = None
        first: Any = None
        others = True
        if self._lends():
            self.passed = True
            future = self.front.popleft()
        else:
            others = self._has_place(0)
            if others and self._owes():
                return self.queue.popleft()
            line = self.front if self.front and others else self.short
            # Where the others have half of the threads, they have a turn once in a while.
            shares = line is self.front or 2 * (self._engaged() - self.ahead - 1) < self.limit
            turns = self.passed and (shares or self.clock - self.turned_at >= OVERTAKEN)
            if line and self.queue and others and turns:
                oldest, first = self.queue[0], line[0]
                # Calls of one task of a loop keep their order: what came later has not been overtaken.
                later = oldest._looped and first._looped and oldest._queued_at >= first._queued_at
                if not later and self.clock - oldest._queued_at >= OVERTAKEN:
                    if line is self.front and self.short:
                        # The turn is for the oldest, or a call might overtake a short one of the same task.
                        first = self.short[0]
                        if first._queued_at < oldest._queued_at:
                            oldest = first
                    line = self.short if oldest is first else self.queue
                    self.turned_at = self.clock
                    # A cancelled task does not use up the turn.
                    self.passed = oldest._code != PENDING
            elif line:
                self.passed = True
            if not line:
                future = self.dequeue()
            else:
                newest = line is self.short and self.dequeue is not self.oldest_first
                future = line.pop() if newest else line.popleft()
        if future._known is not None and future._code == PENDING:
            self._count(future, -1)
            self.clock = worker.begun = monotonic()
            worker.known = future._known
            worker.noted = True
            self.functions.begin(worker.known, worker.begun)
            if future._short:
                worker.ahead = True
                self.ahead += 1
                self.went_first += 1
            if not others:
                worker.short = True
                self.shorts += 1
        return future

    @cython.locals(known=Known)
    def _note_end(self, worker: Worker) -> None:
        """Under the mutex: count a call that is measured or written off, and has ended."""
        worker.noted = False
        if worker.written_off:
            self._write_off(worker, -1)
            # Another may be written off in its place.
            self._write_off_abandoned()
        if worker.ahead:
            worker.ahead = False
            self.ahead -= 1
        if worker.short:
            worker.short = False
            self.shorts -= 1
        known: Any = worker.known
        if known is not None:
            # Its future, which the worker has, refers to it, too.
            worker.known = None
            self.functions.end(known, worker.begun, monotonic())

    @cython.locals(future=FutureCore, since=cython.double)
    def _make_room(self) -> None:
        """Under the mutex: give free places in the queue to the seekers that have waited longest."""
        while self.seekers and self._refusal() != "full":
            collects = hold_collector()
            try:
                seeker, _ = self.seekers.popitem(False)
            finally:
                let_collector(collects)
            if type(seeker) is LockType:
                # The place is kept until that thread has come for it.
                self.promised.append(seeker)
                seeker.release()
            else:
                future = seeker
                if future._known is not None:
                    self._count(future, -1)
                # No errand is needed: `snapshot` counts seekers, so the timekeeper watches already and goes on.
                # It keeps its age, by which those of one task are in order.
                since = future._queued_at
                self._enter(future, False)
                future._queued_at = since
            if self.headcount == 0 and not self.closed:
                # `_refusal` lets everything into a pool without workers, so one seeker is enough: a worker is started
                # for it, and makes room for the others. A closed pool has no seekers: who shuts it down looks once.
                break

    def _vacate(self, lane: LaneCore, failed: bool) -> None:
        """Under the mutex: count a task of `lane` that has left the pool, and admit the next."""
        lane.leave()
        lane.taken += 1
        if failed:
            lane.failed += 1
        self._admit(lane)

    def _admit(self, lane: LaneCore) -> None:
        if lane.backlog and lane.admitted < lane.limit:
            # With an empty queue nobody has set it since the lane's last task was taken.
            self.clock = monotonic()
        while lane.admitted < lane.limit and lane.backlog:
            future = lane.backlog.popleft()
            if future._code == PENDING:
                lane.enter()
                self._enter(future, lane.first)
            else:
                # A cancelled future may not be dropped under the mutex. It goes to the queue as a dead one, where a
                # worker, the timekeeper or `stats` drops it.
                lane.dead -= 1
                future._held = False
                future._queued_at = self.clock
                self.enqueue(future)
                self.dead += 1
        if lane.admitted == 0:
            self._tell_idlers()

    def _refusal(self) -> str | None:
        """Under the mutex: return why a task cannot be queued, or None; "grow" if it can, with another worker."""
        if self.broken:
            return "broken"
        if self.closed:
            return "closed"
        if self.max_queue < 0:
            return None
        waiting = self._waiting() - len(self.short) + len(self.promised)
        if waiting - self._coming() < self.max_queue or self.headcount == 0:
            return None
        # Where a task must not wait, or would be refused, the pool grows at once, without asking the timekeeper.
        most = min(self.max_workers, max(self.allowed, self.min_workers))
        if (self.rejecting or self.max_queue == 0) and self.headcount - self.blocked < most:
            return "grow"
        return "full"

    def _coming(self) -> int:
        """Return how many tasks idle or arriving workers are about to take: these do not count as waiting."""
        arriving = self.roused + self.starting
        # Surplus workers take none.
        return max(0, min(len(self.parked) + arriving - self._surplus(), self.limit - self._engaged() + arriving))

    def _arrange(self) -> str | None:
        """Under the mutex: find a worker for the waiting tasks; return the errand that is needed for it, or None."""
        self.clock = monotonic()
        if self.searching:
            return None
        if self.parked and self._has_room(1):
            return self._rouse()
        self.at_ceiling = self.headcount - self.blocked >= self._most()
        if not self.at_ceiling and (
            self.headcount <= self.blocked or self.headcount < self.min_workers or self._wants_more()
        ):
            self._reserve(1)
            if self.slow_start:
                # The initializer may take any time, so the pool must not wait for this worker to arrive.
                self.covered = True
                return EXTRA
            self.searching = True
            return START
        if self.covered:
            return None
        self.covered = True
        return WATCH

    def _most(self) -> int:
        """Return how many workers there may be that are not blocked."""
        if self._lends() and self.starting + self.roused == 0:
            # Those that are too many, since the ceiling was lowered, have no part in what is lent.
            return max(self.max_workers, self.headcount - self.blocked + 1)
        return self.max_workers + self.short_room if self.short else self.max_workers

    def _lends(self) -> bool:
        """Return whether a task waits that a thread is lent to; it is the first of all."""
        place = 0
        while place < len(self.front):
            first = self.front[place]
            if not _is_lent(first):
                break
            if first._code == PENDING:
                return True
            place += 1
        return False

    def _wants_more(self) -> bool:
        """Return whether a call waits at the ceiling for which there may be a worker beyond it."""
        return self.max_workers <= self.headcount - self.blocked < self._most()

    def _staff(self) -> str | None:
        """Under the mutex: do what `_arrange` does if tasks wait."""
        return self._arrange() if self._waiting() > 0 and not self.broken else None

    def _rouse(self) -> str | None:
        """Under the mutex: wake the worker that parked last; return an errand or None."""
        try:
            worker = self.parked.pop()
        except IndexError:
            # A signal handler has submitted a task meanwhile, and has woken that worker.
            return None
        worker.searching = True
        self.searching = True
        # What `_unpark` does, without the call: in the plain core a call could raise RecursionError, with the worker
        # off the stack and not woken.
        worker.parked = False
        worker.fresh = True
        self.roused += 1
        worker.bell.release()
        return self._spare()

    def _spare(self) -> str | None:
        """Return the errand that has the timekeeper look, if spare workers are missing or many run, and it does not."""
        if self.covered:
            return None
        if self._lacks_spare():
            self.covered = True
            return WATCH
        if self.headcount <= self.crowd or self.minded or self._engaged() <= self.crowd:
            return None
        self.minded = True
        return WATCH

    def _engaged(self) -> int:
        """Return how many workers have a task in hand, or are on their way to one; the blocked do not count."""
        return self.headcount - len(self.parked) - self.blocked

    def _has_place(self, more: int) -> bool:
        """Return whether one may be taken that is neither short nor lent a thread; see `_has_room`."""
        return self._engaged() + more - self.shorts <= self.limit

    def _has_room(self, more: int) -> bool:
        """Return whether a task may be taken by a worker: the calling one, or a parked one that is one `more`."""
        if self.headcount <= self.limit or self._lends():
            return True
        # Where workers are held back, one short call may run beside them.
        room = 1 if self.allowed < self.ceiling else self.short_room
        return (len(self.short) > 0 and self.shorts < room) or self._has_place(more)

    def admit(self, allowed: int) -> None:
        """Let `allowed` workers run at a time (`ALL`: every one); those beyond it park as their tasks end."""
        errand = None
        with self.mutex:
            # The workers of a closed pool leave instead of parking.
            self.allowed = ALL if self.closed else max(1, allowed)
            self.limit = min(self.allowed, self.max_workers)
            if self._waiting() > 0 and self.parked and not self.searching and self._has_room(1):
                errand = self._rouse()
        self._run(errand, None)

    def leave_alone(self) -> bool:
        """Have the timekeeper called again if a crowd's workers are woken; False if it has to look at `backlogs`."""
        with self.mutex:
            self.minded = len(self.backlogs) > 0
            return not self.minded

    def _rouse_all(self) -> None:
        for worker in self.parked:
            self._unpark(worker)
            worker.bell.release()
        self.parked.clear()

    def _unpark(self, worker: Worker) -> None:
        worker.parked = False
        worker.fresh = True
        self.roused += 1

    def _run(self, errand: str | None, future: FutureCore | None) -> None:
        """Do an errand, not under the mutex; withdraw `future` if no worker can be started for it."""
        if errand is None:
            return
        if errand is WATCH:
            self._watch()
            return
        try:
            crew = self.crew()
            if crew is None:
                raise RuntimeError("the executor is gone")
            interruption = crew.start(errand is START)
        except BaseException as error:
            # No thread was started, whatever the reason: the place reserved for it must not be lost.
            withdrawn = self.unreserve(errand is START, future, errand is HASTE)
            if withdrawn or not isinstance(error, (RuntimeError, MemoryError)):
                raise
            return
        finally:
            if errand is EXTRA:
                # `_arrange` has set `covered`, on which later submits rely.
                self._watch()
        if interruption is not None:
            try:
                raise interruption
            finally:
                # The traceback holds this frame.
                interruption = None

    def _watch(self) -> None:
        crew = self.crew()
        if crew is None:
            return
        try:
            crew.watch()
        except (RuntimeError, MemoryError) as refusal:
            # There is no timekeeper that would try again.
            with self.mutex:
                self.covered = self.minded = False
            self.give_up(refusal)
        except BaseException:
            # A signal handler's error may have come before the timekeeper knew of this pool, which is `covered`.
            try:
                crew.watch()
            except BaseException:
                with self.mutex:
                    self.covered = self.minded = False
            raise

    def _waiting(self) -> int:
        waiting = len(self.queue) - self.dead
        return waiting + len(self.front) + len(self.short) if self.mixed else waiting

    def _lacks_spare(self) -> bool:
        return len(self.parked) + self.starting < self.min_spare_workers and not self.closed

    def _special(self) -> None:
        self.special = self.closed or self.max_queue >= 0 or self.max_wait > 0.0

    def _surplus(self) -> int:
        """Return how many workers should leave as soon as they have no task in hand."""
        # Those beyond the ceiling stay as long as calls wait of which some may be short.
        room = self.short_room if self.measured else 0
        return max(0, self.headcount - self.blocked - self.max_workers - room)

    def _uncover(self) -> None:
        if self.at_ceiling:
            self.at_ceiling = False
            self.covered = False

    def _lend(self, places: int) -> None:
        self.max_workers += places
        self.limit = min(self.allowed, self.max_workers)
        if places > 0:
            self._uncover()

    def _reserve(self, count: int) -> None:
        if not cython.compiled:
            _leave_room(ROOM)
        self.headcount += count
        self.starting += count

    def reserve(self, count: int) -> int:
        """Reserve places for up to `count` workers about to be started; return how many."""
        with self.mutex:
            room = self.max_workers + self.blocked - self.headcount
            if self.closed:
                room = min(room, self._waiting())
            count = max(0, min(count, room))
            self._reserve(count)
        return count

    def unreserve(self, searching: bool, future: FutureCore | None, bounded: bool) -> bool:
        """Give back the place of a worker that could not be started; the timekeeper tries again while tasks wait.

        Return whether `future` was taken off the queue, because no worker is left or it has no place there (`bounded`).
        """
        with self.mutex:
            self.headcount -= 1
            self.starting -= 1
            self._tell_idlers()
            if searching:
                self.searching = False
            self._uncover()
            withdrawn = future is not None and future._code == PENDING and (bounded or self.headcount == 0)
            if withdrawn and future is not None:
                self._withdraw(future)
            # A place has become free, and there may be no worker that would give it to the seekers.
            if self.seekers:
                self._make_room()
            watch = self._waiting() > 0 and not self.covered
            self.covered = self.covered or watch
        if watch:
            self._watch()
        return withdrawn

    def _withdraw(self, future: FutureCore) -> None:
        """Take back `_enter`, or a place among the seekers."""
        if future._held:
            self._give_up_place(future)
            return
        for line in (self.front, self.short, self.queue):
            if future in line:
                line.remove(future)
                break
        self._leave_line(future)
        future._held = True
        if future._lane is not None:
            future._lane.leave()
            self._admit(future._lane)

    def enlist(self, worker: Worker) -> None:
        """Count a worker for which a place was reserved, before its thread starts."""
        with self.mutex:
            self.workers.append(worker)
            self.started += 1

    def delist(self, worker: Worker) -> None:
        """Take back `enlist`, if it was called, because the worker's thread could not be started."""
        with self.mutex:
            if worker in self.workers:
                self.workers.remove(worker)
                self.started -= 1

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
            errand = self._staff()
        self._run(errand, None)

    def _write_off_abandoned(self) -> None:
        """Under the mutex: count workers whose calls nobody waits for as blocked, as many as the ceiling at most."""
        most = self.ceiling if self.ceiling > 1 else 0
        for worker in self.workers:
            if worker.written_off:
                if self.written_off > most:
                    self._write_off(worker, -1)
            elif self._may_write_off(worker) and _is_left(worker):
                current: Any = worker.current
                if not _is_lent(current):
                    self._write_off(worker, 1)

    @cython.locals(worker=Worker, known=Known)
    def _write_off_long(self, now: float) -> None:
        """Under the mutex: count workers off that have threads for short calls, and calls that have turned out long.

        As many as there are such threads: where others hold these, too, none is left.
        """
        left = self.short_room
        for worker in self.workers:
            left -= worker.short and worker.written_off
        for worker in self.workers:
            if left > 0 and worker.short and now - worker.begun >= SORTED and self._may_write_off(worker):
                known: Any = worker.known
                if not self.functions.is_short(known, now):
                    self._write_off(worker, 1)
                    left -= 1

    def _may_write_off(self, worker: Worker) -> bool:
        return not worker.written_off and self.written_off < self.ceiling and self.ceiling > 1

    def _write_off(self, worker: Worker, places: int) -> None:
        """Under the mutex: count a worker as blocked because of an abandoned call (1), or no longer (-1)."""
        self.written_off += places
        worker.written_off = places > 0
        worker.waits += places
        if worker.waits == worker.written_off:
            self._block(worker, places)
        if places > 0:
            worker.noted = True

    def hung(self) -> str:
        """Return which abandoned calls have threads, if no more can be written off; else an empty text."""
        crew = self.crew() if self.written_off >= self.ceiling or self.ceiling == 1 else None
        return "" if crew is None else str(crew.hung())

    def _arrived(self, worker: Worker) -> str | None:
        """Under the mutex: count a worker that was on its way and has taken a task; return an errand or None."""
        self._clear(worker)
        self.clock = monotonic()
        if self._waiting() > 0 and (self.parked or not self.covered or self._wants_more()):
            return self._arrange()
        return self._spare()

    def _clear(self, worker: Worker) -> None:
        if worker.starting:
            self.starting -= 1
        elif worker.fresh:
            self.roused -= 1
        if worker.searching:
            self.searching = False
        worker.starting = worker.searching = worker.fresh = worker.expired = False

    def _rest(self, worker: Worker) -> str | None:
        """Under the mutex: have a worker without a task park or leave; return an errand or None."""
        expired = worker.expired or self.patience == 0
        self._clear(worker)
        worker.leaving = (
            self.closed
            or (self.headcount > self.limit and self._surplus() > 0)
            or (expired and self.headcount > self.min_workers and len(self.parked) >= self.min_spare_workers)
        )
        if worker.leaving:
            self._remove(worker)
        else:
            # A worker that has waited and has to stay parks without a time limit, and does not wake for nothing.
            worker.patience = -1.0 if expired else self.patience
            worker.parked = True
            self.parked.append(worker)
        if not self.queue:
            self.dequeue = self.oldest_first
            if self.mixed:
                self.mixed = len(self.front) + len(self.short) > 0
        if self.seekers:
            self._make_room()
        self._tell_idlers()
        return self._staff()

    def _remove(self, worker: Worker) -> None:
        self.workers.remove(worker)
        self.headcount -= 1
        self._tell_idlers()
        self._uncover()

    def expire(self, worker: Worker) -> None:
        """Take a worker whose patience is over off the stack; if it has just been woken, wait for its bell."""
        with self.mutex:
            woken = not worker.parked
            if not woken:
                self.parked.remove(worker)
                self._unpark(worker)
                worker.expired = True
        if woken:
            worker.bell.acquire()

    def bury(self, future: FutureCore, code: int, late: bool) -> None:
        """Under the mutex: count a queued or held future that is done before its turn, `late` or not; admit others."""
        lane = future._lane
        if future._fn is None:
            # It was counted as it was handed back.
            return
        if code == NOTIFIED:
            self.cancelled += 1
            if lane is not None:
                lane.cancelled += 1
        else:
            self.taken += 1
            self.failed += 1
            if lane is not None:
                lane.taken += 1
                lane.failed += 1
            if late:
                self._count_expired(future)
        if future._held:
            if lane is not None:
                lane.dead += 1
            elif self.seekers:
                self._give_up_place(future)
        else:
            self.dead += 1
            self._leave_line(future)
            if lane is not None:
                lane.leave()
                self._admit(lane)
            if self.seekers:
                self._make_room()
        self._tell_idlers()

    def sweep(self, future: FutureCore) -> None:
        """Drop dead futures from the queue, or from a future's lane, where they are many and at least half of them."""
        if self.dead >= COMPACT:
            self._compact(None)
        if future._lane is not None and future._lane.dead >= COMPACT:
            self._compact(future._lane)

    @cython.locals(future=FutureCore)
    def _compact(self, lane: LaneCore | None) -> None:
        # Made before the mutex is taken: that may run the garbage collector.
        trash: list[FutureCore] = []
        with self.mutex:
            collects = hold_collector()
            try:
                lines = [self.front, self.short, self.queue] if lane is None else [lane.backlog]
                dead = self.dead if lane is None else lane.dead
                if dead < COMPACT or dead * 2 < sum(map(len, lines)):
                    return
                for line in lines:
                    for _ in range(len(line)):
                        future = line.popleft()
                        if future._code == PENDING:
                            line.append(future)
                        else:
                            trash.append(future)
                if lane is None:
                    self.dead = 0
                else:
                    lane.dead = 0
            finally:
                let_collector(collects)

    def runs_here(self) -> bool:
        """Return whether the calling thread is one of the workers."""
        worker = _here.worker
        return worker is not None and worker.pool is self

    @cython.locals(worker=Worker, leaver=Worker)
    def wait_counted(self, wait: Callable[..., Any], *args: Any) -> Any:
        """Return `wait(*args)`; a worker that calls this counts as blocked meanwhile, and another may stand in."""
        if not self.runs_here():
            return wait(*args)
        worker = _here.worker
        leaver = None
        if not cython.compiled:
            _leave_room(ROOM)
        with self.mutex:
            worker.waits += 1
            if worker.waits == 1:
                self._block(worker, 1)
            self._uncover()
            errand = self._staff()
        try:
            self._run(errand, None)
            return wait(*args)
        finally:
            with self.mutex:
                worker.waits -= 1
                if worker.waits == 0:
                    self._block(worker, -1)
                if self._surplus() > 0 and self.parked:
                    leaver = self.parked.pop(0)
                    self._unpark(leaver)
            if leaver is not None:
                leaver.bell.release()

    @cython.locals(current=FutureCore)
    def _block(self, worker: Worker, places: int) -> None:
        """Under the mutex: count a worker as blocked (1), for whom no place is lent meanwhile, or no longer (-1)."""
        self.blocked += places
        if worker.short:
            self.shorts -= places
        current: Any = worker.current
        if current is not None and _is_lent(current):
            self._lend(-places)

    def seek(self, waiter: LockType, again: bool) -> bool:
        """Add a submitter to the seekers, at their head if it waits `again`; return False if there is room."""
        with self.mutex:
            if self._refusal() != "full":
                return False
            self.seekers[waiter] = None
            if again:
                self.seekers.move_to_end(waiter, False)
            errand = None if self.searching or self.covered else self._arrange()
        self._run(errand, None)
        return True

    def unseek(self, waiter: LockType) -> None:
        """Remove a submitter that gives up; a place that was already kept for it goes to the next seeker."""
        with self.mutex:
            if waiter in self.seekers:
                del self.seekers[waiter]
            elif waiter in self.promised:
                self.promised.remove(waiter)
                self._make_room()

    def wait_left(self, future: FutureCore) -> float:
        """Return for how many seconds a task may wait from now on; -1 for ever."""
        return -1.0 if future._latest == 0.0 else max(0.0, future._latest - monotonic())

    def count_reject(self) -> None:
        """Count a task that was refused."""
        with self.mutex:
            self.rejected += 1

    def retry_after(self) -> float:
        """Return after how many seconds a caller that is refused may try again: for as long as a task waits now."""
        trash: list[FutureCore] = []
        with self.mutex:
            collects = hold_collector()
            try:
                self._trim(trash)
                waited = monotonic() - self._oldest()._queued_at if self._waiting() > 0 else 0.0
            finally:
                let_collector(collects)
        return min(waited, self.max_wait) if self.max_wait > 0.0 else waited

    def _count_expired(self, future: FutureCore) -> None:
        """Under the mutex: count a task that has waited for too long, and fails because of that."""
        self.expired += 1
        if future._lane is not None:
            future._lane.expired += 1

    def _late(self, now: float, trash: list[Any]) -> list[FutureCore]:
        """Under the mutex: return the tasks that have waited for too long, if it is time to look for them."""
        found: list[FutureCore] = []
        if now < self.sought:
            return found
        self.sought = now + LOOKS + LOOK * self._waiting()
        self.timed = False
        for line in (self.front, self.short, self.queue, self.seekers):
            if self._overdue(line, now, found):
                self.timed = True
        trash.append(self.backlogs)
        self.backlogs = [lane for lane in self.backlogs if self._overdue(lane.backlog, now, found)]
        return found

    def _overdue(self, line: Any, now: float, found: list[FutureCore]) -> bool:
        """Under the mutex: add the late tasks of a line to `found`; return whether others may yet become late."""
        more = False
        for each in line:
            if type(each) is not LockType:
                future = each
                if future._latest > 0.0 and future._code == PENDING:
                    if future._latest < now:
                        found.append(future)
                    else:
                        more = True
        return more

    def _choose_end(self, now: float) -> None:
        """Under the mutex: have the newest tasks taken first while the queue stands; the oldest will time out."""
        waited = now - self._oldest()._queued_at if self._waiting() > 0 and self.max_wait > 0.0 else 0.0
        if waited <= STALE * self.max_wait:
            self.stale = 0.0
            self.dequeue = self.oldest_first
        elif self.stale == 0.0:
            self.stale = now
        elif self.stands(now):
            self.dequeue = self.queue.pop
            if not self.front and self.taken - self.turned >= TURN and waited > self.max_wait + LOOKS:
                # One that may wait for longer than `max_wait` has its turn, or newer ones would overtake it for ever.
                self.turned = self.taken
                self.queue.rotate(-1)

    def stands(self, now: float) -> bool:
        """Return whether the queue stands at `now` (monotonic seconds): its oldest tasks have been late for a while."""
        return 0.0 < self.stale <= now - STANDING

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

    def close(self, broken: bool = False) -> None:
        """Take no more tasks, also if workers cannot be initialised; workers leave once the queue is empty."""
        with self.mutex:
            self.broken = self.broken or broken
            self.closed = True
            self.allowed = ALL
            self.limit = self.max_workers
            self._special()
            self._rouse_all()
            self._make_room()
            errand = self._staff()
        self._run(errand, None)

    @cython.locals(worker=Worker)
    def dismiss(self, worker: Worker, error: BaseException | None) -> None:
        """Remove a worker that has not left by itself; `error` becomes the outcome of its task if that is not done."""
        with self.mutex:
            current = worker.current
            self._clear(worker)
            if worker.parked:
                self.parked.remove(worker)
            if worker in self.workers:
                self._remove(worker)
            worker.current = None
            if worker.noted:
                self._note_end(worker)
            if current is not None:
                if error is not None:
                    self.failed += 1
                if current._lane is not None:
                    self._vacate(current._lane, error is not None)
            self._make_room()
            errand = self._staff()
        if current is not None:
            current._drop_call()
            current._conclude(RUNNING, RUNNING, FINISHED, None, error)
        self._run(errand, None)

    @cython.locals(future=FutureCore, worker=Worker, each=LaneCore)
    def waiting(self, lane: LaneCore | None = None, in_hand: bool = False) -> list[FutureCore]:
        """Return the pending futures, of one lane or of all, oldest first; those that workers have `in_hand` follow.

        Held futures among the seekers are not there; a pool that is closed or has no worker has no seekers.
        """
        held: list[FutureCore] = []
        running: list[FutureCore] = []
        lanes: list[LaneCore] = []
        with self.mutex:
            collects = hold_collector()
            try:
                queued = [*self.front, *self.short, *self.queue]
                for worker in self.workers:
                    if worker.current is not None:
                        running.append(worker.current)
                # This finds every lane in which futures wait: such a lane has others queued or running.
                for future in [*queued, *running]:
                    if future._lane is not None and future._lane not in lanes:
                        lanes.append(future._lane)
                for each in lanes:
                    held.extend(each.backlog)
            finally:
                let_collector(collects)
        found: list[FutureCore] = []
        last = RUNNING if in_hand else PENDING
        for future in [*held, *queued, *running]:
            if future._code <= last and (lane is None or future._lane is lane):
                found.append(future)
        return found

    def unclaimed(self, lane: LaneCore | None) -> int:
        """Return how many tasks, of one lane or of the queue, wait, but for those that a worker is about to take."""
        held = 0
        with self.mutex:
            queued = self._waiting()
            if lane is not None:
                held = len(lane.backlog) - lane.dead
                queued = lane.admitted
                for worker in self.workers:
                    if worker.current is not None and worker.current._lane is lane:
                        queued -= 1
            return held + max(0, queued - self._coming())

    def hand_back(self, lane: LaneCore | None) -> tuple[Any, Any, Any, Any] | None:
        """Take off the queue what a worker would take next, of one lane or of all; return its future and its call.

        The future stays pending, for the caller to end it; the pool counts it as cancelled.
        """
        trash: list[FutureCore] = []
        found: Any = None
        call = None
        with self.mutex:
            collects = hold_collector()
            try:
                self._trim(trash)
                lines = [self.front, self.short, self.queue]
                for line in lines if lane is None else [*lines, lane.backlog]:
                    for future in line if found is None else ():
                        if future._code == PENDING and (lane is None or future._lane is lane):
                            found = future
                            break
                if found is not None:
                    call = found, found._fn, found._packed(), found._kwargs
                    owner = found._lane
                    if found._held and owner is not None:
                        owner.backlog.remove(found)
                    else:
                        self._withdraw(found)
                    self.cancelled += 1
                    if owner is not None:
                        owner.cancelled += 1
                    found._lane = None
                    found._fn = found._args = found._kwargs = None
                    self._make_room()
                    self._tell_idlers()
            finally:
                let_collector(collects)
        return call

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
        if _here.keeps_time:
            return "this is the timekeeper's thread, and every pool relies on that"
        if not cython.compiled and self.mutex._is_owned():
            return "this signal handler or finaliser has interrupted the pool's own code, which waits for it"
        return None

    @cython.locals(worker=Worker)
    def stranded(self) -> int:
        """Return how many tasks wait that no worker will take: none is there, or all are blocked on this very pool."""
        with self.mutex:
            blocked = 0
            for worker in self.workers:
                # One that is only written off may come back.
                blocked += worker.waits > worker.written_off
            return self._waiting() if self.headcount <= blocked and not self.broken else 0

    @cython.locals(future=FutureCore)
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

    @cython.locals(worker=Worker)
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
        told = True
        while told:
            waiter = allocate_lock()
            waiter.acquire()
            with self.mutex:
                if lane is not None:
                    over = lane.admitted == 0
                elif remaining < 0:
                    # Workers without a task are parked, or on their way.
                    unoccupied = len(self.parked) + self.roused + self.starting
                    over = self._waiting() == 0 and self.headcount == unoccupied
                else:
                    workers = self.headcount
                    for worker in self.workers if leaving else ():
                        workers -= _is_left(worker)
                    stuck = leaving and self.headcount - self.blocked >= self.max_workers
                    over = workers <= remaining and (self.broken or stuck or self._waiting() == 0)
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

    @cython.locals(head=FutureCore)
    def _trim(self, trash: list[FutureCore]) -> None:
        for line in (self.front, self.short, self.queue):
            while self.dead and line:
                head = line[0]
                if head._code == PENDING:
                    break
                trash.append(line.popleft())
                self.dead -= 1

    def _oldest(self) -> FutureCore:
        """Return the future that has waited longest, or about as long; some are queued, and `_trim` was called."""
        found: Any = None
        # Those that go first may have come in any order, from either end.
        for line, place in ((self.queue, 0), (self.short, 0), (self.front, 0), (self.front, -1)):
            if line:
                future = line[place]
                if found is None or (future._code == PENDING and future._queued_at < found._queued_at):
                    found = future
        oldest: FutureCore = found
        return oldest

    @cython.locals(future=FutureCore)
    def snapshot(self, now: float) -> Snapshot | None:
        """Return what the timekeeper needs to know at `now` (monotonic seconds), or None if it need not look again."""
        trash: list[Any] = []
        late: list[FutureCore] = []
        errand = None
        with self.mutex:
            collects = hold_collector()
            try:
                self.clock = max(self.clock, now)
                self._trim(trash)
                if self.timed or self.backlogs or self.max_wait > 0.0:
                    late = self._late(now, trash)
                    self._choose_end(now)
                moved = self._sort(now, trash) if self.measured and now >= self.sorted else None
                # The seekers want a worker, too, and any that was turned away.
                waiting = self._waiting() + len(self.seekers) + self.turned_away
                self.turned_away = False
                self.covered = waiting > 0 or self._lacks_spare()
                self.minded = self._engaged() > self.crowd or len(self.backlogs) > 0
                looked_at = self.covered or self.minded
                self.at_ceiling = self.covered and self.headcount - self.blocked >= self._most()
                may_grow = not self.at_ceiling
                if self._waiting() > 0 and self.parked and not self.searching and self._has_room(1):
                    errand = self._rouse()
                elif not self.searching and self._wants_more():
                    errand = self._arrange()
                idle = len(self.parked) + self.roused
                # A tuple until the mutex is free: a named one is made by interpreted code.
                crowd = self.headcount, self.starting, idle, self.blocked, self.written_off
                seen = (may_grow, waiting, self.taken, *crowd, moved)
            finally:
                let_collector(collects)
        self._run(errand, None)
        why = self.hung() if late else ""
        for future in late:
            with self.mutex:
                scope = future._scope
            if scope is not None:
                future.reject(scope.refusal(why))
        return Snapshot(*seen) if looked_at else None

    @cython.locals(worker=Worker, future=FutureCore)
    def survey(self, calls: bool = False) -> Survey:
        """Return what the pool does at one moment, and its figures; with what is called if `calls`.

        Without `calls` it refers to nothing of a user's, which might end with the last reference to it.
        """
        # Tuples until the mutex is free: a named one is made by interpreted code.
        seen: list[Any] = []
        threads: list[threading.Thread] = []
        oldest: Any = None
        trash: list[FutureCore] = []
        with self.mutex:
            collects = hold_collector()
            try:
                self._trim(trash)
                now = monotonic()
                queued = self._waiting()
                if queued > 0:
                    future = self._oldest()
                    call = _call_of(future, calls and future._code == PENDING)
                    oldest = future._queued_at, call
                for worker in self.workers:
                    threads.append(worker.thread)
                    if worker.current is not None:
                        future = worker.current
                        call = _call_of(future, calls)
                        blocked = worker.waits > worker.written_off
                        scope = future._scope
                        since = 0.0 if scope is None else scope.abandoned
                        place = worker.since, worker.thread, future._lane, blocked, worker.ahead
                        seen.append((*place, since, _is_left(worker), worker.written_off, call))
                running = len(seen)
                counts: dict[str, float] = {
                    # Not `headcount`, which counts reserved places too: the thread for one of them may fail to start.
                    "workers": len(self.workers),
                    "idle": len(self.workers) - running,
                    "running": running,
                    "blocked": sum([task[3] for task in seen]),
                    "queued": queued,
                    "submitted": self.taken + queued + self.cancelled,
                    "completed": self.taken - self.failed - running,
                    "failed": self.failed,
                    "cancelled": self.cancelled,
                    "rejected": self.rejected,
                    "expired": self.expired,
                    "went_first": self.went_first,
                    "started": self.started,
                    "retired": self.started - len(self.workers),
                }
            finally:
                let_collector(collects)
        tasks = [Task(*each) for each in seen]
        counts["oldest_wait"] = 0.0 if oldest is None else now - oldest[0]
        left_at = [task.abandoned for task in tasks if task.abandoned > 0.0]
        counts["abandoned"] = len(left_at)
        # A loop may have given one up after `now`.
        counts["longest_abandoned"] = max(0.0, now - min(left_at, default=now))
        counts["longest_running"] = now - min([task.since for task in tasks], default=now)
        return Survey(tasks, oldest, threads, counts)

    def counts(self) -> dict[str, float]:
        """Return the figures of `PoolStats`."""
        return self.survey().counts

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

    @cython.locals(future=FutureCore, mine=FutureCore, lane=LaneCore, worker=Worker)
    def renew(self, error: BaseException) -> None:
        """In a forked child: forget the threads that stayed with the parent, and fail the futures they left behind.

        Callbacks of these futures belong to the parent and do not run here. A worker that itself forked exists in the
        child, and stays. State that a thread may have been changing when the process forked is not trusted.
        """
        caught = self.reopen()
        here = _here.worker
        lost = self.waiting()
        lost.extend(seeker for seeker in self.seekers if type(seeker) is not LockType)
        lanes: set[LaneCore] = set()
        # They refer to a user's code, and may not go under the mutex.
        kept = self.functions, self.measured
        stayed = []
        mine: Any = None
        for worker in self.workers:
            if worker.current is not None:
                lost.append(worker.current)
            if worker is here:
                stayed.append(worker)
                mine = worker.current
        if caught:
            _search(self, lost, lanes)
        for future in lost:
            if future._lane is not None:
                lanes.add(future._lane)
        with self.mutex:
            collects = hold_collector()
            try:
                for worker in stayed:
                    self._clear(worker)
                    worker.waits -= worker.written_off
                    worker.noted = worker.ahead = worker.short = worker.written_off = False
                    worker.known = None
                self._begin(stayed)
                for lane in lanes:
                    lane.renew()
                if mine is not None and mine._lane is not None:
                    mine._lane.enter()
                self._special()
            finally:
                let_collector(collects)
        del kept
        for future in lost:
            if future is not mine:
                future.disown(error)


if not cython.compiled:
    Pool = slotted(Pool, None)  # type: ignore[misc]  # the same class


@cython.locals(future=FutureCore, lane=LaneCore)
def _search(pool: Pool, futures: list[FutureCore], lanes: set[LaneCore]) -> None:
    """Add all unfinished futures, and the lanes, of a pool: a thread of the parent may have been moving some."""
    for thing in gc.get_objects():
        # Not isinstance, which reads `__class__` of the object: a proxy would run code of its own.
        if issubclass(type(thing), FutureCore):
            future = thing
            try:
                if future._pool is pool and future._code < CANCELLED:
                    futures.append(future)
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
if not cython.compiled:
    futures._ORPHANS = _ORPHANS

orphans = _ORPHANS
