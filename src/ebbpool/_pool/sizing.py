"""When a pool grows: decisions over numbers alone; docs/design/growth.md has the reasons. The core has it shrink."""

from __future__ import annotations

from typing import Final, NamedTuple

from ebbpool._clock import AGAIN
from ebbpool._core.accel import Snapshot
from ebbpool._pool.load import IDLE, TURN, Load

CREW: Final = 4  # workers beyond the processors that may run at a time: they bridge what blocks for a moment
ARRIVAL: Final = 0.010  # seconds for which a worker that was started, and has taken no task yet, holds up others
STALL: Final = 0.2  # seconds without a task taken until one more worker comes
MEMORY: Final = 0.1  # seconds without waiting tasks after which what was seen before is forgotten


class Asleep(NamedTuple):
    """How many of the `counted` threads wait for something."""

    counted: int
    outside: int  # of the process
    in_locks: int
    in_doubt: int = 0  # for a lock that a computing thread may hold


class Sizing:
    """What one pool remembers from look to look. Used by one thread at a time."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._step = 1
        self._grown = 0.0  # when a worker was started last
        # Whether the next look should count the threads that are asleep; and whether the last decision was that the
        # pool has enough workers, and not that some are on their way.
        self.asks = self.settled = False
        self._cause = ""

    def begin(self, rest: float) -> None:
        """Begin a time with waiting tasks, `rest` seconds after the last one ended."""
        self._step = 1
        if rest > MEMORY:
            self._grown = self._load.now
            self.asks = False

    def why(self) -> str:
        """Return in words what the last decision rests on."""
        used = f"processors {min(1.0, self._load.used / self._load.cpus):.0%} used"
        return f"{used}, {self._cause}" if self._cause else used

    def decide(
        self,
        seen: Snapshot,
        asleep: Asleep | None,
        refused: bool,
        min_workers: int,
        max_workers: int,
        min_spare_workers: int,
    ) -> int:
        """Return how many workers to start now: no more than fit below the ceiling, and than are asked for.

        `asleep` is None if it is unknown, or was not asked for (`asks`); a start was `refused` if the system did so.
        """
        self.settled = False
        self._cause = ""
        waiting = max(0, seen.queued - seen.idle - seen.starting)
        spare = min_spare_workers - seen.idle - seen.starting
        short = max(min_workers, min(1, seen.queued)) - seen.workers
        wanted = min(max(waiting, spare, short), max_workers + seen.blocked - seen.workers)
        if wanted <= 0:
            return 0
        if refused:
            self._cause = "the system refused to start a thread"
            grow = 1 if self._pause() >= AGAIN else 0
        elif not waiting:
            self._cause = "keeping spare workers"
            grow = wanted
        else:
            # Spare workers are no help to tasks that wait for a processor.
            grow = max(min(self._growth(seen, asleep), waiting), short, 0 if self._load.busy else spare)
        grow = min(grow, wanted)
        if grow > 0:
            self._grown = self._load.now
        return grow

    def _pause(self) -> float:
        return self._load.now - self._grown

    def _growth(self, seen: Snapshot, asleep: Asleep | None) -> int:
        """Return how many workers to start for the waiting tasks."""
        load, pause = self._load, self._pause()
        limit = load.cpus + CREW
        present = seen.workers - seen.blocked
        in_doubt = 0
        in_use = load.busy or load.used >= IDLE * load.cpus
        self.asks = in_use or present >= limit
        if asleep is not None:
            counted, outside, in_locks, in_doubt = asleep
            # Idle workers, and those that wait for this pool, wait for locks too, and do not count as asleep here.
            running = present - outside - max(0, in_locks - seen.idle - seen.blocked)
            came = max(0, seen.workers - counted)
            if not in_use:
                running -= came
            elif 0 < running <= came and pause < MEMORY:
                # Perhaps only workers that came after the count run: wait for the next count.
                return 0
        elif load.busy:
            running = present
        else:
            # Without a census, assume room for one more worker beside a half idle processor.
            running = min(present, limit - 1) if in_use else 0
        if running >= limit:
            self._step = 1
            if not in_use and running - in_doubt < limit:
                # Workers in doubt may wait for a lock that a computing thread holds. But a processor is idle.
                return 1 if pause >= TURN else 0
            self.settled = True
            self._cause = f"{running} workers compute"
            stalled = load.now - load.moved
            return 1 if stalled >= STALL and pause >= (STALL if in_use else TURN) else 0
        if in_use and running > 0:
            self._step = 1
            if pause < TURN:
                return 0
            self._cause = f"{running} of {present} workers compute"
            return limit - running if 2 * running < present else 1
        # None of the pool's workers uses the processors. Wait for those on their way before more are started.
        if seen.starting >= max(1, self._step // 4) and pause < ARRIVAL:
            return 0
        grow, self._step = self._step, min(2 * self._step, seen.queued + 1)
        return grow
