"""Threads whose `start` does not wait."""

from __future__ import annotations

import sys
import threading
import weakref
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from ebbpool._core.accel import orphans

STILLBORN = sys.implementation.name == "cpython" and sys.version_info < (3, 12)
"""Whether an error thrown into a thread may hit one that it has just started, and that has not begun to run.

The state of the new thread carries the number of its maker until then. The new thread dies of the error, and nobody is
told.
"""
BIRTH = 5.0
"""Seconds for which `WorkerThread.start` waits at most, where that may happen, for the thread to begin or die."""


class _LaterEvent(threading.Event):
    """An event that `Thread.start` does not wait for; `news` tells that it is set."""

    def __init__(self) -> None:
        super().__init__()
        self.news: SimpleQueue[object] = SimpleQueue()

    def set(self) -> None:
        super().set()
        self.news.put(None)

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
        """Start the thread; see `threading.Thread.start`. One that dies before it begins is started once more.

        Raises:
            RuntimeError: The system refuses another thread, or it has died again.
        """
        # The timekeeper, for which no pool may be waited for, starts most threads, and nobody throws errors into it.
        if not STILLBORN or orphans.forbids() is not None:
            super().start()
            return
        for _ in range(2):
            bootstrap = partial(type(self)._bootstrap, self)  # type: ignore[attr-defined]  # not in typeshed
            life = weakref.ref(bootstrap, self._started.news.put)
            vars(self)["_bootstrap"] = bootstrap
            try:
                super().start()
            finally:
                # From here on only the new thread holds it, which drops it as it ends.
                del vars(self)["_bootstrap"], bootstrap
            with suppress(Empty):
                self._started.news.get(timeout=BIRTH)
            if self._started.is_set() or life() is not None:
                return
        # Where `threading` lists threads that have not begun.
        threading._limbo.pop(self, None)  # type: ignore[attr-defined]  # not in typeshed
        raise RuntimeError("can't start new thread: it died before it began")

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
