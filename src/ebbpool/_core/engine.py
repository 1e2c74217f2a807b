# cython: language_level=3, binding=True, annotation_typing=False, freethreading_compatible=True
# cython: nonecheck=True, auto_pickle=False
"""The hot path: the future, the queue, the parked workers and the worker's loop.

This file runs as it stands and is also compiled, typed from ``engine_c.pxd``. One mutex per pool guards the queue,
the stack of parked workers and every state change of the pool's futures. Two rules keep that safe:

* Nothing that could run foreign code happens under the mutex: no call of a task or callback, no wait, and no drop of
  a reference that might be the last one to a user's object.
* What follows from a decision made under the mutex and takes time (to start a worker, to call the timekeeper) is
  returned as an *errand* and done after the mutex is free.
"""

from __future__ import annotations

import concurrent.futures
import gc
import sys
import threading
import weakref
from _thread import LockType, allocate_lock
from array import array
from collections import deque
from concurrent.futures import CancelledError, InvalidStateError, thread
from concurrent.futures._base import LOGGER
from contextvars import Context, copy_context
from functools import partial
from itertools import islice
from math import inf
from time import sleep, thread_time
from types import BuiltinMethodType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

if TYPE_CHECKING:
    from ebbpool._core import uncompiled as cython
else:
    try:
        import cython
    except ImportError:
        from ebbpool._core import uncompiled as cython
if not cython.compiled:
    # For compiled code engine_c.pxd declares these.
    from math import log2
    from time import monotonic

    from ebbpool._core.uncompiled import (
        altered,
        blank,
        breathe,
        called,
        called_with,
        enter,
        fence,
        free_mutex,
        hold_collector,
        leave,
        let_collector,
        remember,
        version,
    )

from ebbpool._checks import no_copy

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    class ThreadStarter(Protocol):
        """What starts a pool's threads; see ``ebbpool._pool.crew``."""

        def start(self, searching: bool) -> BaseException | None: ...
        def watch(self) -> BaseException | None: ...


COMPILED = bool(cython.compiled)

PENDING = 0
RUNNING = 1
CANCELLED = 2
NOTIFIED = 3
FINISHED = 4
STATES = ("PENDING", "RUNNING", "CANCELLED", "CANCELLED_AND_NOTIFIED", "FINISHED")
DESCRIPTIONS = ("pending", "running", "cancelled", "cancelled", "finished")

START = "start"
EXTRA = "extra"
HASTE = "haste"
WATCH = "watch"

COMPACT = 64
"""A queue with at least so many dead futures is looked through for them."""
SEARCHED = 10_000
"""In how many tasks at the head of the queue the oldest of a lane is looked for, with all others held up meanwhile."""
OVERTAKEN = 0.1
"""Seconds for which tasks that go first may hold up the others; from then on the two kinds take turns."""
TURNS = 256
"""With up to so many tasks that go first, every other task that is taken is one they overtook; with more, fewer are."""
SLICE = 1e-3
"""Seconds of its processor time that a loop spends on results before its other callbacks have their turn ..."""
FEWEST = 16
"""... but it gets so many results at least ..."""
DELIVERED_AT_ONCE = 256
"""... and so many at most."""
LAGS = 96
"""How many buckets the times are sorted into that a loop needs to come: four for each power of two, in microseconds."""
LAST = LAGS - 1
SPELL = 10.0
"""Seconds for which such times are added up, before a new count begins."""
SPELLS = 6
"""How many such counts are kept."""
GIL = bool(getattr(sys, "_is_gil_enabled", lambda: True)())
STINT = 5e-3
"""Seconds of its processor time that a loop spends on results, hardly ever waiting, before others get the GIL.

Between two slices the loop looks for events, which gives the GIL up and takes it straight back. A thread that waits for
the GIL wakes too late each time, and its wait for the interval after which it would ask for the GIL begins anew. A loop
that had to wait itself has let others run.
"""
NAP = 50e-6
"""Seconds for which a thread leaves the GIL to others then: as long as a thread needs to wake up."""
KEPT_WAITING = 1e-3
"""Seconds that a loop may take to come until the worker that brings it another result leaves the GIL to it, and each
time twice as many: the loop would get it after the switch interval only, several times for one turn."""

ALL = sys.maxsize
"""As many workers as there are: nobody is held back."""
ROOM = 24
"""How many nested calls the plain core needs at most to take back a start that failed."""


class _Here(threading.local):
    """What the calling thread is. The defaults spare each look in other threads the making of an `AttributeError`."""

    worker: Any = None
    keeps_time: bool = False


_here = _Here()

_Standard = thread.ThreadPoolExecutor
_own: Any = None
"""The standard library's `ThreadPoolExecutor.submit`, as `_replaced` last saw it."""
_own_code: Any = None
_kept: list[Any] = []
"""Every `_own` and `_own_code` so far, kept alive: compiled code has bare pointers to them."""


def instrumented() -> bool:
    """Return whether a tool has replaced `ThreadPoolExecutor.submit`, or its code, to see what is submitted."""
    if cython.compiled:
        return altered() and _replaced()
    return (_Standard.submit is not _own or _own.__code__ is not _own_code) and _replaced()


def _replaced() -> bool:
    """Look at `ThreadPoolExecutor.submit` again; return whether it, or its code, is not the standard library's own."""
    global _own, _own_code
    # `submit` is looked up before the version is read, because a type gets its version by the first lookup in it. A
    # change after that gives the type another version, which `altered` notices.
    tag = version(_Standard) if cython.compiled and _Standard.submit is not None else 0
    function = _Standard.submit
    if type(function) is not FunctionType or function.__globals__ is not thread.__dict__:
        return True
    code = function.__code__
    if "_work_queue" not in code.co_names:
        return True
    if function is not _own or code is not _own_code:
        _kept.append((function, code))
    _own, _own_code = function, code
    if cython.compiled:
        remember(_Standard, tag, function, code)
    return False


# Interpreted even where this file is compiled: a call of it passes the eval breaker.
_interpreted: Callable[[], None] = eval("lambda: None")


class Snapshot(NamedTuple):
    """What the timekeeper learns about a pool.

    Attributes:
        may_grow: Whether another worker may be started.
        queued: How many tasks wait.
        taken: How many tasks have been taken off the queue so far.
        workers: How many workers there are.
        starting: How many of them have not begun to work.
        idle: How many of them have nothing to do.
        blocked: How many of them wait for this very pool.
    """

    may_grow: bool
    queued: int
    taken: int
    workers: int
    starting: int
    idle: int
    blocked: int


class Task(NamedTuple):
    """A task that runs, or the oldest that waits.

    Attributes:
        since: When it was taken, sent away or queued (monotonic seconds).
        thread: The thread of its worker; None if it is away, or waits.
        lane: Its lane, if it runs and has one.
        blocked: Whether it waits for a future of this very pool.
        call: What is called, and its arguments; None for each where that was not asked for, or is over.
    """

    since: float
    thread: threading.Thread | None
    lane: LaneCore | None
    blocked: bool
    call: tuple[Any, Any]


class Survey(NamedTuple):
    """What a pool does at one moment.

    Attributes:
        running: The tasks that run, and then those that are away.
        oldest: The one that has waited longest, or None.
        threads: The thread of every worker.
        counts: The figures of `PoolStats`.
    """

    running: list[Task]
    oldest: Task | None
    threads: list[threading.Thread]
    counts: dict[str, float]


class FutureCore:
    """State and protocol of a future, in the shape that the worker's loop needs.

    A pending future carries its own call, a running one what is called. Lock and condition objects are made only when a
    thread waits.

    Attributes:
        _held: Whether it is pending and not in the pool's queue.
        _queued_at: When it was queued, in the pool or, while it is held, in its lane (monotonic seconds).
        _lane: The lane it was submitted to, or None.
        _args: The positional arguments of the call; in compiled code a single one may be here itself: see `_packed`.
        _kwargs: The keyword arguments, or None; True where `_args` is the only argument itself.
        _not_run: What is called if its call is not made, or raises; or None.
    """

    _code: int
    _value: Any
    _error: BaseException | None
    _fn: Callable[..., Any] | None
    _args: Any
    _kwargs: Any
    _held: bool
    _queued_at: float
    _pool: Pool
    _audience: list[Any] | None
    _cond: threading.Condition | None
    _observers: list[Any] | None
    _lane: LaneCore | None
    _not_run: Callable[[Any], object] | None

    __slots__ = (
        "_args",
        "_audience",
        "_code",
        "_cond",
        "_error",
        "_fn",
        "_held",
        "_kwargs",
        "_lane",
        "_not_run",
        "_observers",
        "_pool",
        "_queued_at",
        "_value",
    )

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled."""
        no_copy(self)

    def __init__(self) -> None:
        self._pool = _ORPHANS
        self._code = PENDING
        self._value = self._error = self._audience = self._cond = self._observers = self._lane = self._not_run = None
        self._fn = self._args = self._kwargs = None
        self._held = False

    def cancel(self) -> bool:
        """Cancel the call if it has not started; wake waiters and run callbacks in the calling thread.

        Returns:
            True if the call will never run.
        """
        wanted = CANCELLED if self._pool is _ORPHANS else NOTIFIED
        if not self._conclude(PENDING, PENDING, wanted, None, None):
            return self.cancelled()
        self._forget()
        self._pool.sweep(self)
        return True

    def _forget(self) -> None:
        """Drop a call that will not be made."""
        self._fn = self._args = self._kwargs = None

    def _unwanted(self) -> bool:
        """Return whether nobody waits for the outcome any more."""
        return False

    def cancelled(self) -> bool:
        """Return whether the call was cancelled."""
        return self._code == CANCELLED or self._code == NOTIFIED

    def running(self) -> bool:
        """Return whether the call is being executed."""
        return self._code == RUNNING

    def done(self) -> bool:
        """Return whether the call was cancelled or has finished."""
        return self._code >= CANCELLED

    def result(self, timeout: float | None = None) -> Any:
        """Return what the call returned, waiting for at most `timeout` seconds.

        Raises:
            CancelledError: the call was cancelled.
            TimeoutError: the call did not finish in time.
            BaseException: whatever the call raised.
        """
        if self._code != FINISHED:
            self._wait_for_outcome(timeout)
        elif cython.compiled:
            fence()
        if self._error is None:
            return self._value
        try:
            raise self._error
        finally:
            # Breaks a cycle: the error holds the traceback, which holds this frame, which would hold the error.
            self = None  # type: ignore[assignment]  # breaks a cycle

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what the call raised, or None, waiting for at most `timeout` seconds.

        Raises:
            CancelledError: the call was cancelled.
            TimeoutError: the call did not finish in time.
        """
        self._wait_for_outcome(timeout)
        return self._error

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Have `fn(self)` called once the future is done.

        It runs in the thread that finishes or cancels the future, or at once in the calling thread if the future is
        done already. What it raises is logged to the ``concurrent.futures`` logger.

        Raises:
            TypeError: `fn` is not callable.
        """
        if not callable(fn):
            raise TypeError(f"fn must be callable, not {fn!r}")
        # A list made under the mutex might run the garbage collector there, and with it any code.
        alone = [fn]
        with self._pool.mutex:
            waits = self._code < CANCELLED
            if waits:
                self._join(alone)
        if not waits:
            # A subclass's own `_tell` is for the thread that ends the future, which may not have come to it yet.
            FutureCore._tell(self, alone)

    def _join(self, alone: list[Any]) -> None:
        """Under the mutex: add one to the audience. An empty audience may be shared, see `_NOBODY`; it is replaced."""
        if self._audience:
            self._audience.append(alone[0])
        else:
            self._audience = alone

    def tell_unless_returned(self, fn: Callable[[Any], object]) -> None:
        """Have `fn(self)` called if the call is not made, or raises; at once if the future is done, however it ended.

        Only one function can be set. Unlike a callback of `add_done_callback` it costs a call that returns nothing.
        """
        with self._pool.mutex:
            over = self._code >= CANCELLED
            if not over:
                self._not_run = fn
        if over:
            FutureCore._tell(self, [fn])

    def set_running_or_notify_cancel(self) -> bool:
        """Mark the future as running; return False if it was cancelled. For executors only.

        Raises:
            RuntimeError: the future is running or done.
        """
        with self._pool.mutex:
            started = self._code == PENDING
            if started:
                if self._pool is not _ORPHANS:
                    self._pool.bury(self, RUNNING)
                self._code = RUNNING
        if started:
            return True
        if self._conclude(CANCELLED, CANCELLED, NOTIFIED, None, None):
            return False
        LOGGER.critical("Future %s in unexpected state: %s", id(self), self._state)
        raise RuntimeError("Future in unexpected state")

    def set_result(self, result: Any) -> None:
        """Set the result. For executors and tests only.

        Raises:
            InvalidStateError: the future is done.
        """
        if not self._conclude(PENDING, RUNNING, FINISHED, result, None):
            raise InvalidStateError(f"{self._state}: {self!r}")

    def set_exception(self, exception: BaseException | None) -> None:
        """Set the exception. For executors and tests only.

        Raises:
            InvalidStateError: the future is done.
        """
        if not self._conclude(PENDING, RUNNING, FINISHED, None, exception):
            raise InvalidStateError(f"{self._state}: {self!r}")

    def _conclude(self, first: int, last: int, code: int, value: Any, error: BaseException | None) -> bool:
        """Move a future whose state lies in first..last to `code`, and tell its audience; return whether it moved."""
        audience = None
        waits = False
        with self._pool.mutex:
            condition = self._cond
            if condition is None:
                waits = self._code == PENDING
                audience = self._move(first, last, code, value, error)
        if condition is not None:
            with condition:
                with self._pool.mutex:
                    waits = self._code == PENDING
                    audience = self._move(first, last, code, value, error)
                if audience is not None:
                    if code != CANCELLED:
                        for observer in self._observers or ():
                            if code == NOTIFIED:
                                observer.add_cancelled(self)
                            elif error is not None:
                                observer.add_exception(self)
                            else:
                                observer.add_result(self)
                    condition.notify_all()
        if audience is None:
            return False
        if (waits or error is not None) and self._not_run is not None:
            audience = [*audience, self._not_run]
            self._not_run = None
        self._tell(audience)
        return True

    def _move(self, first: int, last: int, code: int, value: Any, error: BaseException | None) -> list[Any] | None:
        """Under the mutex: end a future whose state lies in first..last; return who is to be told, or None."""
        if self._code < first or self._code > last:
            return None
        if self._code == PENDING and self._pool is not _ORPHANS:
            self._pool.bury(self, code)
        audience = self._audience
        self._audience = None
        if code == FINISHED:
            self._value = value
            self._error = error
            if cython.compiled:
                fence()
        self._code = code
        return _NOBODY if audience is None else audience

    def _packed(self) -> Any:
        """Return the positional arguments as a tuple, or None where there is no call.

        Compiled code keeps a single argument without its tuple. So the tuple goes back to the thread that made it: one
        fewer that the collector counts, and without a GIL none that one thread makes and another frees.
        """
        return (self._args,) if self._kwargs is True else self._args

    def perform(self) -> None:
        """Run the call, which is on no queue, in this thread."""
        fn, args, kwargs = self._fn, self._packed(), self._kwargs
        self._code = RUNNING
        value = error = None
        try:
            value = fn(*args, **kwargs) if type(kwargs) is dict else fn(*args)  # type: ignore[misc]  # it was pending
        except BaseException as caught:
            error = _trimmed(caught)
        self._drop_call()
        fn = args = kwargs = None
        self._pool.count_aside(error is not None)
        self._conclude(RUNNING, RUNNING, FINISHED, value, error)
        value = error = None

    def reject(self, error: BaseException) -> None:
        """Fail a task that no worker will run; do nothing if it is no longer pending."""
        if self._conclude(PENDING, PENDING, FINISHED, None, error):
            self._forget()

    def _drop_call(self) -> None:
        """Drop the call of a task that has been made; what it holds may end in any way, but not under the mutex."""
        fn = args = kwargs = None
        with self._pool.mutex:
            fn, self._fn = self._fn, fn
            args, self._args = self._args, args
            kwargs, self._kwargs = self._kwargs, kwargs
        del fn, args, kwargs

    def disown(self, error: BaseException) -> None:
        """In a forked child: fail without telling the audience, which stayed with the parent.

        Its locks may have been held by threads that do not exist in the child.
        """
        self._audience = self._cond = self._observers = self._not_run = None
        self._forget()
        if self._code < CANCELLED:
            self._error = error
            self._code = FINISHED

    def _tell(self, audience: list[Any]) -> None:
        interrupt = None
        # Waiting threads first: a callback may take long, or wait for a thread that waits for the result.
        for listener in audience:
            if type(listener) is LockType:
                listener.release()
        for listener in audience:
            if type(listener) is LockType:
                continue
            try:
                listener(self)
            except Exception:
                LOGGER.exception("exception calling callback for %r", self)
            except BaseException as error:
                # A worker survives it. In any other thread it is raised once the rest of the audience has been told.
                LOGGER.exception("exception calling callback for %r", self)
                if _here.worker is None:
                    interrupt = error
        if interrupt is not None:
            raise interrupt

    def _wait_for_outcome(self, timeout: float | None) -> None:
        if self._code < CANCELLED:
            self._await(timeout)
        if cython.compiled:
            fence()
        if self._code != FINISHED:
            try:
                raise CancelledError()
            finally:
                self = None  # type: ignore[assignment]  # breaks a cycle

    def _await(self, timeout: float | None) -> None:
        if timeout is None or timeout > 0:
            reason = self._pool.forbids()
            if reason is not None:
                raise RuntimeError(f"cannot wait for a future here: {reason}")
        if self._pool is _ORPHANS:
            # Code that makes its own futures may set their state by hand and notify the condition.
            self._await_condition(timeout)
            return
        waiter = allocate_lock()
        waiter.acquire()
        alone = [waiter]
        told = False
        try:
            with self._pool.mutex:
                told = self._code >= CANCELLED
                if not told:
                    self._join(alone)
            if told:
                return
            worker = _here.worker
            if worker is None:
                told = waiter.acquire() if timeout is None else waiter.acquire(True, timeout if timeout > 0 else 0)
            elif timeout is None:
                told = wait_counted(self._pool, waiter.acquire)
            else:
                told = wait_counted(self._pool, waiter.acquire, True, timeout if timeout > 0 else 0)
        finally:
            if not told:
                self._ignore(waiter)
        if not (told or self.done()):
            try:
                raise TimeoutError()
            finally:
                self = None  # type: ignore[assignment]  # breaks a cycle

    def _await_condition(self, timeout: float | None) -> None:
        condition = self._condition
        with condition:
            if not self.done():
                condition.wait(timeout)
        if not self.done():
            try:
                raise TimeoutError()
            finally:
                self = None  # type: ignore[assignment]  # breaks a cycle

    def _ignore(self, waiter: LockType) -> None:
        # Compared by identity: a callback's own __eq__ must not run under the mutex.
        with self._pool.mutex:
            if self._audience is not None:
                for place in range(len(self._audience)):
                    if self._audience[place] is waiter:
                        del self._audience[place]
                        break

    @property
    def _condition(self) -> threading.Condition:
        fresh = threading.Condition()
        with self._pool.mutex:
            if self._cond is None:
                self._cond = fresh
                # The worker's loop finishes a future without audience by itself. Given one, it calls `_conclude`,
                # which takes the condition first.
                if self._audience is None and self._code < CANCELLED:
                    self._audience = _NOBODY
            condition = self._cond
        return condition

    @property
    def _waiters(self) -> list[Any]:
        fresh = Observers(self)
        with self._pool.mutex:
            if self._observers is None:
                self._observers = fresh
            observers = self._observers
        return observers

    @property
    def _done_callbacks(self) -> list[Callable[[Any], object]]:
        with self._pool.mutex:
            audience = self._audience
        return [listener for listener in audience or () if type(listener) is not LockType]

    @property
    def _state(self) -> str:
        return STATES[self._code]

    @_state.setter
    def _state(self, state: str) -> None:
        self._code = STATES.index(state)

    @property
    def _result(self) -> Any:
        return self._value

    @_result.setter
    def _result(self, value: Any) -> None:
        self._value = value

    @property
    def _exception(self) -> BaseException | None:
        return self._error

    @_exception.setter
    def _exception(self, error: BaseException | None) -> None:
        self._error = error

    def _get_snapshot(self) -> tuple[bool, bool, Any, BaseException | None]:
        """Return (done, cancelled, result, exception), which asyncio asks for on newer Pythons."""
        code = self._code
        if cython.compiled:
            fence()
        if code == FINISHED:
            return True, False, self._value, self._error
        return code >= CANCELLED, code >= CANCELLED, None, None

    def __repr__(self) -> str:
        text = f"<{type(self).__name__} at {id(self):#x} state={DESCRIPTIONS[self._code]}"
        if self._code != FINISHED:
            return text + ">"
        if self._error is not None:
            return f"{text} raised {type(self._error).__name__}>"
        return f"{text} returned {type(self._value).__name__}>"


# The standard library's Future has plain attributes where FutureCore has properties.
class Future(FutureCore, concurrent.futures.Future):  # type: ignore[type-arg, override]  # see `accel.Future`
    """The result of a call handed to a pool: a `concurrent.futures.Future` that is cheap until it is waited on."""

    @cython.locals(future=FutureCore)
    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make one that is complete without `__init__`, which a subclass may forget; `submit` does not use this."""
        future = FutureCore.__new__(cls)
        FutureCore.__init__(future)
        return future


class DelayedCall(FutureCore):
    """A call whose time has not come yet.

    Until it is done it keeps its executor alive, and then tells it: so the last reference to an executor is dropped in
    a worker, or by the thread that cancels, and not in the timekeeper's thread.
    """

    _executor: Any

    __slots__ = ("_executor",)

    def __init__(self) -> None:
        FutureCore.__init__(self)
        self._executor = None

    def _tell(self, audience: list[Any]) -> None:
        executor, self._executor = self._executor, None
        if executor is not None:
            # A part of the audience, so that the others are told whatever interrupts this.
            audience = [executor._forget_delayed, *audience]
        FutureCore._tell(self, audience)

    def _forget(self) -> None:
        self._executor = self._fn = self._args = self._kwargs = None


class DelayedFuture(DelayedCall, Future):  # type: ignore[override]  # as for `Future`
    """The future of a delayed call. It differs from others only in what its executor hears of it."""

    @cython.locals(future=DelayedCall)
    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make one that is complete without `__init__`, as `Future` does."""
        future = DelayedCall.__new__(cls)
        DelayedCall.__init__(future)
        return future


_Future: Any = Future
"""The same, as compiled code finds it without a look into the module's names."""
_DelayedFuture: Any = DelayedFuture
_EMPTY: tuple[()] = ()
_bare: Any = FutureCore.__new__
"""Makes a future in plain code. Looked up once, because the interpreter does not speed up the look-up of `__new__`."""


def wait_counted(pool: Pool, wait: Callable[..., Any], *args: Any) -> Any:
    """Return `wait(*args)`; if the calling thread is a worker of `pool`, it counts as blocked meanwhile."""
    worker = _here.worker
    if worker is None or worker.pool is not pool:
        return wait(*args)
    pool.block(worker)
    try:
        return wait(*args)
    finally:
        pool.unblock(worker)


class Observers(list[Any]):
    """A future's waiters as `concurrent.futures.wait` and `as_completed` install them.

    Where a worker is about to wait for a future of its own pool, its event is replaced by one that counts the worker as
    blocked while it waits. Where a thread must not wait, its event is replaced by one that raises an error.
    """

    @cython.locals(future=FutureCore)
    def __init__(self, future: FutureCore) -> None:
        super().__init__()
        self._pool = future._pool

    def append(self, waiter: Any) -> None:
        worker = _here.worker
        if worker is not None and worker.pool is self._pool and not isinstance(waiter.event, _CountedEvent):
            waiter.event = _CountedEvent(waiter.event, self._pool)
        reason = self._pool.forbids()
        if reason is not None:
            waiter.event = _ForbiddenEvent(waiter.event, reason)
        super().append(waiter)


class _WaiterEvent:
    """The event of a waiter, without its `wait`."""

    def __init__(self, event: threading.Event) -> None:
        self._event = event
        self.set = event.set
        self.clear = event.clear
        self.is_set = event.is_set


class _CountedEvent(_WaiterEvent):
    def __init__(self, event: threading.Event, pool: Pool) -> None:
        super().__init__(event)
        self._pool = pool

    def wait(self, timeout: float | None = None) -> bool:
        timeout = None if timeout is None else max(0.0, timeout)
        told: bool = wait_counted(self._pool, self._event.wait, timeout)
        return told


class _ForbiddenEvent(_WaiterEvent):
    def __init__(self, event: threading.Event, reason: str) -> None:
        super().__init__(event)
        self._reason = reason

    def wait(self, timeout: float | None = None) -> bool:
        if not self._event.is_set() and (timeout is None or timeout > 0):
            raise RuntimeError(f"cannot wait for futures here: {self._reason}")
        return self._event.is_set()


class LoopCall(FutureCore):
    """A call made from an event loop. Its outcome goes through a mailbox to a ticket, in the loop's thread.

    Compiled code enters the call's context itself: `Context.run` would cost a bound method and another tuple.

    A ticket has `done`, `set_result`, `set_exception` and `cancel` as an `asyncio.Future` has, and `abandoned(error)`
    for an error that comes after the ticket is done.
    """

    _mailbox: Mailbox
    _ticket: Any
    _context: Context | None

    __slots__ = ("_context", "_mailbox", "_ticket")

    def _tell(self, audience: list[Any]) -> None:
        self._mailbox.post(self)

    def _drop_call(self) -> None:
        FutureCore._drop_call(self)
        if cython.compiled:
            self._context = None

    def _forget(self) -> None:
        self._fn = self._args = self._kwargs = None
        if cython.compiled:
            self._context = None

    def perform(self) -> None:
        """Run the call in this thread, in its own context."""
        if cython.compiled and self._context is not None:
            fn, args = self._context.run, (self._fn, *(self._packed() or ()))
            # `args` keeps what they replace until the mutex is free.
            with self._pool.mutex:
                self._fn = fn
                self._args = args
                if self._kwargs is True:
                    self._kwargs = None
            self._context = None
        FutureCore.perform(self)

    def _unwanted(self) -> bool:
        """Return whether the loop has given the call up."""
        ticket = self._ticket
        return ticket is None or bool(ticket.done())

    def withdraw(self, at_ceiling: bool = False) -> bool:
        """Take the call off the queue, in any thread; the ticket is not told.

        Args:
            at_ceiling: Whether to do so only where the call waits for capacity, and not where a worker is coming.

        Returns:
            True if the call will never run.
        """
        pool = self._pool
        with pool.mutex:
            waits = self._code == PENDING
            if waits and at_ceiling and not self._held:
                waits = pool.headcount - pool.blocked >= pool.max_workers
            if waits:
                self._move(PENDING, PENDING, NOTIFIED, None, None)
        if waits:
            self._forget()
            self._ticket = None
            pool.sweep(self)
        return self._code == NOTIFIED

    def deliver(self) -> None:
        """Give the outcome to the ticket, in the loop's thread."""
        ticket, value, error = self._ticket, self._value, self._error
        self._ticket = self._value = self._error = None
        if ticket is None:
            return
        if ticket.done():
            if error is not None:
                ticket.abandoned(error)
        elif error is not None:
            ticket.set_exception(error)
        elif self._code == FINISHED:
            ticket.set_result(value)
        else:
            ticket.cancel()


class Mailbox:
    """Where workers leave finished calls for one event loop, which is woken once per batch.

    Invariant: callbacks that a call itself put on the loop run before its result is delivered. The call that wakes the
    loop has ended before the waking callback is put there, so that callback may deliver it. Calls that joined it in the
    mailbox may have put callbacks behind the waking one, so the next callback of the mailbox delivers them.

    Args:
        wake: Has the given function called in the loop's thread; any thread may call it. An error means that the loop
            has ended: the results are dropped.
        again: Does the same, and is called in the loop's own thread only.

    Attributes:
        arrived: Finished calls, left by workers.
        due: Calls that the next callback delivers; only the loop's thread touches it.
        ringing: Whether a callback of this mailbox is on the loop, or about to be.
        rung: When the loop was last woken, or was given another callback of the mailbox (monotonic seconds).
        patience: How long the loop may take to come until a worker naps; 0 while it is not waited for.
        stint_begun: When the present stint of delivering began (monotonic seconds).
        stint_spent: The loop's own processor time then.
        portion: How many results the next callback delivers: as many as take a `SLICE`, by what the last ones took.
        delivered: How many the last callback delivered; 0 if it was not one of the same batch.
        spent: The loop's own processor time when that callback began.
        lags: How often the loop took how long to come, in each of the last spells; see `LAGS`.
        most: The longest that it took, in each of these spells (seconds).
        spell: The place of the present spell among them.
        first: The first of its buckets.
        longest: What `most` has for it.
        turn: When the next spell begins (monotonic seconds).
    """

    mutex: Any

    def __init__(self, wake: Callable[[Callable[[], None]], object], again: Callable[..., object]) -> None:
        if not cython.compiled:
            self.mutex = threading.RLock()
        self.wake = wake
        self.again = again
        self.arrived: list[LoopCall] = []
        self.due: deque[LoopCall] = deque()
        self.ringing = False
        self.portion = FEWEST
        self.delivered = self.spell = self.first = 0
        self.rung = self.patience = self.spent = self.longest = self.turn = 0.0
        self.stint_begun = self.stint_spent = 0.0
        # Arrays that are never replaced: other threads read them at any time, also where there is no GIL.
        self.lags: array[int] = array("Q", bytes(8 * LAGS * SPELLS))
        self.most: array[float] = array("d", bytes(8 * SPELLS))

    def post(self, call: LoopCall) -> None:
        """Leave a finished call, and wake the loop if no callback of the mailbox is on its way."""
        with self.mutex:
            self.arrived.append(call)
            ring = not self.ringing
            self.ringing = True
        if ring:
            self.rung = monotonic()
            self.patience = KEPT_WAITING
            try:
                self.wake(self.open)
            except BaseException:
                # Either the loop has ended, or a signal handler or another thread has raised an error in this thread.
                # Such an error must not lose the results, so the loop is woken once more.
                try:
                    self.wake(self.open)
                except BaseException as error:
                    lost = self._empty(False)
                    if not isinstance(error, RuntimeError):
                        LOGGER.exception("%d results could not be delivered", len(lost))
                else:
                    raise
        elif GIL and 0.0 < self.patience < monotonic() - self.rung:
            self.patience *= 2.0
            sleep(NAP)

    def _empty(self, ringing: bool) -> list[LoopCall]:
        arrived: list[LoopCall] = []
        with self.mutex:
            arrived, self.arrived = self.arrived, arrived
            self.ringing = ringing
        return arrived

    @cython.locals(call=LoopCall)
    def open(self) -> None:
        """Deliver the first result, and have the others delivered later; in the loop's thread."""
        self.note(self.rung, monotonic())
        self.patience = 0.0
        self.delivered = 0
        arrived = self._empty(True)
        try:
            if arrived:
                call = arrived[0]
                call.deliver()
        finally:
            if len(arrived) > 1:
                del arrived[0]
                self.due.extend(arrived)
            self._go_on()

    @cython.locals(call=LoopCall)
    def deliver(self) -> None:
        """Deliver as many results as take a `SLICE` with what they lead to, in the loop's thread.

        What the last ones led to has run by now: it was put on the loop before this callback.
        """
        self.patience = 0.0
        spent = thread_time()
        if self.delivered > 0:
            fit = self.delivered * SLICE / max(spent - self.spent, 1e-6)
            self.portion = int(min(max(fit, float(FEWEST)), float(DELIVERED_AT_ONCE)))
        self.spent = spent
        if GIL:
            now = monotonic()
            if now - self.stint_begun >= 2.0 * STINT:
                self.stint_begun, self.stint_spent = now, spent
            elif spent - self.stint_spent >= STINT:
                self.stint_begun, self.stint_spent = now, spent
                sleep(NAP)
        count = min(len(self.due), self.portion)
        self.delivered = count
        arrived = self._empty(True)
        try:
            while count > 0:
                count -= 1
                call = self.due.popleft()
                call.deliver()
        finally:
            self.due.extend(arrived)
            self._go_on()

    def note(self, rung: float, now: float) -> None:
        """Note how long the loop took to come after it was `rung`, in its own thread."""
        if now >= self.turn:
            passed = 1 + int(min((now - self.turn) / SPELL, float(SPELLS)))
            self.turn = now + SPELL if passed > SPELLS else self.turn + passed * SPELL
            for _ in range(passed):
                self.spell = (self.spell + 1) % SPELLS
                self.first = self.spell * LAGS
                self.most[self.spell] = self.longest = 0.0
                for bucket in range(LAGS):
                    self.lags[self.first + bucket] = 0
        lag = now - rung
        bucket = int(4.0 * log2(1.0 + 1e6 * lag))
        self.lags[self.first + (bucket if bucket < LAST else LAST)] += 1
        if lag > self.longest:
            self.most[self.spell] = self.longest = lag

    def _go_on(self) -> None:
        if not self.due:
            with self.mutex:
                self.ringing = bool(self.arrived)
                if not self.ringing:
                    return
        self.rung = monotonic()
        self.patience = KEPT_WAITING
        try:
            self.again(self.deliver)
        except BaseException:
            # An error of a signal handler. Without a callback on the loop nothing would ever be delivered again.
            self.again(self.deliver)
            raise


class Worker:
    """One thread's place in a pool.

    Attributes:
        bell: A lock that the worker waits for while it is parked; it is free only when the worker has been woken.
        current: The task in hand, until its callbacks are done.
        since: When the task in hand was taken (monotonic seconds).
        patience: Seconds to stay parked; below zero, for ever.
        fresh: Whether `Pool._arrived` has something to clear.
        waits: How many waits for its own pool it is in, one within the other.
    """

    def __init__(self, pool: Pool, searching: bool) -> None:
        self.pool = pool
        self.bell = allocate_lock()
        self.bell.acquire()
        self.thread: threading.Thread = threading.main_thread()
        self.current: FutureCore | None = None
        self.since = self.patience = 0.0
        self.waits = 0
        self.searching = searching
        self.starting = self.fresh = True
        self.parked = self.roused = self.expired = self.leaving = False

    # Safe without `nonecheck`: nothing here is None where one of its attributes is read.
    @cython.nonecheck(False)
    @cython.locals(done=FutureCore, future=FutureCore, loop_call=LoopCall, unfinished=cython.bint, failed=cython.bint)
    def run(self) -> None:
        """Take and run tasks until it is time to leave."""
        pool = self.pool
        if pool is None:
            raise RuntimeError("Worker.__init__() was never called")
        done: Any = None
        future: Any = None
        loop_call: Any = None
        value = error = errand = context = None
        unfinished = failed = False
        _here.worker = self
        while True:
            # One visit to the mutex finishes the last task and takes the next. `done` keeps the last one alive until
            # the mutex is free.
            # Signal handlers run only in the main thread, so none can raise between this line and the `try`.
            pool.mutex.acquire()
            try:
                if unfinished and done._audience is None and (error is None or done._not_run is None):
                    if done._code == RUNNING:
                        done._value = value
                        done._error = error
                        if cython.compiled:
                            fence()
                        done._code = FINISHED
                    failed = error is not None
                    unfinished = False
                elif unfinished and type(done) is LoopCall:
                    loop_call = done
                    if loop_call._code == RUNNING:
                        loop_call._value = value
                        loop_call._error = error
                        loop_call._code = FINISHED
                    failed = error is not None
                    unfinished = False
                if not unfinished:
                    self.current = None
                    if failed:
                        pool.failed += 1
                    if done is not None and done._lane is not None:
                        pool._vacate(done._lane, failed)
                    failed = False
                    if pool.queue and (not pool.tight or pool._admits()):
                        future = pool._next() if pool.ahead else pool.dequeue()
                        if future._code == PENDING:
                            future._code = RUNNING
                            self.current = future
                            pool.taken += 1
                            if pool.marked:
                                pool.marked.pop(future, None)
                            if self.fresh:
                                errand = pool._arrived(self)
                            self.since = pool.clock
                        else:
                            pool.dead -= 1
                        if pool.seekers:
                            pool._make_room()
                    else:
                        errand = pool._rest(self)
            finally:
                pool.mutex.release()
            if unfinished:
                try:
                    done._conclude(RUNNING, RUNNING, FINISHED, value, error)
                except BaseException:
                    LOGGER.critical("Exception while %r was being finished:", done, exc_info=True)
                failed = error is not None
                unfinished = False
                continue
            done = value = error = None
            if loop_call is not None:
                # The loop is told only now that this worker is parked or has its next task: a task that the result
                # leads to finds a worker ready, and does not call the timekeeper for nothing.
                loop_call._mailbox.post(loop_call)
                loop_call = None
            if errand is not None:
                pool._run(errand, None)
                errand = None
            if future is None:
                if self.leaving:
                    break
                if not self.bell.acquire(True, self.patience):
                    pool.expire(self)
                continue
            if self.current is None:
                future = None
                continue
            fn, args, kwargs = future._fn, future._args, future._kwargs
            if cython.compiled and type(future) is LoopCall:
                loop_call = future
                context, loop_call._context = loop_call._context, None
                loop_call = None
                if context is not None:
                    enter(context)
            try:
                if cython.compiled:
                    breathe()
                    if kwargs is None:
                        value = called(fn, args)
                    elif kwargs is True:
                        value = called_with(fn, args)
                    else:
                        value = fn(*args, **kwargs)
                else:
                    value = fn(*args) if kwargs is None else fn(*args, **kwargs)
            except BaseException as caught:
                error = _trimmed(caught)
            if cython.compiled and context is not None:
                leave(context)
                context = None
            # Dropped while the task still counts as running: the end of what was called may run any code, which may
            # wait for this pool. These keep it until the mutex, under which `in_hand` reads it, is free.
            if GIL:
                future._fn = future._args = future._kwargs = None
            else:
                with pool.mutex:
                    future._fn = future._args = future._kwargs = None
            fn = args = kwargs = None
            done = future
            future = None
            unfinished = True
        _here.worker = None


class Probe:
    """A call that is measured.

    Attributes:
        fn: What is called.
        record: Told how long the task waited and how long it ran, in seconds.
        made: When it was submitted (monotonic seconds).
    """

    def __init__(self, fn: Callable[..., Any], record: Callable[[float, float], object]) -> None:
        self.fn = fn
        self.record = record
        self.made = monotonic()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        begun = monotonic()
        try:
            return self.fn(*args, **kwargs)
        finally:
            self._tell(begun, monotonic())

    @cython.locals(worker=Worker, current=FutureCore)
    def _tell(self, begun: float, ended: float) -> None:
        queued = self.made
        worker: Any = _here.worker
        if worker is not None and worker.current is not None:
            current = worker.current
            # A worker may run the call in the middle of another task. A delayed task is queued after it was submitted;
            # one of a lane is queued anew when the lane lets it in.
            if current._fn is self and current._lane is None:
                queued = max(queued, current._queued_at)
        try:
            self.record(max(0.0, begun - queued), ended - begun)
        except Exception:
            LOGGER.exception("exception calling %r", self.record)


def _gap(every: int) -> int:
    """Return how many tasks to pass over, so that one in `every` is measured, whatever pattern they follow."""
    # Imported here, so that only those pay for it who measure.
    from random import random

    return int(random() * (2 * every - 1)) if every > 0 else 0


def _nobody() -> None:
    return None


def _leave_room(depth: int) -> None:
    """Raise RecursionError, in the plain core, if `depth` nested calls would raise it; nothing has been changed yet."""
    if depth > 0:
        _leave_room(depth - 1)


def _call_of(future: FutureCore, known: bool) -> tuple[Any, Any]:
    """Return what a future calls and its arguments; (None, None) if that is not to be `known`."""
    args = future._packed() if known else None
    # Read last: under a GIL the worker drops the call meanwhile, and `_fn` first.
    return future._fn if known else None, args


def _is_marked(future: FutureCore, mark: type) -> bool:
    """Return whether a call is that of an object of the type `mark`, in partials and contexts; runs no foreign code."""
    fn: Any = future._fn
    args: Any = future._args
    alone = future._kwargs is True
    place = 0
    while True:
        kind = type(fn)
        if kind is mark:
            return True
        if kind is partial:
            if fn.args:
                args = fn.args
                alone = False
                place = 0
            fn = fn.func
        elif kind is Probe:
            fn = fn.fn
        elif (kind is BuiltinMethodType or kind is MethodType) and type(fn.__self__) is Context:
            if args is None or place >= (1 if alone else len(args)):
                return False
            fn = args if alone else args[place]
            place += 1
        else:
            return False


def _context_of(future: FutureCore) -> Context | None:
    """Return the context that the compiled core enters for a call from a loop; elsewhere it is part of the call."""
    if cython.compiled and type(future) is LoopCall:
        call: Any = future
        return call._context  # type: ignore[no-any-return]  # of a type that is only declared in C
    return None


def _trimmed(error: BaseException) -> BaseException:
    # Without the worker's own frame, by which the error would keep alive whatever the worker does next.
    trace = error.__traceback__
    return error if trace is None else error.with_traceback(trace.tb_next)


class LaneCore:
    """A limited share of a pool: its tasks wait in a backlog of their own until the limit lets them into the queue.

    The pool's mutex guards it.

    Attributes:
        first: Whether its tasks go to the head of the pool's queue.
        lifts_ceiling: Whether each of its tasks lifts the pool's ceiling by one while it is queued or runs.
        name: What its users call it; None for one of ebbpool's own.
        backlog: Held futures, oldest first.
        admitted: Tasks in the pool's queue, running or away. Invariant: where tasks wait in the backlog, this is
            `limit`.
        dead: How many futures in the backlog are done already: cancelled, or failed by `reject`.
        taken: Tasks that have left the pool, run or refused.
    """

    def __init__(
        self, pool: Pool, limit: int, first: bool, lifts_ceiling: bool = False, name: str | None = None
    ) -> None:
        self.pool = pool
        self.limit = limit
        self.first = first
        self.lifts_ceiling = lifts_ceiling
        self.name = name
        self.closed = False
        self.backlog: deque[FutureCore] = deque()
        self.admitted = self.dead = self.taken = self.failed = self.cancelled = 0

    def enlist(self, future: FutureCore, refusal: str | None) -> str | None:
        """Under the mutex: admit a future, or hold it in the backlog; return why the lane refuses it, or None.

        `refusal` is why the pool would refuse it, or None; a full queue is no reason for a lane.
        """
        if refusal is not None and refusal != "full":
            return refusal
        if self.closed:
            return "closed"
        # A lane may exceed the pool's `max_queue`: its limit bounds what it adds to the queue.
        if self.admitted < self.limit:
            self.enter()
        else:
            future._held = True
            future._queued_at = self.pool.clock
            self.backlog.append(future)
        return None

    def enter(self) -> None:
        """Under the mutex: count a task that goes to the pool's queue."""
        self.admitted += 1
        if self.lifts_ceiling:
            self.pool._lend(1)

    def leave(self) -> None:
        """Under the mutex: count off a task that has left the pool."""
        self.admitted -= 1
        if self.lifts_ceiling:
            self.pool._lend(-1)

    def renew(self) -> None:
        """In a forked child: forget all tasks, which stayed with the parent."""
        self.backlog = deque()
        self.admitted = self.dead = 0

    def close(self) -> None:
        """Take no more tasks."""
        with self.pool.mutex:
            self.closed = True

    @cython.locals(future=FutureCore, worker=Worker)
    def counts(self) -> dict[str, float]:
        """Return the figures of `LaneStats`."""
        oldest = 0.0
        running = 0
        with self.pool.mutex:
            collects = hold_collector()
            try:
                now = monotonic()
                for worker in self.pool.workers:
                    if worker.current is not None and worker.current._lane is self:
                        running += 1
                for future in self.pool.away:
                    if future._lane is self:
                        running += 1
                # Those in the queue are older than those in the backlog, and both keep their order.
                line = self.pool.queue if self.admitted > running else self.backlog
                for future in islice(line, SEARCHED):
                    oldest = now - future._queued_at
                    if future._lane is self and future._code == PENDING:
                        break
                else:
                    if len(line) <= SEARCHED:
                        oldest = 0.0
                queued = self.admitted - running + len(self.backlog) - self.dead
                taken, failed, cancelled = self.taken, self.failed, self.cancelled
            finally:
                let_collector(collects)
        return {
            "limit": self.limit,
            "running": running,
            "queued": queued,
            "oldest_wait": oldest,
            "submitted": taken + running + queued + cancelled,
            "completed": taken - failed,
            "failed": failed,
            "cancelled": cancelled,
        }


class Pool:
    """What an executor and its workers share: the queue, the parked workers and the counts.

    Attributes:
        special: Whether `push` has to look closer: the pool is closed, broken or bounded.
        searching: Whether a woken or newly started worker is on its way to the queue.
        roused: How many workers were woken and have not come to the queue yet.
        covered: Whether the timekeeper watches the pool, so that it need not be called.
        at_ceiling: Whether the pool may not grow; the timekeeper looks rarely then, and is called anew once it may.
        clock: Monotonic seconds, updated by `_arrange`, by workers that wake up and by the timekeeper: right to about a
            tick while tasks wait, and when a worker wakes up. A clock call per task would be a tenth of its cost.
        dead: How many futures in the queue are done already: cancelled, or failed by `reject`.
        ahead: How many futures at the head of the queue have overtaken the others.
        passed: How many tasks that go first were taken since one that they overtook was last taken.
        seekers: What waits for room in a full queue, in order: the locks of blocked submitters, and held futures.
        promised: The locks of submitters that have been woken, and have not yet taken the place kept for them.
        ceiling: The most workers that the settings allow.
        lent: How many workers beyond `ceiling` there may be, one for each task of a lane that lifts the ceiling.
        max_workers: The most there may be: `ceiling` and `lent`.
        surplus: Workers that should leave as soon as they have no task in hand.
        allowed: How many workers may have a task in hand, or be on their way to one; `ALL` where none is held back. The
            blocked do not count.
        held: Whether there are fewer than `ALL` that may.
        crowd: More workers than these are looked at although no task waits: they may all compute.
        minded: Whether the timekeeper looks at them; it has to be called all the same once a task waits.
        tight: Whether a worker has to look closer before it takes another task: some are surplus or held back.
        taken: Tasks taken off the queue so far.
        wrapping: Whether calls are wrapped before they are queued: tasks run in their submitter's context, or some are
            measured.
        every: One task out of how many is measured, on average; 0 for none.
        record: What is told of the tasks that are measured; see `observe`.
        skip: How many tasks come before the next that is measured. Threads that submit at once may miscount.
        turned_away: Whether a task has found the queue full since the timekeeper last looked.
        away: The tasks that another executor runs, and since when (monotonic seconds). They count as running.
        spilled: Tasks that have been taken off the queue to run there so far.
        returned: Tasks of these that have come back so far.
        mark: The type of what is called by tasks that may run elsewhere; None where none may.
        marked: Such tasks in the queue, oldest first.
    """

    mutex: Any

    def __init__(self, crew: ThreadStarter | None) -> None:
        if not cython.compiled:
            # Re-entrant: a finaliser or a signal handler may submit while its own thread is in a critical section.
            self.mutex = threading.RLock()
        # A weak reference, so that there is no cycle: executor and threads hold the crew, the crew holds the pool.
        self.crew: Callable[[], ThreadStarter | None] = _nobody if crew is None else weakref.ref(crew)
        self.queue: deque[FutureCore] = deque()
        self.parked: list[Worker] = []
        self.workers: list[Worker] = []
        self.seekers: deque[LockType | FutureCore] = deque()
        self.promised: list[LockType] = []
        self.idlers: list[LockType] = []
        self.away: dict[FutureCore, float] = {}
        self.marked: dict[FutureCore, None] = {}
        self.mark: type | None = None
        self.record: Callable[[float, float], object] | None = None
        self.clock: float = 0.0
        self.patience: float = 10.0
        self.ceiling = self.max_workers = 1
        self.allowed = self.crowd = ALL
        self.max_queue = -1
        self.min_workers = self.min_spare_workers = self.every = self.skip = 0
        self.headcount = self.starting = self.roused = self.blocked = self.surplus = self.lent = 0
        self.dead = self.ahead = self.passed = 0
        self.taken = self.failed = self.cancelled = self.rejected = self.started = self.retired = 0
        self.spilled = self.returned = 0
        self.slow_start = self.rejecting = self.contextual = self.wrapping = False
        self.special = self.closed = self.broken = self.held = self.tight = False
        self.searching = self.covered = self.at_ceiling = self.minded = self.turned_away = False
        self._use_queue()

    def configure(
        self,
        min_workers: int,
        max_workers: int,
        min_spare_workers: int,
        patience: float,
        max_queue: int,
        rejecting: bool,
    ) -> None:
        """Apply new settings; `patience` and `max_queue` below zero mean without limit."""
        with self.mutex:
            self.min_workers = min_workers
            self.ceiling = max_workers
            self.max_workers = max_workers + self.lent
            self.min_spare_workers = min_spare_workers
            self.patience = patience
            self.max_queue = max_queue
            self.rejecting = rejecting
            self._special()
            self._measure()
            self._uncover()
            # Woken, so that they apply the new `patience` and `min_workers` when they park again.
            self._rouse_all()
            self._make_room()
            errand = self._staff()
            if errand is None and self.headcount > 0:
                errand = self._spare()
        self._run(errand, None)

    def carry_context(self) -> None:
        """Run tasks in copies of their submitter's context from now on."""
        self.contextual = self.wrapping = True

    def observe(self, every: int, record: Callable[[float, float], object] | None) -> None:
        """Measure one out of `every` tasks that are submitted from now on, by chance; none if that is 0.

        After such a task `record(seconds waited, seconds run)` is called in the worker's thread; what it raises is
        logged. Tasks of a map are turns of its workers, and not its items.
        """
        gap = _gap(every)
        with self.mutex:
            # The last `record` may end with the call, but not under the mutex.
            before, self.record = self.record, record
            self.every = every
            self.skip = gap
            self.wrapping = self.contextual or every > 0
        del before

    def wrap(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None, contextual: bool
    ) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any] | None]:
        """Return the call to be queued in place of a given one, which carries its context if it is `contextual`."""
        if contextual:
            if not cython.compiled and kwargs:
                fn, kwargs = partial(fn, **kwargs), None
            args = (fn, *args)
            fn = copy_context().run
        if self.every > 0:
            self.skip -= 1
            if self.skip < 0:
                self.skip = _gap(self.every)
                with self.mutex:
                    record = self.record
                if record is not None:
                    fn = Probe(fn, record)
        return fn, args, kwargs

    def push(
        self, future: FutureCore, first: bool = False, waiter: LockType | None = None, in_line: bool = False
    ) -> str | None:
        """Queue a pending task, at the head if it is to be `first`, and make sure that a worker will take it.

        A submitter that waited for room with `waiter` takes the place that was kept for it. A task that is to wait
        `in_line` is held among the seekers while the queue is full.

        Returns:
            None, or why the task was not taken: "closed", "broken" or "full".

        Raises:
            RuntimeError: no worker could be started, and there is none that could take the task later.
        """
        errand = None
        lane = future._lane
        with self.mutex:
            if waiter is not None and waiter in self.promised:
                self.promised.remove(waiter)
            if future._code != PENDING:
                return None
            refusal = self._refusal() if self.special else None
            grows = refusal == "grow"
            if grows:
                refusal = None
            if lane is not None:
                refusal = lane.enlist(future, refusal)
                if refusal is not None or future._held:
                    return refusal
            full = refusal == "full"
            if refusal is None:
                self._enter(future, first)
            elif full and in_line:
                refusal = None
                future._held = True
                self.seekers.append(future)
            elif full:
                self.turned_away = True
            try:
                if grows:
                    self._reserve(1)
                    errand = HASTE
                elif (refusal is None or full) and not self.searching and (self.parked or not self.covered):
                    errand = self._arrange()
            except BaseException:
                if refusal is None:
                    self._withdraw(future)
                raise
            future._queued_at = self.clock
        if errand is not None:
            self._run(errand, future)
        return refusal

    def _enter(self, future: FutureCore, first: bool) -> None:
        future._held = False
        future._queued_at = self.clock
        if self.mark is not None and _is_marked(future, self.mark):
            self.marked[future] = None
        if not first:
            self.enqueue(future)
            return
        if future._lane is None:
            self.queue.appendleft(future)
        else:
            # Tasks of a lane keep their order.
            self.queue.insert(self.ahead, future)
        self.ahead += 1

    def _next(self) -> FutureCore:
        """Under the mutex: take a task where some have overtaken others.

        Once the oldest overtaken task has waited for `OVERTAKEN`, overtaken tasks and those that go first take turns.
        There are no turns while the pool has `lent` places: all other tasks may wait for the calls that have them.
        """
        # Taking a task out of the middle costs time in proportion to those before it, so with many it is done rarely.
        if self.passed > 0 and self.passed * TURNS >= self.ahead and self.lent == 0 and self.ahead < len(self.queue):
            oldest = self.queue[self.ahead]
            if self.clock - oldest._queued_at >= OVERTAKEN:
                del self.queue[self.ahead]
                # A cancelled task does not use up the turn.
                if oldest._code == PENDING:
                    self.passed = 0
                return oldest
        self.passed += 1
        self.ahead -= 1
        return self.dequeue()

    def _make_room(self) -> None:
        """Under the mutex: give free places in the queue to the seekers that have waited longest."""
        while self.seekers and self._refusal() != "full":
            seeker = self.seekers.popleft()
            if type(seeker) is LockType:
                # The place is kept until that thread has come for it.
                self.promised.append(seeker)
                seeker.release()
            else:
                # No errand is needed: `_demand` counts seekers, so the timekeeper watches already and goes on.
                self._enter(seeker, False)
            if self.headcount == 0:
                # `_refusal` lets everything into a pool without workers, so one seeker is enough: a worker is started
                # for it, and makes room for the others.
                break

    def _vacate(self, lane: LaneCore, failed: bool) -> None:
        """Under the mutex: count a task of `lane` that has left the pool, and admit the next."""
        lane.leave()
        lane.taken += 1
        if failed:
            lane.failed += 1
        self._admit(lane)

    def _admit(self, lane: LaneCore) -> None:
        if lane.backlog and lane.admitted < lane.limit:
            # With an empty queue nobody has set it since the lane's last task was taken.
            self.clock = monotonic()
        while lane.admitted < lane.limit and lane.backlog:
            future = lane.backlog.popleft()
            if future._code == PENDING:
                lane.enter()
                self._enter(future, lane.first)
            else:
                # A cancelled future may not be dropped under the mutex. It goes to the queue as a dead one, where a
                # worker, the timekeeper or `stats` drops it.
                lane.dead -= 1
                future._held = False
                future._queued_at = self.clock
                self.enqueue(future)
                self.dead += 1
        if lane.admitted == 0:
            self._tell_idlers()

    def _use_queue(self) -> None:
        self.enqueue: Callable[[FutureCore], None] = self.queue.append
        self.dequeue: Callable[[], FutureCore] = self.queue.popleft

    def _refusal(self) -> str | None:
        """Under the mutex: return why a task cannot simply be queued, or None.

        "grow" is no refusal: the task is queued, and a worker is started for it at once.
        """
        if self.broken:
            return "broken"
        if self.closed:
            return "closed"
        if self.max_queue < 0:
            return None
        # A task that an idle or arriving worker is about to take does not count as waiting. Surplus workers take none.
        coming = self._at_hand() + self.starting - self.surplus
        if self.held:
            coming = min(coming, self.allowed - self._engaged() + self.roused + self.starting)
        coming = max(0, coming)
        if self._waiting() + len(self.promised) < self.max_queue + coming or self.headcount == 0:
            return None
        # Where a task must not wait, or would be refused, the pool grows at once, without asking the timekeeper.
        if (self.rejecting or self.max_queue == 0) and self.headcount - self.blocked < self.max_workers:
            return "grow"
        return "full"

    def _arrange(self) -> str | None:
        """Under the mutex: find a worker for the waiting tasks; return the errand that is needed for it, or None."""
        self.clock = monotonic()
        if self.searching:
            return None
        if self.parked and (not self.held or self._has_room()):
            return self._rouse()
        self.at_ceiling = self.headcount - self.blocked >= self.max_workers
        if not self.at_ceiling and (self.headcount <= self.blocked or self.headcount < self.min_workers):
            self._reserve(1)
            if self.slow_start:
                # The initializer may take any time, so the pool must not wait for this worker to arrive.
                self.covered = True
                return EXTRA
            self.searching = True
            return START
        if self.covered:
            return None
        self.covered = True
        return WATCH

    def _staff(self) -> str | None:
        """Under the mutex: do what `_arrange` does if tasks wait."""
        return self._arrange() if self._waiting() > 0 and not self.broken else None

    def _rouse(self) -> str | None:
        """Under the mutex: wake the worker that parked last; return an errand or None."""
        try:
            worker = self.parked.pop()
        except IndexError:
            # A signal handler has submitted a task meanwhile, and has woken that worker.
            return None
        worker.searching = True
        self.searching = True
        # What `_unpark` does, without the call: in the plain core a call could raise RecursionError, with the worker
        # off the stack and not woken.
        worker.parked = False
        worker.roused = True
        worker.fresh = True
        self.roused += 1
        worker.bell.release()
        return self._spare()

    def _spare(self) -> str | None:
        """Return the errand that has the timekeeper look, if spare workers are missing or many run, and it does not."""
        if self.covered:
            return None
        if self._lacks_spare():
            self.covered = True
            return WATCH
        if self.headcount <= self.crowd or self.minded or not self._crowded():
            return None
        self.minded = True
        return WATCH

    def _engaged(self) -> int:
        """Return how many workers have a task in hand, or are on their way to one; the blocked do not count."""
        return self.headcount - len(self.parked) - self.blocked

    def _crowded(self) -> bool:
        """Return whether so many workers run that they may be too many, though no task waits."""
        return self._engaged() > self.crowd

    def _has_room(self) -> bool:
        """Return whether a parked worker may be woken for a task."""
        return not self.held or self._engaged() < self.allowed

    def _admits(self) -> bool:
        """Return whether the calling worker, which has no task in hand, may take one."""
        return self.surplus == 0 and (not self.held or self._engaged() <= self.allowed)

    def admit(self, allowed: int) -> None:
        """Let `allowed` workers run at a time (`ALL`: every one); those beyond it park as their tasks end.

        A closed pool holds nobody back: its workers leave instead of parking.
        """
        errand = None
        with self.mutex:
            self.allowed = ALL if self.closed else max(1, allowed)
            self._measure()
            if self._waiting() > 0 and self.parked and not self.searching and self._has_room():
                errand = self._rouse()
        self._run(errand, None)

    def leave_alone(self) -> None:
        """Have the timekeeper called again if workers are woken while the pool is crowded."""
        with self.mutex:
            self.minded = False

    def _rouse_all(self) -> None:
        for worker in self.parked:
            self._unpark(worker)
            worker.bell.release()
        self.parked.clear()

    def _unpark(self, worker: Worker) -> None:
        worker.parked = False
        worker.roused = True
        worker.fresh = True
        self.roused += 1

    def _run(self, errand: str | None, future: FutureCore | None) -> None:
        """Do an errand, not under the mutex; withdraw `future` if no worker can be started for it."""
        if errand is None:
            return
        if errand is WATCH:
            self._watch()
            return
        try:
            crew = self.crew()
            if crew is None:
                raise RuntimeError("the executor is gone")
            interruption = crew.start(errand is START)
        except BaseException as error:
            # No thread was started, whatever the reason: the place reserved for it must not be lost.
            withdrawn = self.unreserve(errand is START, future, errand is HASTE)
            if errand is EXTRA:
                # `_arrange` has set `covered`, on which later submits rely.
                self._watch()
            if withdrawn or not isinstance(error, (RuntimeError, MemoryError)):
                raise
            return
        if errand is EXTRA:
            self._watch()
        if interruption is not None:
            try:
                raise interruption
            finally:
                # The traceback holds this frame.
                interruption = None

    def _watch(self) -> None:
        crew = self.crew()
        if crew is None:
            return
        try:
            refusal = crew.watch()
        except (RuntimeError, MemoryError) as error:
            refusal = error
        except BaseException:
            # A signal handler's error may have come before the timekeeper knew of this pool, which is `covered`.
            try:
                crew.watch()
            except BaseException:
                with self.mutex:
                    self.covered = False
            raise
        if refusal is not None:
            # There is no timekeeper that would try again.
            with self.mutex:
                self.covered = False
            self.give_up(refusal)

    def _waiting(self) -> int:
        return len(self.queue) - self.dead

    def _demand(self) -> int:
        """Return how many tasks want a worker: those in the queue, the seekers, and 1 if any was turned away."""
        return len(self.queue) - self.dead + len(self.seekers) + self.turned_away

    def _at_hand(self) -> int:
        """Return how many workers are parked, or woken and on their way to the queue."""
        return len(self.parked) + self.roused

    def _lacks_spare(self) -> bool:
        return len(self.parked) + self.starting < self.min_spare_workers and not self.closed

    def _special(self) -> None:
        self.special = self.closed or self.broken or self.max_queue >= 0 or self.mark is not None

    def look_for(self, mark: type) -> None:
        """Keep the tasks from now on that call an object of this type, for `take_marked`."""
        with self.mutex:
            self.mark = mark
            self._special()

    def _measure(self) -> None:
        surplus = self.headcount - self.blocked - self.max_workers
        self.surplus = surplus if surplus > 0 else 0
        self.held = self.allowed != ALL
        self.tight = surplus > 0 or self.held

    def _uncover(self) -> None:
        if self.at_ceiling:
            self.at_ceiling = False
            self.covered = False

    def _lend(self, places: int) -> None:
        self.lent += places
        self.max_workers += places
        self._measure()
        if places > 0:
            self._uncover()

    def _reserve(self, count: int) -> None:
        if not cython.compiled:
            _leave_room(ROOM)
        self.headcount += count
        self.starting += count

    def reserve(self, count: int) -> int:
        """Reserve places for up to `count` workers about to be started; return how many."""
        with self.mutex:
            room = self.max_workers + self.blocked - self.headcount
            if self.closed:
                room = min(room, self._waiting())
            count = max(0, min(count, room))
            self._reserve(count)
        return count

    def unreserve(self, searching: bool, future: FutureCore | None, bounded: bool) -> bool:
        """Give back the place of a worker that could not be started; the timekeeper tries again while tasks wait.

        Returns:
            True if `future` was taken off the queue, because no worker is left or it has no place there (`bounded`).
        """
        with self.mutex:
            self.headcount -= 1
            self.starting -= 1
            self._tell_idlers()
            if searching:
                self.searching = False
            self._uncover()
            withdrawn = future is not None and future._code == PENDING and (bounded or self.headcount == 0)
            if withdrawn and future is not None:
                self._withdraw(future)
            # A place has become free, and there may be no worker that would give it to the seekers.
            if self.seekers:
                self._make_room()
            watch = self._waiting() > 0 and not self.covered
            if watch:
                self.covered = True
        if watch:
            self._watch()
        return withdrawn

    def _withdraw(self, future: FutureCore) -> None:
        """Take back `_enter`, or a place among the seekers."""
        if future._held:
            if future in self.seekers:
                self.seekers.remove(future)
            return
        if self.ahead and self.queue.index(future) < self.ahead:
            self.ahead -= 1
        self.queue.remove(future)
        self.marked.pop(future, None)
        future._held = True
        if future._lane is not None:
            future._lane.leave()
            self._admit(future._lane)

    def enlist(self, worker: Worker) -> None:
        """Count a worker for which a place was reserved, before its thread starts."""
        with self.mutex:
            self.workers.append(worker)
            self.started += 1

    def delist(self, worker: Worker) -> None:
        """Take back `enlist`, if it was called, because the worker's thread could not be started."""
        with self.mutex:
            if worker in self.workers:
                self.workers.remove(worker)
                self.started -= 1

    def _arrived(self, worker: Worker) -> str | None:
        """Under the mutex: count a worker that was on its way and has taken a task; return an errand or None."""
        self._clear(worker)
        self.clock = monotonic()
        if self._waiting() > 0 and (self.parked or not self.covered):
            return self._arrange()
        return self._spare()

    def _clear(self, worker: Worker) -> None:
        if worker.starting:
            worker.starting = False
            self.starting -= 1
        if worker.roused:
            worker.roused = False
            self.roused -= 1
        if worker.searching:
            worker.searching = False
            self.searching = False
        worker.fresh = False
        worker.expired = False

    def _rest(self, worker: Worker) -> str | None:
        """Under the mutex: have a worker without a task park or leave; return an errand or None."""
        expired = worker.expired or self.patience == 0
        self._clear(worker)
        if self.surplus > 0:
            worker.leaving = True
        elif self.closed:
            # What is away may come back when no thread can be started any more.
            worker.leaving = not self.away or self.headcount - self.blocked > 1
        elif expired and self.headcount > self.min_workers and len(self.parked) >= self.min_spare_workers:
            worker.leaving = True
        if worker.leaving:
            self._remove(worker)
        else:
            # A worker that has waited and has to stay parks without a time limit, and does not wake for nothing.
            worker.patience = -1.0 if expired or self.closed else self.patience
            worker.parked = True
            self.parked.append(worker)
        if self.seekers:
            self._make_room()
        self._tell_idlers()
        return self._staff()

    def _remove(self, worker: Worker) -> None:
        self.workers.remove(worker)
        self.headcount -= 1
        self.retired += 1
        self._tell_idlers()
        self._measure()
        self._uncover()

    def expire(self, worker: Worker) -> None:
        """Take a worker whose patience is over off the stack; if it has just been woken, wait for its bell."""
        with self.mutex:
            woken = not worker.parked
            if not woken:
                self.parked.remove(worker)
                self._unpark(worker)
                worker.expired = True
        if woken:
            worker.bell.acquire()

    def bury(self, future: FutureCore, code: int) -> None:
        """Under the mutex: count a queued or held future that is done before its turn; admit others in its place."""
        lane = future._lane
        if code == NOTIFIED:
            self.cancelled += 1
            if lane is not None:
                lane.cancelled += 1
        else:
            self.taken += 1
            self.failed += 1
            if lane is not None:
                lane.taken += 1
                lane.failed += 1
        if future._held:
            if lane is not None:
                lane.dead += 1
            elif self.seekers and future in self.seekers:
                self.seekers.remove(future)
        else:
            self.dead += 1
            self.marked.pop(future, None)
            if lane is not None:
                lane.leave()
                self._admit(lane)
            if self.seekers:
                self._make_room()
        self._tell_idlers()

    @cython.locals(future=FutureCore)
    def sweep(self, future: FutureCore) -> None:
        """Drop dead futures from the queue, or from a future's lane, where they are many and at least half of them."""
        if self.dead >= COMPACT:
            self._compact(None)
        if future._lane is not None and future._lane.dead >= COMPACT:
            self._compact(future._lane)

    @cython.locals(future=FutureCore)
    def _compact(self, lane: LaneCore | None) -> None:
        # Made before the mutex is taken: that may run the garbage collector. A task that came back may be in the queue
        # twice; it keeps its first place.
        kept: dict[FutureCore, None] = {}
        trash: list[FutureCore] = []
        ahead = 0
        with self.mutex:
            collects = hold_collector()
            try:
                line = self.queue if lane is None else lane.backlog
                dead = self.dead if lane is None else lane.dead
                if dead < COMPACT or dead * 2 < len(line):
                    return
                for place in range(len(line)):
                    future = line.popleft()
                    if future._code == PENDING:
                        kept[future] = None
                    else:
                        trash.append(future)
                    if place < self.ahead:
                        ahead = len(kept)
                line.extend(kept)
                if lane is not None:
                    lane.dead = 0
                else:
                    self.dead = 0
                    self.ahead = ahead
            finally:
                let_collector(collects)

    @cython.locals(worker=Worker)
    def block(self, worker: Worker) -> None:
        """Count `worker`, which calls this, as blocked while it waits for its own pool; another may take its place."""
        if not cython.compiled:
            _leave_room(ROOM)
        with self.mutex:
            worker.waits += 1
            self.blocked += 1
            self._measure()
            self._uncover()
            errand = self._staff()
        self._run(errand, None)

    @cython.locals(worker=Worker, leaver=Worker)
    def unblock(self, worker: Worker) -> None:
        """Count `worker` as going on; a surplus worker leaves when it has no task in hand."""
        leaver = None
        with self.mutex:
            worker.waits -= 1
            self.blocked -= 1
            self._measure()
            if self.surplus > 0 and self.parked:
                leaver = self.parked.pop(0)
                self._unpark(leaver)
        if leaver is not None:
            leaver.bell.release()

    def seek(self, waiter: LockType, again: bool) -> bool:
        """Add a submitter to the seekers, at their head if it waits `again`; return False if there is room."""
        with self.mutex:
            if self._refusal() != "full":
                return False
            if again:
                self.seekers.appendleft(waiter)
            else:
                self.seekers.append(waiter)
            errand = None if self.searching or self.covered else self._arrange()
        self._run(errand, None)
        return True

    def unseek(self, waiter: LockType) -> None:
        """Remove a submitter that gives up; a place that was already kept for it goes to the next seeker."""
        with self.mutex:
            if waiter in self.seekers:
                self.seekers.remove(waiter)
            elif waiter in self.promised:
                self.promised.remove(waiter)
                self._make_room()

    def count_reject(self) -> None:
        """Count a task that was refused."""
        with self.mutex:
            self.rejected += 1

    def count_aside(self, failed: bool) -> None:
        """Count a task that was on no queue and has been run."""
        with self.mutex:
            self.taken += 1
            if failed:
                self.failed += 1

    def close(self) -> None:
        """Take no more tasks; workers leave once the queue is empty. May be called again."""
        with self.mutex:
            self.closed = True
            self.allowed = ALL
            self._measure()
            self._special()
            self._rouse_all()
            self._make_room()
            errand = self._staff()
        self._run(errand, None)

    def break_up(self) -> list[FutureCore]:
        """Take no more tasks, because workers cannot be initialised; return the futures that waited."""
        with self.mutex:
            self.broken = True
        self.close()
        return self.waiting()

    @cython.locals(worker=Worker, current=FutureCore)
    def dismiss(self, worker: Worker, error: BaseException | None) -> None:
        """Remove a worker that has not left by itself; `error` becomes the outcome of its task if that is not done."""
        with self.mutex:
            current = worker.current
            self._clear(worker)
            if worker.parked:
                self.parked.remove(worker)
            if worker in self.workers:
                self._remove(worker)
            worker.current = None
            if current is not None:
                if error is not None:
                    self.failed += 1
                if current._lane is not None:
                    self._vacate(current._lane, error is not None)
            self._make_room()
            errand = self._staff()
        if current is not None:
            current._drop_call()
            current._conclude(RUNNING, RUNNING, FINISHED, None, error)
        self._run(errand, None)

    @cython.locals(future=FutureCore, worker=Worker, held=LaneCore)
    def waiting(self, lane: LaneCore | None = None) -> list[FutureCore]:
        """Return the pending futures, of one lane or of all: those held in lanes, and those in the queue, oldest first.

        Held futures among the seekers are not there; a pool that is closed or has no worker has no seekers.
        """
        waiting: list[FutureCore] = []
        lanes: list[LaneCore] = []
        with self.mutex:
            collects = hold_collector()
            try:
                seen = list(self.queue)
                seen.extend(self.away)
                for worker in self.workers:
                    if worker.current is not None:
                        seen.append(worker.current)
                # This finds every lane in which futures wait: such a lane has others queued, running or away.
                for future in seen:
                    if future._lane is not None and future._lane not in lanes:
                        lanes.append(future._lane)
                for held in lanes:
                    waiting.extend(held.backlog)
            finally:
                let_collector(collects)
        seen = [*waiting, *seen]
        waiting.clear()
        for future in seen:
            if future._code == PENDING and (lane is None or future._lane is lane):
                waiting.append(future)
        return waiting

    def _idle(self) -> bool:
        if self._waiting() > 0 or self.away:
            return False
        for worker in self.workers:
            if worker.current is not None:
                return False
        return True

    def _tell_idlers(self) -> None:
        while self.idlers:
            self.idlers.pop().release()

    def forbids(self) -> str | None:
        """Return why the calling thread must not wait for this pool, or None."""
        if _here.keeps_time:
            return "this is the timekeeper's thread, and every pool relies on that"
        if not cython.compiled and self.mutex._is_owned():
            return "this signal handler or finaliser has interrupted the pool's own code, which waits for it"
        return None

    def stranded(self) -> int:
        """Return how many tasks wait that no worker will take: none is there, or all are blocked on this very pool."""
        with self.mutex:
            return self._waiting() if self.headcount <= self.blocked and not self.broken else 0

    @cython.locals(future=FutureCore)
    def give_up(self, refusal: BaseException) -> None:
        """Fail all tasks that wait, if no worker will take them; `refusal` is why the system starts none."""
        if self.stranded() == 0:
            return
        # Without the frames in which it was raised, which futures would keep alive.
        refusal.__traceback__ = None
        reason = f"no worker can run this task: {refusal}"
        waiting = self.waiting()
        LOGGER.critical("%d tasks have failed: %s", len(waiting), reason)
        for future in waiting:
            error = thread.BrokenThreadPool(reason)
            error.__cause__ = refusal
            future.reject(error)

    def await_idle(self, timeout: float, lane: LaneCore | None = None, remaining: int = -1) -> bool:
        """Wait up to `timeout` seconds (-1: for ever) until nothing is queued and nothing runs.

        With a `lane`, nothing of that. With a number of `remaining` workers, until no task waits or is away and there
        are no more than so many.
        """
        reason = None if timeout == 0 else self.forbids()
        deadline = monotonic() + timeout
        told = True
        while told:
            waiter = allocate_lock()
            waiter.acquire()
            with self.mutex:
                if lane is not None:
                    over = lane.admitted == 0
                elif remaining < 0:
                    over = self._idle()
                else:
                    over = self.headcount <= remaining and (self.broken or self._waiting() == 0) and not self.away
                if over:
                    return True
                if reason is None:
                    self.idlers.append(waiter)
            if reason is not None:
                raise RuntimeError(f"cannot wait for the pool here: {reason}")
            told = False
            try:
                told = waiter.acquire(True, timeout if timeout < 0 else max(0.0, deadline - monotonic()))
            finally:
                if not told:
                    with self.mutex:
                        if waiter in self.idlers:
                            self.idlers.remove(waiter)
        return False

    @cython.locals(head=FutureCore)
    def _trim(self, trash: list[FutureCore]) -> None:
        while self.dead and self.queue:
            head = self.queue[0]
            if head._code == PENDING:
                break
            trash.append(self.dequeue())
            self.dead -= 1
            if self.ahead:
                self.ahead -= 1

    def _oldest(self) -> FutureCore:
        """Return the oldest ordinary future, or else the last that goes first; some are queued."""
        head: FutureCore = self.queue[min(self.ahead, len(self.queue) - 1)]
        if head._code != PENDING:
            for future in islice(self.queue, self.ahead, self.ahead + SEARCHED):
                if future._code == PENDING:
                    return future
            for future in islice(self.queue, SEARCHED):
                if future._code == PENDING:
                    head = future
        return head

    def snapshot(self, now: float) -> Snapshot | None:
        """Return what the timekeeper needs to know at `now` (monotonic seconds), or None if it need not look again."""
        trash: list[FutureCore] = []
        errand = None
        with self.mutex:
            self.clock = now
            self._trim(trash)
            waiting = self._demand()
            self.turned_away = False
            needed = waiting > 0 or self._lacks_spare()
            self.minded = self._crowded()
            looked_at = needed or self.minded
            self.at_ceiling = needed and self.headcount - self.blocked >= self.max_workers
            self.covered = needed
            may_grow = not self.at_ceiling
            if self._waiting() > 0 and self.parked and not self.searching and self._has_room():
                errand = self._rouse()
            taken = self.taken
            headcount = self.headcount
            starting = self.starting
            idle = self._at_hand()
            blocked = self.blocked
        self._run(errand, None)
        if not looked_at:
            return None
        return Snapshot(may_grow, waiting, taken, headcount, starting, idle, blocked)

    @cython.locals(worker=Worker, future=FutureCore)
    def survey(self, calls: bool = False) -> Survey:
        """Return what the pool does at one moment, and its figures; with what is called if `calls`.

        Without `calls` it refers to nothing of a user's, which might end with the last reference to it.
        """
        # Tuples until the mutex is free: a named one is made by interpreted code.
        seen: list[Any] = []
        threads: list[threading.Thread] = []
        first: Any = None
        trash: list[FutureCore] = []
        with self.mutex:
            collects = hold_collector()
            try:
                self._trim(trash)
                now = monotonic()
                queued = self._waiting()
                if queued > 0:
                    future = self._oldest()
                    call = _call_of(future, calls and future._code == PENDING)
                    first = (future._queued_at, None, None, False, call)
                for worker in self.workers:
                    threads.append(worker.thread)
                    if worker.current is not None:
                        future = worker.current
                        call = _call_of(future, calls)
                        seen.append((worker.since, worker.thread, future._lane, worker.waits > 0, call))
                running = len(seen)
                for future, since in self.away.items():
                    seen.append((since, None, future._lane, False, _call_of(future, calls)))
                away = len(self.away)
                counts: dict[str, float] = {
                    # Not `headcount`, which counts reserved places too: the thread for one of them may fail to start.
                    "workers": len(self.workers),
                    "idle": len(self.workers) - running,
                    "running": running,
                    "blocked": self.blocked,
                    "queued": queued,
                    "submitted": self.taken + queued + self.cancelled - self.returned,
                    "completed": self.taken - self.failed - running - away - self.returned,
                    "failed": self.failed,
                    "cancelled": self.cancelled,
                    "rejected": self.rejected,
                    "started": self.started,
                    "retired": self.retired,
                    "spilled": self.spilled,
                    "spill_returned": self.returned,
                    "away": away,
                }
            finally:
                let_collector(collects)
        tasks = [Task(*each) for each in seen]
        oldest = None if first is None else Task(*first)
        counts["oldest_wait"] = 0.0 if oldest is None else now - oldest.since
        counts["longest_running"] = now - min([task.since for task in tasks], default=now)
        return Survey(tasks, oldest, threads, counts)

    def counts(self) -> dict[str, float]:
        """Return the figures of `PoolStats`."""
        return self.survey().counts

    def overdue(self, before: float) -> bool:
        """Return whether a marked task waits that was queued before `before` (monotonic seconds)."""
        with self.mutex:
            return self._first_marked(before) is not None

    def _first_marked(self, before: float) -> FutureCore | None:
        for future in self.marked:
            return future if future._queued_at < before else None
        return None

    def take_marked(self, before: float) -> tuple[Any, ...] | None:
        """Take the oldest marked task that was queued before `before` off the queue, to be run elsewhere.

        The task runs from now on; `bring_home` or `take_back` has to follow.

        Returns:
            (the future, what is called, its arguments, its keyword arguments, its context), or None.
        """
        with self.mutex:
            collects = hold_collector()
            try:
                found: Any = self._first_marked(before)
                if found is None:
                    return None
                found._code = RUNNING
                del self.marked[found]
                # Its place in the queue stays behind; to take it out of the middle would cost a search.
                self.dead += 1
                self.taken += 1
                self.spilled += 1
                self.away[found] = monotonic()
                if self.seekers:
                    self._make_room()
            finally:
                let_collector(collects)
        self.sweep(found)
        kwargs = None if found._kwargs is True else found._kwargs
        return found, found._fn, found._packed(), kwargs, _context_of(found)

    def bring_home(self, future: FutureCore, value: Any, error: BaseException | None, cancels: bool = False) -> None:
        """Finish a task that was away, or cancel it; count it once its callbacks are done."""
        try:
            future._conclude(RUNNING, RUNNING, NOTIFIED if cancels else FINISHED, value, error)
        finally:
            future._drop_call()
            errand = None
            with self.mutex:
                if self.away.pop(future, None) is not None:
                    if error is not None:
                        self.failed += 1
                    if cancels:
                        self.returned += 1
                        self.cancelled += 1
                    if future._lane is not None:
                        if cancels:
                            future._lane.taken -= 1
                            future._lane.cancelled += 1
                        self._vacate(future._lane, error is not None)
                    self._tell_idlers()
                    errand = self._staff()
                    if self.closed and not self.away:
                        self._rouse_all()
            self._run(errand, None)

    def take_back(self, future: FutureCore, fn: Any, args: Any, kwargs: Any) -> bool:
        """Queue a task that was away, with a call that is not marked, before all others; it keeps its age.

        Returns:
            False if the pool is broken; nothing has changed then.
        """
        errand = None
        with self.mutex:
            if self.broken:
                return False
            if self.away.pop(future, None) is None:
                # It was left with the parent of a fork.
                return True
            # What was called is kept until the mutex is free.
            before, future._fn = future._fn, fn
            given, future._args = future._args, args
            named, future._kwargs = future._kwargs, kwargs
            future._code = PENDING
            self.returned += 1
            if future._lane is not None and future._lane.first:
                self.queue.appendleft(future)
                self.ahead += 1
            else:
                self.queue.insert(self.ahead, future)
            errand = self._arrange()
            if self.closed and not self.away:
                self._rouse_all()
        del before, given, named
        self._run(errand, None)
        return True

    def reopen(self) -> bool:
        """In a forked child: free the mutex if a thread that stayed with the parent held it; return whether one did."""
        if cython.compiled:
            return free_mutex(self)
        if self.mutex.acquire(False):
            # The mutex was free, or the calling thread holds it.
            self.mutex.release()
            return False
        self.mutex = threading.RLock()
        return True

    @cython.locals(future=FutureCore, mine=FutureCore, lane=LaneCore, worker=Worker)
    def renew(self, error: BaseException) -> None:
        """In a forked child: forget the threads that stayed with the parent, and fail the futures they left behind.

        Callbacks of these futures belong to the parent and do not run here. A worker that itself forked exists in the
        child, and stays. State that a thread may have been changing when the process forked is not trusted.
        """
        caught = self.reopen()
        here = _here.worker
        lost = self.waiting()
        lost.extend(self.away)
        lost.extend(seeker for seeker in self.seekers if type(seeker) is not LockType)
        lanes: set[LaneCore] = set()
        stayed = []
        mine: Any = None
        for worker in self.workers:
            if worker is here:
                stayed.append(worker)
                mine = worker.current
            elif worker.current is not None:
                lost.append(worker.current)
        if caught:
            _search(self, lost, lanes)
        for future in lost:
            if future._lane is not None:
                lanes.add(future._lane)
        with self.mutex:
            collects = hold_collector()
            try:
                self.queue = deque()
                self._use_queue()
                self.parked = []
                self.workers = stayed
                self.seekers = deque()
                self.promised = []
                self.idlers = []
                self.away = {}
                self.marked = {}
                self.headcount = len(self.workers)
                self.retired = self.started - self.headcount
                self.searching = self.covered = self.at_ceiling = self.turned_away = False
                self.roused = self.starting = self.blocked = self.dead = self.ahead = 0
                self.lent = 0
                self.allowed = ALL
                self.minded = False
                self.max_workers = self.ceiling
                if mine is not None and mine._lane is not None:
                    lanes.add(mine._lane)
                for lane in lanes:
                    lane.renew()
                if mine is not None and mine._lane is not None:
                    mine._lane.enter()
                self._special()
                self._measure()
            finally:
                let_collector(collects)
        for future in lost:
            if future is not mine:
                future.disown(error)


@cython.locals(future=FutureCore, lane=LaneCore)
def _search(pool: Pool, futures: list[FutureCore], lanes: set[LaneCore]) -> None:
    """Add all unfinished futures, and the lanes, of a pool that was being changed when the process forked.

    A thread that stayed with the parent may have been moving futures that are on no queue now.
    """
    for thing in gc.get_objects():
        # Not isinstance, which reads `__class__` of the object: a proxy would run code of its own.
        if issubclass(type(thing), FutureCore):
            future = thing
            try:
                if future._pool is pool and future._code < CANCELLED:
                    futures.append(future)
            except AttributeError:
                # In the plain core, a future without fields is just being made, and nothing else refers to it.
                continue
        elif type(thing) is LaneCore:
            lane = thing
            if lane.pool is pool:
                lanes.add(lane)


class ExecutorCore:
    """The part of an executor that every task passes."""

    _pool: Pool
    _way: int

    def _runs_here(self) -> bool:
        """Return whether the calling thread runs a task of this pool."""
        worker = current_worker()
        return worker is not None and worker.pool is self._pool

    @cython.nonecheck(False)
    @cython.locals(pool=Pool, future=FutureCore, strange=cython.bint)
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Queue `fn(*args, **kwargs)` and return its `Future`.

        Raises:
            TypeError: `fn` is not callable.
            RuntimeError: the executor has been shut down, or it has no thread and none can be started.
            BrokenThreadPool: a worker's initializer failed.
            QueueFull: `max_queue` tasks wait and `when_full` is "reject".
        """
        if not callable(fn):
            raise TypeError(f"fn must be callable, not {fn!r}")
        if cython.compiled:
            breathe()
            strange = altered()
        else:
            strange = _Standard.submit is not _own or _own.__code__ is not _own_code
        if strange and _replaced():
            return self._instrumented(partial(self.take_in, None, False), fn, args, kwargs)
        pool = self._pool
        if pool is None:
            raise RuntimeError(f"{type(self).__name__}.__init__() was never called")
        future = blank(FutureCore, _Future, _EMPTY) if cython.compiled else _bare(Future)
        future._pool = pool
        if pool.wrapping:
            if pool.skip > 0 and not pool.contextual:
                # What `wrap` would do, without the cost of a call for each task.
                pool.skip -= 1
            else:
                fn, args, kwargs = pool.wrap(fn, args, kwargs, pool.contextual)  # type: ignore[assignment]  # None is empty
        future._fn = fn
        if not cython.compiled:
            future._code = PENDING
            future._value = future._error = future._audience = future._cond = future._observers = future._lane = None
            future._not_run = None
            future._held = False
            future._args = args
            future._kwargs = kwargs if kwargs else None
        elif len(args) == 1 and not kwargs:
            future._args = args[0]
            future._kwargs = True
        else:
            future._args = args
            future._kwargs = kwargs if kwargs else None
        future._queued_at = pool.clock
        errand = None
        with pool.mutex:
            special = pool.special
            if not special:
                pool.enqueue(future)
                if not pool.searching and (pool.parked or not pool.covered):
                    try:
                        errand = pool._arrange()
                    except BaseException:
                        pool.queue.remove(future)
                        raise
                future._queued_at = pool.clock
        if errand is not None:
            pool._run(errand, future)
        elif special:
            refusal = pool.push(future)
            if refusal is not None:
                self._refused(future, refusal, False)
        return future

    def submit_first(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Queue `fn(*args, **kwargs)` before everything that waits; raise what `submit` raises.

        Once an ordinary task has waited for 0.1 s, ordinary tasks and those that go first are taken in turn.
        """
        return self.hand_in(None, True, fn, args, kwargs)

    def hand_in(
        self, lane: LaneCore | None, first: bool, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Queue a call in `lane`, or at the head of the queue if it is to be `first`; raise what `submit` raises."""
        if instrumented():
            return self._instrumented(partial(self.take_in, lane, first), fn, args, kwargs)
        return ExecutorCore.take_in(self, lane, first, fn, args, kwargs)

    def take_in(
        self, lane: LaneCore | None, first: bool, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Do what `hand_in` does, but without asking the instrumentation of `ThreadPoolExecutor.submit`."""
        future = blank(FutureCore, _Future, _EMPTY) if cython.compiled else _bare(Future)
        self._prepare(future, fn, args, kwargs)
        future._lane = lane
        refusal = self._pool.push(future, first)
        if refusal is not None:
            self._refused(future, refusal, first)
        return future

    def submit_later(self, delay: float, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Queue `fn(*args, **kwargs)` `delay` seconds from now, never earlier; any thread may call this.

        The future can be cancelled until the call starts, also while it is queued. Until it is due, the call takes no
        thread and no place in the queue; when it is due and the queue is full, it waits its turn behind blocked
        submitters, whatever `when_full` says. The clock is `time.monotonic`: setting the wall clock changes nothing,
        and the time for which a machine is suspended counts on Windows, not on Linux and macOS. The pool is kept alive
        until the call is done. `shutdown`, also at the end of ``with``, and the end of the interpreter cancel calls
        that are not due.

        Raises:
            TypeError: `fn` is not callable, or `delay` is no number.
            ValueError: `delay` is negative, infinite or not a number.
            RuntimeError: The executor has been shut down, the interpreter exits, or no thread can be started.
            BrokenThreadPool: A worker's initializer failed.
        """
        if type(delay) is not float or not 0.0 <= delay < inf or instrumented():
            return self._delay(delay, fn, args, kwargs)
        future = self.hold_back(fn, args, kwargs)
        self._crew.timers.add_after(self, future, delay)  # type: ignore[attr-defined]  # the executor has it
        return future

    @cython.locals(future=DelayedCall)
    def hold_back(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        """Return a pending future for a call that is on no queue yet; see `release`.

        Raises:
            TypeError: `fn` is not callable.
            RuntimeError: the executor has been shut down.
        """
        if self._pool.closed:
            self._refused(None, "broken" if self._pool.broken else "closed", False)
        future: DelayedCall = blank(DelayedCall, _DelayedFuture, _EMPTY) if cython.compiled else _bare(DelayedFuture)
        self._prepare(future, fn, args, kwargs)
        future._held = True
        future._executor = self
        future._audience = _NOBODY
        return future

    @cython.locals(future=FutureCore)
    def release(self, future: FutureCore) -> bool:
        """Queue a future that was held back, if it is still pending; with a full queue it waits its turn.

        It neither waits nor raises: if no worker can be started, the future fails with the error.

        Returns:
            False if the pool takes no more tasks; the future is unchanged then.
        """
        try:
            refusal = self._pool.push(future, False, None, True)
        except RuntimeError as error:
            future.reject(error)
            return True
        return refusal is None

    def offload(
        self,
        mailbox: Mailbox,
        ticket: Any,
        context: Context | None,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None,
        lane: LaneCore | None = None,
    ) -> LoopCall:
        """Queue a call, to be run in `context` if there is one, whose outcome goes to `ticket` through `mailbox`.

        With a full queue and `when_full` "block" the call waits its turn without blocking the thread.

        Raises:
            TypeError: `fn` is not callable.
            RuntimeError: as `submit` does.
        """
        if context is None and self._pool.contextual:
            context = copy_context()
        call: LoopCall = LoopCall.__new__(LoopCall)
        self._prepare(call, fn, args, kwargs)
        if cython.compiled:
            call._context = context
        elif context is not None:
            given: Any = call._fn
            call._args = (partial(given, **kwargs) if kwargs else given, *args)
            call._fn, call._kwargs = context.run, None
        call._mailbox = mailbox
        call._ticket = ticket
        call._audience = _NOBODY
        call._lane = lane
        first = lane is not None and lane.first
        refusal = self._pool.push(call, first)
        if refusal is not None:
            self._refused(call, refusal, first)
        return call

    def _prepare(
        self, future: FutureCore, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None
    ) -> FutureCore:
        if not callable(fn):
            raise TypeError(f"fn must be callable, not {fn!r}")
        if cython.compiled:
            breathe()
        if self._pool.wrapping:
            contextual = self._pool.contextual and type(future) is not LoopCall
            fn, args, kwargs = self._pool.wrap(fn, args, kwargs, contextual)
        if not cython.compiled:
            future._code = PENDING
            future._value = future._error = future._audience = future._cond = future._observers = future._lane = None
            future._not_run = None
            future._held = False
        future._pool = self._pool
        future._fn = fn
        if cython.compiled and len(args) == 1 and not kwargs:
            future._args = args[0]
            future._kwargs = True
        else:
            future._args = args
            future._kwargs = kwargs if kwargs else None
        return future

    def run(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Have `fn(*args, **kwargs)` run by a worker; return an `asyncio.Future` of the running loop for its result.

        Raises:
            TypeError: `fn` is not callable.
            RuntimeError: no asyncio loop runs in this thread, or as `submit` does.
            QueueFull: `max_queue` tasks wait and `when_full` is "reject".
        """
        return ExecutorCore.run_in(self, None, fn, args, kwargs)

    def run_in(
        self, lane: LaneCore | None, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Do what `run` does, in a lane if one is given."""
        if _get_loop is None:
            self._connect()
        try:
            loop = _get_loop()
        except RuntimeError:
            raise RuntimeError("no asyncio event loop runs in this thread; outside of one, use submit()") from None
        return ExecutorCore.run_on(self, loop, None, copy_context(), fn, args, kwargs, lane)

    def run_on(
        self,
        loop: Any,
        ticket: Any,
        context: Context | None,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None,
        lane: LaneCore | None = None,
    ) -> Any:
        """Do what `run` does, for `loop`, with a given future or a new one of the running loop."""
        mailbox = getattr(loop, _mailbox_name, None)
        if mailbox is None:
            mailbox = _make_mailbox(loop)
        if ticket is None:
            ticket = _LoopFuture()
        if cython.compiled and self._takes_calls():
            ticket._call = ExecutorCore.offload(self, mailbox, ticket, context, fn, args, kwargs, lane)
        else:
            ticket._call = self.offload(mailbox, ticket, context, fn, args, kwargs, lane)
        return ticket

    def _takes_calls(self) -> bool:
        """Return whether `offload` is the engine's own, so that compiled code need not look it up for each call."""
        if self._way == 0:
            own: Any = ExecutorCore
            self._way = 1 if type(self).offload is own.offload else 2
        return self._way == 1

    def _instrumented(
        self, queue: Callable[..., Any], fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call `queue` with what the instrumentation of `ThreadPoolExecutor.submit` makes of a call."""
        raise NotImplementedError

    def _delay(self, delay: Any, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do what `submit_later` does, whatever `delay` is, and for an instrumented pool."""
        raise NotImplementedError

    def _connect(self) -> None:
        """Have `connect` called."""
        raise NotImplementedError

    def _refused(self, future: Any, refusal: str | None, first: bool) -> None:
        """Deal with a task that the pool did not take: raise why, or do what `when_full` says."""
        raise NotImplementedError


_NOBODY: list[Any] = []
"""The audience of a `LoopCall`, and of a `DelayedCall` at first: not None, so that `_tell` is called; always empty."""

_get_loop: Any = None
_make_mailbox: Any = None
_mailbox_name: Any = None
_LoopFuture: Any = None


def connect(
    get_loop: Callable[[], Any], make_mailbox: Callable[[Any], Mailbox], loop_future: type, mailbox_name: str
) -> None:
    """Set what the engine needs from asyncio; called by `ebbpool._loops.delivery`."""
    global _get_loop, _make_mailbox, _LoopFuture, _mailbox_name
    _get_loop = get_loop
    _mailbox_name = mailbox_name
    _make_mailbox = make_mailbox
    _LoopFuture = loop_future


_ORPHANS = Pool(None)
"""The closed pool of futures that no executor made, and of executors whose `__init__` was not called."""
_ORPHANS.close()

orphans = _ORPHANS


def keep_time(keeps: bool = True) -> None:
    """Set whether the calling thread is the timekeeper's, which must not wait for any pool."""
    _here.keeps_time = keeps


def current_worker() -> Any:
    """Return the calling thread's `Worker`, or None."""
    return _here.worker
