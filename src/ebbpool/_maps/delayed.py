"""`submit_later` and `schedule`: calls for a pool's timers, and their end when the pool is shut down."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, get_args

from ebbpool._checks import finite_seconds, one_of
from ebbpool._core.accel import instrumented
from ebbpool._maps.schedule import OnError, ScheduledTask
from ebbpool._pool import instruments
from ebbpool._pool.timers import HasTimers, TimerOwner

LOGGER = logging.getLogger("concurrent.futures")


def submit_later(
    executor: HasTimers, delay: float, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Do what `AdaptiveExecutor.submit_later` does."""
    delay = finite_seconds("delay", delay)
    call = None
    if instrumented():
        _prepare(executor)
        call = instruments.delayed(executor, fn, args, kwargs)
    future = executor.hold_back(fn, args, kwargs) if call is None else call.hand_to(executor.hold_back)
    executor._crew.timers.add_after(executor, future, delay)
    return future


def _prepare(executor: HasTimers) -> None:
    """Start the timekeeper before a tool is shown a call: it would wait for the end of one that is then refused."""
    if not executor._pool.closed:
        executor._crew.timers.prepare()


def schedule(
    executor: HasTimers,
    interval: float,
    fn: Callable[..., object],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    first: float | None,
    on_error: OnError,
) -> ScheduledTask:
    """Do what `AdaptiveExecutor.schedule` does."""
    interval = finite_seconds("interval", interval)
    if interval == 0:
        raise ValueError(f"interval must be greater than 0 seconds, not {interval!r}")
    delay = interval if first is None else finite_seconds("first", first)
    one_of("on_error", on_error, get_args(OnError))
    timers = executor._crew.timers
    context = copy_context() if executor._pool.contextual else None
    if not callable(fn):
        raise TypeError(f"fn must be callable, not {fn!r}")
    if instrumented():
        _prepare(executor)
        if (call := instruments.delayed(executor, fn, args, kwargs)) is not None:
            # All runs see the trace of the caller of `schedule`, as with `propagate_context` they see its context.
            fn, args, kwargs = call.fn, call.args, call.kwargs
    task = ScheduledTask(timers, interval, timers.keeper.clock() + delay, fn, args, kwargs, on_error, context)
    timers.schedules[task] = None
    try:
        task.arm(executor, 0)
    except BaseException:
        task.cancel()
        raise
    return task


def close(crew: TimerOwner) -> None:
    """Cancel the delayed calls of a closed pool, and end its schedules; log how many, at level INFO."""
    calls, schedules = crew.timers.close()
    if calls or schedules:
        LOGGER.info("shutdown of %s: %d delayed calls cancelled, %d schedules ended", crew.prefix, calls, schedules)
