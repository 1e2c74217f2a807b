"""What a test leaves behind: pools that nobody has shut down, and tasks that run on."""

from __future__ import annotations

import gc
import sys
import time
import weakref
from typing import Any

from ebbpool._pool import lifecycle

POLL = 0.01
"""Seconds between two looks at what has not ended yet."""


class Leaks:
    """Tells pools and tasks of a test from those that were there before."""

    def __init__(self) -> None:
        self._spared: weakref.WeakSet[Any] = weakref.WeakSet()
        self._since = 0.0

    def spare(self) -> list[weakref.ref[Any]]:
        """Spare the pools that are there now, the event loops that may make one, and the tasks that run now.

        Returns:
            Those pools and loops that were not spared before.
        """
        new = [one for one in (*lifecycle.live(), *_loops()) if one not in self._spared]
        self._spared.update(new)
        self._since = time.monotonic()
        return [weakref.ref(one) for one in new]

    def blame(self, reference: weakref.ref[Any]) -> None:
        """Spare a pool or a loop no longer, if it is still there."""
        one = reference()
        if one is not None:
            self._spared.discard(one)

    def find(self, grace: float) -> str:
        """Return a text on the pools and tasks that are left `grace` seconds from now, or nothing if there are none.

        A pool that is open, and that something refers to, is not waited for: it would not end.
        """
        began = time.monotonic()
        if self._pools() or self._tasks(began):
            # A pool in a reference cycle is closed when that is collected.
            gc.collect()
        while True:
            pools, tasks = self._pools(), self._tasks(began)
            ending = [crew for crew in pools if crew.pool.closed or crew._owner() is None]
            if not (ending or tasks) or time.monotonic() >= began + grace:
                break
            time.sleep(POLL)
        return "\n".join([*map(_describe_pool, pools), *(_describe_tasks(crew) for crew in tasks)])

    def _pools(self) -> list[Any]:
        loops = [loop for loop in _loops() if loop in self._spared and not loop.is_closed()]
        shared = [_shared_by_anyio(), *(getattr(loop._default, "_crew", None) for loop in loops)]
        return [
            crew
            for crew in lifecycle.live()
            if not (crew.pool.closed and crew.pool.headcount == 0) and crew not in self._spared and crew not in shared
        ]

    def _tasks(self, began: float) -> list[Any]:
        """Return the pools, those aside that are left themselves, in which a task of the test runs."""
        left = self._pools()
        now = time.monotonic()
        return [
            crew
            for crew in lifecycle.live()
            if crew not in left
            and any(seconds >= 0 and self._since < now - seconds < began for _, seconds in crew.pool.crew_list())
        ]


def _loops() -> list[Any]:
    aio = sys.modules.get("ebbpool.aio")
    return [] if aio is None else aio.live_loops()


def _shared_by_anyio() -> Any:
    executor = getattr(sys.modules.get("ebbpool.anyio"), "_shared", None)
    return None if executor is None else executor._crew


def _describe_pool(crew: Any) -> str:
    counts = crew.pool.counts()
    state = "was shut down, but has not ended" if crew.pool.closed else "is open: nobody has shut it down"
    figures = f"{counts['workers']} threads, {counts['running']} tasks running, {counts['queued']} waiting"
    tasks = f"; {crew.report()}" if counts["running"] else ""
    return f"pool {crew.prefix!r} {state} ({figures}){tasks}"


def _describe_tasks(crew: Any) -> str:
    return f"a task in pool {crew.prefix!r}, which is not the test's own, goes on; {crew.report()}"


leaks = Leaks()
