"""How busy the process is, as looks at a pool see it: by the processors in use, and by how long looks have to wait."""

from __future__ import annotations

from typing import Final

from ebbpool._pool.timekeeper import Tick

WINDOW: Final = 0.018  # seconds over which looks are averaged: the clock of a process may move in steps of 4 ms
IDLE: Final = 0.35  # a process that uses a smaller share of its processors leaves one idle
BUSY: Final = 0.8  # one that uses a larger share has none to spare
QUEUE: Final = 0.0007  # looks that wait longer on average (seconds) show that threads queue for the GIL or processors
PUNCTUAL: Final = 0.00025  # looks that wait less on average (seconds) show that they do not
ONE: Final = 0.93  # processors: a process that uses less leaves the GIL idle now and then
MORE: Final = 1.25  # processors: with the GIL a process can use little more
TURN: Final = 0.004  # seconds that a turn of the GIL takes: looks that wait longer show a queue for it in any case
OWN: Final = 0.1  # processors: if a process uses less, late looks are another process's fault


class Load:
    """What the looks of the last while say of the process. Used by one thread at a time."""

    def __init__(self, gil: bool) -> None:
        self._gil = gil
        self.cpus = 1
        self.begin(Tick(0.0, 0.0, 0.0), 0)
        self.rest()

    def rest(self) -> None:
        """Forget what was seen: no task has waited for a while."""
        self.used = 0.0  # processors, on average
        self.wait = 0.0  # seconds that a look waits, on average
        self.gil_short = self.processors_short = False  # whether threads queue for one of these
        self.busy = False  # whether no processor is to spare, or threads queue; until looks are punctual again
        self.lengthy = False  # whether tasks take a whole turn of the GIL, on average
        self.moved = self.now  # when a task was taken last, as far as looks have seen
        self._cpu = self._late = self._elapsed = self._looks = self._tasks = 0.0

    def begin(self, tick: Tick, taken: int) -> None:
        """Begin to look, or go on with it; `taken` tasks have been taken so far."""
        self.now, self._before, self._taken = tick.now, tick.cpu, taken

    def see(self, tick: Tick, cpus: int, taken: int) -> None:
        """Look once at a process that may use so many processors."""
        elapsed = max(tick.now - self.now, 1e-6)
        cpu = tick.cpu - self._before
        tasks = taken - self._taken
        self.cpus = cpus
        self.begin(tick, taken)
        if tasks:
            self.moved = tick.now
        keep = max(0.0, 1.0 - elapsed / WINDOW)
        self._cpu = self._cpu * keep + cpu
        self._elapsed = self._elapsed * keep + elapsed
        self._late = self._late * keep + tick.late
        self._looks = self._looks * keep + 1.0
        self._tasks = self._tasks * keep + tasks
        self.used = used = self._cpu / self._elapsed
        self.wait = wait = self._late / self._looks
        self.lengthy = self._cpu > TURN * self._tasks
        self.gil_short = self._gil and IDLE < used < MORE and wait > (QUEUE if used > ONE else TURN)
        self.processors_short = wait > QUEUE and used > BUSY * cpus
        # One look is enough to become busy: the next one would start workers.
        if max(used, cpu / elapsed) > BUSY * cpus or (wait > QUEUE and used > OWN):
            self.busy = True
        elif wait < PUNCTUAL:
            self.busy = False
