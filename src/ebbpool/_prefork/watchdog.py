"""Which children to start, stop and kill: the watchdog of `ebbpool.prefork`, without processes and without a clock.

The owner of the processes tells it what happened, and when (seconds on any clock that never goes back), and is told
what to do. It behaves as gunicorn's arbiter does.
"""

from __future__ import annotations

import enum
import logging
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

SETTLE: Final = 0.25
"""Seconds for which a child has to serve before its death no longer counts as a crash at start."""
FIRST_DELAY: Final = 0.1
"""Seconds before a number is started again whose child crashed at start; doubled with every further crash."""
LONGEST_DELAY: Final = 10.0
LATE: Final = 1.0
"""Seconds by which a tick may be late. A later one shows that the watchdog's own process did not run meanwhile."""
RELOAD_TRIES: Final = 3
"""Failed starts in a row, while children are replaced, after which the old ones stay."""

STOPPED: Final = 0
"""Exit status: every child exited on its own, without an error."""
UNFINISHED: Final = 1
"""Exit status: a child had to be killed, or failed, while it was stopping."""
NEVER_STARTED: Final = 3
"""Exit status: no child ever got ready. gunicorn's number for it."""

TERMINATED: Final = -15
"""Exit code of a process that the signal SIGTERM ended."""


class Limits(NamedTuple):
    """What a child may take, in seconds: to get ready, between two signs of life, and to stop, before it is killed."""

    start_timeout: float
    heartbeat_timeout: float
    graceful_timeout: float


class Phase(enum.Enum):
    STARTING = "starting"
    SERVING = "serving"
    STOPPING = "stopping"
    KILLED = "killed"


@dataclass
class Life:
    """One child, from its start until it is gone."""

    serial: int
    number: int
    born: float
    deadline: float = math.inf
    phase: Phase = Phase.STARTING
    settled: float = math.inf  # when it will have served for long enough
    stale: bool = False  # whether a reload is to replace it
    # What follows is for the owner of the process.
    line: Any = None  # the socket on which it is heard; None if this end is closed
    template: Any = None  # what forks it
    pid: int | None = None  # known once it has been started
    ended: int | Exception | None = None  # its exit code, or why it could not be started

    @property
    def live(self) -> bool:
        return self.phase in (Phase.STARTING, Phase.SERVING)


OVERDUE: Final = {
    Phase.STARTING: ("child_not_ready", logging.ERROR),
    Phase.SERVING: ("child_unresponsive", logging.ERROR),
    Phase.STOPPING: ("child_overdue", logging.WARNING),
}
"""What is reported, and how gravely, of a child that has been in a phase for too long."""


class Watchdog:
    """The decisions that keep `processes` children alive: numbers 0, 1, ... up to one less.

    It is told of events as they happen, those of a child with the time. `tick` tells the owner of the processes what to
    do about them: `start` and `kill` one, `stop` it gracefully. Each method may `report` to the log, and `abort` kill.
    The owner may not call the watchdog meanwhile.
    """

    def __init__(self, owner: Any, processes: int, limits: Limits) -> None:
        self._owner = owner
        self.processes = processes
        # Seconds for which a child may be in a phase.
        self._limits = dict(zip(Phase, [*limits, math.inf], strict=True))
        self.lives: dict[int, Life] = {}
        self.status: int | None = None  # the exit status, once everything is over
        self._outcome = STOPPED
        self._stopping = False
        self._served = False
        self._reloading = False
        self._reload_failures = 0
        self._serial = 0
        self._failures: Counter[int] = Counter()  # how often in a row children of a number have crashed at start
        self._not_before: dict[int, float] = {}  # when a number may be started again
        self._moments: list[float] = []  # when something other than a deadline is to be decided

    def ready(self, life: Life, now: float) -> None:
        if life.phase is Phase.STARTING:
            self._enter(life, Phase.SERVING, now)
            life.settled = now + SETTLE
            self._served = True
            self._report("child_ready", life, seconds=round(now - life.born, 3))

    def beat(self, life: Life, now: float) -> None:
        if life.phase is Phase.SERVING:
            self._enter(life, Phase.SERVING, now)

    def leaving(self, life: Life, now: float) -> None:
        """Note that a child that serves stops by itself. One that never served is dealt with when it has ended."""
        if life.phase is Phase.SERVING:
            self._report("child_leaving", life)
            self._enter(life, Phase.STOPPING, now)
            self._lost(life, now)

    def gone(self, life: Life, ended: int | BaseException, now: float) -> None:
        """Note that a child has ended, with an exit code, or with an error if the system refused its process."""
        del self.lives[life.serial]
        if isinstance(ended, BaseException):
            self._report("start_failed", life, logging.ERROR, error=f"{type(ended).__name__}: {ended}")
        else:
            clean = ended in (0, TERMINATED)
            expected = life.phase is Phase.KILLED or (life.phase is Phase.STOPPING and clean)
            level = logging.INFO if expected else logging.WARNING
            self._report("child_exited", life, level, exitcode=ended, seconds=round(now - life.born, 3))
            if not clean and life.phase is not Phase.KILLED:
                self._blame()
        if life.live:
            self._lost(life, now)

    def reload(self) -> None:
        if not self._stopping:
            for life in self.lives.values():
                life.stale = True
            self._reloading = True
            self._reload_failures = 0
            self._not_before.clear()
            self._report("reload_started")

    def stop(self) -> None:
        """Stop all children gracefully; at once if they are being stopped already."""
        if self._stopping:
            self.abort()
        else:
            self._stopping = True
            self._report("stopping", seconds=self._limits[Phase.STOPPING])

    def abort(self) -> None:
        self._report("stopping_at_once", level=logging.WARNING)
        self._end(max(self._outcome, UNFINISHED) if self.lives else self._outcome)

    def due(self) -> float:
        """Return when the next tick is due; infinity for never."""
        return min([life.deadline for life in self.lives.values()] + self._moments, default=math.inf)

    def tick(self, now: float) -> None:
        """Decide what follows from all that was told, and from the time; the first call starts the children."""
        late = now - self.due()
        if late > LATE:
            # This process was stopped, or starved, which is no child's fault: every wait begins anew.
            for life in self.lives.values():
                self._enter(life, life.phase, now)
            self._report("overslept", level=logging.WARNING, seconds=round(late, 3))
        for life in list(self.lives.values()):
            if now < life.deadline:
                continue
            event, level = OVERDUE[life.phase]
            self._report(event, life, level, seconds=self._limits[life.phase])
            live = life.live
            self._kill(life)
            if live:
                self._lost(life, now)
            else:
                self._blame()
        self._moments = []
        if not self._stopping:
            self._fill(now)
            return
        for life in self.lives.values():
            self._stop(life, now)
        if not self.lives and self.status is None:
            self.status = self._outcome
            self._report("stopped", status=self.status)

    def _fill(self, now: float) -> None:
        """Start whom a number lacks, stop whom another one has replaced, and replace the next that is out of date."""
        for number in range(self.processes):
            lives = self._of(number)
            if not lives:
                self._start(number, now)
            elif len(lives) > 1 and now < lives[-1].settled:
                self._moments.append(lives[-1].settled)
            else:
                for life in lives[:-1]:
                    self._stop(life, now)
        pairs = [self._of(number) for number in range(self.processes)]
        if any(len(lives) > 1 for lives in pairs):
            # One by one.
            return
        serving = [life for lives in pairs for life in lives if life.phase is Phase.SERVING]
        stale = [life.number for life in serving if life.stale]
        if stale:
            self._start(stale[0], now)
        elif self._reloading and len(serving) == self.processes:
            self._reloading = False
            self._report("reload_done")

    def _of(self, number: int) -> list[Life]:
        """Return the children of `number` that serve or will, the newest last."""
        return [life for life in self.lives.values() if life.number == number and life.live]

    def _enter(self, life: Life, phase: Phase, now: float) -> None:
        """Have a child be in a phase for the time that it may take from now on."""
        life.phase = phase
        life.deadline = now + self._limits[phase]

    def _start(self, number: int, now: float) -> None:
        if now < (moment := self._not_before.get(number, now)):
            self._moments.append(moment)
            return
        self._serial += 1
        life = self.lives[self._serial] = Life(self._serial, number, now)
        self._enter(life, Phase.STARTING, now)
        self._owner.start(life)

    def _stop(self, life: Life, now: float) -> None:
        if life.live:
            self._enter(life, Phase.STOPPING, now)
            self._report("child_stopping", life)
            self._owner.stop(life)

    def _kill(self, life: Life) -> None:
        if life.phase is not Phase.KILLED:
            self._enter(life, Phase.KILLED, 0.0)
            self._report("child_killed", life, logging.WARNING)
            self._owner.kill(life)

    def _end(self, outcome: int) -> None:
        """Kill all children; the exit status will be `outcome`."""
        self._stopping = True
        self._outcome = outcome
        for life in self.lives.values():
            self._kill(life)

    def _blame(self) -> None:
        if self._stopping and self._outcome == STOPPED:
            self._outcome = UNFINISHED

    def _lost(self, life: Life, now: float) -> None:
        """Decide when to start the number of a child again that was lost unexpectedly."""
        if self._stopping:
            return
        number = life.number
        if now >= life.settled:
            self._failures[number] = 0
            self._not_before[number] = now
        else:
            self._failures[number] += 1
            failures = self._failures[number]
            delay = min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(failures - 1, 30))
            self._not_before[number] = now + delay
            self._report("restart_delayed", life, logging.WARNING, failures=failures, seconds=delay)
            if any(other.serial < life.serial for other in self._of(number)):
                self._reload_failed(number)
        # Of a number that has failed the failures are forgotten only once a child of it has served.
        if not self._served and all(self._failures[number] for number in range(self.processes)):
            self._report("gave_up", level=logging.CRITICAL, reason="no child ever got ready", processes=self.processes)
            self._end(NEVER_STARTED)

    def _reload_failed(self, number: int) -> None:
        self._reload_failures += 1
        if self._reload_failures >= RELOAD_TRIES and self._reloading:
            self._reloading = False
            self._failures[number] = 0
            for life in self.lives.values():
                life.stale = False
            self._report("reload_failed", level=logging.ERROR, failures=self._reload_failures)

    def _report(self, event: str, life: Life | None = None, level: int = logging.INFO, **fields: object) -> None:
        self._owner.report(level, event, life, **fields)
