"""The parent process of `ebbpool.prefork`: it owns processes, pipes and signals, and does what the watchdog says."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from typing import Any, Final

from ebbpool._clock import monotonic
from ebbpool._prefork.child import LEAVING, LONGEST_WAIT, READY, log
from ebbpool._prefork.reaper import Reaper, adopts
from ebbpool._prefork.signals import FROM_THE_PARENT, OwnSignals
from ebbpool._prefork.template import Template, Work
from ebbpool._prefork.watchdog import Limits, Watchdog

LOST: Final = 255
"""The exit code of a child of which its template cannot tell any more."""


@dataclass
class _Process:
    number: int
    line: socket.socket | None = None  # None if its end of the line is closed
    template: Template | None = None
    pid: int | None = None  # known once it has been started
    ended: int | Exception | None = None  # its exit code, or why it could not be started
    doomed: bool = False  # whether it is to be killed

    def close(self) -> None:
        if self.line is not None:
            self.line.close()
            self.line = None


class Parent:
    """The owner of children, which a watchdog decides about, until all is over. For one use, in the main thread."""

    def __init__(self, work: Work, listener: socket.socket, processes: int, limits: Limits, preload: bool) -> None:
        self._new_template = partial(Template, work, preload, listener)
        self._watchdog = Watchdog(self, processes, limits)
        self._processes: dict[int, _Process] = {}
        # The last one forks new children; the others are kept until their last child has ended.
        self._templates: list[Template] = []
        self._renew = True  # whether the next child needs a new one
        self._signals = OwnSignals(FROM_THE_PARENT, self._forsake)
        self._reaper = Reaper() if adopts() else None

    def run(self) -> int:
        """Run until every child is gone; return the exit status."""
        try:
            self._signals.install()
            self._watchdog.tick(monotonic())
            while self._watchdog.status is None:
                self._turn()
            return self._watchdog.status
        finally:
            for serial, child in self._processes.items():
                self.kill(serial)
                child.close()
            for template in self._templates:
                template.close()
            self._signals.release()

    def _forsake(self) -> None:
        # While another process has an end of these lines, the children would not notice this process's death.
        for child in self._processes.values():
            child.close()
        for template in self._templates:
            template.forsake()

    def _turn(self) -> None:
        timeout = min(LONGEST_WAIT, max(0.0, self._watchdog.due() - monotonic()))
        if self._reaper is not None:
            timeout = min(timeout, self._reaper.turn(monotonic()))
        if any(child.ended is not None for child in self._processes.values()):
            timeout = 0.0
        sources: list[Any] = [self._signals.ear]
        sources += [template.link for template in self._templates if template.alive]
        # What a child says is read only once its template has told its process id.
        sources += [child.line for child in self._processes.values() if child.line and child.pid is not None]
        wait(sources, timeout)
        self._learn()
        for number in self._signals.hear():
            self._obey(number)
        # What has been said is read before `tick` decides which children have been silent for too long.
        for serial, child in list(self._processes.items()):
            self._hear(serial, child)
        self._watchdog.tick(monotonic())
        used = [child.template for child in self._processes.values()]
        for template in self._templates[:-1]:
            if template not in used:
                self._templates.remove(template)
                template.close()

    def _learn(self) -> None:
        """Take in what the templates tell; the watchdog hears of it later."""
        for template in self._templates:
            for serial, pid, ended in template.news():
                child = self._processes[serial]
                child.ended = ended
                if pid is not None:
                    child.pid = pid
                    self.report(logging.INFO, "child_started", serial, number=child.number)
                    if child.doomed:
                        self.kill(serial)

    def _hear(self, serial: int, child: _Process) -> None:
        """Tell the watchdog what a child has said, and that it is gone, or was never there."""
        now = monotonic()
        tell = {READY: self._watchdog.ready, LEAVING: self._watchdog.leaving}
        if child.line and child.pid is not None:
            with contextlib.suppress(BlockingIOError):
                try:
                    said = child.line.recv(1 << 16)
                except ConnectionError:
                    said = b""
                for word in said:
                    tell.get(word, self._watchdog.beat)(serial, now)
                if not said:
                    child.close()
        ended = child.ended
        if ended is None and child.template is not None and not child.template.alive:
            if child.pid is None:
                ended = ChildProcessError("the template has ended")
            elif not child.line:
                ended = LOST
        if ended is not None:
            self._watchdog.gone(serial, ended, now)
            self._processes.pop(serial).close()

    def _obey(self, number: int) -> None:
        name = signal.Signals(number).name
        events: dict[str, Callable[[], None]] = {"SIGQUIT": self._watchdog.abort, "SIGHUP": self._watchdog.reload}
        log(logging.INFO, "signal", signal=name)
        # A new template imports what may have changed.
        self._renew |= name == "SIGHUP"
        events.get(name, self._watchdog.stop)()

    def start(self, serial: int, number: int) -> None:
        """Start a child; an error counts as its end."""
        child = self._processes[serial] = _Process(number)
        try:
            child.line, theirs = socket.socketpair()
            child.line.setblocking(False)
            with theirs:
                if self._renew or not self._templates[-1].alive:
                    self._templates.append(self._new_template())
                    self._renew = False
                child.template = self._templates[-1]
                child.template.start(serial, number, theirs)
        except (OSError, EOFError, RuntimeError) as error:
            child.ended = error
        self._learn()

    def stop(self, serial: int) -> None:
        line = self._processes[serial].line
        if line is not None:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_WR)

    def kill(self, serial: int) -> None:
        child = self._processes[serial]
        child.doomed = True
        if child.pid is not None:
            with contextlib.suppress(OSError):
                os.kill(child.pid, signal.SIGKILL)
        elif child.template is not None:
            # It has not come that far: what the template imports is stuck, or all is to end.
            child.template.kill()

    def report(self, level: int, event: str, serial: int | None, **fields: object) -> None:
        """Log an event, with the process id of the child that it is about, or of this process."""
        log(level, event, **({} if serial is None else {"pid": self._processes[serial].pid}), **fields)
