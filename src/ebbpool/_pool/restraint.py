"""How many workers an overloaded pool uses: as few as get as much done.

Where tasks wait for something of their own, a lock, a connection, a busy database, more workers get no more done. They
only move the queue to where no `max_wait` ends a wait, and all answers come too late. So a pool whose queue has stood
for a while, with all workers in use, tries a quarter of them, or half, and keeps what costs nothing, as .NET's pool
climbs its hill. A trial is short, ends at once where nothing gets done, and comes ever more seldom where it does not
pay. docs/design/growth.md has the reasons.
"""

from __future__ import annotations

from math import inf
from typing import Final

from ebbpool._core.accel import ALL

WATCH: Final = 1.0
"""Seconds for which the queue stands until something is tried; what all workers get done meanwhile is the measure."""

SPAN: Final = 0.25
"""Seconds for which a trial is counted, at least ..."""

ENOUGH: Final = 50
"""... and how many tasks have to end, one for each worker at least: they may all begin and end at the same moments."""

SAME: Final = 0.9
"""What fewer workers get done is as much if it is this share of what all of them did ..."""

MORE: Final = 1.2
"""... and what twice as many do is worth having if it is so many times as much."""

STOPPED: Final = 0.3
"""So small a share, or no task that ends ..."""

STALL: Final = 0.25
"""... for so many seconds, means that those left wait for what others hold, who are held back."""

TRIAL: Final = 4.0
"""Seconds after which a trial has failed in any case."""

SHORT: Final = 0.2
"""Tasks that run for this share of `max_wait` or less, on average, leave nothing to gain."""

LENGTHY: Final = 2.0
"""Seconds in which a task has to end, on average, or a trial would see none."""

HOLD: Final = 5.0
"""Seconds until something is tried again after a trial that did not pay; each time twice as many ..."""

LONGEST: Final = 60.0
"""... up to so many."""


class Restraint:
    """What one overloaded pool remembers from look to look. Used by one thread at a time.

    Attributes:
        most: How many workers may have a task in hand; `ALL` where that is not limited.
    """

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
        """Return how many workers may have a task in hand, `ALL` for as many as there are.

        Args:
            now: Monotonic seconds.
            ended: How many tasks have ended so far.
            used: How many workers have a task in hand.
            full: Whether there are as many workers as there may be.
            max_wait: For how many seconds a task may wait.
        """
        if ended > self._ended or self.most == ALL:
            self._moved = now
        self._ended = ended
        if now - self._moved >= STALL or (self._trying and now - self._since >= TRIAL):
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
        if rate >= (SAME if down else MORE) * self._rate:
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
        elif self._good == ALL:
            self._lift(now)
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
