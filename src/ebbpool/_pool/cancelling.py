"""What a task may ask about its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from math import inf

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
