"""Calls of a pool that wait for their time: `submit_later`, `schedule`, and their end at shutdown and fork."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import copy_context
from math import inf
from types import MethodType
from typing import Any, Protocol

from ebbpool import _instruments, _lifecycle
from ebbpool._accel import Pool, instrumented
from ebbpool._schedule import OnError, ScheduledTask, error_policy
from ebbpool._settings import seconds
from ebbpool._timekeeper import Timekeeper

LOGGER = logging.getLogger("concurrent.futures")


class Executor(Protocol):
    """What of an executor is needed here."""

    pool: Pool

    @property
    def _crew(self) -> Crew: ...

    def hold_back(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any: ...
    def release(self, future: Any) -> bool: ...


class Crew(Protocol):
    """What of a crew is needed here."""

    prefix: str
    timers: Timers


class Timers:
    """What of one pool waits for its time. Every method may be called by any thread.

    Attributes:
        keeper: Whose thread queues what is due.
        waiting: The futures that wait for their time. Their executor is kept alive: somebody counts on the call.
        schedules: The schedules that go on.
    """

    def __init__(self, keeper: Timekeeper) -> None:
        self.keeper = keeper
        self.waiting: dict[Any, Executor] = {}
        self.schedules: dict[ScheduledTask, None] = {}

    def add(self, executor: Executor, future: Any, due: float) -> None:
        """Has the held `future` queued once the keeper's clock says `due`; cancels it if the pool is shut down.

        Raises:
            RuntimeError: No thread can be started; the future stays as it is.
        """
        # First: a schedule's future may be cancelled at any time, and the callback has to find it.
        self.waiting[future] = executor
        # This callback holds the executor until the call is done: its last reference then goes in a worker, and not
        # in the timekeeper's thread.
        future.add_done_callback(MethodType(_settled, executor))
        try:
            self.keeper.call_at(due, self, future)
        except RuntimeError:
            if self.waiting.pop(future, None) is not None:
                self.keeper.void()
            raise
        # A pool is closed before `waiting` is emptied: either this future is found there, or this sees the pool closed.
        if executor.pool.closed:
            future.cancel()

    def wants(self, thing: Any) -> bool:
        """See `Book.wants`."""
        return thing in self.waiting

    def fire(self, thing: Any) -> None:
        """See `Book.fire`."""
        executor = self.waiting.get(thing)
        # What is left in a closed pool is cancelled by `close`, in the thread that shuts down: callbacks may run there.
        # So it has to be found there, should the pool be closed in this very moment.
        if executor is None or executor.pool.closed:
            return
        try:
            queued = executor.release(thing)
        except BaseException as error:
            thing.reject(error)
            raise
        if queued:
            self.waiting.pop(thing, None)

    def close(self, error: BaseException | None = None) -> tuple[int, int]:
        """Cancels the calls whose time has not come, or fails them with `error`, and ends the schedules.

        The pool has to be closed already. Callbacks of the futures run in the calling thread.

        Returns:
            How many calls, and how many schedules, that were.
        """
        calls = 0
        schedules = sum(task.stop(error) for task in list(self.schedules))
        for future in list(self.waiting):
            if self.waiting.pop(future, None) is None:
                continue
            self.keeper.void()
            if error is None:
                calls += future.cancel()
            else:
                future.reject(error)
                calls += 1
        return calls, schedules

    def renew(self, error: BaseException) -> None:
        """In a forked child: fails what waits, without telling anyone, and forgets the schedules."""
        waiting, self.waiting, self.schedules = self.waiting, {}, {}
        for future in waiting:
            future.disown(error)


def _settled(executor: Executor, future: Any) -> None:
    timers = executor._crew.timers
    if timers.waiting.pop(future, None) is not None:
        timers.keeper.void()


def submit_later(
    executor: Executor, delay: float, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Does what `AdaptiveExecutor.submit_later` does."""
    if type(delay) is not float or not 0.0 <= delay < inf:
        delay = _ahead("delay", delay)
    timers = _timers_of(executor)
    call = _instruments.delayed(executor, fn, args, kwargs) if instrumented() else None
    future = executor.hold_back(fn, args, kwargs) if call is None else call.hand_to(executor.hold_back)
    timers.add(executor, future, timers.keeper.clock() + delay)
    return future


def schedule(
    executor: Executor,
    interval: float,
    fn: Callable[..., object],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    first: float | None,
    on_error: OnError,
) -> ScheduledTask:
    """Does what `AdaptiveExecutor.schedule` does."""
    interval = _ahead("interval", interval)
    if interval == 0:
        raise ValueError(f"interval must be greater than 0 seconds, not {interval!r}")
    delay = interval if first is None else _ahead("first", first)
    on_error = error_policy(on_error)
    timers = _timers_of(executor)
    context = copy_context() if executor.pool.contextual else None
    if not callable(fn):
        raise TypeError(f"fn must be callable, not {fn!r}")
    if instrumented() and (call := _instruments.delayed(executor, fn, args, kwargs)) is not None:
        # All runs see what the caller of this does, as they do with `propagate_context`.
        fn, args, kwargs = call.fn, call.args, call.kwargs
    task = ScheduledTask(timers, interval, timers.keeper.clock() + delay, fn, args, kwargs, on_error, context)
    timers.schedules[task] = None
    try:
        task.arm(executor, 0)
    except BaseException:
        task.cancel()
        raise
    return task


def close(crew: Crew) -> int:
    """Cancels what of a closed pool waits for its time, and ends its schedules; logs how many, at level INFO.

    Returns:
        How many calls and schedules that were.
    """
    calls, schedules = crew.timers.close()
    if calls or schedules:
        LOGGER.info("shutdown of %s: %d delayed calls cancelled, %d schedules ended", crew.prefix, calls, schedules)
    return calls + schedules


def _timers_of(executor: Executor) -> Timers:
    if _lifecycle.exiting():
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")
    timers = executor._crew.timers
    timers.keeper.start()
    return timers


def _ahead(name: str, value: Any) -> float:
    number = seconds(name, value)
    if number == inf:
        raise ValueError(f"{name} must be a finite number of seconds, not {value!r}")
    return number
