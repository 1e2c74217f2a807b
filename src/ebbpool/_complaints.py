"""What servers say of troubles that come again and again: not each time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Final

LOGGER: Final = logging.getLogger("ebbpool.socketserver")

QUIET: Final = 1.0
"""Seconds between two lines about the same trouble, at least."""
FIRST_BACK_OFF = 0.01
"""Seconds without an attempt to accept once the system has run out of something; doubled while it stays so."""
LAST_BACK_OFF: Final = 1.0


class Complaint:
    """One trouble, which is logged once a second at most, with the number of times since the last line.

    Args:
        level: The level of its lines.
        message: What they say; a format for the arguments of `make`.
        clock: Monotonic seconds.
    """

    def __init__(self, level: int, message: str, clock: Callable[[], float] = monotonic) -> None:
        self._level = level
        self._message = message
        self._clock = clock
        self._times = 0
        self._next = -inf

    def make(self, *args: object) -> bool:
        """Note that the trouble has come; return whether that was logged."""
        now = self._clock()
        self._times += 1
        if now < self._next:
            return False
        times, self._times = self._times, 0
        self._next = now + QUIET
        if times > 1:
            LOGGER.log(self._level, f"{self._message} (%d times since this was last logged)", *args, times)
        else:
            LOGGER.log(self._level, self._message, *args)
        return True


class Shortage:
    """What a server does when the system has run out of what a new connection takes: it waits, ever longer.

    Args:
        clock: Monotonic seconds.

    Attributes:
        pause: Seconds for which not to accept; 0 unless the last attempt has failed.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.pause = 0.0
        self._complaint = Complaint(
            logging.WARNING, "cannot accept connections for now, those that come wait: %s", clock
        )
        self._told = False

    def met(self, error: OSError, progress: bool) -> float:
        """Note that an accept has failed; return for how many seconds not to accept.

        Args:
            error: What it raised.
            progress: Whether there was a connection since the attempt that failed before.
        """
        if not self.pause:
            self._told = self._complaint.make(error)
        self.pause = FIRST_BACK_OFF if progress or not self.pause else min(2 * self.pause, LAST_BACK_OFF)
        return self.pause

    def over(self) -> None:
        """Note that connections are accepted."""
        if self.pause:
            self.pause = 0.0
            if self._told:
                LOGGER.info("connections are accepted again")
