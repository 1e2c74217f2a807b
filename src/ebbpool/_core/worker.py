"""A worker's loop; the scope of the task that a thread runs; and `Probe`, which times a call's wait and its run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures._base import LOGGER
from typing import TYPE_CHECKING, Any

from ebbpool._core import uncompiled as cython
from ebbpool._core.latch import LockType, allocate_lock

if not TYPE_CHECKING and cython.compiled:
    import cython
if not cython.compiled:
    # For compiled code worker_c.pxd declares these.
    from ebbpool._clock import monotonic

    if TYPE_CHECKING:
        from ebbpool._core.known import Known
        from ebbpool._core.pool import Pool
        from ebbpool._core.scope import Scope
    from ebbpool._core.future import _NOBODY, FutureCore, _here
    from ebbpool._core.uncompiled import FINISHED, PENDING, RUNNING, breathe, called, called_with, enter, fence, leave

from ebbpool._errors import trimmed
from ebbpool._interpreter import GIL_ENABLED


class Worker:
    """One thread's place in a pool."""

    def __init__(self, pool: Pool, searching: bool) -> None:
        self.pool = pool
        # It waits for this lock while it is parked, which is free only when it has been woken.
        self.bell: LockType = allocate_lock()
        self.bell.acquire()
        self.thread: threading.Thread = threading.main_thread()
        self.current: FutureCore | None = None  # the task in hand, until its callbacks are done
        self.since: float = 0.0  # when that was taken (monotonic seconds)
        self.noted: bool = False  # whether its end concerns the pool: it is measured or written off
        self.known: Known | None = None  # what is known of what that calls, if it is measured
        self.begun: float = 0.0  # when that began, if it is measured (monotonic seconds)
        self.ahead: bool = False  # whether it went first, as a short one
        self.short: bool = False  # whether there was a place for it only as a short call; see `Pool.shorts`
        self.written_off: bool = False  # whether the worker counts as blocked; see `Pool.written_off`
        self.patience: float = 0.0  # seconds to stay parked; below zero, for ever
        self.waits: int = 0  # waits for its own pool, one within the other
        self.searching = searching
        self.starting: bool = True
        self.fresh: bool = True  # whether it starts or was woken, and has not come to the queue yet
        self.parked: bool = False
        self.expired: bool = False
        self.leaving: bool = False

    # Safe without `nonecheck`: nothing here is None where one of its attributes is read.
    @cython.nonecheck(False)
    @cython.locals(done=FutureCore, future=FutureCore, loop_call=FutureCore, unfinished=cython.bint, failed=cython.bint)
    def run(self) -> None:
        """Take and run tasks until it is time to leave."""
        pool = self.pool
        if pool is None:
            raise RuntimeError("Worker.__init__() was never called")
        done: Any = None
        future: Any = None
        loop_call: Any = None
        value = error = errand = context = scope = None
        unfinished = failed = False
        _here.worker = self
        while True:
            # One visit to the mutex finishes the last task and takes the next. `done` keeps the last one alive until
            # the mutex is free.
            # Signal handlers run only in the main thread, so none can raise between this line and the `try`.
            pool.mutex.acquire()
            try:
                if unfinished and ((done._audience is None and done._not_run is None) or done._looped):
                    if done._looped:
                        loop_call = done
                    if done._code == RUNNING:
                        done._result = value
                        done._exception = error
                        if cython.compiled:
                            fence()
                        done._code = FINISHED
                    failed = error is not None
                    unfinished = False
                if not unfinished:
                    self.current = None
                    if self.noted:
                        pool._note_end(self)
                    if failed:
                        pool.failed += 1
                    if done is not None and done._lane is not None:
                        pool._vacate(done._lane, failed)
                    failed = False
                    if (pool.queue or (pool.mixed and (pool.front or pool.short))) and (
                        pool.headcount <= pool.limit or ((pool._surplus() == 0 or pool._lends()) and pool._has_room(0))
                    ):
                        future = pool._next(self) if pool.mixed else pool.dequeue()
                        if future._code == PENDING:
                            future._code = RUNNING
                            self.current = future
                            pool.taken += 1
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
                loop_call._tell(_NOBODY)
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
            if future._latest > 0.0 and monotonic() > future._latest:
                with pool.mutex:
                    pool._count_expired(future)
                    if self.known is not None:
                        pool.functions.drop(self.known, self.begun)
                        self.known = None
                error = future._scope.refusal()
            else:
                if future._looped:
                    context = future._take_context()
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
                    error = trimmed(caught)
            if cython.compiled and context is not None:
                leave(context)
                context = None
            # Dropped while the task still counts as running: the end of what was called may run any code, which may
            # wait for this pool. These keep it until the mutex, under which others read it, is free.
            scope = future._scope
            if GIL_ENABLED:
                future._fn = future._args = future._kwargs = future._scope = None
            else:
                with pool.mutex:
                    future._fn = future._args = future._kwargs = future._scope = None
            fn = args = kwargs = scope = None  # noqa: F841  # it was kept for that
            done = future
            future = None
            unfinished = True
        _here.worker = None


@cython.locals(future=FutureCore)
def perform(future: FutureCore) -> None:
    """Run the call of a task that is on no queue, in this thread."""
    fn, args, kwargs = future._fn, future._packed(), future._kwargs
    future._code = RUNNING
    value = error = None
    context = future._take_context()
    if context is not None:
        fn, args = context.run, (fn, *args)
    try:
        value = fn(*args, **kwargs) if type(kwargs) is dict else fn(*args)  # type: ignore[misc]  # it was pending
    except BaseException as caught:
        error = trimmed(caught)
    future._drop_call()
    fn = args = kwargs = None
    with future._pool.mutex:
        future._pool.taken += 1
        if error is not None:
            future._pool.failed += 1
    try:
        future._conclude(RUNNING, RUNNING, FINISHED, value, error)
    finally:
        # Breaks a cycle: frames of an error's traceback refer to this one, and to those that have called it.
        value = error = future = None  # type: ignore[assignment]


@cython.locals(worker=Worker, future=FutureCore)
def current_scope(makes: bool) -> Scope | None:
    """Return what may end the calling thread's task early, made if need be and wanted; None outside of a task."""
    worker: Any = _here.worker
    future: Any = None if worker is None else worker.current
    if future is None:
        return None
    scope: Scope | None = future._ensure_scope() if makes else future._scope
    return scope


def gap(every: int) -> int:
    """Return how many tasks to pass over, so that one in `every` is measured, whatever pattern they follow."""
    # Imported here, so that only those pay for it who measure.
    from random import random

    return int(random() * (2 * every - 1)) if every > 0 else 0


class Probe:
    """A call that is measured: `record` is told how long it waited and how long it ran, in seconds."""

    def __init__(self, fn: Callable[..., Any], record: Callable[[float, float], object]) -> None:
        self.fn = fn
        self.record = record
        self.made = monotonic()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
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
