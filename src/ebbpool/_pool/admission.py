"""How many of a pool's workers run at a time: as few as keep the processors, or the GIL, busy.

Every thread that is ready to run makes all others wait longer, an event loop among them, and where the processors or
the GIL are in use already it adds nothing. The rule is that of Linux's concurrency-managed work queues: one that ends
a task takes the next only while no more run than there is use for. Those that sleep do not count, and those that have
computed for `LONG` do not hold others up. docs/design/growth.md has the reasons.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from ebbpool._core.accel import ALL
from ebbpool._pool.census import Workers
from ebbpool._pool.sizing import CREW, STALL, STALL_PAUSE, WINDOW

LATE: Final = 0.4
"""Looks that spend this share of the time waiting for their turn, while about one processor is used, show that threads
queue for the GIL."""

ONE: Final = 0.96
"""A process that uses this share of one processor keeps the GIL busy, if it is the GIL that is short ..."""

SLACK: Final = 0.95
"""... one that uses less than this share leaves it idle now and then ..."""

MORE: Final = 1.25
"""... and one that uses more than that of one processor lets the GIL go."""

WAIT: Final = 0.006
"""Seconds that a look waits on average where more than one thread wants the GIL or a processor all the time ..."""

FREE: Final = 0.004
"""... and less than this where the one that has the GIL lets go of it by itself, before it is asked to ..."""

OWN: Final = 0.35
"""... if the process uses at least this share of one: otherwise nothing of it is in the way."""

FULL: Final = 0.9
"""A process that uses this share of its processors has enough threads that run."""

ROOM: Final = 0.85
"""Less than this share of the processors in use, and looks that are `PUNCTUAL`, leave room for one more worker."""

PUNCTUAL: Final = 0.15
"""Looks that spend less than this share of the time waiting find the GIL free."""

LONG: Final = 0.025
"""Seconds of processor time after which a task no longer holds others up."""


class Look(NamedTuple):
    """What one look at a pool sees. Times are in seconds.

    Attributes:
        now: When it was.
        cpu: Processor time of the whole process so far.
        late: How much later than asked the look came.
        cpus: Processors available to the process.
        taken: Tasks taken off the queue so far.
        workers: Counts the workers that have a task in hand; it takes time.
        gil: Whether there is a GIL.
    """

    now: float
    cpu: float
    late: float
    cpus: int
    taken: int
    workers: Callable[[], Workers]
    gil: bool = True


class Admission:
    """What one pool remembers from look to look. Used by one thread at a time.

    Attributes:
        quick: How many workers may run at a time, those with a long task left out; `ALL` where nobody is held back.
        idle: Whether nobody is held back, and the process computed little in the last window.
    """

    __slots__ = ("_begun", "_cpu", "_late", "_looks", "_moved", "_short", "_taken", "idle", "quick")

    def __init__(self) -> None:
        self.rest()

    def rest(self) -> None:
        """Forget what was seen: no task has waited for a while."""
        self.quick = ALL
        self._begun = self._cpu = self._late = self._moved = 0.0
        self.idle = False
        self._taken = -1
        self._looks = 0
        self._short = ""

    def why(self) -> str:
        """Return in words why workers are held back."""
        return f"{self._short} short: {self.quick} may run at a time"

    def decide(self, look: Look) -> int:
        """Return how many workers may have a task in hand, `ALL` for as many as there are."""
        if self._taken < 0:
            self._begun, self._cpu, self._moved = look.now, look.cpu, look.now
        else:
            self._late += look.late
            self._looks += 1
        if look.taken != self._taken:
            self._taken, self._moved = look.taken, look.now
        elapsed = look.now - self._begun
        if elapsed >= WINDOW:
            self._steer(look, (look.cpu - self._cpu) / elapsed, self._late / elapsed)
            self._begun, self._cpu, self._late, self._looks = look.now, look.cpu, 0.0, 0
        if self.quick == ALL:
            return ALL
        workers = look.workers()
        most = max(self.quick, look.cpus + CREW)
        stalled = look.now - self._moved - STALL
        if stalled >= 0.0:
            return max(self.quick, workers.running) + workers.long + workers.asleep + 1 + int(stalled / STALL_PAUSE)
        return min(self.quick + workers.long, most) + workers.asleep

    def _steer(self, look: Look, used: float, late: float) -> None:
        """Set `quick` by what a window has shown: processors `used`, and for which share looks were `late`."""
        wait = self._late / self._looks
        if look.gil and ((late > LATE and ONE < used < MORE) or (wait > WAIT and OWN < used < MORE)):
            self._fewer(look, 1, "the GIL is")
        elif late > LATE and used > FULL * look.cpus:
            self._fewer(look, look.cpus, "processors are")
        elif self.quick != ALL and ((used < SLACK and wait < FREE) or (late < PUNCTUAL and used < ROOM * look.cpus)):
            self.quick = self.quick * 2 if used < 0.5 else self.quick + 1
            if self.quick > look.workers().running + look.cpus + CREW:
                self.quick = ALL
        self.idle = self.quick == ALL and used < OWN

    def _fewer(self, look: Look, least: int, short: str) -> None:
        running = look.workers().running
        if running == 0:
            # What is computed is not computed here.
            self.quick = max(self.quick, look.cpus + CREW)
        else:
            quick = min(self.quick, running)
            self.quick = max(least, quick - max(1, quick // 4))
            self._short = short
