"""Maps over an executor: ordered, in bounded memory where the caller asks for it."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from time import monotonic
from typing import Any

from ebbpool._settings import whole


def ordered(
    executor: Executor,
    fn: Callable[..., Any],
    iterables: tuple[Iterable[Any], ...],
    timeout: float | None,
    chunksize: int | None,
    buffersize: int | None,
) -> Iterator[Any]:
    """See `AdaptiveExecutor.map`. Submits before it returns; the iterator only hands out."""
    if not callable(fn):
        raise TypeError(f"fn must be callable, not {fn!r}")
    if chunksize is not None:
        whole("chunksize", chunksize, 1)
    if buffersize is not None:
        whole("buffersize", buffersize, 1)
    deadline = None if timeout is None else monotonic() + timeout
    calls = zip(*iterables, strict=False)
    pending: deque[Future[Any]] = deque()
    try:
        pending.extend(executor.submit(fn, *args) for args in itertools.islice(calls, buffersize))
    except BaseException:
        _cancel(pending)
        raise
    # Without a buffer size all is submitted by now, and the executor may be forgotten.
    return _hand_out(None if buffersize is None else executor, fn, calls, pending, deadline)


def _hand_out(
    executor: Executor | None,
    fn: Callable[..., Any],
    calls: Iterator[tuple[Any, ...]],
    pending: deque[Future[Any]],
    deadline: float | None,
) -> Iterator[Any]:
    try:
        while pending:
            # Only what result() returns is kept here: the future goes before its value is handed out.
            yield _take(pending, deadline)
            if executor is not None:
                for args in itertools.islice(calls, 1):
                    pending.append(executor.submit(fn, *args))
    finally:
        _cancel(pending)


def _take(pending: deque[Future[Any]], deadline: float | None) -> Any:
    future = pending.popleft()
    try:
        return future.result() if deadline is None else future.result(deadline - monotonic())
    except BaseException:
        future.cancel()
        raise
    finally:
        # The traceback of what was raised holds this frame.
        del future


def _cancel(pending: deque[Future[Any]]) -> None:
    while pending:
        pending.pop().cancel()
