"""`Child`, which `serve` functions are given: signs of life and stop; and what its process runs.

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
import traceback
from collections.abc import Callable
from multiprocessing.connection import wait
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from ebbpool._clock import monotonic
from ebbpool._frames import stacks
from ebbpool._prefork.signals import FROM_THE_PARENT, OwnSignals
from ebbpool._prefork.watchdog import Limits
from ebbpool._stdio import flush_or_discard

if TYPE_CHECKING:
    from socketserver import BaseServer

LOGGER: Final = logging.getLogger("ebbpool.prefork")

READY, BEAT, LEAVING = b"rbl"
"""What a child says, a byte each. The end of what it hears is what stops it."""

LONGEST_WAIT: Final = 3600.0
"""Seconds; the system's calls that wait refuse some days."""
LAST_WORD: Final = 1.0
"""Seconds for which a child outlives its deadline, so that its parent, if it has one, ends it first."""
SHUTDOWN_SHARE: Final = 0.9
"""Share of the time left that a server gets to finish, so that it can still report what it could not finish."""


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

    def __init__(self, listener: socket.socket, number: int, line: socket.socket, limits: Limits) -> None:
        self.listener = listener
        self.number = number
        self.stopping = threading.Event()
        self._line = line
        self._limits = limits
        self._interval = min(limits.heartbeat_timeout / 4, LONGEST_WAIT)
        self._callbacks: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._turns = 0
        self._deadline = math.inf
        # Not SIG_IGN, which programs that this process starts would inherit.
        self._signals = OwnSignals(set(FROM_THE_PARENT) - {signal.SIGQUIT}, self._forsake)
        # The main thread belongs to the program, whose event loop may be woken by signals in its own way.
        self._signals.install(wakes=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FROM_THE_PARENT)
        self._attendant = threading.Thread(target=self._attend, name="ebbpool-prefork", daemon=True)
        self._attendant.start()

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

        It runs in a separate thread, never in the main thread, one callback after another. What it raises is logged.
        """
        self._callbacks.put(callback)

    def serve(self, server: BaseServer) -> None:
        """Run `server` until this process is to stop, then close it, within the deadline.

        The heartbeat comes from the server's loop, which has to call `service_actions` in each turn, as the standard
        library's does. If it has a `shutdown_timeout`, in seconds, that is lowered to what is left of the deadline.

        Raises:
            TimeoutError: From the server: handlers were still running at its timeout.
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
            stoppable: Any = server
            if hasattr(stoppable, "shutdown_timeout"):
                left = max(0.0, self._deadline - monotonic()) * SHUTDOWN_SHARE
                limit = stoppable.shutdown_timeout
                if left < math.inf and (limit is None or left < limit):
                    stoppable.shutdown_timeout = left
            server.server_close()

    def _forsake(self) -> None:
        """In a process that was forked from this one: drop the line to the parent, which is not its parent."""
        self._line.close()
        # A thread that does not exist in the forked process may have held its lock.
        self.stopping = threading.Event()

    def _attend(self) -> None:
        """Listen to the parent and send the signs of life, until the stop; then run the callbacks, in this thread."""
        told = -1
        warned = False
        silent_since = monotonic()
        while not any(map(self._must_stop, wait([self._line, self._signals.ear], self._interval))):
            turns = self._turns
            now = monotonic()
            if turns == 0 or turns != told:
                told, silent_since, warned = turns, now, False
                self._tell(BEAT)
            elif not warned and now - silent_since > self._limits.heartbeat_timeout / 2:
                warned = True
                (stack,) = stacks([threading.main_thread().ident])
                seconds = round(now - silent_since, 3)
                log(logging.WARNING, "child_silent", f"\n{stack}", number=self.number, seconds=seconds)
        self._leave()
        # If the parent is gone, no other process ends this one. Without a word, for which it might wait: what it writes
        # to may have no reader any more.
        left = self._deadline + LAST_WORD - monotonic()
        late = threading.Timer(min(left, threading.TIMEOUT_MAX), os._exit, [1])
        late.daemon = True
        late.start()
        for callback in iter(self._callbacks.get, None):
            try:
                callback()
            except Exception:
                log(logging.ERROR, "on_stop_failed", "\n" + traceback.format_exc(), number=self.number)

    def _must_stop(self, source: object) -> bool:
        if source is not self._line:
            return signal.SIGTERM in self._signals.hear()
        # The parent has ended the line, or is gone. SIGTERM tells code that has a handler of its own for that.
        ident = threading.main_thread().ident
        assert ident is not None
        with contextlib.suppress(OSError):
            signal.pthread_kill(ident, signal.SIGTERM)
        return True

    def _leave(self) -> None:
        # If two threads get here at once, both do the same.
        if not self.stopping.is_set():
            self._deadline = monotonic() + self._limits.graceful_timeout
            self.stopping.set()
            self._tell(LEAVING)
            self._signals.note(signal.SIGTERM)

    def _tell(self, word: int) -> None:
        # Errors are ignored: the thread that listens notices if the parent is gone. A parent that does not read must
        # not hold up the end of this process: what finds no room is dropped.
        with contextlib.suppress(OSError):
            self._line.send(bytes([word]))


def log(level: int, event: str, detail: str = "", /, **fields: object) -> None:
    """Log ``key=value`` pairs as one line, this process's id among them; they are also attributes of the record."""
    fields = {"event": event, "pid": os.getpid()} | fields
    LOGGER.log(level, "%s%s", " ".join(f"{key}={_value(value)}" for key, value in fields.items()), detail, extra=fields)


def _value(value: object) -> str:
    text = str(value)
    return repr(text) if not text or any(letter.isspace() or letter in "\"'=" for letter in text) else text


def main(
    serve: Callable[[Child], object], limits: Limits, listener: socket.socket, number: int, line: socket.socket
) -> None:
    """Run one child, in its main thread, from its start to its end."""
    child = Child(listener, number, line, limits)
    try:
        if not child.stopping.is_set():
            serve(child)
    finally:
        child._leave()
    # The thread that runs the callbacks; if they take too long, another one ends this process.
    child._callbacks.put(None)
    child._attendant.join()
    flush_or_discard(sys.stdout, sys.stderr)
