"""A view of a pool, or of a lane, whose calls wait for a limited time only, or have a deadline."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ebbpool._checks import above_zero, finite_seconds
from ebbpool._core.scope import Scope, deadlines

if TYPE_CHECKING:
    import asyncio

    from ebbpool._core.accel import Future

P = ParamSpec("P")
T = TypeVar("T")


class Within:
    """What `AdaptiveExecutor.within` and `Lane.within` return: `submit` and `run`, with a limit of the wait."""

    __module__ = "ebbpool"

    def __init__(self, executor: Any, lane: Any, max_wait: float | None, deadline: float | None) -> None:
        if max_wait is None and deadline is None:
            raise TypeError("within needs max_wait, or deadline, or both")
        self._executor = executor
        self._lane = lane
        self._max_wait = inf if max_wait is None else above_zero("max_wait", finite_seconds("max_wait", max_wait))
        self._deadline = inf if deadline is None else above_zero("deadline", finite_seconds("deadline", deadline))

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue `fn(*args, **kwargs)`; see `AdaptiveExecutor.submit`. The future may raise `QueueTimeout`."""
        first = self._lane is not None and self._lane.first
        future: Future[T] = self._executor.hand_in(self._lane, first, fn, args, kwargs, self._scope())
        return future

    def run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Have `fn(*args, **kwargs)` run, from a running asyncio loop; see `AdaptiveExecutor.run`."""
        future: asyncio.Future[T] = self._executor.run_in(self._lane, fn, args, kwargs, self._scope())
        return future

    def _scope(self) -> Scope:
        scope = Scope(self._max_wait, self._deadline)
        if self._deadline != inf:
            deadlines.watch(scope, self._executor._crew.timers.keeper)
        return scope
