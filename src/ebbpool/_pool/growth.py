"""What follows each tick of the timekeeper for one pool: start workers, limit how many run, fail stranded tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from math import inf
from time import monotonic

from ebbpool._core.accel import ALL, Pool, Snapshot
from ebbpool._interpreter import GIL_ENABLED, processors
from ebbpool._pool.admission import LONG, Admission, Restraint
from ebbpool._pool.census import Census, Workers
from ebbpool._pool.sizing import CREW, MEMORY, TICK, Sample, Sizing
from ebbpool._pool.spill import Spill
from ebbpool._pool.stats import Decisions
from ebbpool._pool.threads import WorkerThread
from ebbpool._pool.timekeeper import Tick

RETRY = 0.05
"""Seconds until the next look after one that raised an error."""
GIVE_UP = 1.0
"""Seconds for which the system may refuse threads until the tasks fail that no worker will take."""
WIDEN = 0.05
"""If calls that go on with something wait at the ceiling, and no task is taken for so many seconds, a thread comes."""
HELD_TICK = 0.005
"""Seconds between looks at a pool that holds workers back: each takes the GIL from those that compute."""
CEILING_TICK = 0.01
"""Seconds between looks at a pool that may not grow and holds no worker back; the looks keep its clock right."""


class Growth:
    """What one pool remembers from look to look; the threads are those of `Crew`."""

    pool: Pool
    threads: set[WorkerThread]
    spill: Spill | None
    start: Callable[[bool], BaseException | None]
    retry = RETRY

    def forget(self) -> None:
        """Begin anew, as a new pool does, and one in a forked child."""
        self.pool.crowd = processors.count(monotonic()) + CREW
        self.decisions = Decisions()
        self._sizing = Sizing()
        self._admission = Admission(GIL_ENABLED)
        self._restraint = Restraint()
        self._census = Census()
        # What a look is compared with: the tick before, and how many tasks had been taken then.
        self._before = Tick(0.0, 0.0, 0.0)
        self._taken = 0
        self._ended = -inf
        self._refusal: BaseException | None = None
        self._stuck = inf
        self._last_taken = 0
        self._taken_at = -inf

    def begin(self, tick: Tick) -> float:
        """Note where a spell of waiting begins, in the timekeeper's thread; see `Watched.begin`."""
        rest = tick.now - self._ended
        self._sizing.begin(rest)
        if rest > MEMORY:
            self._admission.rest()
            self._restraint.rest(tick.now)
            if self.pool.allowed != ALL:
                self.pool.admit(ALL)
        self._before, self._taken = tick, self.pool.taken
        return TICK

    def tick(self, tick: Tick) -> float | None:
        """Start as many workers as `_sizing` says, in the timekeeper's thread; see `Watched.tick`."""
        seen = self.pool.snapshot(tick.now)
        if seen is None:
            self._ended = tick.now
            self._refusal = None
            self._stuck = inf
            return None
        before, self._before = self._before, tick
        taken, self._taken = seen.taken - self._taken, seen.taken
        if seen.workers > seen.blocked or taken > 0:
            self._stuck = inf
        if self.spill is not None:
            self.spill.look(tick.now)
        cpus = processors.count(tick.now)
        self.pool.crowd = cpus + CREW
        allowed = self._admit(tick, seen, cpus)
        if seen.queued == 0 and not self.pool.covered:
            # Many run, and no task waits. Once one does, the timekeeper is called.
            self._ended = tick.now
            return None if self._admission.idle and self.pool.leave_alone() else CEILING_TICK
        self._widen(tick.now, seen, allowed)
        if not seen.may_grow:
            if self._restraint.most == ALL:
                why = self._admission.why if allowed != ALL else lambda: "max_workers reached"
                self.decisions.note(seen.workers, 0, seen.queued, why)
            # The spell of waiting ends here. If the pool may grow later, `begin` or the next look starts a new one.
            self._ended = tick.now
            if allowed != ALL:
                return HELD_TICK
            return CEILING_TICK if self.spill is None else max(TICK, min(CEILING_TICK, self.spill.after))
        self._grow(tick, before, seen, taken, allowed, cpus)
        if self._refusal is not None and seen.workers <= seen.blocked:
            self._stuck = min(self._stuck, tick.now)
            if tick.now - self._stuck >= GIVE_UP:
                self._stuck = inf
                self.pool.give_up(self._refusal)
        if allowed != ALL:
            self._sizing.tick = HELD_TICK
        return self._sizing.tick

    def _grow(self, tick: Tick, before: Tick, seen: Snapshot, taken: int, allowed: int, cpus: int) -> None:
        asleep = None
        if self._sizing.asks and seen.workers - seen.blocked < allowed:
            threads = self.threads, threading.enumerate()
            asleep = self._census.measure(tick.now, tick.cpu, *threads, self._sizing.busy)
        sample = Sample(
            queued=seen.queued,
            taken=taken,
            workers=seen.workers,
            starting=seen.starting,
            idle=seen.idle,
            blocked=seen.blocked,
            elapsed=tick.now - before.now,
            late=tick.late,
            cpu=tick.cpu - before.cpu,
            cpus=cpus,
            refused=self._refusal is not None,
            asleep=asleep,
        )
        pool = self.pool
        most = min(pool.max_workers, max(allowed, pool.min_workers))
        count = self._sizing.decide(sample, pool.min_workers, most, pool.min_spare_workers)
        if allowed != ALL and seen.idle > 0:
            if self._restraint.most == ALL:
                self.decisions.note(seen.workers, count, seen.queued, self._admission.why)
        elif count > 0 or self._sizing.settled:
            self.decisions.note(seen.workers, count, seen.queued, self._sizing.why)
        if count > 0:
            self._start_many(count)

    def _widen(self, now: float, seen: Snapshot, allowed: int) -> None:
        """Have one more worker for calls that go on with something, at the ceiling, if none was taken for `WIDEN`."""
        if seen.may_grow or seen.ahead == 0 or seen.taken != self._last_taken or allowed != ALL:
            self._last_taken, self._taken_at = seen.taken, now
        elif now - self._taken_at >= WIDEN:
            self._taken_at = now
            if self.pool.widen():
                why = f"no task was taken for {WIDEN:g} s while calls of tasks under way waited"
                self.decisions.note(seen.workers, 1, seen.queued, lambda: why)

    def _admit(self, tick: Tick, seen: Snapshot, cpus: int) -> int:
        """Tell the pool how many workers may run at a time; return that."""
        pool = self.pool

        def count() -> Workers:
            running = pool.survey().running
            spans = [(task.thread, task.since) for task in running if task.thread is not None and not task.blocked]
            return self._census.sort(tick.now, spans, LONG)

        allowed = ALL if pool.max_queue == 0 else self._admission.decide(tick, cpus, seen.taken, count)
        if pool.stands(tick.now):
            most, used = self._restraint.most, seen.workers - seen.blocked - seen.idle
            ended = pool.taken - pool.expired - used
            held_to = self._restraint.decide(tick.now, ended, used, not seen.may_grow, pool.max_wait)
            allowed = min(allowed, held_to)
            if self._restraint.most != most:
                self.decisions.note(seen.workers, 0, seen.queued, self._restraint.why, new=True)
        else:
            self._restraint.rest(tick.now)
        if allowed != ALL or pool.allowed != ALL:
            pool.admit(allowed)
        return allowed

    def _start_many(self, count: int) -> None:
        self._refusal = None
        left = self.pool.reserve(count)
        try:
            while left > 0 and self._refusal is None:
                try:
                    interruption = self.start(False)
                except (RuntimeError, MemoryError) as error:
                    # Without its frames, which hold this crew.
                    self._refusal = error.with_traceback(None)
                else:
                    left -= 1
                    if interruption is not None:
                        raise interruption
        finally:
            for _ in range(left):
                self.pool.unreserve(False, None, False)
