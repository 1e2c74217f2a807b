"""Threads that write warnings and dumps, so that nobody waits; the exit of the interpreter lets them finish."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from time import monotonic
from typing import Final

from ebbpool._pool import lifecycle
from ebbpool._pool.threads import WorkerThread

PATIENCE: Final = 2.0
"""Seconds for which the interpreter's exit waits for all of them together."""


class _Telling(WorkerThread):
    given_up = False


def tell(name: str, call: Callable[[], None]) -> WorkerThread:
    """Have `call()` called in a thread of its own, and return that thread. A signal handler may call this.

    The thread may be stuck for good, in a write or in a handler that needs a pool that is shut down.

    Raises:
        RuntimeError, MemoryError: No thread can be started.
    """
    thread = _Telling(target=call, name=name)
    thread.start()
    return thread


def _let_finish() -> None:
    # CPython aborts if a daemon thread is within a write when the interpreter flushes that file for the last time.
    deadline = monotonic() + PATIENCE
    # A thread that has forked is the main thread of the child, and cannot be waited for.
    here = threading.current_thread()
    while left := [
        each for each in threading.enumerate() if isinstance(each, _Telling) and not each.given_up and each is not here
    ]:
        left[0].join(max(0.0, deadline - monotonic()))
        # One that is stuck is not waited for again.
        left[0].given_up = not left[0].ended()


# Functions given to `atexit` may close what is written to; and later a signal may ask for another text.
lifecycle.after_exit(_let_finish)
atexit.register(_let_finish)
