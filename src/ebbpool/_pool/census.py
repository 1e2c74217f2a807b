"""Which of a pool's own threads want no processor, counted now and then: it takes a few system calls a thread."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable
from enum import Enum
from math import inf
from typing import Final, NamedTuple

from ebbpool._pool.sizing import Asleep

LEAST: Final = 0.002
"""Seconds between two counts at least ..."""

COST: Final = 300e-6
"""... and for every thread whose place was looked up: twenty times what that takes."""

CLOCK_COST: Final = 20e-6
"""Seconds between two comparisons for every thread of the process: twenty times what it takes to read its clock."""

STILL: Final = 0.006
"""Seconds for which a thread that waits for a lock has not run at all: those that wait for the GIL do so every 5 ms."""

SPELL: Final = 0.012
"""Seconds over which it is found out who computes: the clock of a process may move in steps of 4 ms."""

LITTLE: Final = 0.1
"""Who uses less than this share of one processor does not compute, unless there is none to be had."""

OWN: Final = 0.25
"""A pool whose workers use this share of the process's processor time may keep the locks that others of them want."""

MOST: Final = 0.5
"""So may threads that run no Python, a library's own, which use this share. Other Python threads may keep the GIL."""


class Place(Enum):
    """Where a thread is."""

    RUNNING = 0
    """It runs, or would if it had a processor."""
    LOCK = 1
    """It waits for a lock, perhaps for the GIL."""
    OUTSIDE = 2
    """It waits for something outside of the process: a timer, a socket, a disk."""


class _Sight(NamedTuple):
    """What was seen of a thread: seconds of processor time, since when they are that, and where it is."""

    used: float
    since: float
    place: Place


class Census:
    """Which of a crew's threads want no processor. Used by one thread at a time."""

    def __init__(self) -> None:
        self._counted = self._compared = -inf
        self._sights: dict[int, _Sight] = {}
        self._looked_up = self._clocks = 0
        self._asleep: Asleep | None = None
        self._cpu = 0.0
        self._workers: dict[int, float] = {}
        self._others: dict[int, float] = {}
        self._patience = 0.0

    def measure(
        self,
        now: float,
        cpu: float,
        threads: Iterable[threading.Thread],
        everyone: Iterable[threading.Thread],
        busy: bool,
    ) -> Asleep | None:
        """Count anew if it is time to.

        Args:
            now: The time, in seconds.
            cpu: Seconds of processor time that the process has used.
            threads: The crew's.
            everyone: All threads of the process that run Python.
            busy: Whether processors, or the GIL, are hard to come by.

        Returns:
            What the last count has found. None if the platform cannot tell.
        """
        if now - self._counted < max(LEAST, COST * self._looked_up):
            return self._asleep
        self._counted = now
        self._looked_up = 0
        sights = {}
        for tid, used in _clocks(threads).items():
            sights[tid] = self._sight(tid, used, now)
        self._sights = sights
        if now - self._compared >= max(SPELL, CLOCK_COST * self._clocks):
            self._compare(now, cpu, everyone, busy)
        places = [sight.place for sight in sights.values()]
        still = [sight for sight in sights.values() if now - sight.since >= self._patience]
        in_locks = sum(sight.place is Place.LOCK for sight in still)
        in_doubt = places.count(Place.LOCK) - in_locks
        self._asleep = Asleep(len(places), places.count(Place.OUTSIDE), in_locks, in_doubt) if places else None
        return self._asleep

    def _sight(self, tid: int, used: float, now: float) -> _Sight:
        before = self._sights.get(tid)
        since = now
        if before is not None and before.used == used:
            if before.place is Place.OUTSIDE:
                # One that was asleep outside, and has not run since, still is.
                return before
            since = before.since
        self._looked_up += 1
        return _Sight(used, since, place_of(tid))

    def _compare(self, now: float, cpu: float, everyone: Iterable[threading.Thread], busy: bool) -> None:
        """Find out who computes, and so for how long a worker that waits for a lock must have done so to be asleep."""
        elapsed, total = now - self._compared, cpu - self._cpu
        clocks = _clocks(everyone)
        self._clocks = len(clocks)
        workers = {tid: clocks.pop(tid, sight.used) for tid, sight in self._sights.items()}
        # What a worker has used to come into being is no sign that it computes.
        own = sum(used - self._workers.get(tid, used) for tid, used in workers.items())
        came = sum(used for tid, used in workers.items() if tid not in self._workers)
        others = sum(used - self._others.get(tid, used) for tid, used in clocks.items())
        rest = total - own - came - others
        little = 0.0 if busy else LITTLE * elapsed
        self._compared, self._cpu, self._workers, self._others = now, cpu, workers, clocks
        if elapsed == inf:
            self._patience = 0.0
        elif own > max(OWN * total, little) or rest > max(MOST * total, little):
            self._patience = inf
        else:
            self._patience = max(STILL, 1.2 * sys.getswitchinterval()) if others > MOST * elapsed else 0.0


def _clocks(threads: Iterable[threading.Thread]) -> dict[int, float]:
    natives = [thread.native_id for thread in list(threads) if thread.native_id is not None]
    return {tid: used for tid in natives if (used := seconds_of(tid)) is not None}


def _reader() -> Callable[[bytes], bytes]:
    """Return a function that reads the beginning of a file without letting go of the GIL, where there is one.

    What `os` offers lets go of it three times, and may wait for it each time for as long as a switch interval.
    """
    try:
        from ctypes import PyDLL, create_string_buffer

        library = PyDLL(None)
        start, read, end = library.open, library.read, library.close
    except Exception:
        # Not every system has it, or allows it.
        return _read
    buffer = create_string_buffer(64)

    def read_at_once(path: bytes) -> bytes:
        descriptor = start(path, os.O_RDONLY | os.O_CLOEXEC)
        if descriptor < 0:
            return b""
        length = read(descriptor, buffer, len(buffer))
        end(descriptor)
        return buffer.raw[: max(0, length)]

    return read_at_once


def _read(path: bytes) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 64)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


_read_at_once: Callable[[bytes], bytes] = _read


def prepare() -> None:
    """Load what `place_of` needs, before the pool has threads.

    A child that is forked while another thread imports a module can never import it: its lock stays taken.
    """
    global _read_at_once
    if _read_at_once is _read and sys.platform == "linux":
        _read_at_once = _reader()


if sys.platform == "linux":
    from time import clock_gettime

    def seconds_of(native_id: int) -> float | None:
        """Return the seconds of processor time that a thread of this process has used; None if it has ended.

        `time.pthread_getcpuclockid` must not be asked about a thread that has ended. The number of its clock may be:
        Linux makes it of the thread's number, so (``CPUCLOCK_PERTHREAD`` in its ``posix-timers.h``).
        """
        try:
            return clock_gettime(~native_id << 3 | 6)
        except OSError:
            return None

    def place_of(native_id: int) -> Place:
        """Return where a thread of this process is, as far as the kernel tells.

        ``wchan`` names the function of the kernel that the thread waits in; "0" is for one that does not wait. Where
        that is hidden, nobody is seen to wait outside, and who does not run counts as waiting for a lock.
        """
        waits_in = _read_at_once(b"/proc/self/task/%d/wchan" % native_id)
        if waits_in not in (b"", b"0"):
            return Place.LOCK if b"futex" in waits_in else Place.OUTSIDE
        state = _read_at_once(b"/proc/self/task/%d/stat" % native_id).rpartition(b") ")[2][:1]
        return Place.RUNNING if state == b"R" else Place.LOCK
else:

    def seconds_of(native_id: int) -> float | None:
        """Return None: there is no safe way to ask on this platform."""
        return None

    def place_of(native_id: int) -> Place:
        """Return that the thread runs, for all this platform tells."""
        return Place.RUNNING
