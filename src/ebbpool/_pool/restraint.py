"""How many workers an overloaded pool uses: as few as get as much done.

Where tasks wait for something of their own, a lock, a connection, a busy database, more workers get no more done. They
only move the queue to where no `max_wait` ends a wait, and all answers come too late. So a pool whose queue stands, and
whose workers are all in use, tries a quarter of them, or half, goes on while that costs nothing, and goes back where it
does, as .NET's pool climbs its hill. docs/design/growth.md has the reasons.
"""

from __future__ import annotations

from math import inf
from typing import Final

from ebbpool._core.accel import ALL

SPAN: Final = 0.25
"""Seconds for which tasks are counted, at least ..."""

ENOUGH: Final = 50
"""... and how many there have to be, one for each worker at least: they may all begin and end at the same moments."""

SAME: Final = 0.9
"""What fewer workers get done is as much if it is this share of what all of them did ..."""

MORE: Final = 1.2
"""... and what twice as many do is worth having if it is so many times as much."""

STOPPED: Final = 0.3
"""So small a share means that those left wait for what others hold, who are held back."""

SHORT: Final = 0.2
"""Tasks that run for this share of `max_wait` or less, on average, leave nothing to gain."""

HOLD: Final = 5.0
"""Seconds until something is tried again after a change that did not pay; each time twice as many ..."""

LONGEST: Final = 60.0
"""... up to so many."""


class Restraint:
    """What one overloaded pool remembers from look to look. Used by one thread at a time.

    Attributes:
        most: How many workers may have a task in hand; `ALL` where that is not limited.
    """

    __slots__ = ("_before", "_begun", "_counted", "_down", "_hold", "_part", "_rate", "_resting", "_used", "most")

    def __init__(self) -> None:
        self.rest()

    def rest(self) -> None:
        """Let all workers be used: the queue does not stand, or no task has waited for a while."""
        self.most = self._before = ALL
        self._down = True
        self._part = 4
        self._used = self._counted = 0
        self._rate = 0.0
        self._begun = -1.0
        self._hold = HOLD
        self._resting = -inf

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
        if self._begun < 0.0 or now < self._resting or used > self.most or not (full or used == self.most):
            self._begun, self._counted = now, ended
            return self.most
        elapsed, done = now - self._begun, ended - self._counted
        # Twice as many by what was done before: then few do much less.
        if elapsed >= SPAN and max(float(done), self._rate * elapsed / 2.0) >= max(ENOUGH, used):
            self._begun, self._counted = now, ended
            self._climb(done / elapsed, now, used, SHORT * max_wait)
        return self.most

    def _climb(self, rate: float, now: float, used: int, short: float) -> None:
        """Try another number of workers, now that the present one has been seen to get `rate` tasks a second done."""
        pays = rate >= (SAME if self._down else MORE) * self._rate
        if not pays and self._part > 2 and self._down and rate >= STOPPED * self._rate:
            self._part = 2
            self.most = max(1, self._used // 2)
        elif not pays or (self._down and (self._part == 2 or used <= short * rate)):
            if not pays:
                self.most = ALL if rate < STOPPED * self._rate else self._before
            self._part, self._rate = 4, 0.0
            self._down = self.most == ALL
            self._resting, self._hold = now + self._hold, min(2.0 * self._hold, LONGEST)
        else:
            self._rate, self._before, self._used = rate, self.most, used
            self.most = max(1, used // self._part) if self._down else 2 * used
