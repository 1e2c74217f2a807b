"""Threads whose `start` does not wait."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any

STILLBORN = sys.implementation.name == "cpython" and sys.version_info < (3, 12)
"""Whether an error thrown into a thread may hit one that it has just started, and that has not begun to run.

The state of the new thread carries the number of its maker until then. The new thread dies of the error, and nobody is
told.
"""


class _LaterEvent(threading.Event):
    """An event that `Thread.start` does not wait for."""

    def wait(self, timeout: float | None = None) -> bool:
        return True


def _nothing() -> None:
    pass


class WorkerThread(threading.Thread):
    """A thread whose `start` does not wait until the new thread has had a processor and the GIL.

    That wait is most of the cost of `Thread.start`, and a burst would pay it for each thread in turn.

    Attributes:
        unborn: Called, in any thread, if the thread has died before it began. It counts as ended then.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._started = _LaterEvent()
        self.unborn: Callable[[], object] = _nothing
        self._life: object = None

    def start(self) -> None:
        """Start the thread; see `threading.Thread.start`.

        Raises:
            RuntimeError: The system refuses another thread.
        """
        if not STILLBORN:
            super().start()
            return
        bootstrap = partial(type(self)._bootstrap, self)  # type: ignore[attr-defined]  # not in typeshed
        vars(self)["_bootstrap"] = bootstrap
        try:
            super().start()
            # Once this returns only the new thread holds what it runs, and drops it as it ends.
            self._life = weakref.ref(bootstrap, self._over)
        finally:
            del vars(self)["_bootstrap"]

    def _over(self, _: object) -> None:
        if self._started.is_set():
            return
        # Where `threading` lists threads that have not begun.
        threading._limbo.pop(self, None)  # type: ignore[attr-defined]  # not in typeshed
        self._is_stopped = True
        self._started.set()
        self.unborn()

    def run(self) -> None:
        """Run, in the new thread."""
        # Breaks a cycle: what is called refers to those who know this thread.
        self.unborn = _nothing
        super().run()

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
