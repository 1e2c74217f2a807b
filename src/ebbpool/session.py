"""Session: a serial executor on a leased thread of a pool; `install` leases the threads of new executors here."""

from __future__ import annotations

import concurrent.futures
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures._base import LOGGER
from concurrent.futures.thread import BrokenThreadPool
from contextvars import Context
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from ebbpool._checks import optional_callable
from ebbpool._core.accel import Future
from ebbpool._pool import lifecycle

if TYPE_CHECKING:
    from ebbpool._core.executor_core import ExecutorCore

P = ParamSpec("P")
T = TypeVar("T")


class Session(ThreadPoolExecutor):
    """A `ThreadPoolExecutor` of one thread, leased from a pool; see `AdaptiveExecutor.session`.

    The first call takes the thread, and all calls run in it, one after another, until `shutdown`. Until then the thread
    waits between calls, and does not count towards the pool's `max_workers`. A session that nobody refers to any more
    ends by itself, as it does when its pool is shut down; calls made before that still run.
    """

    _max_workers = 1

    def __init__(self, executor: ExecutorCore, finalizer: Callable[[], object] | None = None) -> None:
        self._lend(_Line(executor, finalizer=optional_callable("finalizer", finalizer)))

    def _lend(self, line: _Line) -> None:
        self._line = line
        _open[id(line)] = line
        weakref.finalize(self, line.end).atexit = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue `fn(*args, **kwargs)` in the session.

        Raises:
            TypeError: `fn` is not callable.
            RuntimeError: The session or its pool has been shut down, or no thread can be started.
            BrokenThreadPool: A worker's initializer failed.
        """
        if not callable(fn):
            raise TypeError(f"fn must be callable, not {fn!r}")
        return self._line.add(_Call(Future(), fn, args, kwargs))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; those that wait still run, unless cancelled. Then the thread goes back to the pool.

        Args:
            wait: Whether to wait until that is done.
            cancel_futures: Whether to cancel calls that have not begun.

        Raises:
            RuntimeError: Called with `wait` by a call of this session, which would wait for itself.
        """
        self._line.close(cancel_futures)
        if wait:
            if getattr(self._line.here, "serving", False):
                raise RuntimeError("a call cannot wait for its own executor to shut down")
            # Futures of the pool: a worker that waits for them counts as blocked.
            concurrent.futures.wait(list(self._line.tasks))

    # Private attributes of a ThreadPoolExecutor that libraries read. There they are plain; here they are computed.
    _threads: Any = property(lambda self: set(self._line.threads))
    _work_queue: Any = property(lambda self: self._line.calls)
    _shutdown: Any = property(lambda self: self._line.closed)
    _broken: Any = property(lambda self: self._line.cause or False)


def leasing(executor: ExecutorCore) -> Callable[..., None]:
    """Return a replacement for `ThreadPoolExecutor.__init__`, after which what is made leases threads of the pool.

    That they are the pool's shows in nothing but thread-local data. One thread stays: its users may count on that.
    """
    make: Callable[..., None] = ThreadPoolExecutor.__init__

    def __init__(
        self: Any,
        max_workers: Any = None,
        thread_name_prefix: Any = "",
        initializer: Any = None,
        initargs: Any = (),
        **others: Any,
    ) -> None:
        make(self, max_workers, thread_name_prefix, initializer, initargs, **others)
        # Subclasses are left as they are, and so is what is made with arguments that are not known here.
        made: object = type(self)
        if made is ThreadPoolExecutor and not others and not executor._pool.closed:
            limit, prefix = self._max_workers, self._thread_name_prefix
            vars(self).clear()
            self.__class__ = Session
            self._max_workers, self._thread_name_prefix = limit, prefix
            self._lend(_Line(executor, limit, None, initializer, initargs, prefix))

    return __init__


class _Call(NamedTuple):
    future: Future[Any]
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def perform(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            value = self.fn(*self.args, **self.kwargs)
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


@dataclass(eq=False)
class _Line:
    """Calls that wait for threads of their own, which are leased from a pool: each lease is a task of the pool.

    A lease goes beyond the pool's ceiling, as a call that has a limiter of its own does, since others may wait for
    these calls. The mutex is re-entrant: a thread that holds it may collect garbage, which may add a call.

    Attributes:
        limit: How many leases there may be at a time.
        stays: Whether the one lease lasts until the end; several last only while calls wait.
        calls: Those that wait. Where the lease stays, None is the end, and no call comes after it.
        leases: How many there are, those that have not begun among them.
        here: Whether the calling thread serves, and whether the initializer has run in it.
    """

    executor: Any
    limit: int = 1
    finalizer: Callable[[], object] | None = None
    initializer: Callable[..., object] | None = None
    initargs: tuple[Any, ...] = ()
    prefix: str | None = None

    def __post_init__(self) -> None:
        self.stays = self.limit == 1
        self.closed = False
        self.cause: str | None = None
        self.here = threading.local()
        self.renew()

    def renew(self) -> None:
        """Begin anew, without calls and leases; in a forked child those of before have stayed with the parent."""
        self.mutex = threading.RLock()
        self.calls: SimpleQueue[_Call | None] = SimpleQueue()
        self.leases = 0
        self.tasks: set[Any] = set()
        self.threads: set[threading.Thread] = set()
        self.numbers = list(range(self.limit))[::-1]

    def add(self, call: _Call) -> Future[Any]:
        task = None
        with self.mutex:
            if self.cause is not None:
                raise BrokenThreadPool(self.cause)
            if self.closed:
                when = "interpreter shutdown" if lifecycle.exiting() else "shutdown"
                raise RuntimeError(f"cannot schedule new futures after {when}")
            if self.leases < self.limit:
                task = self._lease()
            self.calls.put(call)
        if task is not None:
            task.add_done_callback(self.over)
        return call.future

    def _lease(self) -> Any:
        executor = self.executor
        try:
            task = executor.hand_in(executor._unlimited, True, Context().run, (_Lease(self).serve,), {})
        except RuntimeError:
            # No further lease can be started; those that exist will make the call.
            if self.leases:
                return None
            raise
        self.leases += 1
        self.tasks.add(task)
        return task

    def next(self) -> _Call | None:
        """Return the next call for a lease to make; None if that is to end."""
        if self.stays:
            return self.calls.get()
        with self.mutex:
            try:
                return self.calls.get_nowait()
            except Empty:
                self.leases -= 1
                return None

    def over(self, task: Any) -> None:
        with self.mutex:
            self.tasks.discard(task)
            error = None
            if task.cancelled() or (error := task.exception()) is not None:
                # A lease raises nothing, so a task that failed or was cancelled has never begun to run.
                self.leases -= 1
                if not self.leases:
                    self.drain(error)
            elif self.stays:
                self.drain(None)

    def close(self, cancel: bool = False) -> None:
        with self.mutex:
            self.closed = True
            if cancel:
                self.drain(None)
            self.end()

    def end(self) -> None:
        """Have the lease that stays end. It waits for nothing, as a finaliser must not."""
        if self.stays:
            self.calls.put(None)

    def drain(self, error: BaseException | None) -> None:
        """Under the mutex: fail the calls that wait, or cancel them."""
        while True:
            try:
                call = self.calls.get_nowait()
            except Empty:
                return
            if call is not None:
                call.fail(error)


class _Lease:
    """A thread's service of a line. `fn` is what runs, which is what the pool shows as the name of the task."""

    def __init__(self, line: _Line) -> None:
        self.line = line
        self.fn: Callable[..., Any] | None = None

    def serve(self) -> None:
        line, thread = self.line, threading.current_thread()
        number, name = (line.numbers or [0]).pop(), thread.name
        if line.prefix is not None:
            thread.name = f"{line.prefix}_{number}"
        line.here.serving = True
        line.threads.add(thread)
        try:
            self._initialize()
            while (call := line.next()) is not None:
                self.fn = call.fn
                call.perform()
                self.fn = None
                # While it waits for the next one, it holds nothing of this one.
                del call
        finally:
            try:
                if line.finalizer is not None:
                    line.finalizer()
            except Exception:
                LOGGER.exception("exception in the finalizer of a session")
            line.here.serving = False
            line.threads.discard(thread)
            line.numbers.append(number)
            thread.name = name
            # An error of a call refers, by its traceback, to this frame.
            del self, line

    def _initialize(self) -> None:
        line = self.line
        if line.initializer is None or hasattr(line.here, "ready"):
            return
        try:
            line.initializer(*line.initargs)
            line.here.ready = True
        except BaseException:
            LOGGER.critical("Exception in initializer:", exc_info=True)
            with line.mutex:
                line.cause = "A thread initializer failed, the thread pool is not usable anymore"
                line.drain(BrokenThreadPool(line.cause))
            line.end()


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
