"""What a task may ask about its end, and the asynchronous exception that ends code which never asks.

At most one exception is sent to a call. So it does not matter where in `Interruptible.__call__` it arrives: no other
can follow. What matters is that the call does not end before that is certain.
"""

from __future__ import annotations

import functools
import sys
from _thread import allocate_lock, get_ident
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from math import inf
from typing import Any

from ebbpool._clock import monotonic
from ebbpool._core.accel import current_scope

deadlines_elsewhere: list[Callable[[], float]] = []
"""What else knows of a deadline of the call in this thread, and returns it (monotonic seconds; infinite for none)."""


def cancelled() -> bool:
    """Return whether the task that runs in this thread was cancelled, or its deadline has passed.

    A task is cancelled by `Future.cancel`, by ``shutdown(cancel_futures=True)``, or when the await of
    `AdaptiveExecutor.run`, `amap`, `run_in_executor` or anyio's `run_sync` is cancelled. Outside of a task this is
    always false. It costs about as much as a function call: check in each turn of a loop.
    """
    scope = current_scope(False)
    return scope is not None and scope.cancelled


def check_cancelled() -> None:
    """Raise an error if this thread's task was cancelled; see `cancelled`.

    Raises:
        concurrent.futures.CancelledError: It was.
    """
    if cancelled():
        raise CancelledError("the task was cancelled, or its deadline has passed")


def time_left() -> float | None:
    """Return how many seconds the task in this thread has until its deadline, at least 0; None if it has none.

    See `AdaptiveExecutor.within`. The deadlines of anyio's scopes around the call count too, on asyncio.
    """
    scope = current_scope(False)
    deadline = inf if scope is None else scope.deadline
    for ask in deadlines_elsewhere:
        deadline = min(deadline, ask())
    return None if deadline == inf else max(0.0, deadline - monotonic())


@contextmanager
def on_cancel(callback: Callable[[], object]) -> Iterator[None]:
    """Have `callback()` called if the task in this thread is cancelled while the block runs.

    Use it for a call that cannot check: close the socket, kill the child process, or::

        with ebbpool.on_cancel(connection.interrupt):
            rows = connection.execute(query).fetchall()

    Args:
        callback: Called once; immediately if the task is already cancelled. It runs in the thread that cancels; at a
            deadline, or if that thread runs an event loop, in ebbpool's timer thread, which all pools share. So it must
            not block. What it raises is logged to the ``concurrent.futures`` logger.

    Outside of a task the block just runs.
    """
    scope = current_scope(True)
    if scope is None:
        yield
        return
    key = object()
    scope.add(key, callback)
    try:
        yield
    finally:
        scope.discard(key)


@functools.cache
def sender() -> Callable[[int, Any], object]:
    """Return CPython's function that has an exception raised in a thread; raise RuntimeError where there is none."""
    try:
        import ctypes

        # Not the attribute of `pythonapi`, whose argument types other code may set.
        make = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.py_object)
        return make(("PyThreadState_SetAsyncExc", ctypes.pythonapi))
    except (ImportError, AttributeError):
        raise RuntimeError(
            f"interrupt=True needs PyThreadState_SetAsyncExc, which this {sys.implementation.name} lacks"
        ) from None


class Shot:
    """The exception that one call may get, in the thread that makes this.

    The first to acquire `claim` decides: the canceller, who sends it, or the call at its end, and it is never sent.
    """

    __slots__ = ("_claim", "_error", "_sent", "_thread")

    def __init__(self, error: type[BaseException] = CancelledError) -> None:
        self._error = error
        self._thread = get_ident()
        self._claim = allocate_lock()
        self._sent = allocate_lock()
        self._sent.acquire()

    def fire(self) -> bool:
        """Send it, once, in the canceller's thread. In the call's own it would be raised here, and be logged."""
        if get_ident() == self._thread:
            return False
        try:
            due = self._claim.acquire(False)
            if due:
                sender()(self._thread, self._error)
            return due
        finally:
            # Whatever has interrupted this thread: the call must not wait for ever.
            self._sent.release()

    def end(self) -> None:
        """Make sure that it will not come any more; or it comes right now."""
        if not self._claim.acquire(False):
            # Once sent it is raised as this returns: the interpreter looks for it after each call of C code.
            self._sent.acquire()


class Interruptible:
    """A function `fn` whose calls, as tasks, are interrupted once they are cancelled."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.fn = fn

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        scope = current_scope(True)
        if scope is None:
            return self.fn(*args, **kwargs)
        shot = Shot()
        try:
            try:
                scope.add(shot, shot.fire)
                # The turn of a map may have been cancelled in an earlier call.
                check_cancelled()
                return self.fn(*args, **kwargs)
            finally:
                shot.end()
        finally:
            scope.discard(shot)


def interruptible(fn: Any) -> Any:
    """Return what is to be queued for a call of `fn` that may be interrupted."""
    # What ebbpool itself runs, such as the turn of a map, has locks that must not be left behind.
    if not callable(fn) or str(getattr(fn, "__module__", "")).startswith("ebbpool."):
        return fn
    return Interruptible(fn)
