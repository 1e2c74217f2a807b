"""For ``--ebbpool-leaks``: the pools that a test has not shut down, and its tasks that run on."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from ebbpool._clock import monotonic
from ebbpool._core.accel import survey
from ebbpool._pool import lifecycle
from ebbpool._pool.running import described

if TYPE_CHECKING:
    from ebbpool._pool.crew import Crew

POLL = 0.01
"""Seconds between two looks at what has not ended yet."""
COLLECTIONS = 3
"""How often garbage is collected before a pool is said to be left. Not every interpreter finds it all at once."""


class Leaks:
    """Tells pools and tasks of a test from those that were there before."""

    def __init__(self) -> None:
        self._spared: WeakSet[Any] = WeakSet()
        self._earlier: set[tuple[Any, ...]] = set()

    def spare(self) -> WeakSet[Any]:
        """Spare the pools, event loops and tasks that are there now; return the pools and loops that are new."""
        new = WeakSet(one for one in (*lifecycle.live(), *_loops()) if one not in self._spared)
        self._spared.update(new)
        self._earlier = set(_running(lifecycle.live()))
        return new

    def blame(self, ones: Iterable[Any]) -> None:
        self._spared.difference_update(ones)

    def find(self, grace: float) -> str:
        """Return a text on the pools and tasks that are left after `grace` seconds, or nothing if there are none.

        A pool that is open, and that something refers to, is not waited for: it would not end. Nor are tasks that begin
        from now on in the pools of others.
        """
        deadline = monotonic() + grace
        left = self._pools()
        tasks = _running(crew for crew in lifecycle.live() if crew not in left).keys() - self._earlier
        collections = COLLECTIONS
        while True:
            left = self._pools()
            running = {key: place for key, place in _running(lifecycle.live()).items() if key in tasks}
            held = [crew for crew in left if not crew.pool.closed and crew.owner() is not None]
            if (len(held) < len(left) or running) and monotonic() < deadline:
                time.sleep(POLL)
            elif held and collections > 0:
                # A pool in a reference cycle is closed when that is collected.
                gc.collect()
                collections -= 1
                deadline = monotonic() + grace
            else:
                return "\n".join([*map(_describe, left), *(_describe_task(*place) for place in running.values())])

    def _pools(self) -> list[Crew]:
        loops = [loop for loop in _loops() if loop in self._spared and not loop.is_closed()]
        shared = getattr(sys.modules.get("ebbpool.anyio"), "_shared", None)
        others = [getattr(shared, "_crew", None), *(getattr(loop._default, "_crew", None) for loop in loops)]
        return [
            crew
            for crew in lifecycle.live()
            if not (crew.pool.closed and crew.pool.staff.headcount == 0)
            and crew not in self._spared
            and crew not in others
        ]


def _running(crews: Iterable[Crew]) -> dict[tuple[Any, ...], tuple[Crew, str]]:
    """Return the pool and the name of the thread of each running task, by what tells it from all others."""
    found = {}
    for crew in crews:
        for task in survey(crew.pool, True).running:
            found[id(crew), id(task.thread), task.since, id(task.call[0])] = (crew, task.thread.name)
    return found


def _loops() -> list[Any]:
    aio = sys.modules.get("ebbpool.aio")
    return [] if aio is None else aio.live_loops()


def _describe(crew: Crew) -> str:
    counts = survey(crew.pool).counts
    state = "was shut down, but has not ended" if crew.pool.closed else "is open: it was never shut down"
    figures = f"{counts['workers']} threads, {counts['running']} tasks running, {counts['queued']} waiting"
    return "\n".join([f"pool {crew.name!r} {state} ({figures})", *map(described, crew.running(True))])


def _describe_task(crew: Crew, thread: str) -> str:
    stacks = (
        f"{task.name} for {task.seconds:.1f} s\n{task.stack}" for task in crew.running(True) if task.thread == thread
    )
    return f"pool {crew.name!r}, which is not the test's own, goes on to run {''.join(stacks)}"


leaks = Leaks()
