"""The parent process of `ebbpool.prefork`: it owns processes, pipes and signals, and does what the watchdog says."""

from __future__ import annotations

import contextlib
import logging
import math
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, Final, Protocol

from ebbpool._checks import one_of
from ebbpool._output import flush_or_discard
from ebbpool._prefork.bind import Handed, Listeners
from ebbpool._prefork.child import BEAT, FROM_THE_PARENT, LEAVING, READY, STOP, Child, Reporter, Terms, log, main
from ebbpool._prefork.helper_processes import (
    PATIENCE,
    PROMPT,
    answered,
    blocked,
    continue_server,
    kill_server,
    start_helpers,
)
from ebbpool._prefork.own_signals import OwnSignals
from ebbpool._prefork.watchdog import Action, Kill, Report, Start, Watchdog

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, SpawnContext
    from multiprocessing.process import BaseProcess

OURS: Final = FROM_THE_PARENT + ((signal.SIGCHLD,) if hasattr(signal, "SIGCHLD") else ())
TO_STOP: Final = tuple(number for number in OURS if number.name in ("SIGBREAK", "SIGINT", "SIGQUIT", "SIGTERM"))
"""Signals after which a fork server that does not answer is killed early."""
LONGEST_WAIT: Final = 3600.0
SERVER_DIED: Final = 255
"""The exit code that multiprocessing reports for every process whose fork server has died."""


def context_of(name: str | None) -> SpawnContext | ForkServerContext:
    """Return multiprocessing's context of that name; for None the one in which a child is replaced soonest.

    Raises:
        TypeError: `name` is no string.
        ValueError: `name` is "fork", or that of a context which this system does not have.
    """
    known = [method for method in ("forkserver", "spawn") if method in multiprocessing.get_all_start_methods()]
    if name is None:
        name = known[0]
    if not isinstance(name, str):
        raise TypeError(f"context must be a string or None, not {name!r}")
    name = one_of("context", name, known)
    chosen: SpawnContext | ForkServerContext = multiprocessing.get_context(name)  # type: ignore[assignment]  # not "fork"
    return chosen


@dataclass
class _Process:
    """One child as the system sees it."""

    pid: int
    number: int
    process: BaseProcess
    line: Connection
    talks: bool = True
    """Whether its end of the pipe is open."""
    watched: bool = True
    """Whether multiprocessing's sentinel still means something."""
    due: float = math.inf
    """When to find out why its end is not reported: it was killed, or its end of the pipe was closed."""
    asked: bool = False
    """Whether that has been tried before."""


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
        context: Makes the processes.
        reports: What the children report to; None if they need not report.
        clock: Seconds of a clock that never goes back.
    """

    def __init__(
        self,
        serve: Callable[[Child], object],
        listeners: Listeners,
        watchdog: Watchdog,
        context: SpawnContext | ForkServerContext,
        reports: Reports | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._serve = serve
        self._listeners = listeners
        self._watchdog = watchdog
        self._context = context
        self._reports = reports
        self._forked = context.get_start_method() == "forkserver"
        self._clock = clock
        self._terms = Terms(watchdog.graceful_timeout, watchdog.heartbeat_timeout)
        self._processes: dict[int, _Process] = {}
        self._bell: socket.socket

    def run(self) -> int:
        """Run until every child is gone; return the exit status.

        Raises:
            BaseException: An error in the parent itself; no child is left then either.
        """
        with self._signals():
            try:
                start_helpers(self._context)
                self._do(self._watchdog.tick(self._clock()))
                while self._watchdog.status is None:
                    self._turn()
                return self._watchdog.status
            finally:
                self._kill_all()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Have the numbers of signals arrive in the bell; put back the handlers from before at the end."""
        self._bell, rope = socket.socketpair()
        with self._bell, rope:
            self._bell.setblocking(False)
            rope.setblocking(False)

            def forsake() -> None:
                # While another process has an end of these pipes, the children would not notice this process's death.
                self._bell.close()
                rope.close()
                for child in self._processes.values():
                    child.line.close()
                if self._reports is not None:
                    self._reports.forsake()

            signals = OwnSignals(dict.fromkeys(OURS, _noted), rope.fileno(), forsake)
            try:
                signals.install()
                yield
            finally:
                signals.release()

    def _turn(self) -> None:
        moments = [child.due for child in self._processes.values()]
        if (due := self._watchdog.due()) is not None:
            moments.append(due)
        timeout = min(LONGEST_WAIT, max(0.0, min(moments, default=math.inf) - self._clock()))
        sources: list[Any] = [self._bell]
        for child in self._processes.values():
            if child.talks:
                sources.append(child.line)
            if child.watched:
                sources.append(child.process.sentinel)
        if self._reports is not None:
            sources += self._reports.sources()
        wait(sources, timeout)
        if self._reports is not None:
            self._reports.hear()
        # Messages that have come are read before `tick` decides which children have been silent for too long.
        for serial in list(self._processes):
            self._hear(serial)
        for number in _received(self._bell):
            self._obey(number)
        for serial in list(self._processes):
            self._check_child(serial)
        self._do(self._watchdog.tick(self._clock()))

    def _hear(self, serial: int) -> None:
        child = self._processes[serial]
        tell = {READY: self._watchdog.ready, BEAT: self._watchdog.beat, LEAVING: self._watchdog.leaving}
        while child.talks:
            try:
                if not child.line.poll():
                    return
                message = child.line.recv_bytes()
            except (EOFError, OSError):
                child.talks = False
                child.due = self._clock() + PROMPT
            else:
                self._do(tell[message](serial, self._clock()))

    def _check_child(self, serial: int) -> None:
        child = self._processes[serial]
        exitcode = child.process.exitcode
        if exitcode is None:
            if self._clock() >= child.due:
                self._ask_after(child)
            return
        self._hear(serial)
        if self._forked and exitcode == SERVER_DIED and child.talks:
            # The fork server is dead, and not this child: from now on the end of its pipe shows when it ends.
            child.watched = False
            return
        if self._reports is not None:
            self._reports.gone(serial)
        self._do(self._watchdog.gone(serial, exitcode, self._clock()))
        del self._processes[serial]
        child.line.close()
        child.process.join()
        child.process.close()

    def _ask_after(self, child: _Process) -> None:
        """Deal with a child that seems to be gone, and whose end is not reported."""
        if child.talks:
            # It was killed, which takes a while if it is large. So it is not yet taken for a fault.
            child.due = math.inf
        elif not child.asked:
            log(logging.WARNING, {"event": "child_cut_off", "pid": child.pid, "number": child.number})
            # If it lives after all, its pipe is closed, so that it cannot be told to stop.
            self._end(child, True)
            child.due = self._clock() + PATIENCE
            child.asked = True
        else:
            child.due = math.inf
            if self._forked:
                kill_server()
            return
        if self._forked:
            continue_server()

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
            listener = self._listeners.of(action.number)
            ours, theirs = self._context.Pipe()
            reporter = None if self._reports is None else self._reports.admit(action.serial)
            process = self._context.Process(
                target=main,
                args=(self._serve, Handed(listener), action.number, theirs, self._terms, reporter),
                name=f"ebbpool-prefork-{action.number}",
                daemon=False,
            )
            flush_or_discard(sys.stdout, sys.stderr)
            limit = self._watchdog.start_timeout
            with answered(limit, self._hurried) if self._forked else contextlib.nullcontext(), blocked():
                process.start()
        except (OSError, EOFError, RuntimeError) as error:
            if ours is not None:
                ours.close()
            if self._reports is not None:
                self._reports.gone(action.serial)
            self._do(self._watchdog.not_started(action.serial, error, self._clock()))
        else:
            assert process.pid is not None
            self._processes[action.serial] = _Process(process.pid, action.number, process, ours)
            self._log(Report("child_started", action.serial, fields={"number": action.number}))
        finally:
            if theirs is not None:
                theirs.close()
            if self._reports is not None:
                self._reports.handed_over(action.serial)

    def _hurried(self) -> bool:
        """Return, in any thread, whether a signal to stop has come that has not been handled yet."""
        with contextlib.suppress(BlockingIOError):
            return any(number in TO_STOP for number in self._bell.recv(4096, socket.MSG_PEEK))
        return False

    def _end(self, child: _Process, kill: bool) -> None:
        if kill:
            child.due = min(child.due, self._clock() + PROMPT)
        else:
            with contextlib.suppress(OSError):
                child.line.send_bytes(STOP)
        if os.name == "posix":
            # Not Process.kill, which does nothing once the fork server has died.
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL if kill else signal.SIGTERM)
        elif kill:
            child.process.kill()

    def _kill_all(self) -> None:
        for child in self._processes.values():
            self._end(child, True)
        for patience, remedy in [(PROMPT, continue_server), (PATIENCE, kill_server)] if self._forked else []:
            if self._all_ended(patience):
                break
            remedy()
        self._all_ended(PATIENCE)
        for child in self._processes.values():
            child.line.close()
        self._processes.clear()

    def _all_ended(self, patience: float) -> bool:
        deadline = time.monotonic() + patience
        for child in self._processes.values():
            child.process.join(max(0.0, deadline - time.monotonic()))
        return not any(child.process.is_alive() for child in self._processes.values())

    def _log(self, report: Report) -> None:
        fields: dict[str, object] = {"event": report.event, "pid": os.getpid()}
        if report.serial is not None:
            child = self._processes.get(report.serial)
            fields["pid"] = None if child is None else child.pid
        log(logging.getLevelNamesMapping()[report.level.upper()], fields | report.fields)


def _noted(number: int, frame: object) -> None:
    """Do nothing: the signal's number is on its way to the loop already."""


def _received(bell: socket.socket) -> Iterator[int]:
    with contextlib.suppress(BlockingIOError):
        while numbers := bell.recv(4096):
            yield from numbers
