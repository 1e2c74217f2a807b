"""Threads that write what a person is to read: the interpreter's exit gives them time to finish."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from contextvars import Context
from time import monotonic
from typing import Final

from ebbpool._interpreter import daemon_threads
from ebbpool._pool import lifecycle
from ebbpool._pool.threads import WorkerThread

PATIENCE: Final = 2.0
"""Seconds for which the interpreter's exit waits for all of them together."""

_telling: set[threading.Thread] = set()


def tell(name: str, call: Callable[[], None]) -> WorkerThread:
    """Have `call()` called in a thread of its own, and return that thread. A signal handler may call this.

    The thread may be stuck for good, in a write or in a handler that needs a pool that is shut down. So it is a daemon,
    where there are daemons.

    Raises:
        RuntimeError: No thread can be started.
    """

    def run() -> None:
        try:
            call()
        finally:
            _telling.discard(thread)

    thread = WorkerThread(target=run, name=name, daemon=daemon_threads())
    _telling.add(thread)
    try:
        # In an empty context: the thread belongs to nobody's request.
        Context().run(thread.start)
    except BaseException:
        _telling.discard(thread)
        raise
    return thread


def _let_finish() -> None:
    # CPython aborts if a daemon thread is within a write when the interpreter flushes that file for the last time.
    deadline = monotonic() + PATIENCE
    for thread in list(_telling):
        thread.join(max(0.0, deadline - monotonic()))


atexit.register(_let_finish)
lifecycle.after_fork(_telling.clear)
