"""Threads whose `start` does not wait."""

from __future__ import annotations

import threading
from time import monotonic
from typing import Any


class _LaterEvent(threading.Event):
    """An event that `Thread.start` does not wait for."""

    def wait(self, timeout: float | None = None) -> bool:
        return True


class WorkerThread(threading.Thread):
    """A thread whose `start` does not wait until the new thread has had a processor and the GIL.

    That wait is most of the cost of `Thread.start`, and a burst would pay it for each thread in turn.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._started = _LaterEvent()

    def join(self, timeout: float | None = None) -> None:
        """Wait up to `timeout` seconds for the thread to end; see `threading.Thread.join`."""
        # A thread that has not begun to run yet cannot be joined.
        deadline = None if timeout is None else monotonic() + timeout
        if not threading.Event.wait(self._started, timeout):
            return
        super().join(None if deadline is None else max(0.0, deadline - monotonic()))

    def ended(self) -> bool:
        """Return whether the thread has begun and ended."""
        return self._started.is_set() and not self.is_alive()
