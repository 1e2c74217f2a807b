"""What a task is to the engine: where it waits, until when it may, which lane it is of; and what is counted of all."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context
from itertools import count
from typing import TYPE_CHECKING, Any

from ebbpool._core import uncompiled as cython
from ebbpool._core.scope import Scope

if not TYPE_CHECKING and cython.compiled:
    import cython
if not cython.compiled:
    # For compiled code task_c.pxd declares these.
    from ebbpool._core.uncompiled import PENDING, slotted

    if TYPE_CHECKING:
        from ebbpool._core.known import Known

COMPACT = 64  # dead entries are thrown out once they are so many, and half of all

_numbers = count()


class Line:
    """Tasks that wait in one place, oldest first. Those that end there stay until they are come across.

    Where one is moved it is taken off its line first, then looked at, and nothing is called in between: a signal
    handler or a finaliser may end it.
    """

    def __init__(self, queued: bool) -> None:
        self.queued = queued  # whether workers take tasks from it
        self.tasks: deque[Task] = deque()
        self.append: Callable[[Task], None] = self.tasks.append
        self.popleft: Callable[[], Task] = self.tasks.popleft
        self.dead: int = 0

    def live(self) -> int:
        """Return how many tasks wait."""
        return len(self.tasks) - self.dead

    def add(self, task: Task) -> None:
        """Let a task wait behind all others; it may have ended a moment ago, in a signal handler."""
        self.dead += task._code != PENDING
        task._line = self
        self.append(task)

    @cython.locals(head="Task")
    def trim(self, trash: list[Any]) -> None:
        """Move dead tasks from the head to `trash`, which the caller drops once the mutex is free."""
        while True:
            # A handler may change it as the loop turns.
            if not self.dead or not self.tasks:
                break
            head = self.tasks[0]
            if head._code == PENDING:
                break
            # Before the call: Ctrl-C may come after it.
            self.dead -= 1
            trash.append(self.popleft())

    @cython.locals(task="Task")
    def compact(self, trash: list[Any]) -> None:
        """Move dead tasks to `trash` if they are many."""
        if self.dead < COMPACT or self.dead * 2 < len(self.tasks):
            return
        # In place: a finaliser may submit meanwhile.
        for _ in range(len(self.tasks)):
            if not self.tasks:
                break
            task = self.popleft()
            if task._code == PENDING:
                self.append(task)
            else:
                self.dead -= 1
                trash.append(task)


class Tally:
    """How many tasks of a pool, or of one lane, have left it, and how. `taken` have been run, or failed without."""

    def __init__(self) -> None:
        self.taken: int = 0
        self.failed: int = 0
        self.cancelled: int = 0
        self.expired: int = 0


class LaneCore:
    """A limited share of a pool, whose mutex guards it: tasks wait in its backlog until it lets them into the queue."""

    def __init__(
        self,
        pool: Any,
        limit: int,
        first: bool,
        lifts_ceiling: bool = False,
        name: str | None = None,
        max_wait: float = 0.0,
    ) -> None:
        self.pool = pool
        self.limit = limit
        self.first = first  # whether its tasks go to the head of the pool's queue
        self.lifts_ceiling = lifts_ceiling  # whether each task has a thread beyond the ceiling
        self.name = name  # None for one of ebbpool's own
        self.max_wait = max_wait  # in seconds; 0 for that of the pool, below zero for none
        self.closed: bool = False
        self.backlog: Line = Line(False)
        # Tasks in the pool's queue or running. Invariant: where tasks wait in the backlog, this is `limit`.
        self.admitted: int = 0
        self.tally: Tally = Tally()

    def renew(self) -> None:
        """In a forked child: forget all tasks, which stayed with the parent."""
        self.backlog = Line(False)
        self.admitted = 0


class Task:
    """A call that waits or runs: the part of a future that the engine looks at. Times are in monotonic seconds."""

    _looped: bool

    def __init__(self) -> None:
        self._code: int = PENDING
        self._result: Any = None
        self._exception: BaseException | None = None
        self._fn: Callable[..., Any] | None = None
        self._args: Any = None
        self._kwargs: Any = None  # True where `_args` is the only argument itself: see `_packed`
        self._lane: LaneCore | None = None
        self._line: Line | None = None  # where it waits, or has waited last; None if it is on no queue yet
        self._scope: Scope | None = None
        self._queued_at = 0.0  # in the pool or, while it is held, in its lane
        self._latest = 0.0  # when it has to begin at the latest; 0 if there is no limit
        # Of a `LoopCall` that waits, see `Backlog.line_up`: what is known of what it calls, its task's identity (0 for
        # none), and whether it goes first.
        self._known: Known | None = None
        self._task = 0
        self._short = False
        # What the future has besides, here because a C class with fields of its own would be visited twice, by the
        # collector and as it is made and freed.
        self._pool: Any = None
        self._audience: list[Any] | None = None
        self._cond: threading.Condition | None = None
        self._observers: Any = None
        self._not_run: Callable[[Any], object] | None = None  # is called if the call is not made, or raises
        # Delayed calls only: keeps the executor alive until done, so that the timekeeper's thread never drops it.
        self._executor: Any = None

    def limit(self, scope: Scope) -> None:
        """Give a call that is not queued yet a limit of its wait, or a deadline."""
        self._scope = scope
        self._latest = scope.latest
        # Made here, for an object made under the mutex might run the garbage collector there.
        scope.entry = [scope.latest, next(_numbers), None]

    def _packed(self) -> Any:
        """Return the positional arguments as a tuple, or None where there is no call."""
        # Compiled code keeps a single argument without its tuple: one fewer that the collector counts, and without a
        # GIL none that one thread makes and another frees.
        return (self._args,) if self._kwargs is True else self._args

    def _take_context(self) -> Context | None:
        """Take from the call the context that compiled code enters for it, if there is one."""
        return None


if not cython.compiled:
    Line = slotted(Line, True)  # type: ignore[misc]  # the same class
    Task = slotted(Task)  # type: ignore[misc]  # the same class
    Task._looped = False
