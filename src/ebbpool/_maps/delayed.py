"""Schedules, which make a call again and again; delayed calls that are traced; and how both end with the pool."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures.thread import BrokenThreadPool
from contextvars import Context, copy_context
from functools import partial
from math import floor
from typing import Any, Literal, get_args

from ebbpool._checks import NoCopy, above_zero, finite_seconds, one_of
from ebbpool._core.accel import Timers, instrumented
from ebbpool._errors import traceback_of
from ebbpool._pool import tracing

LOGGER = logging.getLogger("concurrent.futures")

OnError = Literal["log", "stop"]

RESOLUTION = 1e-9
"""Seconds: the clock's resolution. A shorter interval is taken to be this long."""


class ScheduledTask(NoCopy):
    """What `AdaptiveExecutor.schedule` returns: a call that a pool runs again and again.

    The runs are due at `first`, `first` + `interval`, `first` + 2 `interval`, ... seconds from the call of `schedule`.
    Each of these times is a *beat*; they do not drift, however late a run starts. A run never overlaps the one before;
    beats that come while one is under way (or waits for a thread) are dropped, and counted in `missed`.

    The clock is `time.monotonic`. Setting the wall clock changes nothing. While the machine is suspended that clock
    stands still on Linux and macOS, and so do the beats; on Windows it goes on. Where it jumps, one overdue run starts
    at once, and the other beats that have passed count as missed.

    The schedule goes on, and keeps its pool alive, until it is cancelled, or its pool is shut down or broken, the
    interpreter exits, or a run fails with ``on_error="stop"``. It goes on even if this object is not kept.

    Attributes:
        interval: Seconds from beat to beat.
        runs: How many runs have ended, failed ones included.
        missed: How many beats were dropped.
        last_error: What the last failing run raised, with its traceback; None if none has failed. If the pool broke,
            its `BrokenThreadPool`.
    """

    def __init__(
        self,
        executor: Any,
        interval: float,
        fn: Callable[..., object],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        first: float | None,
        on_error: OnError,
    ) -> None:
        self.interval: float = above_zero("interval", finite_seconds("interval", interval))
        delay = self.interval if first is None else finite_seconds("first", first)
        self._on_error: OnError = one_of("on_error", on_error, get_args(OnError))
        context = copy_context() if executor._pool.contextual else Context()
        if not callable(fn):
            raise TypeError(f"fn must be callable, not {fn!r}")
        if (call := _instrumented(executor, fn, args, kwargs)) is not None:
            # All runs see the trace of the caller of `schedule`, as with `propagate_context` they see its context.
            fn, args, kwargs = call.fn, call.args, call.kwargs
        self.runs: int = 0
        self.missed: int = 0
        self.last_error: BaseException | None = None
        self._timers: Timers = executor._crew.timers
        self._begin: float = self._timers.keeper.clock() + delay
        self._step = max(self.interval, RESOLUTION)
        self._name = getattr(fn, "__qualname__", None) or repr(fn)
        self._armed: tuple[int, Any] = (0, None)
        self._timers.schedules[self] = context, fn, args, kwargs
        try:
            self.arm(executor, 0)
        except BaseException:
            self.cancel()
            raise

    @property
    def active(self) -> bool:
        """Whether the schedule goes on: runs will come, or one is under way and others will follow it."""
        return self in self._timers.schedules

    @property
    def next_run(self) -> float | None:
        """When the next run is due, in seconds of `time.monotonic`; None if there will be none.

        While a run is due or under way this is the next beat, which is dropped if the run is not over by then.
        """
        if not self.active:
            return None
        beat, future = self._armed
        return self._time_of(beat if future is None or future in self._timers.waiting else beat + 1)

    def cancel(self) -> bool:
        """End the schedule: no run begins after this has returned; one that is under way finishes.

        Returns:
            False if the schedule had ended already.
        """
        return self.stop(None)

    def stop(self, error: BaseException | None) -> bool:
        """Do what `cancel` does, and keep `error` as `last_error` if there is one. For the pool only."""
        # Set before the schedule ends: a thread that sees that it has ended may read why.
        if error is not None and self.active:
            self.last_error = error
        if not self._ends():
            return False
        # `arm` writes `_armed` before it looks whether the schedule goes on, so either it cancels the future, or this
        # method does.
        _, future = self._armed
        if future is not None:
            future.cancel()
        return True

    def arm(self, executor: Any, beat: int) -> None:
        """Have the run of `beat` queued when it is due; RuntimeError if the pool is closed. For the pool only."""
        call = self._timers.schedules.get(self)
        if call is None:
            return
        context, *given = call
        # A pool that carries contexts gives the run a copy of the one in which the call is held back.
        future = context.copy().run(executor.hold_back, *given)
        future.add_done_callback(partial(self._over, executor))
        self._armed = beat, future
        # Nothing may follow `add`: the run may begin, and end, before `add` returns.
        if self.active:
            self._timers.add(executor, future, self._time_of(beat))
        else:
            future.cancel()

    def _over(self, executor: Any, future: Any) -> None:
        if future.cancelled():
            self._ends()
            return
        error = future.exception()
        if issubclass(type(error), BrokenThreadPool) and executor._pool.broken:
            self.stop(error)
            return
        self.runs += 1
        try:
            if error is not None:
                self.last_error = error
                told = type(error), error, traceback_of(error)
                LOGGER.error("Exception in the scheduled call of %s:", self._name, exc_info=told)
        finally:
            if error is not None and self._on_error == "stop":
                self._ends()
            else:
                self._go_on(executor)

    def _go_on(self, executor: Any) -> None:
        now = self._timers.keeper.clock()
        following = self._armed[0] + 1
        beat = max(following, floor((now - self._begin) / self._step))
        if self._time_of(beat) < now:
            beat += 1
        # Before `arm`: after it the next run may end, and count, in another thread.
        self.missed += beat - following
        try:
            self.arm(executor, beat)
        except RuntimeError:
            # The pool has been shut down meanwhile.
            self._ends()

    def _ends(self) -> bool:
        return self._timers.schedules.pop(self, None) is not None

    def _time_of(self, beat: int) -> float:
        return self._begin + beat * self._step

    def __repr__(self) -> str:
        state = "goes on" if self.active else "ended"
        counts = f"runs={self.runs}, missed={self.missed}"
        return f"<{type(self).__name__} of {self._name} every {self.interval:g} s: {state}, {counts}>"


def submit_later(
    executor: Any, delay: float, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Do what `AdaptiveExecutor.submit_later` does."""
    delay = finite_seconds("delay", delay)
    call = _instrumented(executor, fn, args, kwargs)
    future = executor.hold_back(fn, args, kwargs) if call is None else call.hand_to(executor.hold_back)
    executor._crew.timers.add_after(executor, future, delay)
    return future


def _instrumented(executor: Any, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Show a call to the tools that instrument submitting; return what they make of it, or None."""
    if not instrumented():
        return None
    if not executor._pool.closed:
        # Before a tool is shown a call: it would wait for the end of one that is then refused.
        executor._crew.timers.prepare()
    return tracing.delayed(executor, fn, args, kwargs)


def close(crew: Any) -> None:
    """Cancel the delayed calls of a closed pool, and end its schedules; log how many, at level INFO."""
    calls, schedules = crew.timers.close()
    if calls or schedules:
        LOGGER.info("shutdown of %s: %d delayed calls cancelled, %d schedules ended", crew.prefix, calls, schedules)
