"""Threads whose `start` does not wait."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from functools import partial
from time import monotonic
from typing import Any

MISHIT = sys.implementation.name == "cpython" and sys.version_info < (3, 12)
"""Whether an error thrown into a thread may hit one that it has just started.

The state of the new thread carries the number of its maker until the thread runs. It would die of the error before its
first line, and nobody would be told.
"""


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

    def start(self) -> None:
        """Start the thread; see `threading.Thread.start`."""
        if MISHIT:
            life = self._live()
            next(life)
            vars(self)["_bootstrap"] = partial(next, life, None)
        try:
            super().start()
        finally:
            vars(self).pop("_bootstrap", None)

    def _live(self) -> Iterator[None]:
        """Run the thread, from the second step on; the first is made before the start.

        So the new thread begins inside of the `try`, where an error that was thrown into its maker does no harm.
        """
        try:
            yield
        except GeneratorExit:
            # It was not started.
            return
        except BaseException:
            pass
        super()._bootstrap()  # type: ignore[misc]  # not in typeshed

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
