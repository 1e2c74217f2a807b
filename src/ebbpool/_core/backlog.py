"""Which task is next, and by when tasks have to begin: a structure without threads, guarded by the pool's mutex."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Any

from ebbpool._core import uncompiled as cython

if not TYPE_CHECKING and cython.compiled:
    import cython
if not cython.compiled:
    # For compiled code backlog_c.pxd declares these.
    from ebbpool._core.known import Functions, Known
    from ebbpool._core.task import COMPACT, Line, Task
    from ebbpool._core.uncompiled import PENDING, hold_collector, let_collector

OVERTAKEN = 0.1  # seconds for which tasks that go first may hold up the others; then the two kinds take turns
SORTED = 0.01  # seconds between looks for calls that have become short or long, to which each task adds `LOOK`
LOOK = 2e-6
STALE = 0.1  # the queue is stale while its oldest task has waited for longer than this share of `max_wait`
STANDING = 0.1  # the newest tasks go first once every look for so many seconds has found the queue stale
TURN = 8  # while the newest go first, one old task that may wait for longer is taken after so many others
BEYOND = 0.05  # seconds beyond `max_wait` from which it is one
LATE = 256  # late tasks that one look finds at most


def _age(task: Task) -> float:
    return task._queued_at


class Backlog:
    """What waits for a worker: in four lines, of which the first that is not empty goes first, but for turns."""

    def __init__(self) -> None:
        self.went_first: int = 0
        self.begin()

    def begin(self) -> None:
        """Start without a task."""
        self.lent: Line = Line(True)  # those that have a thread beyond the ceiling: all others may wait for them
        self.front: Line = Line(True)  # those that were to go first
        self.short: Line = Line(True)  # calls of loops that are known to be short
        self.queue: Line = Line(True)
        # Whether one has to look closer which task is next: not all that waits does so in `queue`, to be taken in its
        # order, and unmeasured. It may be so no longer, see `unmix`.
        self.mixed: bool = False
        self.passed: bool = False  # whether a task was taken ahead of others since the last turn of one overtaken
        self.turned_at: float = 0.0  # when that turn was
        self.functions: Functions = Functions()
        self.measured: set[Known] = set()  # those of which calls wait, here or for room
        self.not_short: dict[int, int] = {}  # how many such calls of one asyncio task wait: later ones must not pass
        self.sorted: float = 0.0  # when it is looked which waiting calls are short
        self.stale: float = 0.0  # since when the oldest has waited for too long at every look; 0 if it has not
        self.newest: bool = False  # whether the newest tasks of `queue` are taken first
        self.turned: int = -TURN  # tasks taken when an old one last had its turn
        # A heap of [latest, number, task], None for one that waits no more, wherever the task waits.
        self.times: list[list[Any]] = []
        self.gone: int = 0  # how many of these wait no more

    def waiting(self) -> int:
        """Return how many tasks wait for a worker."""
        waiting = len(self.queue.tasks) - self.queue.dead
        if self.mixed:
            waiting += self.front.live() + self.short.live() + self.lent.live()
        return waiting

    def is_empty(self) -> bool:
        """Return whether there is no task, not even a dead one."""
        return not (self.queue.tasks or self.short.tasks or self.front.tasks or self.lent.tasks)

    @cython.locals(line=Line)
    def trim(self, trash: list[Any]) -> None:
        """Move dead tasks from the heads of the lines to `trash`."""
        for line in (self.lent, self.front, self.short, self.queue):
            line.trim(trash)

    @cython.locals(line=Line)
    def oldest(self) -> Task:
        """Return the task that has waited longest, or about as long; some wait, and `trim` was called."""
        found: Any = None
        # Those that go first may have come in any order, from either end.
        for line, place in ((self.queue, 0), (self.short, 0), (self.lent, 0), (self.front, 0), (self.front, -1)):
            if line.tasks:
                task: Task = line.tasks[place]
                if found is None or (task._code == PENDING and task._queued_at < found._queued_at):
                    found = task
        oldest: Task = found
        return oldest

    def add(self, task: Task, first: bool, now: float) -> None:
        """Have a task wait for a worker."""
        task._queued_at = now
        lane = task._lane
        if not first and task._known is None:
            self.queue.add(task)
            return
        self.mixed = True
        if lane is not None and lane.lifts_ceiling:
            self.lent.add(task)
        elif not first:
            self.line_up(task)
        elif lane is not None:
            # Tasks of a lane keep their order.
            self.front.add(task)
        else:
            task._line = self.front
            self.front.tasks.appendleft(task)

    # Times.

    def limit(self, task: Task) -> None:
        """Note by when a task has to begin that waits."""
        scope: Any = task._scope
        scope.entry[2] = task
        heappush(self.times, scope.entry)

    def unlimit(self, task: Task) -> None:
        """Let go of a task that waits no more; only its time stays here."""
        if task._latest == 0.0:
            return
        scope: Any = task._scope
        entry: list[Any] = scope.entry
        if entry[2] is None:
            return
        entry[2] = None
        self.gone += 1
        if self.gone >= COMPACT and self.gone * 2 > len(self.times):
            collects = hold_collector()
            try:
                self.times = [each for each in self.times if each[2] is not None]
                heapify(self.times)
            finally:
                let_collector(collects)
            self.gone = 0

    def soonest(self) -> float:
        """Return by when the first task has to begin; infinity if all may wait for ever."""
        while True:
            # A handler may change it as the loop turns.
            if not self.times:
                return inf
            first: list[Any] = self.times[0]
            if first[2] is not None:
                latest: float = first[0]
                return latest
            self.gone -= 1
            heappop(self.times)

    def late(self, now: float) -> list[Any]:
        """Return tasks that ought to have begun."""
        found: list[Any] = []
        while len(found) < LATE and self.soonest() <= now:
            if self.times:
                # It stays on the heap until it is come across: a finaliser may end the task meanwhile.
                entry: list[Any] = self.times[0]
                task, entry[2] = entry[2], None
                if task is not None:
                    self.gone += 1
                    found.append(task)
        return found

    def choose_end(self, now: float, max_wait: float, taken: int) -> None:
        """Have the newest tasks taken first while the queue stands; the oldest will time out."""
        waited = now - self.oldest()._queued_at if max_wait > 0.0 and self.waiting() > 0 else 0.0
        if waited <= STALE * max_wait:
            self.stale = 0.0
            self.newest = False
        elif self.stale == 0.0:
            self.stale = now
        elif self.stands(now):
            self.newest = self.mixed = True
            if not self.front.tasks and taken - self.turned >= TURN and waited > max_wait + BEYOND:
                # One that may wait for longer than `max_wait` has its turn, or newer ones would overtake it for ever.
                self.turned = taken
                self.queue.tasks.rotate(-1)

    def stands(self, now: float) -> bool:
        """Return whether the queue stands at `now` (monotonic seconds): its oldest tasks have been late for a while."""
        return 0.0 < self.stale <= now - STANDING

    # Short calls.

    @cython.locals(known=Known)
    def line_up(self, call: Task) -> None:
        """Queue a call that is measured, with the short ones if it is known to be one.

        Of a function of which nothing is known one call at a time is taken for short. No call goes ahead of one of the
        same asyncio task.
        """
        call._short = self.goes_first(call, call._queued_at)
        if call._short:
            known: Any = call._known
            known.tried = True
            self.short.add(call)
        else:
            self.queue.add(call)
        self.count(call, 1)

    @cython.locals(known=Known)
    def goes_first(self, call: Task, now: float) -> bool:
        """Return whether a measured call goes first, by what is known now."""
        known: Any = call._known
        if known.waiting == 0:
            # Those of one function that wait do so in one line.
            known.short = self.functions.is_short(known, now)
        if self.owes():
            # One that is not measured may be of the same task. The next look moves this one up.
            known.short = False
            return False
        return self.may_lead(call)

    @cython.locals(known=Known)
    def may_lead(self, call: Task) -> bool:
        """Return whether a measured call may go ahead, by what was known at the last look."""
        known: Any = call._known
        if call._task in self.not_short:
            return False
        return known.short or (known.ended == 0.0 and not known.tried)

    @cython.locals(oldest=Task)
    def owes(self) -> bool:
        """Return whether the oldest call is one that has found an idle worker, and is not measured."""
        oldest: Any = self.queue.tasks[0] if self.queue.tasks else None
        return oldest is not None and oldest._looped and oldest._known is None and oldest._short

    @cython.locals(known=Known)
    def count(self, call: Task, count: int) -> None:
        """Count a measured call that waits (1), here or for room, or no longer (-1)."""
        known: Any = call._known
        known.waiting += count
        if known.waiting > 0:
            self.measured.add(known)
        else:
            self.measured.discard(known)
        if not call._short:
            self.hold_others(call, count)

    def hold_others(self, call: Task, count: int) -> None:
        """Have later calls of its task wait behind one that is not short (1), or no longer (-1)."""
        if call._task != 0:
            left = self.not_short.get(call._task, 0) + count
            if left > 0:
                self.not_short[call._task] = left
            else:
                self.not_short.pop(call._task, None)

    def forget(self, call: Task) -> None:
        """Count off a call that ends without running, if it is measured."""
        if call._known is not None:
            self.count(call, -1)
            self.untry(call)

    @cython.locals(known=Known)
    def untry(self, call: Task) -> None:
        """Let another call be taken for short in place of one that ends without running."""
        known: Any = call._known
        if call._short:
            known.tried = False

    @cython.locals(known=Known)
    def changes(self, now: float) -> Any:
        """Find out which functions have become short, or long; return one of these, None if there is none."""
        self.sorted = now + SORTED + LOOK * self.waiting()
        moved: Any = None
        for known in self.measured:
            short = self.functions.is_short(known, now)
            if short != known.short:
                known.short = short
                if moved is None or short:
                    moved = known
        return moved

    @cython.locals(known=Known, task=Task, room=Line, line=Line)
    def sort(self, room: Line, trash: list[Any]) -> None:
        """Have calls go first that are short by now, and the others no longer; some of them wait for `room`."""
        for task in list(self.short.tasks):
            # One that was taken for short may have to stay behind another of its task: it is chosen anew.
            if task._known is not None and task._code == PENDING and task._known.ended == 0.0:
                self.untry(task)
        lines: list[Any] = []
        for line in (self.short, self.queue, room):
            # Nothing is called in between: what a finaliser submits from here on stays where it is.
            lines += line.tasks
            line.tasks.clear()
        lines.sort(key=_age)
        self.not_short.clear()
        trash.append(lines)
        for task in lines:
            known = task._known
            line = room if task._line is room else self.queue
            if known is not None and task._code == PENDING:
                leads = self.may_lead(task)
                if leads:
                    line = self.short
                else:
                    self.hold_others(task, 1)
                    if task._code != PENDING:
                        self.hold_others(task, -1)
            if task._code != PENDING:
                task._line.dead -= 1
                continue
            # In one stretch without calls, again.
            if known is not None:
                task._short = leads
                if leads:
                    known.tried = self.mixed = True
            task._line = line
            line.append(task)

    def unmix(self, others: bool) -> None:
        """Find out whether all that waits does so in `queue`, to be taken in its order; `others` wait for room."""
        elsewhere = self.measured or self.short.tasks or self.front.tasks or self.lent.tasks
        self.mixed = others or bool(elsewhere) or self.newest

    @cython.locals(oldest=Task, first=Task, line=Line)
    def next(self, now: float, others: bool, shares: bool) -> Task:
        """Take a task where not all wait in one line; it may be dead.

        First one that a thread is lent to: all others may wait for that one. A call that has found an idle worker is
        not measured, and gets that worker. Then those that were to go first, then short calls. But once the oldest of
        the others has waited for `OVERTAKEN`, these and the others take turns.

        Args:
            now: The time (monotonic seconds).
            others: Whether there is a place for one that is not short.
            shares: Whether the others have less than half of the threads. Where they have more, short calls give them
                a turn only each `OVERTAKEN`: they may all wait for what a short call frees.
        """
        if self.lent.tasks:
            self.passed = True
            return self.lent.popleft()
        if others and self.owes():
            return self.queue.popleft()
        line: Line = self.front if self.front.tasks and others else self.short
        turns = self.passed and (shares or line is self.front or now - self.turned_at >= OVERTAKEN)
        if line.tasks and self.queue.tasks and others and turns:
            oldest: Task = self.queue.tasks[0]
            first: Task = line.tasks[0]
            # Calls of one task of a loop keep their order: what came later has not been overtaken.
            later = oldest._looped and first._looped and oldest._queued_at >= first._queued_at
            if not later and now - oldest._queued_at >= OVERTAKEN:
                if line is self.front and self.short.tasks:
                    # The turn is for the oldest, or a call might overtake a short one of the same task.
                    first = self.short.tasks[0]
                    if first._queued_at < oldest._queued_at:
                        oldest = first
                line = self.short if oldest is first else self.queue
                self.turned_at = now
                # A cancelled task does not use up the turn.
                self.passed = oldest._code != PENDING
        elif line.tasks:
            self.passed = True
        if not line.tasks:
            line = self.queue
        if self.newest and line is not self.front:
            task: Task = line.tasks.pop()
            return task
        return line.popleft()
