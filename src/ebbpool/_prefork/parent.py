"""The parent process of `ebbpool.prefork`: it owns processes, pipes and signals, and does what the watchdog says."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from typing import Any, Final, TypeAlias

from ebbpool._clock import monotonic
from ebbpool._prefork.bind import Listeners
from ebbpool._prefork.child import BEAT, LEAVING, LONGEST_WAIT, READY, log
from ebbpool._prefork.makers import Starter, Template, Work
from ebbpool._prefork.signals import FROM_THE_PARENT, OwnSignals
from ebbpool._prefork.watchdog import Limits, Watchdog

KILL: Final = getattr(signal, "SIGKILL", signal.SIGTERM)
LOST: Final = 255
"""The exit code of a child of which its template cannot tell any more."""

FORKS: Final = hasattr(os, "fork") and hasattr(socket, "send_fds")
"""Whether children are forked by a template. Otherwise each is spawned."""

Reports: TypeAlias = Callable[[int, bytes | None], object]
"""Called with the serial of a child and a report of it, or None once it has ended; it raises nothing."""


@dataclass
class _Process:
    number: int
    line: socket.socket
    maker: Template | Starter | None = None
    begun: bytes = b""  # what has come of a message whose end has not
    talks: bool = True  # whether its end of the line is open
    pid: int | None = None  # known once it has been started
    ended: int | Exception | None = None  # its exit code, or why it could not be started
    doomed: bool = False  # whether it is to be killed

    def messages(self) -> Iterator[bytes]:
        """Yield what has come, without waiting."""
        with contextlib.suppress(BlockingIOError):
            while self.talks:
                try:
                    data = self.line.recv(1 << 16)
                except ConnectionError:
                    data = b""
                self.talks = bool(data)
                *whole, self.begun = (self.begun + data).split(b"\n")
                yield from filter(None, whole)


class Parent:
    """The owner of children, which a watchdog decides about, until all is over. For one use, in the main thread."""

    def __init__(
        self,
        work: Work,
        listeners: Listeners,
        processes: int,
        limits: Limits,
        preload: Sequence[str] | None,
        reports: Reports,
    ) -> None:
        self._work = work
        self._listeners = listeners
        self._watchdog = Watchdog(self, processes, limits)
        self._preload = preload
        self._reports = reports
        self._processes: dict[int, _Process] = {}
        # The last one makes new children; the others are kept until their last child has ended.
        self._makers: list[Template | Starter] = []
        self._renew = True  # whether the next child needs a new one
        self._signals = OwnSignals(FROM_THE_PARENT, self._forsake)

    def run(self) -> int:
        """Run until every child is gone; return the exit status."""
        try:
            self._signals.install()
            self._watchdog.tick(monotonic())
            while self._watchdog.status is None:
                self._turn()
            return self._watchdog.status
        finally:
            for child in self._processes.values():
                self._end(child)
                child.line.close()
            for maker in self._makers:
                maker.close()
            self._signals.release()

    def _forsake(self) -> None:
        # While another process has an end of these lines, the children would not notice this process's death.
        for child in self._processes.values():
            child.line.close()
        for maker in self._makers:
            maker.forsake()

    def _turn(self) -> None:
        timeout = min(LONGEST_WAIT, max(0.0, self._watchdog.due() - monotonic()))
        if any(child.ended is not None for child in self._processes.values()):
            timeout = 0.0
        sources: list[Any] = [self._signals.ear]
        for maker in self._makers:
            sources += maker.sources()
        # A child's messages are read only once its maker has told its process id.
        sources += [child.line for child in self._processes.values() if child.talks and child.pid is not None]
        wait(sources, timeout)
        self._learn()
        for number in self._signals.hear():
            self._obey(number)
        # Messages that have come are read before `tick` decides which children have been silent for too long.
        for serial, child in list(self._processes.items()):
            if child.pid is not None:
                self._hear(serial, child)
            self._check(serial, child)
        self._watchdog.tick(monotonic())
        numbers = {child.number for child in self._processes.values()}
        self._listeners.keep_only(numbers.union(range(self._watchdog.processes)))
        used = [child.maker for child in self._processes.values()]
        for maker in self._makers[:-1]:
            if maker not in used:
                self._makers.remove(maker)
                maker.close()

    def _learn(self) -> None:
        """Take in what the makers tell; the watchdog hears of it later."""
        for maker in self._makers:
            for serial, pid, ended in maker.news():
                child = self._processes[serial]
                child.ended = ended
                if pid is not None:
                    child.pid = pid
                    self.report("child_started", serial, "info", {"number": child.number})
                    if child.doomed:
                        self._end(child)

    def _hear(self, serial: int, child: _Process) -> None:
        tell = {READY: self._watchdog.ready, BEAT: self._watchdog.beat, LEAVING: self._watchdog.leaving}
        for message in child.messages():
            if message in tell:
                tell[message](serial, monotonic())
            else:
                self._reports(serial, message)

    def _check(self, serial: int, child: _Process) -> None:
        """Tell the watchdog that a child is gone, or was never there."""
        ended = child.ended
        if ended is None and child.maker is not None and not child.maker.alive:
            if child.pid is None:
                ended = ChildProcessError("the template has ended")
            elif not child.talks:
                ended = LOST
        if ended is None:
            return
        self._reports(serial, None)
        self._watchdog.gone(serial, ended, monotonic())
        del self._processes[serial]
        child.line.close()

    def _obey(self, number: int) -> None:
        name = signal.Signals(number).name
        events: dict[str, Callable[[], None]] = {
            "SIGQUIT": self._watchdog.abort,
            "SIGHUP": self._watchdog.reload,
            "SIGTTIN": partial(self._watchdog.change, 1),
            "SIGTTOU": partial(self._watchdog.change, -1),
        }
        log(logging.INFO, "signal", signal=name)
        # A new template imports what may have changed.
        self._renew |= name == "SIGHUP"
        events.get(name, self._watchdog.stop)()

    def start(self, serial: int, number: int) -> None:
        """Start a child; an error counts as its end."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        child = self._processes[serial] = _Process(number, ours)
        with theirs:
            try:
                if self._renew or not self._makers[-1].alive:
                    self._makers.append(Template(self._work, self._preload) if FORKS else Starter("spawn", self._work))
                    self._renew = False
                child.maker = self._makers[-1]
                child.maker.start(serial, number, self._listeners.of(number), theirs)
            except (OSError, EOFError, RuntimeError) as error:
                child.ended = error
        self._learn()

    def stop(self, serial: int) -> None:
        with contextlib.suppress(OSError):
            self._processes[serial].line.shutdown(socket.SHUT_WR)

    def kill(self, serial: int) -> None:
        self._end(self._processes[serial])

    def _end(self, child: _Process) -> None:
        child.doomed = True
        if child.pid is not None:
            with contextlib.suppress(OSError):
                os.kill(child.pid, KILL)
        elif child.maker is not None:
            # It has not come that far: what the template imports is stuck, or all is to end.
            child.maker.kill()

    def report(self, event: str, serial: int | None, level: str, fields: dict[str, object]) -> None:
        """Log an event, with the process id of the child that it is about, or of this process."""
        about = {} if serial is None else {"pid": self._processes[serial].pid}
        log(logging.getLevelNamesMapping()[level.upper()], event, **about | fields)
