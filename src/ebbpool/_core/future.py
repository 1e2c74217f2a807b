"""The future: its states, who waits for it, and its end."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, InvalidStateError
from concurrent.futures._base import LOGGER
from types import FunctionType
from typing import TYPE_CHECKING, Any, NoReturn

from ebbpool._core import uncompiled as cython
from ebbpool._core.latch import LockType, allocate_lock

if not TYPE_CHECKING and cython.compiled:
    import cython
if not cython.compiled:
    # For compiled code future_c.pxd declares these.
    from ebbpool._core.pool import _ORPHANS, ROOM, Pool, _leave_room
    from ebbpool._core.task import Task
    from ebbpool._core.uncompiled import CANCELLED, FINISHED, NOTIFIED, PENDING, RUNNING, slotted

from ebbpool._core.scope import Scope
from ebbpool._core.waits import Observers, here, runs_loop
from ebbpool._errors import QueueTimeout

COMPILED = bool(cython.compiled)

STATES = ("PENDING", "RUNNING", "CANCELLED", "CANCELLED_AND_NOTIFIED", "FINISHED")
DESCRIPTIONS = ("pending", "running", "cancelled", "cancelled", "finished")

_NOBODY: list[Any] = []
"""Shared empty list: makes the worker take the path through `_tell`, for a `LoopCall` and at first a delayed call."""

# Interpreted even where this file is compiled: a call of it passes the eval breaker.
_interpreted: Callable[[], None] = eval("lambda: None")


CHAINS = "asyncio.futures"
"""The module of the callback by which `asyncio.wrap_future` has a loop told of the outcome."""
_relayed: Any = lambda callback, future: False  # noqa: E731  (until `relay_by` is called)


def relay_by(relayed: Callable[[Any, Any], bool]) -> None:
    """Have `relayed(callback, future)` called in place of such a callback, which is called if that returns False."""
    global _relayed
    _relayed = relayed


class FutureCore(Task):
    """State and protocol of a future; a pending one carries its own call. Times are in monotonic seconds."""

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled."""
        raise TypeError(f"cannot pickle {type(self).__name__!r} object")

    def __init__(self) -> None:
        Task.__init__(self)
        self._pool = _ORPHANS

    @cython.locals(pool=Pool)
    def cancel(self) -> bool:
        """Cancel the call if it has not started; wake waiters and run callbacks in the calling thread.

        A running call goes on, and can learn of it by `ebbpool.cancelled` and its kin. What it has given to
        `ebbpool.on_cancel` runs in the calling thread. If that runs an event loop, it runs in ebbpool's timer thread,
        and the call counts as abandoned.

        Returns:
            True if the call will never run.
        """
        pool: Pool = self._pool
        wanted = CANCELLED if pool is _ORPHANS else NOTIFIED
        if not self._conclude(PENDING, PENDING, wanted, None, None):
            if self._code == RUNNING:
                scope = self._ensure_scope()
                if runs_loop():
                    # What runs in this thread cannot wait for the call: its await was given up.
                    pool.abandon(scope, True)
                    # A callback might block the loop.
                    scope.cancel(pool.call_soon)
                else:
                    scope.cancel()
            return self.cancelled()
        self._forget()
        pool.sweep(self)
        return True

    @cython.locals(pool=Pool)
    def _ensure_scope(self) -> Scope:
        """Return what may end the call early; made if there is none yet."""
        pool: Pool = self._pool
        fresh = Scope()
        with pool.mutex:
            # Looked at here only: it is let go with the call.
            scope: Scope | None = self._scope
            if scope is None:
                scope = self._scope = fresh
        return scope

    def _forget(self) -> None:
        """Drop a call that will not be made."""
        self._executor = self._fn = self._args = self._kwargs = self._scope = None

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
        """Return what the call returned; wait for it.

        A task that waits for a future of its own pool counts as blocked meanwhile, and another thread may stand in.

        Args:
            timeout: Seconds to wait at most; None for no limit, 0 or less for not at all.

        Raises:
            CancelledError: The call was cancelled.
            TimeoutError: The call did not finish in time.
            QueueTimeout: The call waited for longer than its `max_wait`, or past its deadline, and did not run.
            BrokenThreadPool: No thread could run it, or it belongs to the process that this one was forked from.
            RuntimeError: This thread must not wait: it is ebbpool's timer thread, or has interrupted the pool's own
                code, as a finaliser or a signal handler may.
            BaseException: Whatever the call raised.
        """
        if self._code != FINISHED:
            self._wait_for_outcome(timeout)
        if self._exception is None:
            return self._result
        try:
            raise self._exception
        finally:
            # Breaks a cycle: the error holds the traceback, which holds this frame, which would hold the error.
            self = None  # type: ignore[assignment]  # breaks a cycle

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what the call raised, or why it did not run; None if it returned. Wait for it, as `result` does.

        Args:
            timeout: Seconds to wait at most; None for no limit, 0 or less for not at all.

        Raises:
            CancelledError: The call was cancelled.
            TimeoutError: The call did not finish in time.
            RuntimeError: This thread must not wait; see `result`.
        """
        self._wait_for_outcome(timeout)
        return self._exception

    @cython.locals(pool=Pool)
    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Have `fn(self)` called once the future is done.

        It runs in the thread that ends the future: the worker that ran the call, who cancelled it, or ebbpool's timer
        thread, in which it must not block, if the call waited for too long. If the future is done already, it runs at
        once in the calling thread. What it raises is logged to the ``concurrent.futures`` logger.

        Raises:
            TypeError: `fn` is not callable.
        """
        pool: Pool = self._pool
        if not callable(fn):
            raise TypeError(f"fn must be callable, not {fn!r}")
        # A list made under the mutex might run the garbage collector there, and with it any code.
        alone = [fn]
        with pool.mutex:
            waits = self._code < CANCELLED
            if waits:
                self._join(alone)
        if not waits:
            # `_tell` is for the thread that ends the future, which may not have come to it yet.
            self._call_back(alone)

    def _join(self, alone: list[Any]) -> None:
        """Under the mutex: add one to the audience. An empty audience may be shared, see `_NOBODY`; it is replaced."""
        if self._audience:
            self._audience.append(alone[0])
        else:
            self._audience = alone

    @cython.locals(pool=Pool)
    def tell_unless_returned(self, fn: Callable[[Any], object]) -> None:
        """Have `fn(self)` called: at once if the future is done, else if the call is not made, or raises."""
        pool: Pool = self._pool
        with pool.mutex:
            over = self._code >= CANCELLED
            if not over:
                self._not_run = fn
        if over:
            self._call_back([fn])

    @cython.locals(pool=Pool)
    def set_running_or_notify_cancel(self) -> bool:
        """Mark the future as running; return False if it was cancelled. For executors only."""
        pool: Pool = self._pool
        actions = 0
        if not cython.compiled and pool is not _ORPHANS:
            _leave_room(ROOM)
        with pool.mutex:
            started = self._code == PENDING
            if started:
                self._code = RUNNING
                if pool is not _ORPHANS:
                    if self._line is not None:
                        self._line.dead += 1
                    pool.end(self, RUNNING, False)
                actions = pool._balance(False)
        if started:
            pool._perform(actions, None)
            return True
        if self._conclude(CANCELLED, CANCELLED, NOTIFIED, None, None):
            return False
        if self._code == NOTIFIED and pool is not _ORPHANS:
            # The waiters were told by `cancel`.
            return False
        LOGGER.critical("Future %s in unexpected state: %s", id(self), self._state)
        raise RuntimeError("Future in unexpected state")

    def set_result(self, result: Any) -> None:
        """Set the result. For executors and tests only."""
        if not self._conclude(PENDING, RUNNING, FINISHED, result, None):
            raise InvalidStateError(f"{self._state}: {self!r}")

    def set_exception(self, exception: BaseException | None) -> None:
        """Set the exception. For executors and tests only."""
        if not self._conclude(PENDING, RUNNING, FINISHED, None, exception):
            raise InvalidStateError(f"{self._state}: {self!r}")

    @cython.locals(pool=Pool)
    def _conclude(self, first: int, last: int, code: int, value: Any, error: BaseException | None) -> bool:
        """Move a future whose state lies in first..last to `code`, and tell its audience; return whether it moved."""
        pool: Pool = self._pool
        audience = None
        waits = False
        actions = 0
        with pool.mutex:
            condition = self._cond
            if condition is None:
                waits = self._code == PENDING
                audience = self._move(first, last, code, value, error)
                if waits:
                    actions = pool._balance(False)
        if condition is not None:
            with condition:
                with pool.mutex:
                    waits = self._code == PENDING
                    audience = self._move(first, last, code, value, error)
                    if waits:
                        actions = pool._balance(False)
                if audience is not None:
                    if self._observers is not None and code != CANCELLED:
                        self._observers.tell(self, code == NOTIFIED, error)
                    condition.notify_all()
        if audience is None:
            return False
        not_run, self._not_run = self._not_run, None
        if not_run is not None and (waits or error is not None):
            audience = [*audience, not_run]
        self._tell(audience)
        if actions:
            pool._perform(actions, None)
        return True

    @cython.locals(pool=Pool)
    def _move(self, first: int, last: int, code: int, value: Any, error: BaseException | None) -> list[Any] | None:
        """Under the mutex: end a future whose state lies in first..last; return who is to be told, or None."""
        pool: Pool = self._pool
        if not cython.compiled and self._code == PENDING and pool is not _ORPHANS:
            _leave_room(ROOM)
        if self._code < first or self._code > last:
            return None
        waits = self._code == PENDING and pool is not _ORPHANS
        audience, self._audience = self._audience, None
        if code == FINISHED:
            self._result = value
            self._exception = error
        # In one stretch without calls: a handler or a finaliser may end this future, too.
        self._code = code
        if waits:
            if self._line is not None:
                self._line.dead += 1
            try:
                pool.end(self, code, type(error) is QueueTimeout)
            except BaseException:
                # Ctrl-C, in the plain core. Threads that wait must not do so for ever.
                for listener in audience or ():
                    if isinstance(listener, LockType):
                        listener.release()
                raise
        return _NOBODY if audience is None else audience

    def reject(self, error: BaseException) -> bool:
        """Fail a task that no worker will run, if it is still pending; return whether it was."""
        fails = self._conclude(PENDING, PENDING, FINISHED, None, error)
        if fails:
            self._forget()
        return fails

    @cython.locals(pool=Pool)
    def _drop_call(self) -> None:
        """Drop the call of a task that has been made; what it holds may end in any way, but not under the mutex."""
        pool: Pool = self._pool
        with pool.mutex:
            fn, args, kwargs, scope = self._fn, self._args, self._kwargs, self._scope
            self._fn = self._args = self._kwargs = self._scope = None
        del fn, args, kwargs, scope

    def disown(self, error: BaseException) -> None:
        """In a forked child: fail without telling the audience; threads of the parent may have held its locks."""
        self._audience = self._cond = self._observers = self._not_run = None
        self._forget()
        if self._code < CANCELLED:
            self._exception = error
            self._code = FINISHED

    def _tell(self, audience: list[Any]) -> None:
        executor, self._executor = self._executor, None
        if executor is not None:
            # A part of the audience, so that the others are told whatever interrupts this.
            audience = [executor._forget_delayed, *audience]
        self._call_back(audience)

    def _call_back(self, audience: list[Any]) -> None:
        interrupt = None
        # Waiting threads first: a callback may take long, or wait for a thread that waits for the result.
        for listener in audience:
            if type(listener) is LockType:
                listener.release()
        for listener in audience:
            if type(listener) is LockType:
                continue
            try:
                if type(listener) is not FunctionType or listener.__module__ != CHAINS or not _relayed(listener, self):
                    listener(self)
            except BaseException as error:
                LOGGER.exception("exception calling callback for %r", self)
                # A worker and the timekeeper survive it. In any other thread it is raised once the rest of the audience
                # has been told.
                if not (issubclass(type(error), Exception) or _here.worker is not None or _here.keeps_time):
                    interrupt = error
        if interrupt is not None:
            raise interrupt

    def _wait_for_outcome(self, timeout: float | None) -> None:
        if self._code < CANCELLED:
            self._await(timeout)
            if self._code < CANCELLED:
                raise TimeoutError()
        if self._code != FINISHED:
            raise CancelledError()

    @cython.locals(pool=Pool)
    def _await(self, timeout: float | None) -> None:
        pool: Pool = self._pool
        if timeout is None or timeout > 0:
            reason = pool.forbids()
            if reason is not None:
                raise RuntimeError(f"cannot wait for a future here: {reason}")
        if pool is _ORPHANS:
            # Code that makes its own futures may set their state by hand and notify the condition.
            condition = self._condition
            with condition:
                if self._code < CANCELLED:
                    condition.wait(timeout)
            return
        limit = -1.0 if timeout is None else max(0.0, timeout)
        waiter = allocate_lock()
        waiter.acquire()
        alone = [waiter]
        told = False
        try:
            with pool.mutex:
                told = self._code >= CANCELLED
                if not told:
                    self._join(alone)
            if told:
                return
            if _here.worker is not None:
                told = pool.wait_counted(waiter.acquire, True, limit)
            elif timeout is None:
                told = waiter.acquire()
            else:
                told = waiter.acquire(True, limit)
        finally:
            if not told:
                self._ignore(waiter)

    @cython.locals(pool=Pool)
    def _ignore(self, waiter: LockType) -> None:
        # Compared by identity: a callback's own __eq__ must not run under the mutex.
        pool: Pool = self._pool
        with pool.mutex:
            if self._audience is not None:
                for place in range(len(self._audience)):
                    if self._audience[place] is not waiter:
                        continue
                    del self._audience[place]
                    break

    @property
    @cython.locals(pool=Pool)
    def _condition(self) -> threading.Condition:
        pool: Pool = self._pool
        fresh = threading.Condition()
        with pool.mutex:
            if self._cond is None:
                self._cond = fresh
                # The worker's loop finishes a future without audience by itself. Given one, it calls `_conclude`,
                # which takes the condition first.
                if self._audience is None and self._code < CANCELLED:
                    self._audience = _NOBODY
            condition = self._cond
        return condition

    @property
    @cython.locals(pool=Pool)
    def _waiters(self) -> list[Any]:
        pool: Pool = self._pool
        fresh = Observers(pool)
        with pool.mutex:
            if self._observers is None:
                self._observers = fresh
            observers: list[Any] = self._observers
        return observers

    @property
    @cython.locals(pool=Pool)
    def _done_callbacks(self) -> tuple[Callable[[Any], object], ...]:
        pool: Pool = self._pool
        with pool.mutex:
            audience = self._audience
        return tuple([each for each in audience or () if type(each) is not LockType])

    @property
    def _state(self) -> str:
        return STATES[self._code]

    @_state.setter
    def _state(self, state: str) -> None:
        self._code = STATES.index(state)

    def __repr__(self) -> str:
        text = f"<{type(self).__name__} at {id(self):#x} state={DESCRIPTIONS[self._code]}"
        if self._code != FINISHED:
            return text + ">"
        if self._exception is not None:
            return f"{text} raised {type(self._exception).__name__}>"
        return f"{text} returned {type(self._result).__name__}>"


if not cython.compiled:
    FutureCore = slotted(FutureCore)  # type: ignore[misc]  # the same class


# The standard library's Future has plain attributes where FutureCore has properties.
class Future(FutureCore, concurrent.futures.Future):  # type: ignore[type-arg, override]  # see `accel.Future`
    """The result of a call handed to a pool: a `concurrent.futures.Future` that is cheap until it is waited on."""

    @cython.locals(future=FutureCore)
    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make one that is complete without `__init__`, which a subclass may forget; `submit` does not use this."""
        future = FutureCore.__new__(cls)
        FutureCore.__init__(future)
        return future


# As compiled code finds them without a look into the module's names, and plain code without one for `__new__`.
_Future: Any = Future
_EMPTY: tuple[()] = ()
_here = here
_bare: Any = FutureCore.__new__
