"""`Child`, which `serve` functions are given: signs of life, stop and reports; and what its process runs.

This module is imported before the child accepts connections, so it imports little.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import wait
from queue import SimpleQueue
from typing import Any, Final, Protocol, TypeAlias

from ebbpool._clock import monotonic
from ebbpool._frames import stacks
from ebbpool._prefork.signals import FROM_THE_PARENT, OwnSignals
from ebbpool._prefork.watchdog import Limits
from ebbpool._stdio import flush_or_discard, last_words, unhindered, wait_for

LOGGER: Final = logging.getLogger("ebbpool.prefork")

# What a child says is lines: one of these words, or what its reporter wrote. The end of what it hears is what stops it.
READY: Final = b"ready"
BEAT: Final = b"beat"
LEAVING: Final = b"leaving"
ROOM: Final = 1.0
"""Seconds to wait for room for what is said."""

LONGEST_WAIT: Final = 3600.0 if os.name == "posix" else 1.0
"""Seconds; the system's calls that wait refuse some days, and elsewhere than on POSIX no signal ends them."""
LAST_WORD: Final = 1.0
"""Seconds for which a child outlives its deadline, so that its parent, if it has one, ends it first."""
PATIENCE: Final = 0.9
"""Share of the time left that a server gets to finish, so that it can still report what it could not finish."""
REPORT_INTERVAL: Final = 1.0
"""Seconds between two reports."""

Reporter: TypeAlias = Callable[[], Callable[[], bytes]]
"""Picklable; called in the child, it returns what writes a report, one line without its end, in any thread."""


class Server(Protocol):
    """The part of a server that `Child.serve` needs: socketserver's servers, and those of ebbpool, have it."""

    def serve_forever(self, poll_interval: float = ...) -> None:
        """Serve until `shutdown` is called."""

    def shutdown(self) -> None:
        """Make `serve_forever` return."""

    def server_close(self) -> None:
        """Close the server, and wait for what it has begun."""

    def service_actions(self) -> None:
        """Do what there is to do once in each turn of the loop, which calls this."""


class Child:
    """One process that serves; handed to the `serve` function of `ebbpool.prefork.run`.

    Attributes:
        listener: The socket to accept connections on: bound, listening, non-blocking, and shared with other processes,
            so that an accept may find that another one was quicker.
        number: 0, 1, ...: a replacement has the number of the one it replaces.
        stopping: Set once this process is to stop.
    """

    # Here, where the reference finds them.
    listener: socket.socket
    number: int
    stopping: threading.Event

    def __init__(
        self, listener: socket.socket, number: int, line: socket.socket, limits: Limits, reporter: Reporter | None
    ) -> None:
        self.listener = listener
        self.number = number
        self._line = line
        line.settimeout(ROOM)
        self._limits = limits
        self._interval = min(limits.heartbeat_timeout / 4, LONGEST_WAIT)
        self._callbacks: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._turns = 0
        self._deadline = math.inf
        self._written = None if reporter is None else reporter()
        self._renew()
        # Not SIG_IGN, which programs that this process starts would inherit.
        numbers = [number for number in FROM_THE_PARENT if number.name != "SIGQUIT"]
        self._signals = OwnSignals(numbers, self._forsake)
        self._signals.install()
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, FROM_THE_PARENT)
        threading.Thread(target=self._attend, name="ebbpool-prefork", daemon=True).start()

    def _renew(self) -> None:
        self.stopping, self._called_back = threading.Event(), threading.Event()
        self._lock, self._telling, self._reporting = threading.Lock(), threading.Lock(), threading.Lock()

    def ready(self) -> None:
        """Tell the parent that this process serves now. Until then it counts as starting, within `start_timeout`."""
        self._tell(READY)

    def beat(self) -> None:
        """Tell that the serving loop turns. It costs next to nothing: call it in each turn.

        Of a process that never calls it, only the interpreter has to be alive. One that has called it is killed and
        replaced if it does not call it again for `heartbeat_timeout` seconds.
        """
        self._turns += 1

    def on_stop(self, callback: Callable[[], object]) -> None:
        """Have `callback()` called, once, when this process is to stop; at once if it is to stop already.

        It runs in a thread of its own, never in the main thread, one callback after another. What it raises is logged.
        """
        self._callbacks.put(callback)

    def serve(self, server: Server) -> None:
        """Run `server` until this process is to stop, then close it, within the deadline.

        The server is one of `socketserver`'s kind. The heartbeat comes from its loop, which has to call
        `service_actions` in each turn, as the standard library's does. If it has a `shutdown_timeout`, in seconds,
        that is lowered to what is left of the deadline.

        Raises:
            TimeoutError: From the server: handlers were still running at its time-out.
        """
        actions = server.service_actions

        def turn() -> None:
            self.beat()
            actions()

        server.service_actions = turn  # type: ignore[method-assign]  # on this server alone
        self.on_stop(server.shutdown)
        try:
            self.ready()
            self.beat()
            server.serve_forever(min(0.5, self._interval))
        finally:
            self._leave()
            patient: Any = server
            if hasattr(patient, "shutdown_timeout"):
                left = max(0.0, self._deadline - monotonic()) * PATIENCE
                limit = patient.shutdown_timeout
                if left < math.inf and (limit is None or left < limit):
                    patient.shutdown_timeout = left
            server.server_close()

    def _forsake(self) -> None:
        """In a process that was forked from this one: drop the pipe to the parent, which is not its parent."""
        self._line.close()
        # A thread that does not exist in the forked process may have held one of the locks.
        self._renew()
        self._written = None
        self._called_back.set()

    def _attend(self) -> None:
        """Listen to the parent, send the signs of life, and report; in a thread of its own."""
        pause = self._interval if self._written is None else min(self._interval, REPORT_INTERVAL)
        told = -1
        warned = False
        silent_since = monotonic()
        while not any(map(self._must_stop, wait([self._line, self._signals.ear], pause))):
            self._report()
            turns = self._turns
            now = monotonic()
            if turns == 0 or turns != told:
                told, silent_since, warned = turns, now, False
                self._tell(BEAT)
            elif not warned and now - silent_since > self._limits.heartbeat_timeout / 2:
                warned = True
                (stack,) = stacks([threading.main_thread().ident])
                self._log(logging.WARNING, "child_silent", f"\n{stack}", seconds=round(now - silent_since, 3))
        self._stop()

    def _must_stop(self, source: object) -> bool:
        if source is not self._line:
            return signal.SIGTERM in self._signals.hear()
        # The parent has ended the line, or is gone. SIGTERM tells code that has a handler of its own for that.
        if os.name == "posix":
            ident = threading.main_thread().ident
            assert ident is not None
            with contextlib.suppress(OSError):
                signal.pthread_kill(ident, signal.SIGTERM)
        return True

    def _stop(self) -> None:
        self._leave()
        # In a thread of its own: a callback may block, and the deadline must be kept.
        threading.Thread(target=self._call_back, name="ebbpool-prefork-stop", daemon=True).start()
        # This process ends itself at the deadline: if the parent is gone, no other process would.
        while (left := self._deadline + LAST_WORD - monotonic()) > 0:
            time.sleep(min(left, LONGEST_WAIT))
        self._log(logging.ERROR, "child_overdue", seconds=self._limits.graceful_timeout)
        last_words()
        os._exit(1)

    def _call_back(self) -> None:
        for callback in iter(self._callbacks.get, None):
            try:
                callback()
            except Exception:
                self._log(logging.ERROR, "on_stop_failed", "\n" + traceback.format_exc())
        self._called_back.set()

    def _leave(self) -> None:
        with self._lock:
            if self.stopping.is_set():
                return
            self._deadline = monotonic() + self._limits.graceful_timeout
            self.stopping.set()
        self._tell(LEAVING)
        self._signals.note(signal.SIGTERM)

    def _report(self) -> None:
        # One at a time, so that none overtakes another. A parent that has been stopped reads nothing: there is no room.
        with self._reporting:
            if self._written is not None and wait_for(self._line, True, 0.0):
                try:
                    self._tell(self._written())
                except Exception:
                    # What a subclass of the executor does must not end all reports.
                    LOGGER.exception("the metrics of this process cannot be reported")

    def _tell(self, message: bytes) -> None:
        # Errors are ignored: the thread that listens notices if the parent is gone. A parent that does not read must
        # not hold up the end of this process: what finds no room is dropped; the next message ends one that was cut.
        with self._telling, contextlib.suppress(OSError):
            self._line.sendall(b"\n" + message + b"\n")

    def _log(self, level: int, event: str, detail: str = "", **fields: object) -> None:
        log(level, event, detail, number=self.number, **fields)


def log(level: int, event: str, detail: str = "", /, **fields: object) -> None:
    """Log ``key=value`` pairs as one line, this process's id among them; they are also attributes of the record."""
    fields = {"event": event, "pid": os.getpid()} | fields
    LOGGER.log(level, "%s%s", " ".join(f"{key}={_value(value)}" for key, value in fields.items()), detail, extra=fields)


def _value(value: object) -> str:
    text = str(value)
    return repr(text) if not text or any(letter.isspace() or letter in "\"'=" for letter in text) else text


def main(
    serve: Callable[[Child], object],
    limits: Limits,
    reporter: Reporter | None,
    listener: socket.socket,
    number: int,
    line: socket.socket,
) -> None:
    """Run one child, in its main thread, from its start to its end."""
    with unhindered():
        child = Child(listener, number, line, limits, reporter)
        try:
            if not child.stopping.is_set():
                serve(child)
        finally:
            child._leave()
            child._report()
        # The thread that listens ends this process if a callback takes too long.
        child._callbacks.put(None)
        child._called_back.wait()
    flush_or_discard(sys.stdout, sys.stderr)
