"""Signals that one process handles, and the processes that are forked from it do not.

A fork inherits the handlers and the wakeup descriptor of the process it comes from: a signal for the one would be heard
by the other.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

Handler: TypeAlias = Callable[[int, Any], object]


class OwnSignals:
    """Handlers of signals, and a wakeup descriptor, of this process alone.

    A process that is forked from this one (`os.fork`, `pty.fork`, multiprocessing's "fork") has the handlers that were
    there before, except where somebody has put others in the place of these; no signal reaches it until then.

    Args:
        handlers: What handles which number.
        wakeup: A descriptor that does not block; the numbers of signals are written to it.
        forsake: Called in a forked process, with every signal of `handlers` blocked, by its only thread; it is to close
            what belongs to the process it comes from.
    """

    def __init__(self, handlers: Mapping[int, Handler], wakeup: int, forsake: Callable[[], object]) -> None:
        self.numbers = frozenset(handlers)
        self._handlers = handlers
        self._wakeup = wakeup
        self._forsake = forsake
        self._before: dict[int, Any] = {}
        self._wakeup_before = -1

    def install(self) -> None:
        """Begins to handle signals. Main thread only."""
        _watch_forks()
        _owners.append(self)
        self._wakeup_before = signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        for number, handler in self._handlers.items():
            self._before[number] = signal.signal(number, handler)

    def release(self) -> None:
        """Makes every handler what it was. Main thread only."""
        for number in self._before:
            self._restore(number)
        signal.set_wakeup_fd(self._wakeup_before)
        _owners.remove(self)

    def ignore(self) -> None:
        """Ignores the signals to the end of this process, which the interpreter cannot handle any more. Main thread."""
        for number in self._mine():
            signal.signal(number, signal.SIG_IGN)

    def forsake(self) -> None:
        """In a forked process: leaves the signals to what they did before."""
        for number in self._mine():
            self._restore(number)
        wakeup = signal.set_wakeup_fd(-1)
        if wakeup not in (-1, self._wakeup):
            # Somebody else's, of a loop perhaps that took the signals over.
            with contextlib.suppress(OSError, ValueError):
                signal.set_wakeup_fd(wakeup)
        self._forsake()

    def _mine(self) -> list[int]:
        return [number for number in self._before if signal.getsignal(number) == self._handlers[number]]

    def _restore(self, number: int) -> None:
        handler = self._before[number]
        signal.signal(number, signal.SIG_DFL if handler is None else handler)


_owners: Final[list[OwnSignals]] = []
_masks: Final = threading.local()
_watching = False


def _watch_forks() -> None:
    global _watching
    if not _watching and hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_before_fork, after_in_parent=_unblock, after_in_child=_in_fork)
        _watching = True


def _before_fork() -> None:
    # A signal that came between the fork and the change of handlers would go to the wrong process.
    if _owners:
        numbers = frozenset[int]().union(*(owner.numbers for owner in _owners))
        _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)


def _unblock() -> None:
    before = vars(_masks).pop("before", None)
    if before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _in_fork() -> None:
    try:
        while _owners:
            _owners.pop().forsake()
    finally:
        _unblock()
