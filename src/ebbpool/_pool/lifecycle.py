"""The registry of pools, what exit and fork do to them, and the threads that write warnings."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures.thread import BrokenThreadPool
from itertools import chain, count
from typing import Any, Final

from ebbpool._clock import monotonic
from ebbpool._core.accel import orphans, survey
from ebbpool._core.waits import here
from ebbpool._interpreter import daemon_threads
from ebbpool._pool.interval import interval
from ebbpool._pool.threads import WorkerThread, forget_loans
from ebbpool._pool.timekeeper import timekeeper

FORKED = "the process was forked; this call was left with the parent"
WARNINGS_TIMEOUT: Final = 2.0  # seconds for which the interpreter's exit waits for all warnings together


_live: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
# Re-entrant: a finaliser that runs here may make a pool.
_naming = threading.RLock()

_outlasting: list[Callable[[], None]] = []
outlast = _outlasting.append
"""Have `call()` called when the main thread has ended, before the interpreter begins to shut down.

The call waits for threads that go on by themselves; they may use pools until it returns.
"""
_before_exit: list[Callable[[], None]] = []
before_exit = _before_exit.append
"""Have `call()` called when the interpreter begins to shut down, before any pool is closed."""
_after_exit: list[Callable[[], None]] = []
after_exit = _after_exit.append
"""Have `call()` called when the pools have been waited for, before any function that was given to `atexit`."""


class _Telling(WorkerThread):
    """A thread that writes a warning."""


def tell(name: str, call: Callable[[], None]) -> WorkerThread:
    """Have `call()` called in a thread of its own, which may be stuck for good."""
    thread = _Telling(target=call, name=name)
    thread.start()
    return thread


def _let_finish() -> None:
    # CPython aborts if a daemon thread is within a write when the interpreter flushes that file for the last time.
    deadline = monotonic() + WARNINGS_TIMEOUT
    # A thread that has forked is the main thread of the child, and cannot be waited for.
    here = threading.current_thread()
    for each in threading.enumerate():
        if isinstance(each, _Telling) and each is not here:
            each.join(max(0.0, deadline - monotonic()))


def register(crew: Any) -> None:
    """Register a pool for as long as it lives, and name it after its prefix, unlike any other open pool."""
    with _naming:
        taken = _names()
        names = chain([crew.prefix], (f"{crew.prefix}-{number}" for number in count(2)))
        crew.name = next(name for name in names if name not in taken)
        _live[id(crew)] = crew


def _names() -> set[str]:
    return {crew.name for crew in live() if not crew.pool.closed}


def live() -> list[Any]:
    """Return the pools that still live."""
    # `values()` fails if another thread makes a pool meanwhile.
    return [crew for reference in _live.valuerefs() if (crew := reference()) is not None]


def in_view() -> list[tuple[Any, Any]]:
    """Return the pools that are open or still have threads, each with its executor, or None where that is collected."""
    return [(crew, crew.owner()) for crew in live() if not crew.pool.closed or crew.pool.staff.headcount > 0]


def others() -> list[str]:
    """Return the names of the threads of this process that work for no pool, as far as `threading` knows them."""
    workers = {thread for crew in live() for thread in survey(crew.pool).threads}
    return sorted(thread.name for thread in threading.enumerate() if thread not in workers)


def _staffed() -> bool:
    # The timekeeper is needed for open pools with workers: it closes such a pool when its executor is collected.
    return any(crew.pool.staff.headcount > 0 and not crew.pool.closed for crew in live())


def after_fork(call: Callable[[], None]) -> None:
    """Have `call()` made in each forked child, after pools have been renewed; in the order of these requests."""
    # Each call has a hook of its own, so that an error in one does not keep the others from being made.
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)


def exiting() -> bool:
    """Return whether the interpreter has begun to shut down."""
    return timekeeper.exiting


def _at_exit() -> None:
    for call in _outlasting:
        call()
    timekeeper.exiting = True
    for call in _before_exit:
        call()
    crews = live()
    for crew in crews:
        crew.pool.close()
        crew.timers.close()
        if crew.daemon:
            for future in crew.pool.waiting():
                future.cancel()
            # Threads that are no daemons, such as asyncio's at the end of a loop, may wait in its `shutdown`.
            crew.pool.desert()
    for crew in crews:
        if not crew.daemon:
            crew.join(None)
    timekeeper.stop()
    interval.restore()
    for call in _after_exit:
        call()


def _renew() -> None:
    # No lock is held across the fork, because other hooks, finalisers and signal handlers may use pools in the middle
    # of it. Instead, state that a thread of the parent may have been changing is not trusted.
    global _naming
    _naming = threading.RLock()
    here.keeps_time = False
    timekeeper.renew()
    interval.restore()
    orphans.reopen()
    for crew in live():
        crew.renew(BrokenThreadPool(FORKED))


class _Herald(threading.Thread):
    """A thread that is never started: `threading` tells all thread objects of a fork before most hooks are called.

    Without it a hook that was registered before ours would find the parent's pools, and might wait for their threads.
    """

    told = False

    def _after_fork(self, new_ident: int | None = None) -> None:
        # An error here would leave `threading` half changed. It is not lost: the hook renews again, and raises it.
        with contextlib.suppress(Exception):
            _renew()
            self.told = True

    def _reset_internal_locks(self, is_alive: bool) -> None:
        # The name of `_after_fork` before CPython 3.13.
        self._after_fork()


_herald = _Herald(name="ebbpool-herald", daemon=daemon_threads())


def _after_fork_in_child() -> None:
    if not _herald.told:
        _renew()
    _herald.told = False


timekeeper.needed = _staffed
# threading makes these calls before it joins threads, atexit only afterwards.
getattr(threading, "_register_atexit", atexit.register)(_at_exit)
# Functions given to `atexit` may close what is written to.
after_exit(_let_finish)
after_fork(_after_fork_in_child)
after_fork(forget_loans)
