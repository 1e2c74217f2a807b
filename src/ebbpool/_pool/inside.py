"""What a task may ask about itself: whether it was cancelled, how much time it has left, what to do on a cancel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from math import inf
from time import monotonic

from ebbpool._core.accel import current_scope


def cancelled() -> bool:
    """Return whether the task that runs in this thread was cancelled, or its deadline has passed.

    It was if somebody called `Future.cancel`, if the await of `AdaptiveExecutor.run`, `amap`, `run_in_executor` or
    anyio's `run_sync` was cancelled, or by ``shutdown(cancel_futures=True)``. Nothing is ever cancelled outside of a
    task. It costs about as much as a function call: ask in each turn of a loop.
    """
    scope = current_scope(False)
    return scope is not None and scope.cancelled


def check_cancelled() -> None:
    """Leave the task if it was cancelled; see `cancelled`.

    Raises:
        concurrent.futures.CancelledError: It was.
    """
    if cancelled():
        raise CancelledError("the task was cancelled, or its deadline has passed")


def time_left() -> float | None:
    """Return how many seconds the task in this thread has until its deadline, at least 0; None if it has none.

    See `AdaptiveExecutor.within`.
    """
    scope = current_scope(False)
    return None if scope is None or scope.deadline == inf else max(0.0, scope.deadline - monotonic())


@contextmanager
def on_cancel(callback: Callable[[], object]) -> Iterator[None]:
    """Have `callback()` called if the task in this thread is cancelled while the block runs.

    It is what ends a call that cannot ask: close the socket, kill the child process, or::

        with ebbpool.on_cancel(connection.interrupt):
            rows = connection.execute(query).fetchall()

    Args:
        callback: Called once, at once if the task has been cancelled already. It runs in the thread that cancels, but
            for one that runs an event loop: then, and at a deadline, in ebbpool's own timer thread, on which all pools
            rely. So it must not block. What it raises is logged to the ``concurrent.futures`` logger.

    Outside of a task the block just runs.
    """
    scope = current_scope(True)
    key = object()
    if scope is not None and not scope.add(key, callback):
        callback()
    try:
        yield
    finally:
        if scope is not None:
            scope.discard(key)
