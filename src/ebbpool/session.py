"""Session: a serial executor on a leased thread of a pool."""

from __future__ import annotations

import concurrent.futures
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures._base import LOGGER
from concurrent.futures.thread import BrokenThreadPool
from contextvars import Context, copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ebbpool._checks import optional_callable
from ebbpool._core.accel import Future, instrumented, wait_counted
from ebbpool._pool import lifecycle, tracing

if TYPE_CHECKING:
    from ebbpool._core.executor_core import ExecutorCore

P = ParamSpec("P")
T = TypeVar("T")


class Session(tracing.Instrumentable, ThreadPoolExecutor):
    """A `ThreadPoolExecutor` of one thread, leased from a pool; see `AdaptiveExecutor.session`.

    The first call takes the thread, and all calls run in it, one after another, until `shutdown`. Until then the thread
    waits between calls, and does not count towards the pool's `max_workers`. A session that nothing refers to any more
    ends, as it does when its pool is shut down; calls made before that still run.
    """

    def __init__(self, executor: ExecutorCore, finalizer: Callable[[], object] | None = None) -> None:
        self._line = _Line(executor, optional_callable("finalizer", finalizer))
        _open[id(self._line)] = self._line
        weakref.finalize(self, self._line.end).atexit = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue `fn(*args, **kwargs)` in the session.

        Raises:
            TypeError: `fn` is not callable.
            RuntimeError: The session or its pool has been shut down, or no thread can be started.
        """
        if not callable(fn):
            raise TypeError(f"fn must be callable, not {fn!r}")
        if instrumented():
            future: Future[T] = tracing.submit(self, self._queue, fn, args, kwargs)
            return future
        return self._queue(fn, args, kwargs)

    def _queue(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Future[Any]:
        call = _Call(_SessionFuture(self._line.executor._pool), fn, args, kwargs)
        if self._line.executor._pool.contextual:
            call.context = copy_context()
        return self._line.add(call)

    def _qsize(self) -> int:
        return self._line.calls.qsize()

    def _hand_back(self) -> _Call | None:
        call = self._line.calls.get_nowait()
        if call is not None:
            self._line.unfinished.discard(call.future)
        return call

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; queued ones still run, unless cancelled. Then the thread goes back to the pool.

        Args:
            wait: Whether to wait until that is done.
            cancel_futures: Whether to cancel calls that have not begun.

        Raises:
            RuntimeError: Called with `wait` by a call of this session, which would wait for itself.
        """
        self._line.close(cancel_futures)
        if wait:
            if threading.current_thread() in self._line.threads:
                raise RuntimeError("a call cannot wait for its own executor to shut down")
            if (task := self._line.task) is not None:
                # A future of the pool: a worker that waits for it counts as blocked.
                concurrent.futures.wait([task])

    # Private attributes of a ThreadPoolExecutor that libraries read. There they are plain; here they are computed.
    _max_workers: Any = property(lambda self: 1)
    _threads: Any = property(lambda self: frozenset(self._line.threads))
    _shutdown: Any = property(lambda self: self._line.closed)
    _broken = False


class _SessionFuture(Future[Any]):
    """A worker of the session's pool that waits for it counts as blocked, as one that waits for a task of the pool."""

    def __init__(self, pool: Any) -> None:
        super().__init__()
        self._session_pool = pool

    def result(self, timeout: float | None = None) -> Any:
        try:
            self.exception(timeout)
            return super().result(0)
        finally:
            # Breaks a cycle: the error's traceback leads to this frame.
            del self

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self.done() and (timeout is None or timeout > 0):
            if (reason := self._session_pool.forbids()) is not None:
                raise RuntimeError(f"cannot wait for a future here: {reason}")
            wait_counted(self._session_pool, super().exception, timeout)
        return super().exception(0)

    @property
    def _waiters(self) -> Any:  # type: ignore[override]  # it is computed in `Future`, too
        observers: Any = super()._waiters
        observers._pool = self._session_pool
        return observers


class _Call(tracing.WorkItem):
    context: Context | None = None

    def perform(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            run = self.fn if self.context is None else partial(self.context.run, self.fn)
            value = run(*self.args, **self.kwargs)
        except BaseException as error:
            self.future.set_exception(error)
            # The error's traceback has this frame, and the future has the error.
            del self
        else:
            self.future.set_result(value)

    def fail(self, error: BaseException | None) -> None:
        """Give the future an error, or cancel it."""
        if error is None:
            self.future.cancel()
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


class _Line:
    """Calls that wait for a thread of their own, which is leased from a pool: a task of the pool makes call after call.

    It goes beyond the pool's ceiling, as a call that has a limiter of its own does, since others may wait for these
    calls. The mutex is re-entrant: a thread that holds it may collect garbage, which may add a call.

    Attributes:
        calls: Those that wait. None is the end, and no call comes after it.
        unfinished: The futures of those, and of the one that runs.
        task: The lease, from the first call on.
        threads: That which serves, if one does.
        current: The future of the call that runs.
        fn: What runs, which is what the pool shows as the name of the task.
    """

    def __init__(self, executor: Any, finalizer: Callable[[], object] | None) -> None:
        self.executor = executor
        self.finalizer = finalizer
        self.closed = False
        self.unfinished: set[Any] = set()
        self.task: Any = None
        self.current: Any = None
        self.threads: set[threading.Thread] = set()
        self.renew()

    def renew(self) -> None:
        """Begin anew, without calls and a lease; in a forked child those of before have stayed with the parent."""
        self.mutex = threading.RLock()
        self.calls: SimpleQueue[_Call | None] = SimpleQueue()
        # A call that has forked goes on in the child, and so does the lease.
        self.threads &= {threading.current_thread()}
        if not self.threads:
            self.task = self.current = None
        self.fn: Callable[..., Any] | None = None
        lost, self.unfinished = self.unfinished, {self.current} - {None}
        for future in lost - self.unfinished:
            future.disown(BrokenThreadPool(lifecycle.FORKED))

    def add(self, call: _Call) -> Future[Any]:
        task = None
        with self.mutex:
            if self.closed:
                when = "interpreter shutdown" if lifecycle.exiting() else "shutdown"
                raise RuntimeError(f"cannot schedule new futures after {when}")
            if self.task is None:
                lane = self.executor._unlimited
                # `shown`: a tool is shown the calls, and not what makes them.
                task = self.task = self.executor.hand_in(lane, True, Context().run, (self.serve,), {}, shown=True)
            self.unfinished.add(call.future)
            self.calls.put(call)
        if task is not None:
            task.add_done_callback(self.over)
        future: Future[Any] = call.future
        return future

    def over(self, task: Any) -> None:
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            return
        # A lease raises nothing, so a task that failed or was cancelled has never begun to run.
        with self.mutex:
            self.task = None
            calls, self.calls = self.calls, SimpleQueue()
        self.drain(calls, error)

    def close(self, cancel: bool = False) -> None:
        with self.mutex:
            self.closed = True
        try:
            if cancel:
                self.drain(self.calls, None)
        finally:
            self.end()

    def end(self) -> None:
        """Have the lease end. It waits for nothing, as a finaliser must not."""
        self.calls.put(None)

    def drain(self, calls: SimpleQueue[_Call | None], error: BaseException | None) -> None:
        """Fail calls that wait, or cancel them; not under the mutex, for callbacks run here."""
        while True:
            try:
                call = calls.get_nowait()
            except Empty:
                return
            if call is not None:
                call.fail(error)
                self.unfinished.discard(call.future)

    def next(self) -> _Call | None:
        """Take the next call, None at the end. While none comes, the worker counts as blocked: it takes no task."""
        try:
            return self.calls.get_nowait()
        except Empty:
            call: _Call | None = wait_counted(self.executor._pool, self.calls.get)
            return call

    def serve(self) -> None:
        thread = threading.current_thread()
        self.threads.add(thread)
        try:
            while (call := self.next()) is not None:
                self.fn, self.current = call.fn, call.future
                call.perform()
                self.current = None
                self.unfinished.discard(call.future)
                self.fn = None
                # While it waits for the next one, it holds nothing of this one.
                del call
        finally:
            try:
                if self.finalizer is not None:
                    self.finalizer()
            except Exception:
                LOGGER.exception("exception in the finalizer of a session")
            self.threads.discard(thread)
            # An error of a call refers, by its traceback, to this frame.
            del self


_open: weakref.WeakValueDictionary[int, _Line] = weakref.WeakValueDictionary()


def _lines() -> list[_Line]:
    return [line for line in (reference() for reference in _open.valuerefs()) if line is not None]


def end_all(pool: Any = None) -> None:
    """Close the lines of a pool, or all: who waits for the pool waits for their leases."""
    for line in _lines():
        if pool is None or line.executor._pool is pool:
            line.close()


def _renew_all() -> None:
    for line in _lines():
        line.renew()


lifecycle.before_exit(end_all)
lifecycle.after_fork(_renew_all)
