"""Warnings about tasks that run, or wait, for longer than they should."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from time import monotonic
from typing import Any, Protocol

from ebbpool._core.accel import Pool
from ebbpool._pool.decisions import Decisions
from ebbpool._pool.running import RunningTask, called_name
from ebbpool._pool.timekeeper import Timekeeper

LOGGER = logging.getLogger("concurrent.futures")


class Watched(Protocol):
    """The part of a crew that is needed here."""

    pool: Pool
    name: str
    decisions: Decisions

    def running(self, stacks: bool) -> list[RunningTask]: ...


class SlowTasks:
    """What has been warned of in one pool, and when to look again: a book of the timekeeper.

    There is an alarm as long as the pool has threads. It is set for the moment in which the next task would be late.

    Args:
        keeper: The timekeeper.
        limit: Seconds after which a task is late.
    """

    def __init__(self, keeper: Timekeeper, limit: float) -> None:
        self._keeper = keeper
        self._limit = limit
        self._alarm: object = None
        self._crew: Callable[[], Watched | None] = lambda: None
        # The number of the thread, and since when its task has run.
        self._warned: set[tuple[int | None, float]] = set()
        self._crowded = False

    def begin(self, crew: Watched) -> None:
        """Set the alarm, if it is not set; when a worker starts, in any thread."""
        if self._alarm is None:
            # Weakly: an alarm that is taken back stays with the timekeeper for a while.
            self._crew = weakref.ref(crew)
            self._set(self._limit)

    def _set(self, delay: float) -> None:
        alarm = self._alarm = object()
        self._keeper.call_at(self._keeper.clock() + delay, self, alarm)

    def end(self) -> None:
        """Take the alarm back: the pool has no threads any more."""
        if self._alarm is not None:
            self._alarm = None
            self._keeper.void()

    def renew(self) -> None:
        """In a forked child: forget the alarm, which stayed with the parent."""
        self._alarm = None
        self._warned.clear()

    def wants(self, thing: Any) -> bool:
        """Return whether the alarm is still set; see `Book.wants`."""
        return self._alarm is thing

    def fire(self, thing: Any) -> None:
        """Warn of what is late, and set the next alarm; in the timekeeper's thread."""
        self._alarm = None
        crew = self._crew()
        if crew is None:
            return
        now = monotonic()
        late = now - self._limit
        due = min(self._look_at_running(crew, late), self._look_at_waiting(crew, now, late), now)
        # A pool whose last thread ends now finds no alarm to take back, or the one that is set here.
        if crew.pool.headcount > 0:
            self._set(max(0.0, due - late))
            if crew.pool.headcount == 0:
                self.end()

    def _look_at_running(self, crew: Watched, late: float) -> float:
        """Warn of each task that has run since `late`; return since when the next has."""
        tasks = {(thread.ident, since): thread for thread, since, *_ in crew.pool.in_hand()}
        self._warned.intersection_update(tasks)
        fresh = {task for task in tasks if task[1] <= late} - self._warned
        if fresh:
            self._warned |= fresh
            names = {tasks[task].name for task in fresh}
            for task in crew.running(True):
                if task.thread in names and task.seconds >= self._limit:
                    lane = f", lane {task.lane!r}," if task.lane is not None else ""
                    LOGGER.warning(
                        "%s of pool %r%s has run for %.1f s in %s:\n%s",
                        task.name, crew.name, lane, task.seconds, task.thread, task.stack,
                    )  # fmt: skip
        return min((since for _, since in tasks.keys() - self._warned), default=monotonic())

    def _look_at_waiting(self, crew: Watched, now: float, late: float) -> float:
        """Warn if the oldest task in the queue has waited since `late`; return since when it has waited if not."""
        oldest = crew.pool.longest_waiting()
        since = now if oldest is None else oldest[0]
        if oldest is None or since > late:
            self._crowded = False
            return since
        if not self._crowded:
            self._crowded = True
            LOGGER.warning(
                "%d tasks wait in pool %r, the oldest, %s, for %.1f s; the pool %s",
                oldest[2], crew.name, called_name(oldest[1]) or "a call in its submitter's context", now - since,
                crew.decisions.last() or "has not grown",
            )  # fmt: skip
        return now
