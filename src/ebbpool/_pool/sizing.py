"""When a pool grows: decisions over numbers alone; docs/design/growth.md has the reasons. The core has it shrink."""

from __future__ import annotations

from math import inf
from typing import Final, NamedTuple

TICK: Final = 0.001  # seconds between two looks at a pool whose tasks wait
QUICK_TICK: Final = 0.0005  # the same while workers are started beside idle processors
WINDOW: Final = 0.012  # seconds over which looks are averaged: the clock of a process may move in steps of 4 ms
IDLE: Final = 0.35  # a process that uses a smaller share of its processors leaves one idle
BUSY: Final = 0.8  # one that uses a larger share has none to spare
SPARE: Final = 0.6  # until it uses a smaller share than this
LATE: Final = 0.5  # share of the time for which looks have to wait where the GIL, or a processor, is short
PUNCTUAL: Final = 0.3  # until it is less than this
OWN: Final = 0.1  # below this share of one processor, late looks are another process's fault
CREW: Final = 4  # workers beyond the processors that may run at a time: they bridge what blocks for a moment
PAUSE: Final = 0.004  # seconds between two starts while a processor is in use
ARRIVAL: Final = 0.010  # seconds for which a worker that was started, and has taken no task yet, holds up others
STALL: Final = 0.2  # seconds without a task taken until one more worker comes, and until a refused start is tried again
STALL_PAUSE: Final = 0.5  # seconds until another one comes then, while processors are in use
START_COST: Final = 150e-6  # seconds of processor time that a start may take; they do not count as use of one
MEMORY: Final = 0.1  # seconds without waiting tasks after which what was seen before is forgotten


class Asleep(NamedTuple):
    """How many of the `counted` threads wait for something."""

    counted: int
    outside: int  # of the process
    in_locks: int
    in_doubt: int = 0  # for a lock that a computing thread may hold


class Sample(NamedTuple):
    """What one look at a pool sees; `taken`, `elapsed` (seconds) and `cpu` (of the process) since the one before."""

    queued: int
    taken: int
    workers: int
    starting: int
    idle: int  # parked, or woken and on their way to the queue
    blocked: int  # that wait for this very pool
    elapsed: float
    late: float  # how many seconds later than asked this look came
    cpu: float
    cpus: int
    refused: bool = False  # whether the system would not start the last worker that was asked for
    asleep: Asleep | None = None  # None if that was not asked for (`Sizing.asks`), or is unknown


class Sizing:
    """What one pool remembers from look to look. Used by one thread at a time."""

    def __init__(self) -> None:
        self.begin(inf)

    def begin(self, rest: float) -> None:
        """Begin a time with waiting tasks, `rest` seconds after the last one ended."""
        self.tick = TICK
        self._step = 1
        self._granted = 0
        if rest > MEMORY:
            self._pause = self._stalled = 0.0
            self._cpu = self._late = self._elapsed = self._used = 0.0
            # Whether processors, or the GIL, are short; whether the next look should count the threads that are asleep;
            # and whether the last decision was that the pool has enough workers, and not that some are on their way.
            self.busy = self.asks = self.settled = False
            self._cause = ""

    def why(self) -> str:
        """Return in words what the last decision rests on."""
        used = f"processors {min(1.0, self._used):.0%} used"
        return f"{used}, {self._cause}" if self._cause else used

    def decide(self, sample: Sample, min_workers: int, max_workers: int, min_spare_workers: int) -> int:
        """Return how many workers to start now: no more than fit below the ceiling, and than are asked for."""
        self._weigh(sample)
        self.settled = False
        self._cause = ""
        waiting = max(0, sample.queued - sample.idle - sample.starting)
        spare = min_spare_workers - sample.idle - sample.starting
        short = max(min_workers, min(1, sample.queued)) - sample.workers
        wanted = min(max(waiting, spare, short), max_workers + sample.blocked - sample.workers)
        if wanted <= 0:
            return 0
        if sample.refused:
            self._cause = "the system refused to start a thread"
            grow = 1 if self._pause >= STALL else 0
        elif not waiting:
            self._cause = "keeping spare workers"
            grow = wanted
        else:
            # Spare workers are no help to tasks that wait for a processor.
            grow = max(min(self._growth(sample), waiting), short, 0 if self.busy else spare)
        grow = min(grow, wanted)
        if grow > 0:
            self._pause = 0.0
            self._granted = grow
        return grow

    def _weigh(self, sample: Sample) -> None:
        """Find out which share of the processors is in use, and which share of the time looks come late."""
        elapsed = max(sample.elapsed, 1e-6)
        starts = self._granted * START_COST
        self._granted = 0
        # The time spent on starting workers is no sign of a busy processor. But it may be less than `starts`, so at
        # most half of the processor time is attributed to that.
        cpu = max(0.5 * sample.cpu, sample.cpu - starts)
        late = max(sample.late, elapsed - self.tick - 2 * starts)
        self.tick = TICK
        keep = max(0.0, 1.0 - elapsed / WINDOW)
        self._cpu = self._cpu * keep + cpu
        self._late = self._late * keep + late
        self._elapsed = self._elapsed * keep + elapsed
        self._pause += elapsed
        self._stalled = 0.0 if sample.taken else self._stalled + elapsed
        self._used = self._cpu / (self._elapsed * sample.cpus)
        lateness = self._late / self._elapsed
        # One look is enough to become busy: the next one would start workers.
        full = max(self._used, cpu / (elapsed * sample.cpus)) > BUSY
        if full or (lateness > LATE and self._used * sample.cpus > OWN):
            self.busy = True
        elif self._used < SPARE and lateness < PUNCTUAL:
            self.busy = False

    def _growth(self, sample: Sample) -> int:
        """Return how many workers to start for the waiting tasks."""
        limit = sample.cpus + CREW
        present = sample.workers - sample.blocked
        in_doubt = 0
        in_use = self.busy or self._used >= IDLE
        self.asks = in_use or present >= limit
        if sample.asleep is not None:
            counted, outside, in_locks, in_doubt = sample.asleep
            # Idle workers, and those that wait for this pool, wait for locks too, and do not count as asleep here.
            running = present - outside - max(0, in_locks - sample.idle - sample.blocked)
            came = max(0, sample.workers - counted)
            if not in_use:
                running -= came
            elif 0 < running <= came and self._pause < MEMORY:
                # Perhaps only workers that came after the count run: wait for the next count.
                return 0
        elif self.busy:
            running = present
        else:
            # Without a census, assume room for one more worker beside a half idle processor.
            running = min(present, limit - 1) if in_use else 0
        if running >= limit:
            self._step = 1
            if not in_use and running - in_doubt < limit:
                # Workers in doubt may wait for a lock that a computing thread holds. But a processor is idle.
                return 1 if self._pause >= PAUSE else 0
            self.settled = True
            self._cause = f"{running} workers compute"
            return 1 if self._stalled >= STALL and self._pause >= (STALL_PAUSE if in_use else PAUSE) else 0
        if in_use and running > 0:
            self._step = 1
            if self._pause < PAUSE:
                return 0
            self._cause = f"{running} of {present} workers compute"
            return limit - running if 2 * running < present else 1
        # Where little is computed, the next doubling may come sooner.
        self.tick = QUICK_TICK if not in_use and self._used * sample.cpus < 1.0 else TICK
        # None of the pool's workers uses the processors. Wait for those on their way before more are started.
        if sample.starting >= max(1, self._step // 4) and self._pause < ARRIVAL:
            return 0
        grow, self._step = self._step, min(2 * self._step, sample.queued + 1)
        return grow
