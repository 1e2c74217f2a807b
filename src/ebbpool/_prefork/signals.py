"""Signals that one process handles, and processes forked from it do not."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from ebbpool._stdio import Bell

FROM_THE_PARENT: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
"""Signals that mean something to the parent. They may come to the whole process group."""


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Block the parent's signals, so that a new process, which inherits the mask, gets none before it handles them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FROM_THE_PARENT)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class OwnSignals(Bell):
    """Handlers of signals of this process alone; each signal rings, with its number.

    In a process that is forked from this one (`os.fork`, `pty.fork`, multiprocessing's "fork") the handlers from before
    are put back, except where other code has replaced these; the signals are blocked there until that is done. Then its
    only thread calls `forsake`, which has to close the descriptors that belong to the parent.
    """

    def __init__(self, numbers: Iterable[int], forsake: Callable[[], object]) -> None:
        super().__init__()
        self.numbers = tuple(numbers)
        self.forsake = forsake
        self._before: dict[int, Any] = {}
        self._wakeup: int | None = None

    def install(self, wakes: bool = True) -> None:
        """Begin to handle signals; any of them `wakes` a main thread that waits for `ear`. Main thread only."""
        _owners.append(self)
        self._before = {number: signal.signal(number, self.note) for number in self.numbers}
        if wakes:
            # A signal that comes just before a wait, or to another thread, does not interrupt it, but this ends it.
            self._wakeup = signal.set_wakeup_fd(self._rope.fileno(), warn_on_full_buffer=False)

    def release(self) -> None:
        """Put back the handlers from before. Main thread only."""
        _owners.remove(self)
        for number, before in self._before.items():
            if signal.getsignal(number) == self.note:
                signal.signal(number, before or signal.SIG_DFL)
        if self._wakeup is not None and (other := signal.set_wakeup_fd(self._wakeup)) != self._rope.fileno():
            signal.set_wakeup_fd(other)
        self.close()

    def note(self, number: int, frame: object = None) -> None:
        """Do as if the signal had come; harmless in a forked process."""
        self.ring(bytes([number | _NOTED]))

    def hear(self) -> bytes:
        """Return the numbers of the signals that were noted; a signal itself leaves its number without the mark."""
        return bytes(noted ^ _NOTED for noted in super().hear() if noted & _NOTED)


_NOTED: Final = 0x80
_owners: Final[list[OwnSignals]] = []
_masks: Final = threading.local()


def _before_fork() -> None:
    # Blocked, because a forked process forgets the signals that have come to it before its hooks run.
    if _owners:
        numbers = {number for owner in _owners for number in owner.numbers}
        _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)


def _unblock() -> None:
    before = vars(_masks).pop("before", None)
    if before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _in_fork() -> None:
    try:
        while _owners:
            owner = _owners[-1]
            owner.release()
            owner.forsake()
    finally:
        _unblock()


os.register_at_fork(before=_before_fork, after_in_parent=_unblock, after_in_child=_in_fork)
