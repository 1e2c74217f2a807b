"""What a worker does, the scope of the task that a thread runs, and `Probe`, which times a call's wait and run."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures._base import LOGGER
from typing import TYPE_CHECKING, Any

from ebbpool._core import uncompiled as cython

if not TYPE_CHECKING and cython.compiled:
    import cython
if not cython.compiled:
    # For compiled code worker_c.pxd declares these.
    from ebbpool._clock import monotonic

    if TYPE_CHECKING:
        from ebbpool._core.scope import Scope
    from ebbpool._core.future import _NOBODY, FutureCore, _here
    from ebbpool._core.pool import Pool
    from ebbpool._core.staff import Worker
    from ebbpool._core.task import Task
    from ebbpool._core.uncompiled import FINISHED, GONE, RUNNING, breathe, called, called_with, enter, leave

from ebbpool._errors import trimmed
from ebbpool._interpreter import GIL_ENABLED


# Safe without `nonecheck`: nothing here is None where one of its attributes is read.
@cython.nonecheck(False)
@cython.locals(worker=Worker, pool=Pool, done=FutureCore, future=Task)
@cython.locals(unfinished=cython.bint, leaves=cython.bint, actions=cython.Py_ssize_t)
def work(worker: Worker) -> None:
    """Take and run tasks until it is time to leave."""
    pool: Pool = worker.pool
    done: Any = None
    future: Any = None
    value = error = None
    unfinished = leaves = False
    _here.worker = worker
    while True:
        # One visit to the mutex finishes the last task and takes the next. `done` keeps the last one alive until the
        # mutex is free.
        # Signal handlers run only in the main thread, so none can raise between this line and the `try`.
        pool.mutex.acquire()
        try:
            if unfinished and ((done._audience is None and done._not_run is None) or done._looped):
                if done._code == RUNNING:
                    done._result = value
                    done._exception = error
                    done._code = FINISHED
                unfinished = False
            if not unfinished:
                future = pool.turn(worker, done, error is not None)
                leaves = future is None and worker.state == GONE
        finally:
            pool.mutex.release()
        if unfinished:
            # A callback may wait for this pool: the task stays in hand, and the next one is not taken yet.
            try:
                done._conclude(RUNNING, RUNNING, FINISHED, value, error)
            except BaseException:
                LOGGER.critical("Exception while %r was being finished:", done, exc_info=True)
            unfinished = False
            continue
        if done is not None:
            if done._looped:
                # The loop is told only now that this worker is parked or has its next task: a task that the result
                # leads to finds a worker ready, and does not call the timekeeper for nothing.
                done._tell(_NOBODY)
            done = value = error = None
        if worker.actions != 0:
            actions = worker.actions
            worker.actions = 0
            pool._perform(actions, None)
        if future is None:
            if leaves:
                break
            worker.expired = not worker.bell.acquire(True, worker.keep_alive)
        elif worker.current is None:
            # It was dead.
            future = None
        else:
            value = make_call(worker, future)
            error = worker.error
            if error is not None:
                worker.error = None
            done = future
            future = None
            unfinished = True
    _here.worker = None


@cython.nonecheck(False)
@cython.locals(pool=Pool)
def make_call(worker: Worker, future: Task) -> Any:
    """Make the call of a task; return what it returns, or None, with what it has raised in `worker.error`."""
    value = context = None
    fn: Any = future._fn
    args, kwargs = future._args, future._kwargs
    if future._latest > 0.0 and monotonic() > future._latest:
        worker.error = refuse(worker, future)
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
            worker.error = trimmed(caught)
        if cython.compiled and context is not None:
            leave(context)
            context = None
    # Drop the callable while the task still counts as running: its finaliser may run any code, which may wait for this
    # pool. These keep it until the mutex, under which others read it, is free.
    if GIL_ENABLED:
        scope = future._scope
        future._fn = future._args = future._kwargs = future._scope = None
    else:
        pool = worker.pool
        with pool.mutex:
            scope = future._scope
            future._fn = future._args = future._kwargs = future._scope = None
    fn = args = kwargs = scope = None  # noqa: F841  # it was kept for that
    if not cython.compiled:
        # Breaks a cycle: the error's traceback leads to this frame.
        worker = future = None  # type: ignore[assignment]  # breaks a cycle
    return value


@cython.locals(pool=Pool)
def refuse(worker: Worker, future: Task) -> BaseException:
    """Count a task that has waited for too long, and was taken all the same; return the error in place of its call."""
    pool = worker.pool
    scope: Any = future._scope
    with pool.mutex:
        pool.tally.expired += 1
        if future._lane is not None:
            future._lane.tally.expired += 1
        if worker.known is not None:
            pool.backlog.functions.drop(worker.known, worker.begun)
            if future._short:
                # Another call may be taken for short in its place.
                worker.known.tried = False
            worker.known = None
    error: BaseException = scope.refusal(pool.crew())
    return error


@cython.locals(future=FutureCore, pool=Pool)
def perform(future: FutureCore) -> None:
    """Run the call of a task that is on no queue, in this thread."""
    pool: Pool = future._pool
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
    with pool.mutex:
        pool.tally.taken += 1
        pool.tally.failed += error is not None
    try:
        future._conclude(RUNNING, RUNNING, FINISHED, value, error)
        if error is not None and issubclass(type(error), KeyboardInterrupt) and _here.worker is None:
            # It is for who runs the call, too.
            raise error
    finally:
        # Breaks a cycle: frames of an error's traceback refer to this one, and to those that have called it.
        value = error = future = None  # type: ignore[assignment]


@cython.locals(worker=Worker, future=FutureCore, pool=Pool)
def current_scope(makes: bool) -> Scope | None:
    """Return what may end the calling thread's task early, made if need be and wanted; None outside of a task."""
    worker: Any = _here.worker
    future: Any = None if worker is None else worker.current
    if future is None:
        return None
    if makes:
        made: Scope = future._ensure_scope()
        return made
    if GIL_ENABLED:
        scope: Scope | None = future._scope
        return scope
    pool: Pool = future._pool
    with pool.mutex:
        # Another thread may cancel the task, and make it, at this moment.
        scope = future._scope
    return scope


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
