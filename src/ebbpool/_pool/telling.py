"""Threads that write what a person is to read: the interpreter's exit gives them time to finish."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Final

from ebbpool._pool import lifecycle
from ebbpool._pool.threads import WorkerThread

PATIENCE: Final = 2.0
"""Seconds for which the interpreter's exit waits for all of them together."""

_telling: list[WorkerThread] = []


def tell(name: str, call: Callable[[], None]) -> WorkerThread:
    """Have `call()` called in a thread of its own, and return that thread. A signal handler may call this.

    The thread may be stuck for good, in a write or in a handler that needs a pool that is shut down.

    Raises:
        RuntimeError, MemoryError: No thread can be started.
    """
    for each in list(_telling):
        if each.ended():
            _forget(each)
    thread = WorkerThread(target=call, name=name)
    _telling.append(thread)
    try:
        thread.start()
    except (RuntimeError, MemoryError):
        _forget(thread)
        raise
    return thread


def _forget(thread: WorkerThread) -> None:
    # A signal handler may have come first.
    with suppress(ValueError):
        _telling.remove(thread)


def _let_finish() -> None:
    # CPython aborts if a daemon thread is within a write when the interpreter flushes that file for the last time.
    deadline = monotonic() + PATIENCE
    while unfinished := [thread for thread in list(_telling) if not thread.ended()]:
        left = deadline - monotonic()
        if left <= 0:
            # They are stuck, and not waited for again.
            _telling.clear()
            return
        unfinished[0].join(left)


# Functions given to `atexit` may close what is written to; and later a signal may ask for another text.
lifecycle.after_exit(_let_finish)
atexit.register(_let_finish)
lifecycle.after_fork(_telling.clear)
