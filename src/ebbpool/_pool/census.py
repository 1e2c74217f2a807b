"""What a pool's threads do right now: compute, wait for a lock, or sleep; read from their clocks and /proc."""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from enum import Enum
from math import inf
from typing import Final, NamedTuple

from ebbpool._core.accel import Pool, survey
from ebbpool._pool.load import WINDOW
from ebbpool._pool.sizing import Asleep

COST: Final = 300e-6  # seconds between two counts for each thread that was looked up: twenty times what that takes
CLOCK_COST: Final = 20e-6  # the same for each thread whose clock was read
STILL: Final = 0.006  # a thread that has not run for so many seconds does not wait for the GIL, or it would have woken
LITTLE: Final = 0.1  # threads that use less of one processor do not compute, unless all processors are in use
OWN: Final = 0.25  # if workers use more of the processor time, waits for locks do not count as blocked
MOST: Final = 0.5  # the same for threads without Python (a library's own); Python threads that use it may hold the GIL
LONG: Final = 0.05  # seconds of processor time after which a task no longer holds others up


class Place(Enum):
    """Where a thread is: ready to run; waiting for a lock, perhaps the GIL; or for something outside the process."""

    RUNNING = 0
    LOCK = 1
    OUTSIDE = 2


class Workers(NamedTuple):
    """How many workers have a task that runs, or waits for a moment; the same for long; or has waited for a while."""

    running: int
    long: int
    asleep: int


class _Sight(NamedTuple):
    """What was seen of a thread."""

    used: float  # its clock
    since: float  # since when that stands still
    place: Place = Place.RUNNING  # where that was looked up
    task: float = 0.0  # when the task of a worker that is sorted was taken
    begun: float = 0.0  # and its clock at first


class Census:
    """A count of a crew's threads that want no processor. Used by one thread at a time."""

    def __init__(self) -> None:
        self._counted = self._compared = -inf
        self._sights: dict[int, _Sight] = {}
        self._looked_up = self._clocks = 0
        self._asleep: Asleep | None = None
        self._cpu = 0.0
        self._before: dict[int, float] = {}
        self._blocked_after = 0.0
        self._sorted = -inf
        self._rest = 0.0
        self._tasks: dict[int, _Sight] = {}
        self._in_hand = Workers(0, 0, 0)

    def sort(self, now: float, pool: Pool) -> Workers:
        """Count the workers of `pool` by what their tasks do, anew if it is time to; not those that count as blocked.

        One that has not run for `STILL` and waits for something is asleep, no matter who holds that: it takes no
        processor from anybody. A shorter wait ends before anything can follow from it.
        """
        if now - self._sorted < self._rest:
            return self._in_hand
        self._sorted = now
        looked_up = running = longest = asleep = 0
        tasks = {}
        for task in survey(pool).running:
            if task.blocked or task.written_off:
                continue
            tid = task.thread.native_id or 0
            clock = seconds_of(tid)
            # Where threads have no clocks, seconds count.
            used = now if clock is None else clock
            seen = self._tasks.get(tid)
            if seen is None or seen.task != task.since or clock is None:
                seen = _Sight(used, now, task=task.since, begun=task.since if clock is None else clock)
            elif seen.used != used:
                seen = _Sight(used, now, task=task.since, begun=seen.begun)
            elif seen.place is Place.RUNNING and now - seen.since >= STILL:
                looked_up += 1
                seen = seen._replace(place=place_of(tid))
            tasks[tid] = seen
            waits = seen.place is not Place.RUNNING
            asleep += waits
            longest += not waits and used - seen.begun >= LONG
            running += not waits and used - seen.begun < LONG
        self._tasks = tasks
        self._rest = max(CLOCK_COST * len(tasks), COST * looked_up)
        self._in_hand = Workers(running, longest, asleep)
        return self._in_hand

    def measure(self, now: float, cpu: float, threads: Iterable[threading.Thread], busy: bool) -> Asleep | None:
        """Return what the last count of the crew's `threads` has found, anew if it is time to; None if unknown."""
        if now - self._counted < max(CLOCK_COST * len(self._sights), COST * self._looked_up):
            return self._asleep
        self._counted = now
        self._looked_up = 0
        sights = self._sights = {tid: self._sight(tid, used, now) for tid, used in clocks_of(threads).items()}
        if now - self._compared >= max(WINDOW, CLOCK_COST * self._clocks):
            self._compare(now, cpu, busy)
        places = [sight.place for sight in sights.values()]
        still = [sight for sight in sights.values() if now - sight.since >= self._blocked_after]
        in_locks = sum(sight.place is Place.LOCK for sight in still)
        in_doubt = places.count(Place.LOCK) - in_locks
        self._asleep = Asleep(len(places), places.count(Place.OUTSIDE), in_locks, in_doubt) if places else None
        return self._asleep

    def _sight(self, tid: int, used: float, now: float) -> _Sight:
        before = self._sights.get(tid)
        since = now
        if before is not None and before.used == used:
            if before.place is Place.OUTSIDE:
                # It has not run since it was seen to wait outside, so it still waits there.
                return before
            since = before.since
        self._looked_up += 1
        return _Sight(used, since, place_of(tid))

    def _compare(self, now: float, cpu: float, busy: bool) -> None:
        """Find out which threads compute; set how long a worker must have waited for a lock to count as asleep."""
        elapsed, total = now - self._compared, cpu - self._cpu
        clocks = {tid: sight.used for tid, sight in self._sights.items()} | clocks_of(threading.enumerate())
        self._clocks = len(clocks)
        # What a new worker has used to start is no sign that it computes.
        own = sum(clocks[tid] - self._before.get(tid, clocks[tid]) for tid in self._sights)
        came = sum(clocks[tid] for tid in self._sights if tid not in self._before)
        others = sum(used - self._before.get(tid, used) for tid, used in clocks.items()) - own
        rest = total - own - came - others
        little = 0.0 if busy else LITTLE * elapsed
        self._compared, self._cpu, self._before = now, cpu, clocks
        if elapsed == inf:
            self._blocked_after = 0.0
        elif own > max(OWN * total, little) or rest > max(MOST * total, little):
            self._blocked_after = inf
        else:
            self._blocked_after = max(STILL, 1.2 * sys.getswitchinterval()) if others > MOST * elapsed else 0.0


def clocks_of(threads: Iterable[threading.Thread]) -> dict[int, float]:
    """Return the seconds of processor time that each thread has used, by the number the system gave it."""
    natives = [thread.native_id for thread in list(threads) if thread.native_id is not None]
    return {tid: used for tid in natives if (used := seconds_of(tid)) is not None}


@functools.cache
def reader() -> Callable[[bytes], bytes]:
    """Return a function that reads the beginning of a file without releasing the GIL, where there is one.

    The functions of `os` release it three times, and may wait a switch interval each time to get it back. The first
    call has to come before the pool has threads: a child that is forked while another thread imports a module can never
    import that module, whose import lock stays taken.
    """
    if sys.platform != "linux":
        return _read
    try:
        from ctypes import PyDLL, create_string_buffer

        library = PyDLL(None)
        start, read, end = library.open, library.read, library.close
    except Exception:
        # Not every system has ctypes and these functions, or allows their use.
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
        with open(path, "rb", buffering=0) as file:
            return file.read(64)
    except OSError:
        return b""


def seconds_of(native_id: int) -> float | None:
    """Return the processor time that a thread of this process has used; None if it has ended, or nobody can tell."""
    if sys.platform != "linux":
        return None
    try:
        # `time.pthread_getcpuclockid` must not be called for a thread that has ended. The number of its clock, which
        # Linux makes of that of the thread (CPUCLOCK_PERTHREAD in posix-timers.h), may be used all the same.
        return time.clock_gettime(~native_id << 3 | 6)
    except OSError:
        return None


def place_of(native_id: int) -> Place:
    """Return where a thread of this process is, as far as the kernel tells; on other systems than Linux, that it runs.

    ``wchan`` names the kernel's function that the thread waits in; "0" means that it does not wait. Where that is
    hidden, no thread is seen to wait outside, and one that does not run counts as waiting for a lock.
    """
    if sys.platform != "linux":
        return Place.RUNNING
    read = reader()
    waits_in = read(b"/proc/self/task/%d/wchan" % native_id)
    if waits_in not in (b"", b"0"):
        return Place.LOCK if b"futex" in waits_in else Place.OUTSIDE
    state = read(b"/proc/self/task/%d/stat" % native_id).rpartition(b") ")[2][:1]
    return Place.RUNNING if state == b"R" else Place.LOCK
