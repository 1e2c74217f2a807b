"""When a pool grows: pure decisions over numbers, without a thread and without a clock of their own.

The timekeeper looks at a pool every `TICK` seconds while its tasks wait, hands what it saw to `Sizing.look`
and starts as many workers as it is told. docs/design.md has the reasons and figures behind every constant.
"""

from __future__ import annotations

from typing import Final, NamedTuple

TICK: Final = 0.001
"""Seconds between two looks at a pool whose tasks wait."""

QUICK_TICK: Final = 0.0005
"""The same while workers are started under a GIL that nobody keeps: there a computing task shows at once."""

TARGET_DELAY: Final = 0.005
"""Seconds a task may wait in a pool that takes tasks before more workers are started."""

BUSY_PAUSE: Final = 0.025
"""Seconds until the first worker is started while the processor, or the GIL, is the bottleneck; the second
waits for twice as long after the first, and so on."""

BUSY_PAUSES: Final = 8
"""The longest such pause, in multiples of `BUSY_PAUSE`: growth never stops altogether."""

BUSY_SHARE: Final = 0.8
"""A process that uses this share of its processors has none to spare ..."""

SPARE_SHARE: Final = 0.7
"""... until it uses less than this share of them; others may take the rest."""

LATE_SHARE: Final = 0.5
"""Looks that spend this share of the time waiting for a processor, or for the GIL, show that it is short."""

GIL_SHARE: Final = 0.9
"""A process that uses this share of one processor, however many of its threads have work, keeps its GIL busy."""

OVERTAKEN: Final = 0.1
"""Seconds after which a task that waits while others are taken may not be next: it needs a worker, come what may."""

OWN_SHARE: Final = 0.25
"""A process that used less than this share of one processor has not made a look late, and is not busy."""

WINDOW: Final = 0.016
"""Seconds over which looks are judged together; kernels may account for processor time in steps of 4 ms."""

CROWD: Final = 8
"""Looks over which the threads ahead of a look are averaged; with this many workers to each, most block."""

BRISK: Final = 50e-6
"""Seconds; a worker that takes tasks more often than this cannot have blocked in them."""

START_COST: Final = 150e-6
"""Seconds of processor time that starting one worker may take; not to be mistaken for a busy processor."""

SLICE: Final = 0.0025
"""Seconds until started workers that compute, rather than block, show as late looks or as processor time."""

MEMORY: Final = 0.1
"""Seconds after which a spell of waiting has nothing to do with the one before."""

ARRIVAL: Final = 0.010
"""Seconds a worker that was started or woken may take to arrive before it is no longer waited for."""


class Limits(NamedTuple):
    """The bounds a pool was given."""

    min_workers: int
    max_workers: int
    min_spare_workers: int


class Sample(NamedTuple):
    """What one look at a pool sees. Times are in seconds.

    Attributes:
        queued: Tasks waiting, cancelled ones left out.
        taken: Tasks taken off the queue since the previous look.
        workers: All workers the pool counts, those on their way included.
        starting: Of these, the ones started but not yet seen to take work.
        idle: Of these, the ones parked, or woken and searching.
        blocked: Of these, the ones that wait for a future of this same pool.
        oldest_wait: Age of the oldest waiting task.
        elapsed: Time since the previous look.
        late: How much later than asked this look came.
        cpu: Processor time the whole process used since the previous look.
        cpus: Processors available to the process.
        refused: Whether the system would not start the last worker that was asked for.
        preempted: How often meanwhile a thread of the process had to leave its processor to another thread.
        census: What the pool's own workers, and what the whole process, used of one processor of late; None if that was
            not asked for (`Sizing.asks`), or is unknown.
    """

    queued: int
    taken: int
    workers: int
    starting: int
    idle: int
    blocked: int
    oldest_wait: float
    elapsed: float
    late: float
    cpu: float
    cpus: int
    refused: bool = False
    preempted: int = 0
    census: tuple[float, float] | None = None


def ceiling(limits: Limits, blocked: int) -> int:
    """Return the most workers a pool may have while `blocked` of them wait for its own futures."""
    return limits.max_workers + blocked


class Sizing:
    """What one pool remembers from look to look. Used by one thread at a time.

    Attributes:
        tick: Seconds from the last look until the next.
        asks: Whether the next looks should have a census.

    Args:
        switch_interval: With a GIL, how long in seconds a computing thread keeps it when others want it
            (`sys.getswitchinterval()`); zero without a GIL.
    """

    __slots__ = (
        "_busy",
        "_computing",
        "_cpu",
        "_crowd",
        "_elapsed",
        "_flowed",
        "_granted",
        "_late",
        "_paced",
        "_pause",
        "_preempted",
        "_starting",
        "_step",
        "_switch_interval",
        "_workers",
        "asks",
        "tick",
    )

    def __init__(self, switch_interval: float = 0.0) -> None:
        self._switch_interval = switch_interval
        self._forget()

    def begin(self, rest: float, workers: int, starting: int) -> None:
        """A spell of waiting begins, `rest` seconds after the last one ended, with so many workers; see `Sample`."""
        if rest > MEMORY:
            self._forget()
        self.tick = TICK
        self.asks = False
        self._step = 1
        self._granted = 0
        self._workers = workers
        self._starting = starting

    def _forget(self) -> None:
        self.tick = TICK
        self.asks = False
        self._busy = False
        self._computing = False
        self._flowed = False
        self._step = 1
        self._granted = 0
        self._pause = 0.0
        self._paced = 0.0
        self._workers = 0
        self._starting = 0
        self._cpu = 0.0
        self._late = 0.0
        self._elapsed = 0.0
        self._preempted = 0.0
        self._crowd = 0.0

    def look(self, sample: Sample, limits: Limits) -> int:
        """Return how many workers to start now, given what was seen.

        The answer never lifts the pool above its ceiling and never exceeds what waiting tasks, spare workers
        and `min_workers` ask for.
        """
        flow = self._flow(sample)
        self._flowed = self._flowed or flow > 0
        busy = self._is_busy(sample)
        brisk = flow * BRISK > sample.elapsed * sample.workers
        self._pause += sample.elapsed
        self._granted = 0
        self.tick = TICK
        self.asks = False

        waiting = max(0, sample.queued - sample.idle - sample.starting)
        spare = limits.min_spare_workers - sample.idle - sample.starting
        short = max(limits.min_workers, min(1, sample.queued)) - sample.workers
        wanted = min(max(waiting, spare, short), ceiling(limits, sample.blocked) - sample.workers)
        if wanted <= 0:
            return 0
        if sample.refused:
            grow = self._paced_growth(1.0 + self._paced)
        elif not waiting:
            grow = wanted
        elif brisk or (flow and self._saturates(sample)):
            grow = max(short, self._paced_growth(BUSY_PAUSES))
        elif busy:
            grow = max(short, self._grow_busy(sample))
        else:
            self._paced = max(0.0, self._paced - sample.elapsed / BUSY_PAUSE)
            grow = self._grow_flowing(sample) if flow else self._grow_stalled(sample)
            grow = max(min(grow, waiting), spare, short)
        grow = min(grow, wanted)
        if grow:
            self._pause = 0.0
            self._granted = grow
        return grow

    def _flow(self, sample: Sample) -> int:
        """Return how many tasks were taken by workers that had finished one, not by those that just came."""
        came = self._starting + max(0, sample.workers - self._workers) - sample.starting
        self._workers = sample.workers
        self._starting = sample.starting
        return max(0, sample.taken - max(0, came))

    def _is_busy(self, sample: Sample) -> bool:
        """Tell whether the processor or the GIL, rather than blocking, keeps tasks waiting."""
        starts = self._granted * START_COST
        cpu = max(0.0, sample.cpu - starts)
        late = max(sample.late, sample.elapsed - TICK - 2 * starts)
        keep = max(0.0, 1.0 - sample.elapsed / WINDOW)
        self._cpu = self._cpu * keep + cpu
        self._late = self._late * keep + late
        self._elapsed = self._elapsed * keep + sample.elapsed
        self._preempted = self._preempted * keep + (sample.elapsed if sample.preempted else 0.0)
        if self._switch_interval > 0:
            if not self._crowd:
                self._crowd = float(sample.workers)
            self._crowd += (late / self._switch_interval - self._crowd) / CROWD
        # A clock of processor time may be too coarse to show any.
        self._computing = cpu > OWN_SHARE * sample.elapsed or (sample.cpu == 0 and late > TICK)
        if not self._computing:
            self._busy = self._busy and late > TICK
        elif self._late > LATE_SHARE * self._elapsed or self._uses(BUSY_SHARE, cpu, sample):
            self._busy = True
        elif not self._contended() and not self._uses(SPARE_SHARE, cpu, sample):
            self._busy = False
        return self._busy

    def _saturates(self, sample: Sample) -> bool:
        """Tell whether the tasks that are being taken keep the GIL: more workers would only pass it on."""
        if self._switch_interval == 0 or not self._computing or sample.oldest_wait > OVERTAKEN:
            return False
        self.asks = self._busy or 2 * sample.oldest_wait > TARGET_DELAY
        if sample.census is None:
            return False
        own, used = sample.census
        # Tasks that compute without the GIL use a processor each.
        at_work = sample.workers - sample.starting - sample.idle - sample.blocked
        return used >= GIL_SHARE and 2 * own >= used and 2 * used <= at_work

    def _contended(self) -> bool:
        """Tell whether threads go on losing their processors, to each other or to other processes.

        The look itself takes one away where none is free. Under a GIL that says nothing about this process.
        """
        return self._switch_interval == 0 and self._preempted > LATE_SHARE * self._elapsed

    def _uses(self, share: float, cpu: float, sample: Sample) -> bool:
        """Tell whether `share` of the processors was used, in this look or over the last few."""
        share *= sample.cpus
        return cpu > share * sample.elapsed or self._cpu > share * self._elapsed

    def _paced_growth(self, pauses: float) -> int:
        self._step = 1
        if self._pause < BUSY_PAUSE * min(pauses, BUSY_PAUSES):
            return 0
        self._paced += 1.0
        return 1

    def _grow_busy(self, sample: Sample) -> int:
        """Grow slowly, a little less so while hardly any of the workers is seen to compute.

        A look is late by one switch interval for every thread that computes under the GIL. Where that is one
        thread or two and the workers are many, the others are blocked: what keeps the GIL is not this pool.
        """
        if sample.starting or sample.idle:
            return self._paced_growth(BUSY_PAUSES)
        under_gil = self._crowd >= 0.75 and sample.cpu < 1.2 * sample.elapsed
        if under_gil and CROWD * self._crowd <= sample.workers:
            return self._paced_growth(1.0)
        return self._paced_growth(1.0 + self._paced)

    def _grow_flowing(self, sample: Sample) -> int:
        self._step = max(1, self._step // 2)
        if sample.oldest_wait <= TARGET_DELAY or self._pause < (
            ARRIVAL if sample.starting or sample.idle else TARGET_DELAY
        ):
            return 0
        return 1 if self._computing else 1 + sample.workers // 8

    def _grow_stalled(self, sample: Sample) -> int:
        if self._switch_interval > 0 and not self._computing:
            self.tick = QUICK_TICK
        if self._flowed and self._computing and sample.oldest_wait <= TARGET_DELAY:
            return 0
        self._flowed = False
        coming = sample.idle > 0 or (sample.starting > 0 and 4 * sample.starting >= self._step)
        if self._pause < (ARRIVAL if coming else SLICE if self._computing else 0.0):
            return 0
        grow = self._step
        self._step = min(2 * grow, sample.queued + 1)
        return grow
