"""The parent process of `ebbpool.prefork`: it owns processes, pipes and signals, and does what the watchdog says."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import wait
from typing import Any, Final

from ebbpool._clock import monotonic
from ebbpool._prefork.child import LEAVING, LONGEST_WAIT, READY, log
from ebbpool._prefork.reaper import Reaper, adopts
from ebbpool._prefork.signals import FROM_THE_PARENT, OwnSignals
from ebbpool._prefork.template import Template, Work
from ebbpool._prefork.watchdog import Life, Limits, Phase, Watchdog

LOST: Final = 255
"""The exit code of a child of which its template cannot tell any more."""


class Parent:
    """The owner of children, which a watchdog decides about, until all is over. For one use, in the main thread."""

    def __init__(self, work: Work, listener: socket.socket, processes: int, limits: Limits, preload: bool) -> None:
        self._new_template = partial(Template, work, preload, listener)
        self._watchdog = Watchdog(self, processes, limits)
        self._lives = self._watchdog.lives
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
            for life in self._lives.values():
                self.kill(life)
                _close(life)
            for template in self._templates:
                template.close()
            self._signals.release()

    def _forsake(self) -> None:
        # While another process has an end of these lines, the children would not notice this process's death.
        for life in self._lives.values():
            _close(life)
        for template in self._templates:
            template.forsake()

    def _turn(self) -> None:
        timeout = min(LONGEST_WAIT, max(0.0, self._watchdog.due() - monotonic()))
        if self._reaper is not None:
            timeout = min(timeout, self._reaper.turn(monotonic()))
        if any(life.ended is not None for life in self._lives.values()):
            timeout = 0.0
        sources: list[Any] = [self._signals.ear]
        sources += [template.link for template in self._templates if template.alive]
        # What a child says is read only once its template has told its process id.
        sources += [life.line for life in self._lives.values() if life.line and life.pid is not None]
        wait(sources, timeout)
        self._learn()
        for number in self._signals.hear():
            self._obey(number)
        # What has been said is read before `tick` decides which children have been silent for too long.
        for life in list(self._lives.values()):
            self._hear(life)
        self._watchdog.tick(monotonic())
        used = [life.template for life in self._lives.values()]
        for template in self._templates[:-1]:
            if template not in used:
                self._templates.remove(template)
                template.close()

    def _learn(self) -> None:
        """Take in what the templates tell; the watchdog hears of it later."""
        for template in self._templates:
            for serial, pid, ended in template.news():
                life = self._lives[serial]
                life.ended = ended
                if pid is not None:
                    life.pid = pid
                    self.report(logging.INFO, "child_started", life)
                    if life.phase is Phase.KILLED:
                        self.kill(life)

    def _hear(self, life: Life) -> None:
        """Tell the watchdog what a child has said, and that it is gone, or was never there."""
        now = monotonic()
        tell = {READY: self._watchdog.ready, LEAVING: self._watchdog.leaving}
        if life.line and life.pid is not None:
            with contextlib.suppress(BlockingIOError):
                try:
                    said = life.line.recv(1 << 16)
                except ConnectionError:
                    said = b""
                for word in said:
                    tell.get(word, self._watchdog.beat)(life, now)
                if not said:
                    _close(life)
        ended = life.ended
        if ended is None and life.template is not None and not life.template.alive:
            if life.pid is None:
                ended = ChildProcessError("the template has ended")
            elif not life.line:
                ended = LOST
        if ended is not None:
            self._watchdog.gone(life, ended, now)
            _close(life)

    def _obey(self, number: int) -> None:
        name = signal.Signals(number).name
        events: dict[str, Callable[[], None]] = {"SIGQUIT": self._watchdog.abort, "SIGHUP": self._watchdog.reload}
        log(logging.INFO, "signal", signal=name)
        # A new template imports what may have changed.
        self._renew |= name == "SIGHUP"
        events.get(name, self._watchdog.stop)()

    def start(self, life: Life) -> None:
        """Start a child; an error counts as its end."""
        try:
            life.line, theirs = socket.socketpair()
            life.line.setblocking(False)
            with theirs:
                if self._renew or not self._templates[-1].alive:
                    self._templates.append(self._new_template())
                    self._renew = False
                life.template = self._templates[-1]
                life.template.start(life.serial, life.number, theirs)
        except (OSError, EOFError, RuntimeError) as error:
            life.ended = error
        self._learn()

    def stop(self, life: Life) -> None:
        if life.line is not None:
            with contextlib.suppress(OSError):
                life.line.shutdown(socket.SHUT_WR)

    def kill(self, life: Life) -> None:
        if life.pid is not None:
            with contextlib.suppress(OSError):
                os.kill(life.pid, signal.SIGKILL)
        elif life.template is not None:
            # It has not come that far: what the template imports is stuck, or all is to end.
            life.template.kill()

    def report(self, level: int, event: str, life: Life | None, **fields: object) -> None:
        """Log an event, with the number and process id of the child that it is about, or that of this process."""
        log(level, event, **({} if life is None else {"pid": life.pid, "number": life.number}), **fields)


def _close(life: Life) -> None:
    if life.line is not None:
        life.line.close()
        life.line = None
