"""How many workers may run at once: two rules, which docs/design/growth.md has in full, and the reasons."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

from ebbpool._core.accel import ALL
from ebbpool._pool.census import Workers
from ebbpool._pool.sizing import CREW, STALL, STALL_PAUSE, WINDOW
from ebbpool._pool.timekeeper import Tick

QUEUE: Final = 0.0007  # looks that wait longer on average (seconds) show that threads queue for the GIL or processors
ONE: Final = 0.96  # threads are taken to queue for the GIL only between so many processors in use
MORE: Final = 1.25  # and so many: with the GIL a process can use little more
FULL: Final = 0.9  # share of all processors in use where threads queue for those
TURN: Final = 0.005  # seconds that a turn of the GIL takes; looks that wait longer show a queue for it in any case
OWN: Final = 0.35  # least processors in use there: otherwise nothing of this process is in the way
SLACK: Final = 0.9  # a process that uses less than this of one processor leaves the GIL idle now and then
PUNCTUAL: Final = 0.00025  # looks that wait less on average (seconds) find the GIL free
ROOM: Final = 0.85  # share of the processors in use below which there is room for one more worker
LOOKS: Final = 3  # how many looks a window has at least; fewer do if these waited for `WINDOW`
RETRY: Final = 0.5  # seconds for which it is kept in mind that fewer workers left the GIL, or a processor, idle
LENGTHY_TURN: Final = 0.004  # seconds of a processor for each task from which others wait for the switch interval
GIL: Final = "the GIL is"


class Admission:
    """Few run, so that they keep the processors, or the GIL, busy: more make all wait longer. Used by one thread."""

    def __init__(self, gil: bool) -> None:
        self._gil = gil
        self.rest()

    def rest(self) -> None:
        """Forget what was seen: no task has waited for a while."""
        # How many may run at a time, those with a long task left out; `ALL` where nobody is held back.
        self.quick = ALL
        self._begun = self._cpu = self._late = self._moved = self._raised = 0.0
        self._floor = 1
        # Whether nobody is held back, and the process computed little in the last window.
        self.idle = False
        self._taken = -1
        self._looks = 0
        self._short = ""
        self._first = 0  # of the tasks taken in this window
        self._keeps = False

    def shorter_turns(self) -> bool:
        """Return whether workers are held back for the GIL, and keep it so long that others wait a switch interval."""
        return self.quick != ALL and self._short == GIL and self._keeps

    def why(self) -> str:
        """Return in words why workers are held back."""
        return f"{self._short} the bottleneck: {self.quick} may run at a time"

    def decide(self, tick: Tick, cpus: int, taken: int, count: Callable[[], Workers]) -> int:
        """Return how many workers may have a task in hand; `count()` counts those that have, which takes time."""
        if self._taken < 0:
            self._begun, self._cpu, self._moved, self._first = tick.now, tick.cpu, tick.now, taken
        else:
            self._late += tick.late
            self._looks += 1
        if taken != self._taken:
            self._taken, self._moved = taken, tick.now
        elapsed = tick.now - self._begun
        if elapsed >= WINDOW and (self._looks >= LOOKS or self._late >= WINDOW):
            self._keeps = tick.cpu - self._cpu > LENGTHY_TURN * (taken - self._first)
            self._steer(tick.now, (tick.cpu - self._cpu) / elapsed, self._late / self._looks, cpus, count)
            self._begun, self._cpu, self._late, self._looks, self._first = tick.now, tick.cpu, 0.0, 0, taken
        if self.quick == ALL:
            return ALL
        workers = count()
        most = max(self.quick, cpus + CREW)
        stalled = tick.now - self._moved - STALL
        if stalled >= 0.0:
            return max(self.quick, workers.running) + workers.long + workers.asleep + 1 + int(stalled / STALL_PAUSE)
        # Beside long ones the queue for the GIL is there anyway.
        quick = max(self.quick, cpus) if workers.long > 0 else self.quick
        return min(quick + workers.long, most) + workers.asleep

    def _steer(self, now: float, used: float, wait: float, cpus: int, count: Callable[[], Workers]) -> None:
        """Set `quick` by what a window has shown: processors `used`, and how long looks had to `wait` on average."""
        if self._gil and OWN < used < MORE and wait > (QUEUE if used > ONE else TURN):
            self._fewer(now, 1, count().running, cpus, GIL)
        elif wait > QUEUE and used > FULL * cpus:
            self._fewer(now, cpus, count().running, cpus, "processors are")
        elif self.quick != ALL and ((used < SLACK and wait < TURN) or (wait < PUNCTUAL and used < ROOM * cpus)):
            self._floor, self._raised = self.quick + 1, now
            self.quick = self.quick * 2 if used < 0.5 else self.quick + 1
            if self.quick > count().running + cpus + CREW:
                self.quick, self._floor = ALL, 1
        self.idle = self.quick == ALL and used < OWN

    def _fewer(self, now: float, least: int, running: int, cpus: int, short: str) -> None:
        if running == 0:
            # What is computed is not computed here.
            self.quick = max(self.quick, cpus + CREW)
        else:
            if now - self._raised < RETRY:
                least = max(least, self._floor)
            self.quick = max(least, min(self.quick, running) // 2)
            self._short = short


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
