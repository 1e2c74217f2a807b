"""What of the process's processor time a pool's own threads use, counted now and then: it takes a call a thread."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from typing import Final

INTERVAL: Final = 0.005
"""Seconds between two counts, at least ..."""

COST: Final = 100e-6
"""... and so many more for every thread counted: a hundred times what that takes."""

STALE: Final = 0.1
"""Seconds, beyond what a count has to wait, after which it says nothing about now."""


class Census:
    """What a crew's threads have used. Used by one thread at a time."""

    def __init__(self) -> None:
        self._now = 0.0
        self._cpu = 0.0
        self._seconds: dict[int, float] = {}
        self._shares: tuple[float, float] | None = None

    def take(self, now: float, cpu: float, threads: Iterable[threading.Thread]) -> tuple[float, float] | None:
        """Counts anew if it is time to.

        Args:
            now: The time, in seconds.
            cpu: Seconds of processor time that the process has used.
            threads: The crew's.

        Returns:
            The shares of one processor that the threads, and that the process, used between the last two counts; the
            first is 0 if one of the threads used most of it. None if there were none of late, or the platform cannot
            tell.
        """
        elapsed = now - self._now
        pause = INTERVAL + COST * len(self._seconds)
        if elapsed < pause:
            return self._shares
        seconds = {tid: used for tid in _natives(threads) if (used := seconds_of(tid)) is not None}
        if not seconds or elapsed > pause + STALE:
            self._shares = None
        else:
            each = [used - self._seconds.get(tid, 0.0) for tid, used in seconds.items()]
            own = sum(each)
            # One long task is nothing that the others pass on, and may well do without the GIL.
            own = 0.0 if 3 * max(each) > 2 * own else own
            self._shares = own / elapsed, (cpu - self._cpu) / elapsed
        self._now, self._cpu, self._seconds = now, cpu, seconds
        return self._shares


def _natives(threads: Iterable[threading.Thread]) -> list[int]:
    return [thread.native_id for thread in list(threads) if thread.native_id is not None]


if sys.platform == "linux":
    from time import clock_gettime

    def seconds_of(native_id: int) -> float | None:
        """Returns the seconds of processor time that a thread of this process has used; None if it has ended.

        `time.pthread_getcpuclockid` must not be asked about a thread that has ended. The number of its clock may be:
        Linux makes it of the thread's number, so (``CPUCLOCK_PERTHREAD`` in its ``posix-timers.h``).
        """
        try:
            return clock_gettime(~native_id << 3 | 6)
        except OSError:
            return None
else:

    def seconds_of(native_id: int) -> float | None:
        """Returns None: there is no safe way to ask on this platform."""
        return None
