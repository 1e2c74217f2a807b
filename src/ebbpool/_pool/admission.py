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

QUEUE: Final = 0.0007
"""Looks that wait longer than this on average (seconds) show that threads queue for the GIL, or for processors ..."""

ONE: Final = 0.96
"""... for the GIL, if the process uses this share of one processor ..."""

MORE: Final = 1.25
"""... and not more than that, which it could not with the GIL alone ..."""

FULL: Final = 0.9
"""... and for processors, if it uses this share of all it has."""

TURN: Final = 0.005
"""Seconds that a turn of the GIL takes where it has to be asked for. Looks that wait longer on average show a queue,
though other processes have the processors ..."""

OWN: Final = 0.35
"""... if this process uses at least this share of one: otherwise nothing of it is in the way."""

SLACK: Final = 0.9
"""A process that uses less than this share of one processor leaves the GIL idle now and then."""

PUNCTUAL: Final = 0.00025
"""Looks that wait less than this on average (seconds) find the GIL free ..."""

ROOM: Final = 0.85
"""... and less than this share of the processors in use leaves room for one more worker."""

LOOKS: Final = 3
"""How many looks a window has at least, for an average of their waits; fewer do if these waited for `WINDOW`."""

RETRY: Final = 0.5
"""Seconds for which it is kept in mind that fewer workers left the GIL, or a processor, idle."""

LONG: Final = 0.05
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

    def __init__(self) -> None:
        self.rest()

    def rest(self) -> None:
        """Forget what was seen: no task has waited for a while."""
        self.quick = ALL
        self._begun = self._cpu = self._late = self._moved = self._raised = 0.0
        self._floor = 1
        self.idle = False
        self._taken = -1
        self._looks = 0
        self._short = ""

    def why(self) -> str:
        """Return in words why workers are held back."""
        return f"{self._short} the bottleneck: {self.quick} may run at a time"

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
        if elapsed >= WINDOW and (self._looks >= LOOKS or self._late >= WINDOW):
            self._steer(look, (look.cpu - self._cpu) / elapsed, self._late / self._looks)
            self._begun, self._cpu, self._late, self._looks = look.now, look.cpu, 0.0, 0
        if self.quick == ALL:
            return ALL
        workers = look.workers()
        most = max(self.quick, look.cpus + CREW)
        stalled = look.now - self._moved - STALL
        if stalled >= 0.0:
            return max(self.quick, workers.running) + workers.long + workers.asleep + 1 + int(stalled / STALL_PAUSE)
        # Beside long ones the queue for the GIL is there anyway.
        quick = max(self.quick, look.cpus) if workers.long > 0 else self.quick
        return min(quick + workers.long, most) + workers.asleep

    def _steer(self, look: Look, used: float, wait: float) -> None:
        """Set `quick` by what a window has shown: processors `used`, and how long looks had to `wait` on average."""
        if look.gil and OWN < used < MORE and wait > (QUEUE if used > ONE else TURN):
            self._fewer(look, 1, "the GIL is")
        elif wait > QUEUE and used > FULL * look.cpus:
            self._fewer(look, look.cpus, "processors are")
        elif self.quick != ALL and ((used < SLACK and wait < TURN) or (wait < PUNCTUAL and used < ROOM * look.cpus)):
            self._floor, self._raised = self.quick + 1, look.now
            self.quick = self.quick * 2 if used < 0.5 else self.quick + 1
            if self.quick > look.workers().running + look.cpus + CREW:
                self.quick, self._floor = ALL, 1
        self.idle = self.quick == ALL and used < OWN

    def _fewer(self, look: Look, least: int, short: str) -> None:
        running = look.workers().running
        if running == 0:
            # What is computed is not computed here.
            self.quick = max(self.quick, look.cpus + CREW)
        else:
            if look.now - self._raised < RETRY:
                least = max(least, self._floor)
            self.quick = max(least, min(self.quick, running) // 2)
            self._short = short
