"""How a server accepts: how many at once, how long it waits when the system has run out of something, what it logs."""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Final

LOGGER: Final = logging.getLogger("ebbpool.socketserver")

EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors of `accept` that say nothing about the connection: the next attempt fails, too."""
ACCEPTS = 64
"""How many connections are accepted at most before any of them is handed over."""
SHARED_ACCEPTS = 8
"""How many where other processes accept from the same listener."""
CROWD = 4
"""After so many connections accepted at once, the loop leaves the GIL to the workers for a moment."""
NAP = 0.0002
"""Seconds for which it does so."""
FEWEST_LOOKS = 16
"""After so many quick looks without a crowd there is a nap; each such nap doubles the number, until a crowd comes."""
MOST_LOOKS: Final = 1024
"""The most there are between two such naps."""
FIRST_BACK_OFF = 0.01
"""Seconds without an attempt to accept when the system runs out of something; doubled each time that this goes on."""
LAST_BACK_OFF: Final = 1.0
DRAINED: Final = 16
"""How many reads at most from a connection that is refused."""
QUIET: Final = 1.0
"""Least seconds between two log lines about the same trouble."""


class Naps:
    """The rule that says after which looks the loop naps.

    It naps after a crowd. On a busy machine a server and its clients can also fall into step: each client is served
    before the next one gets a processor, so that each look finds one connection, however many clients there are. One
    nap lets the others come, and from then on each look finds a crowd. But a single client that connects again and
    again looks the same. So there is a nap once in many looks, and more and more rarely while no crowd follows it.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._looks = 0
        self._since = clock()
        self._wanted = FEWEST_LOOKS

    def due_after(self, count: int) -> bool:
        """Take note of a look that has found `count` connections; return whether to nap after it."""
        if count >= CROWD:
            self._wanted = FEWEST_LOOKS
            due = True
        elif count:
            self._looks += 1
            if self._looks < self._wanted:
                return False
            due = self._clock() - self._since < self._looks * NAP
            if due:
                self._wanted = min(2 * self._wanted, MOST_LOOKS)
        else:
            # Another process that shares the listener was quicker.
            return False
        self._looks = 0
        self._since = self._clock()
        return due


class Complaint:
    """One trouble, which is logged once a second at most, with the number of times since the last line."""

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


class Shortage:
    """The pauses of a server while the system lacks what a new connection needs, each longer than the one before.

    Attributes:
        pause: Seconds for which not to accept; 0 unless the last attempt has failed.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.pause = 0.0
        self._complaint = Complaint(
            logging.WARNING, "cannot accept connections for now; new ones have to wait: %s", clock
        )
        self._told = False

    def met(self, error: OSError, progress: bool = False) -> float:
        """Note that an accept has failed; return for how many seconds not to accept."""
        if not self.pause:
            self._told = self._complaint.make(error)
        self.pause = FIRST_BACK_OFF if progress or not self.pause else min(2 * self.pause, LAST_BACK_OFF)
        return self.pause

    def over(self) -> None:
        if self.pause:
            self.pause = 0.0
            if self._told:
                LOGGER.info("connections are accepted again")


def turn_away(connection: socket.socket, answer: bytes = b"") -> None:
    """Answer a client for which there is no room, without waiting for it; the connection is to be closed then."""
    with contextlib.suppress(OSError):
        connection.setblocking(False)
        if answer:
            connection.send(answer)
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        # What nobody has read would make the close a reset, and the answer might be lost.
        for _ in range(DRAINED):
            if not connection.recv(1 << 16):
                break
