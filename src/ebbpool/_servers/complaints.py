"""Log lines of servers about repeated troubles, at most one per second."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Final

LOGGER: Final = logging.getLogger("ebbpool.socketserver")

QUIET: Final = 1.0
"""Least seconds between two lines about the same trouble."""


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
        """Count an occurrence of the trouble; return whether it was logged."""
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
