"""Help for tests of programs that use a pool: find threads left behind."""

from __future__ import annotations

import gc
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from ebbpool._clock import monotonic
from ebbpool._frames import stacks
from ebbpool._monitor import RESIDENT
from ebbpool._pool.timekeeper import NAME as TIMEKEEPER

__all__ = ["no_thread_leaks"]


@contextmanager
def no_thread_leaks(*, grace: float = 5.0, ignore: Collection[str] = ()) -> Iterator[None]:
    """Fail if threads that were started inside the block outlive it.

    ebbpool's timekeeper, the one thread for all pools, which ends with the last of them, is not counted, nor is the
    monitor's thread if `EBBPOOL_MONITOR` or `top` asked for it, nor are threads that Python did not start. Nothing is
    checked if the block itself raises.

    Args:
        grace: Seconds that threads may take to end after the block. There is no wait if none is left.
        ignore: Names of threads that may stay.

    Yields:
        None: The block runs in the caller's thread, and so does the check after it.

    Raises:
        AssertionError: A thread was left; the text holds the name and the stack of each.
        ValueError: `grace` is negative or NaN.
    """
    if not grace >= 0:
        raise ValueError(f"grace must be a number of seconds, at least 0, not {grace!r}")
    allowed = frozenset(ignore) | {TIMEKEEPER, RESIDENT}
    # Thread objects, not idents: the system gives the ident of a thread that ended to the next one.
    before = set(threading.enumerate())
    yield
    if not _new_threads(before, allowed):
        return
    # The workers of an unreferenced pool in a reference cycle end once the cycle is collected.
    gc.collect()
    deadline = monotonic() + grace
    for thread in _new_threads(before, allowed):
        thread.join(max(0.0, deadline - monotonic()))
    # Collected anew: a thread that has ended by now may have started another.
    leaked = _new_threads(before, allowed)
    if leaked:
        raise AssertionError(_report(leaked, grace))


def _new_threads(before: Collection[threading.Thread], allowed: Collection[str]) -> list[threading.Thread]:
    return [
        thread
        for thread in threading.enumerate()
        if thread not in before
        and thread.name not in allowed
        and not isinstance(thread, threading._DummyThread)
        and thread is not threading.current_thread()
    ]


def _report(leaked: Collection[threading.Thread], grace: float) -> str:
    lines = [f"threads that were still alive {grace:g} s after the block:"]
    for thread, stack in zip(leaked, stacks(thread.ident for thread in leaked), strict=True):
        lines += [f"{thread.name} (daemon={thread.daemon})", stack.rstrip("\n")]
    return "\n".join(lines)
