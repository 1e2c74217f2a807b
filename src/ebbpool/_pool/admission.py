"""How many workers may run at once: two rules, which docs/design/growth.md has in full, and the reasons."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

from ebbpool._core.accel import ALL
from ebbpool._pool.census import Workers
from ebbpool._pool.load import BUSY, IDLE, ONE, PUNCTUAL, TURN, WINDOW, Load
from ebbpool._pool.sizing import CREW, STALL

RETRY: Final = 0.5  # seconds for which it is kept in mind that fewer workers left the GIL, or a processor, idle


class Admission:
    """Few run, so that they keep the processors, or the GIL, busy: more make all wait longer. Used by one thread."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self.rest()

    def rest(self) -> None:
        """Forget what was seen: no task has waited for a while."""
        # How many may run at a time, those with a long task left out; `ALL` where nobody is held back.
        self.quick = ALL
        self._floor = 1
        self._raised = 0.0
        self._steered = self._load.now
        # Whether nobody is held back, and the process computed little in the last window.
        self.idle = False
        # Whether it is the GIL for which some are held back, and no processor.
        self._gil = False

    def shorter_turns(self) -> bool:
        """Return whether workers are held back for the GIL, and keep it so long that others wait a switch interval."""
        return self.quick != ALL and self._gil and self._load.lengthy

    def why(self) -> str:
        """Return in words why workers are held back."""
        short = "the GIL is" if self._gil else "processors are"
        return f"{short} the bottleneck: {self.quick} may run at a time"

    def decide(self, count: Callable[[], Workers]) -> int:
        """Return how many workers may have a task in hand; `count()` counts those that have, which takes time."""
        load = self._load
        if load.now - self._steered >= WINDOW:
            self._steered = load.now
            self._steer(count)
        if self.quick == ALL:
            return ALL
        workers = count()
        most = max(self.quick, load.cpus + CREW)
        stalls = int((load.now - load.moved) / STALL)
        if stalls > 0:
            return max(self.quick, workers.running) + workers.long + workers.asleep + stalls
        # Beside long ones the queue for the GIL is there anyway.
        quick = max(self.quick, load.cpus) if workers.long > 0 else self.quick
        return min(quick + workers.long, most) + workers.asleep

    def _steer(self, count: Callable[[], Workers]) -> None:
        """Set `quick` by what a window has shown."""
        load = self._load
        if load.gil_short or load.processors_short:
            running = count().running
            if running == 0:
                # What is computed is not computed here.
                self.quick = max(self.quick, load.cpus + CREW)
                return
            least = 1 if load.gil_short else load.cpus
            if load.now - self._raised < RETRY:
                least = max(least, self._floor)
            self.quick = max(least, min(self.quick, running) // 2)
            self._gil = load.gil_short
        elif self.quick != ALL:
            wait, used = load.wait, load.used
            if (used < ONE and wait < TURN) or (wait < PUNCTUAL and used < BUSY * load.cpus):
                self.quick += 1
                self._floor, self._raised = self.quick, load.now
                if self.quick > count().running + load.cpus + CREW:
                    self.quick, self._floor = ALL, 1
        self.idle = self.quick == ALL and load.used < IDLE


WATCH: Final = 1.0  # seconds for which what ends is counted, while the queue stands
LATE: Final = 0.5  # tasks that run for this share of `max_wait`, on average, bring most answers too late
SHARE: Final = 0.125  # so as many may run as end in this share of it
FAILED: Final = 0.25  # if they still run for this share, larger than `SHARE`, they had not waited for one another
LENGTHY: Final = 2.0  # seconds in which all tasks in hand should end, or it would take too long to find out
HOLD: Final = 60.0  # seconds until fewer may run again where that was no help


class Overload:
    """Where a queue stands, as many tasks run as end in a share of `max_wait`, if each runs the shorter for it."""

    def __init__(self) -> None:
        self._again = -inf
        self._ended = 0
        self.rest()

    def rest(self) -> None:
        """Let all workers be used: the queue does not stand."""
        self.most = ALL
        self._since = -1.0

    def why(self) -> str:
        """Return in words why workers are held back, or are no longer."""
        if self.most == ALL:
            return "the pool is overloaded, and tasks took as long while fewer ran"
        return f"the pool is overloaded, and tasks wait for one another: {self.most} may run at a time"

    def decide(self, now: float, ended: int, used: int, max_wait: float) -> int:
        """Return how many workers may have a task in hand; `used` have one, and `ended` tasks have ended so far."""
        elapsed = now - self._since
        if self._since < 0.0 or now < self._again:
            self._since, self._ended = now, ended
        elif elapsed >= WATCH:
            rate = (ended - self._ended) / elapsed
            fewer = max(1, int(SHARE * max_wait * rate))
            self._since, self._ended = now, ended
            if self.most == ALL:
                if LENGTHY * rate >= used > LATE * max_wait * rate:
                    self.most = fewer
            elif used > (FAILED * max_wait * rate if used <= self.most else LENGTHY * rate):
                self.most = ALL
                self._again = now + HOLD
            else:
                self.most = max(self.most, fewer)
        return self.most
