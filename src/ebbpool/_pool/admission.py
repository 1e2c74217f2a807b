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
ONE: Final = 0.96  # least processors in use where threads queue for the GIL
MORE: Final = 1.25  # most processors in use there: with the GIL a process can use little more
FULL: Final = 0.9  # share of all processors in use where threads queue for those
TURN: Final = 0.005  # seconds that a turn of the GIL takes; looks that wait longer show a queue for it in any case
OWN: Final = 0.35  # least processors in use there: otherwise nothing of this process is in the way
SLACK: Final = 0.9  # a process that uses less than this of one processor leaves the GIL idle now and then
PUNCTUAL: Final = 0.00025  # looks that wait less on average (seconds) find the GIL free
ROOM: Final = 0.85  # share of the processors in use below which there is room for one more worker
LOOKS: Final = 3  # how many looks a window has at least; fewer do if these waited for `WINDOW`
RETRY: Final = 0.5  # seconds for which it is kept in mind that fewer workers left the GIL, or a processor, idle


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

    def why(self) -> str:
        """Return in words why workers are held back."""
        return f"{self._short} the bottleneck: {self.quick} may run at a time"

    def decide(self, tick: Tick, cpus: int, taken: int, count: Callable[[], Workers]) -> int:
        """Return how many workers may have a task in hand; `count()` counts those that have, which takes time."""
        if self._taken < 0:
            self._begun, self._cpu, self._moved = tick.now, tick.cpu, tick.now
        else:
            self._late += tick.late
            self._looks += 1
        if taken != self._taken:
            self._taken, self._moved = taken, tick.now
        elapsed = tick.now - self._begun
        if elapsed >= WINDOW and (self._looks >= LOOKS or self._late >= WINDOW):
            self._steer(tick.now, (tick.cpu - self._cpu) / elapsed, self._late / self._looks, cpus, count)
            self._begun, self._cpu, self._late, self._looks = tick.now, tick.cpu, 0.0, 0
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
            self._fewer(now, 1, count().running, cpus, "the GIL is")
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


WATCH: Final = 1.0  # seconds for which the queue stands, and what ends is counted, until something is tried
SPAN: Final = 0.25  # least seconds for which a trial is counted
ENOUGH: Final = 50  # least tasks that end in a trial, and one for each worker: they may all end together
SAME: Final = 0.9  # fewer workers get as much done if it is this share of what all of them did
BETTER: Final = 1.2  # twice as many are worth having if they get so many times as much done
STOPPED: Final = 0.3  # a share of the rate before that shows that workers wait for held-back ones, at a lock perhaps
STUCK: Final = 0.25  # seconds without the end of a task that show the same
TRIAL: Final = 4.0  # seconds after which a trial has failed in any case
SHORT: Final = 0.2  # tasks that run for this share of `max_wait` or less, on average, leave nothing to gain
LENGTHY: Final = 2.0  # seconds in which a task has to end, on average, or a trial would see none
HOLD: Final = 5.0  # seconds until something is tried again after a trial that did not pay; twice as many each time
LONGEST: Final = 60.0  # most seconds until then


class Restraint:
    """In an overloaded pool, `most` workers have a task in hand: as few as still get the same work done."""

    def __init__(self) -> None:
        self.most = self._good = ALL
        self._trying = False
        self._part = 4
        self._used = self._counted = self._ended = 0
        self._rate = self._since = self._moved = 0.0
        self._begun = -1.0
        self._hold = HOLD
        self._resting = -inf

    def rest(self, now: float) -> None:
        """Let all workers be used: the queue does not stand. How long nothing is to be tried is kept."""
        if self._trying:
            self._lift(now)
        self.most = ALL
        self._begun = -1.0

    def why(self) -> str:
        """Return in words why workers are held back."""
        if self.most == ALL:
            return "the pool is overloaded, and each worker gets more done"
        return f"the pool is overloaded, and more workers got no more done: {self.most} may be used"

    def decide(self, now: float, ended: int, used: int, full: bool, max_wait: float) -> int:
        """Return how many workers may have a task in hand; `used` have one, and if `full` no more may be started."""
        if ended > self._ended or self.most == ALL:
            self._moved = now
        self._ended = ended
        if now - self._moved >= STUCK or (self._trying and now - self._since >= TRIAL):
            self._lift(now)
        elif self._begun < 0.0 or used > self.most or (self.most == ALL and (not full or now < self._resting)):
            self._begun, self._counted = now, ended
        elif self._has_seen_enough(now - self._begun, ended - self._counted, used):
            rate = (ended - self._counted) / (now - self._begun)
            self._begun, self._counted = now, ended
            if self.most == ALL:
                if rate * LENGTHY >= max(ENOUGH, used) and used > SHORT * max_wait * rate:
                    self._keep(rate, used)
                    self._try(used // 4, now)
            elif rate < STOPPED * self._rate:
                self._lift(now)
            elif self._trying:
                self._judge(rate, now, used, SHORT * max_wait)
            elif now >= self._resting:
                # The load may be another by now, and so what counts as more.
                self._rate = rate
                self._try(2 * self.most, now)
        return self.most

    def _has_seen_enough(self, elapsed: float, done: int, used: int) -> bool:
        if self.most == ALL:
            return elapsed >= WATCH
        # Enough tasks have ended; or, at the rate from before, twice as many would have by now: then far fewer do.
        return elapsed >= SPAN and max(float(done), self._rate * elapsed / 2.0) >= max(ENOUGH, used)

    def _judge(self, rate: float, now: float, used: int, short: float) -> None:
        """End a trial that was seen to get `rate` tasks a second done, or go on with another."""
        down = self.most < self._good
        if rate >= (SAME if down else BETTER) * self._rate:
            self._keep(rate, used)
            self._hold = HOLD
            if not down:
                self._try(2 * self.most, now)
            elif self._part > 2 and used > short * rate:
                self._try(used // 4, now)
            else:
                self._settle(now)
        elif down and self._part > 2:
            self._part = 2
            self._try(self._used // 2, now)
        else:
            self.most = self._good
            self._settle(now)

    def _keep(self, rate: float, used: int) -> None:
        self._good, self._rate, self._used = self.most, rate, used

    def _try(self, count: int, now: float) -> None:
        self.most = max(1, count)
        self._trying = True
        self._since = self._moved = now
        self._begun = -1.0

    def _settle(self, now: float) -> None:
        self._trying = False
        self._part = 4
        self._resting, self._hold = now + self._hold, min(2.0 * self._hold, LONGEST)

    def _lift(self, now: float) -> None:
        self.most = self._good = ALL
        self._begun = -1.0
        self._settle(now)
