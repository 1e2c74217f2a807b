"""Passes calls through a `ThreadPoolExecutor.submit` that a tracing tool has replaced, and runs what it makes.

The pool has a `submit` of its own, so it calls the replacement, which in the end calls the standard library's `submit`.
That puts a work item on the executor's queue, which is a `QueueView` here. The call in the item is the one that the
tool wants to be run. It goes to the pool like any other.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty
from typing import Any, NamedTuple

_here = threading.local()


class WorkItem(NamedTuple):
    """A call that has not begun, with its future: what the standard library's queue holds."""

    future: Any
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def task(self) -> tuple[Any, Any, Any]:
        """The call, where it is from Python 3.14 on."""
        return self[1:]


class QueueView:
    """What libraries look for in `ThreadPoolExecutor._work_queue`.

    What `get_nowait` returns will not run: its future is the caller's to end.
    """

    def __init__(self, qsize: Callable[[], int], get_nowait: Callable[[], Any]) -> None:
        self.qsize = qsize
        self.get_nowait = get_nowait

    def empty(self) -> bool:
        return self.qsize() == 0

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        try:
            return self.get_nowait()
        except Empty:
            if block and timeout != 0:
                raise RuntimeError("only workers wait for tasks: use get(block=False), which raises Empty") from None
            raise

    def put(self, item: Any) -> None:
        """Keep a work item of the standard library for the `_seen` that called its `submit` in this thread."""
        if getattr(_here, "items", None) is None:
            raise RuntimeError("ThreadPoolExecutor.submit cannot be called on an AdaptiveExecutor; call its own submit")
        _here.items.append(item)


class Instrumentable:
    """What the standard library's `submit` needs of an executor of ours when a tool calls it."""

    _qsize: Callable[[], int]
    _hand_back: Callable[[], Any]
    _work_queue: Any = property(lambda self: QueueView(self._qsize, self._hand_back))
    _shutdown_lock: Any = contextlib.nullcontext()

    def _resolve_work_item_task(self, fn: Any, args: Any, kwargs: Any) -> Any:
        return fn, args, kwargs

    def _adjust_thread_count(self) -> None:
        pass


class Call:
    """A call that an instrumentation wants to be run; its `twin` is the standard library's future for it."""

    __slots__ = ("args", "fn", "kwargs", "twin")

    def __init__(self, item: Any) -> None:
        # From Python 3.14 on an item holds what `_resolve_work_item_task` of its executor returned.
        task = getattr(item, "task", None)
        self.fn, self.args, self.kwargs = (item.fn, item.args, item.kwargs) if task is None else task
        twin = item.future
        # It lives on if the instrumentation keeps it, or is to be told of its end.
        self.twin: Callable[[], Any] = (lambda: twin) if twin._done_callbacks else weakref.ref(twin)

    def hand_to(self, queue: Callable[..., Any]) -> Any:
        """Call `queue(fn, args, kwargs)` and return its future; a twin that is still kept follows that future."""
        try:
            future = queue(self.fn, self.args, self.kwargs)
        except BaseException as error:
            if (twin := self.twin()) is not None:
                twin.set_exception(error)
            raise
        if (twin := self.twin()) is not None:
            _tie(twin, future)
        return future


def _tie(twin: Future[Any], future: Any) -> None:
    def end(future: Any) -> None:
        if future.cancelled():
            twin.cancel()
        if twin.set_running_or_notify_cancel():
            if (error := future.exception()) is not None:
                twin.set_exception(error)
            else:
                twin.set_result(future.result())

    def cancel(twin: Any) -> None:
        if twin.cancelled():
            future.cancel()

    future.add_done_callback(end)
    twin.add_done_callback(cancel)


def _seen(
    executor: Any, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, list[Call], Call | None] | None:
    """Show a call to the instrumentation; return its answer, the calls that it wants, and that whose future it is."""
    if not callable(fn):
        raise TypeError(f"fn must be callable, not {fn!r}")
    if getattr(_here, "items", None) is not None:
        # The instrumentation itself submits, or a finaliser does. This thread may hold the standard library's global
        # lock, for which the replaced `submit` would wait.
        return None
    items: list[Any] = []
    _here.items = items
    try:
        answer = ThreadPoolExecutor.submit(executor, fn, *args, **kwargs)
    finally:
        _here.items = None
    calls = [Call(item) for item in items]
    own = next((call for call, item in zip(calls, items, strict=True) if item.future is answer), None)
    return None if own is not None else answer, calls, own


def submit(executor: Any, queue: Callable[..., Any], fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call `queue(fn, args, kwargs)` with what the instrumentation makes of a call; return its future, or answer."""
    seen = _seen(executor, fn, args, kwargs)
    if seen is None:
        return queue(fn, args, kwargs)
    answer, calls, own = seen
    for call in calls:
        future = call.hand_to(queue)
        if call is own:
            answer = future
    return answer


def delayed(executor: Any, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """Return what the instrumentation makes of a call that is not to be queued yet, or None."""
    seen = _seen(executor, fn, args, kwargs)
    return None if seen is None else seen[2]
