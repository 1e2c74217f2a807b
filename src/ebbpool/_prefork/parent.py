"""The parent process of `ebbpool.prefork`: it owns processes, pipes and signals, and does what the watchdog says."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, Final, Protocol, TypeAlias

from ebbpool._prefork.bind import Listeners
from ebbpool._prefork.child import BEAT, FROM_THE_PARENT, LEAVING, READY, STOP, Child, Reporter, Terms, log
from ebbpool._prefork.own_signals import OwnSignals, noted
from ebbpool._prefork.spawner import Spawner
from ebbpool._prefork.template import Template
from ebbpool._prefork.watchdog import Action, Kill, Report, Start, Watchdog

OURS: Final = FROM_THE_PARENT + ((signal.SIGCHLD,) if hasattr(signal, "SIGCHLD") else ())
KILL: Final = getattr(signal, "SIGKILL", signal.SIGTERM)
LONGEST_WAIT: Final = 3600.0
PROMPT: Final = 1.0
"""Seconds within which a child has to end that has closed its end of the pipe."""
LOST: Final = 255
"""The exit code of a child of which its template cannot tell any more."""

FORKS: Final = hasattr(os, "fork") and hasattr(socket, "send_fds")
"""Whether children are forked by a template. Otherwise each is spawned."""

Maker: TypeAlias = Template | Spawner


@dataclass
class _Process:
    """One child as the system sees it."""

    number: int
    maker: Maker
    line: Connection
    pid: int | None = None
    """Known once it has been started."""
    exitcode: int | None = None
    error: Exception | None = None
    """Why it could not be started."""
    talks: bool = True
    """Whether its end of the pipe is open."""
    due: float = math.inf
    """When to kill it because nothing can tell it to stop: its end of the pipe is closed."""
    doomed: bool = False
    """Whether it is to be killed."""


class Reports(Protocol):
    """What the parent does with the reports of its children; each child is known by its serial."""

    def admit(self, serial: int) -> Reporter:
        """Return what a new child reports with."""
        ...

    def handed_over(self, serial: int) -> None:
        """Note that the child has its reporter, and that this process needs it no more."""

    def sources(self) -> list[Any]:
        """Return what can be waited for: it can be read when there are reports."""
        ...

    def hear(self) -> None:
        """Read what has been reported, without waiting."""

    def gone(self, serial: int) -> None:
        """Note that a child has ended, or was never started."""

    def forsake(self) -> None:
        """In a process that was forked from this one: close what belongs to this one."""


class Parent:
    """The owner of children, which a watchdog decides about, until all is over. For one use, in the main thread.

    Args:
        serve: Called in each child; picklable.
        listeners: The sockets on which children listen; they are left open.
        watchdog: Decides what to start, stop and kill.
        preload: Modules that a template imports for all children, beside those of `serve`; None for none of the user's.
        reports: What the children report to; None if they need not report.
        clock: Seconds of a clock that never goes back.
    """

    def __init__(
        self,
        serve: Callable[[Child], object],
        listeners: Listeners,
        watchdog: Watchdog,
        preload: Sequence[str] | None = None,
        reports: Reports | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._serve = serve
        self._listeners = listeners
        self._watchdog = watchdog
        self._preload = preload
        self._reports = reports
        self._clock = clock
        self._terms = Terms(watchdog.graceful_timeout, watchdog.heartbeat_timeout)
        self._processes: dict[int, _Process] = {}
        self._makers: list[Maker] = []
        """The last one makes new children; the others are kept until their last child has ended."""
        self._renew = True
        """Whether the next child needs a new one."""
        self._signals = OwnSignals(dict.fromkeys(OURS, noted), self._forsake)

    def run(self) -> int:
        """Run until every child is gone; return the exit status.

        Raises:
            BaseException: An error in the parent itself; no child is left then either.
        """
        try:
            self._signals.install()
            self._do(self._watchdog.tick(self._clock()))
            while self._watchdog.status is None:
                self._turn()
            return self._watchdog.status
        finally:
            for child in self._processes.values():
                self._end(child, True)
                child.line.close()
            for maker in self._makers:
                maker.close()
            self._signals.release()

    def _forsake(self) -> None:
        # While another process has an end of these pipes, the children would not notice this process's death.
        for child in self._processes.values():
            child.line.close()
        for maker in self._makers:
            maker.forsake()
        if self._reports is not None:
            self._reports.forsake()

    def _turn(self) -> None:
        moments = [child.due for child in self._processes.values()]
        if (due := self._watchdog.due()) is not None:
            moments.append(due)
        timeout = min(LONGEST_WAIT, max(0.0, min(moments, default=math.inf) - self._clock()))
        sources: list[Any] = [self._signals.bell]
        for maker in self._makers:
            sources += maker.sources()
        # What a child says is heard once it is known who it is, which the maker tells.
        sources += [child.line for child in self._processes.values() if child.talks and child.pid is not None]
        if self._reports is not None:
            sources += self._reports.sources()
        wait(sources, timeout)
        if self._reports is not None:
            self._reports.hear()
        self._learn()
        for number in self._signals.received():
            self._obey(number)
        # Messages that have come are read before `tick` decides which children have been silent for too long.
        for serial, child in list(self._processes.items()):
            self._hear(serial, child)
            self._check(serial, child)
        self._do(self._watchdog.tick(self._clock()))
        used = [child.maker for child in self._processes.values()]
        for maker in self._makers[:-1]:
            if maker not in used:
                self._makers.remove(maker)
                maker.close()

    def _learn(self) -> None:
        """Take in what the makers tell; the watchdog hears of it later."""
        for maker in self._makers:
            for serial, pid, exitcode, error in maker.news():
                child = self._processes[serial]
                child.exitcode, child.error = exitcode, error
                if pid is not None:
                    child.pid = pid
                    self._log(Report("child_started", serial, fields={"number": child.number}))
                    if child.doomed:
                        self._end(child, True)

    def _hear(self, serial: int, child: _Process) -> None:
        tell = {READY: self._watchdog.ready, BEAT: self._watchdog.beat, LEAVING: self._watchdog.leaving}
        while child.talks and child.pid is not None:
            try:
                if not child.line.poll():
                    return
                message = child.line.recv_bytes()
            except (EOFError, OSError):
                child.talks = False
                child.due = self._clock() + PROMPT
                child.maker.resume()
            else:
                self._do(tell[message](serial, self._clock()))

    def _check(self, serial: int, child: _Process) -> None:
        """Tell the watchdog that a child is gone, or was never there."""
        now = self._clock()
        # If the template is dead, the end of the pipe shows when the child ends.
        lost = not child.maker.alive and (child.pid is None or not child.talks)
        if child.exitcode is None and child.error is None and not lost:
            if now >= child.due:
                log(logging.WARNING, {"event": "child_cut_off", "pid": child.pid, "number": child.number})
                child.due = math.inf
                self._end(child, True)
            return
        if self._reports is not None:
            self._reports.gone(serial)
        if child.pid is None:
            error = child.error or ChildProcessError("the template has ended")
            self._do(self._watchdog.not_started(serial, error, now))
        else:
            self._do(self._watchdog.gone(serial, LOST if child.exitcode is None else child.exitcode, now))
        del self._processes[serial]
        child.line.close()

    def _obey(self, number: int) -> None:
        if number not in OURS:
            # The wakeup descriptor gets every signal that has a handler in Python, also those of other code.
            return
        now = self._clock()
        event = {
            "SIGTERM": self._watchdog.stop,
            "SIGINT": self._watchdog.stop,
            "SIGBREAK": self._watchdog.stop,
            "SIGQUIT": self._watchdog.abort,
            "SIGHUP": self._watchdog.reload,
            "SIGTTIN": self._watchdog.more,
            "SIGTTOU": self._watchdog.fewer,
        }.get(signal.Signals(number).name)
        if event is not None:
            log(logging.INFO, {"event": "signal", "pid": os.getpid(), "signal": signal.Signals(number).name})
            # A new template imports what may have changed.
            self._renew |= event == self._watchdog.reload
            self._do(event(now))

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Report):
                self._log(action)
            elif isinstance(action, Start):
                self._start(action)
            elif action.serial in self._processes:
                self._end(self._processes[action.serial], isinstance(action, Kill))
        self._listeners.keep_only(
            {*range(self._watchdog.processes), *(child.number for child in self._processes.values())}
        )

    def _start(self, action: Start) -> None:
        ours = theirs = None
        try:
            maker = self._maker()
            listener = self._listeners.of(action.number)
            ours, theirs = Pipe()
            reporter = None if self._reports is None else self._reports.admit(action.serial)
            args = (listener, action.number, theirs, self._terms, reporter)
            maker.start(action.serial, f"ebbpool-prefork-{action.number}", args)
        except (OSError, EOFError, RuntimeError) as error:
            if ours is not None:
                ours.close()
            if self._reports is not None:
                self._reports.gone(action.serial)
            self._do(self._watchdog.not_started(action.serial, error, self._clock()))
        else:
            self._processes[action.serial] = _Process(action.number, maker, ours)
            self._learn()
        finally:
            if theirs is not None:
                theirs.close()
            if self._reports is not None:
                self._reports.handed_over(action.serial)

    def _maker(self) -> Maker:
        """Return what makes new children.

        Raises:
            OSError: A new one is needed, and the system refuses it.
        """
        if self._renew or not self._makers[-1].alive:
            self._makers.append(Template(self._serve, self._preload) if FORKS else Spawner(self._serve))
            self._renew = False
        return self._makers[-1]

    def _end(self, child: _Process, kill: bool) -> None:
        child.doomed |= kill
        if not kill:
            with contextlib.suppress(OSError):
                child.line.send_bytes(STOP)
        if child.pid is None:
            if kill:
                # It has not come that far: what the template imports is stuck, or all is to end.
                child.maker.kill()
        elif kill or os.name == "posix":
            with contextlib.suppress(OSError):
                os.kill(child.pid, KILL if kill else signal.SIGTERM)

    def _log(self, report: Report) -> None:
        fields: dict[str, object] = {"event": report.event, "pid": os.getpid()}
        if report.serial is not None:
            child = self._processes.get(report.serial)
            fields["pid"] = None if child is None else child.pid
        log(logging.getLevelNamesMapping()[report.level.upper()], fields | report.fields)
