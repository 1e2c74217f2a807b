"""Warnings about what is late: tasks that run or wait for too long, and event loops that do not come."""

from __future__ import annotations

import logging
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any, Protocol

from ebbpool._core.accel import Pool
from ebbpool._frames import stacks
from ebbpool._pool import loop_lag
from ebbpool._pool.census import LITTLE, clocks_of
from ebbpool._pool.loop_lag import LateLoop
from ebbpool._pool.running import RunningTask, called_name
from ebbpool._pool.stats import Decisions
from ebbpool._pool.timekeeper import Timekeeper
from ebbpool._pool.writers import tell

LOGGER = logging.getLogger("concurrent.futures")

LEAST = 0.01
"""Least seconds between two looks for loops that are late."""


class Watched(Protocol):
    """The part of a crew that is needed here."""

    pool: Pool
    name: str
    decisions: Decisions

    def running(self, stacks: bool) -> list[RunningTask]: ...


class Alarm(ABC):
    """A look at one pool that comes again and again, for as long as the pool has threads: a book of the timekeeper.

    Args:
        keeper: The timekeeper.
        limit: Seconds after which something is late; the first look comes after so many.
    """

    def __init__(self, keeper: Timekeeper, limit: float) -> None:
        self._keeper = keeper
        self._limit = limit
        self._alarm: object = None
        self._crew: Callable[[], Watched | None] = lambda: None
        self._teller: threading.Thread | None = None

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
        self._teller = None

    def wants(self, thing: Any) -> bool:
        """Return whether the alarm is still set; see `Book.wants`."""
        return self._alarm is thing

    def fire(self, thing: Any) -> None:
        """Look for what is late, have it told of, and set the next alarm; in the timekeeper's thread."""
        self._alarm = None
        crew = self._crew()
        if crew is None:
            return
        delay = self._limit
        try:
            if self._teller is None or not self._teller.is_alive():
                delay = self._look(crew)
        finally:
            # A pool whose last thread ends now finds no alarm to take back, or the one that is set here.
            if crew.pool.headcount > 0:
                self._set(delay)
                if crew.pool.headcount == 0:
                    self.end()

    def _tell(self, call: Callable[[], None]) -> None:
        # Not here, where all pools would wait for a slow handler, or for good for one that needs a pool.
        self._teller = tell("ebbpool-warnings", call)

    @abstractmethod
    def _look(self, crew: Watched) -> float:
        """Have what is late told of; return in how many seconds something may be late next."""


class SlowTasks(Alarm):
    """Which tasks have been warned of in one pool; see `Alarm`."""

    def __init__(self, keeper: Timekeeper, limit: float) -> None:
        super().__init__(keeper, limit)
        # The number of the thread, and since when its task has run.
        self._warned: set[tuple[int | None, float]] = set()
        self._crowded = False

    def renew(self) -> None:
        """In a forked child: forget the alarm, and the tasks, which stayed with the parent."""
        super().renew()
        self._warned.clear()
        self._crowded = False

    def _look(self, crew: Watched) -> float:
        now = monotonic()
        seen = crew.pool.survey()
        tasks = {(task.thread.ident, task.since): task.thread.name for task in seen.running if task.thread is not None}
        self._warned.intersection_update(tasks)
        fresh = {task for task in tasks if now - task[1] >= self._limit} - self._warned
        waited = seen.counts["oldest_wait"]
        crowded = waited >= self._limit
        if fresh or (crowded and not self._crowded):
            names = {tasks[task] for task in fresh}
            self._tell(partial(self._warn, crew, names, crowded and not self._crowded))
        self._warned |= fresh
        self._crowded = crowded
        ages = [now - since for _, since in tasks.keys() - self._warned]
        if not crowded:
            ages.append(waited)
        return max(0.0, self._limit - max(ages, default=0.0))

    def _warn(self, crew: Watched, names: set[str], crowded: bool) -> None:
        for task in crew.running(True) if names else ():
            if task.thread in names and task.seconds >= self._limit:
                lane = f", lane {task.lane!r}," if task.lane is not None else ""
                LOGGER.warning(
                    "%s in pool %r%s has been running for %.1f s on %s:\n%s",
                    task.name, crew.name, lane, task.seconds, task.thread, task.stack,
                )  # fmt: skip
        if not crowded:
            return
        seen = crew.pool.survey(True)
        oldest = seen.oldest
        if oldest is not None:
            LOGGER.warning(
                "%d tasks are waiting in pool %r; the oldest, %s, has waited %.1f s; the pool %s",
                seen.counts["queued"], crew.name, called_name(*oldest.call), monotonic() - oldest.since,
                crew.decisions.last() or "has not grown",
            )  # fmt: skip


class LateLoops(Alarm):
    """What the threads of the process had computed when one pool last looked for event loops that are late."""

    def __init__(self, keeper: Timekeeper, limit: float) -> None:
        super().__init__(keeper, limit)
        self._used: dict[int, float] = {}

    def _look(self, crew: Watched) -> float:
        late, oldest = loop_lag.late(monotonic(), self._limit)
        # This thread's own looking is left out.
        threads = [each for each in threading.enumerate() if each is not threading.current_thread()]
        used = clocks_of(threads)
        if late:
            # The first look has nothing to compare with.
            before = self._used or used
            shares = {number: seconds - before.get(number, 0.0) for number, seconds in used.items()}
            busiest = max(threads, key=lambda each: shares.get(each.native_id or 0, 0.0), default=None)
            share = 0.0 if busiest is None else shares.get(busiest.native_id or 0, 0.0)
            texts = [self._told(crew, each, busiest, share) for each in late]
            self._tell(partial(LOGGER.warning, "%s", "\n".join(texts)))
        self._used = used
        return max(self._limit - oldest, LEAST)

    def _told(self, crew: Watched, late: LateLoop, busiest: threading.Thread | None, share: float) -> str:
        [stack] = stacks([late.ident])
        text = f"The event loop in {late.name} has not responded for {late.seconds:.2f} s. It is at:\n{stack}"
        if busiest is None or busiest.ident == late.ident or share < LITTLE * late.seconds:
            return text
        [stack] = stacks([busiest.ident])
        task = next((each.name for each in crew.running(False) if each.native_id == busiest.native_id), "other code")
        return f"{text}Meanwhile {task} used the most processor time, {share:.2f} s, on {busiest.name}:\n{stack}"
