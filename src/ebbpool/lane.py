"""Views of a pool. Lane: a share, for what must not take all of its threads. Within: for what is useless if late."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ebbpool._checks import above_zero, finite_seconds, waiting_limit
from ebbpool._core.accel import ExecutorCore, LaneCore, count_lane
from ebbpool._core.scope import Scope, deadlines
from ebbpool._maps.methods import Maps
from ebbpool._pool.executor_base import Unmade
from ebbpool._pool.tracing import QueueView

if TYPE_CHECKING:
    import asyncio
    from typing import Self

    from ebbpool._pool.reports import LaneStats

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
        hand_in: Callable[..., Future[T]] = self._executor.hand_in
        return hand_in(self._lane, first, fn, args, kwargs, self._scope())

    def run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Have `fn(*args, **kwargs)` run, from a running asyncio loop; see `AdaptiveExecutor.run`."""
        future: asyncio.Future[T] = self._executor.run_in(self._lane, fn, args, kwargs, self._scope())
        return future

    def _scope(self) -> Scope:
        scope = Scope(self._max_wait, self._deadline)
        if self._deadline != inf:
            deadlines.watch(scope, self._executor._crew.timers.keeper)
        return scope


class Lane(Maps, ThreadPoolExecutor):
    """A `ThreadPoolExecutor` on a pool's threads with a limit on tasks that run at once; see `AdaptiveExecutor.lane`.

    A task that waits for its turn in the lane takes no thread, and no place in a bounded queue. A task must not wait
    for another one of the same lane: with the limit reached, the other one would never start.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Make one whose attributes raise an error if a subclass forgets to call `__init__`."""
        self = super().__new__(cls)
        unmade: Any = Unmade(Lane.__name__)
        self.name = self.executor = self.core = unmade
        return self

    def __init__(self, executor: ExecutorCore, name: str, limit: int, first: bool, max_wait: float = 0.0) -> None:
        self.name = name
        # An `AdaptiveExecutor`, whose module imports this one.
        self.executor: Any = executor
        # Futures refer to the core only, so that they do not keep the executor alive.
        self.core: LaneCore = LaneCore(executor._pool, limit, first, name=name, max_wait=max_wait)
        self._cancelling = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue `fn(*args, **kwargs)` in the lane and return its `Future`; see `AdaptiveExecutor.submit`.

        This never waits: a lane may exceed the pool's `max_queue`.

        Raises:
            TypeError: `fn` is not callable.
            RuntimeError: The lane or its pool has been shut down, or the pool has no thread and none can be started.
            BrokenThreadPool: A worker's initializer failed.
        """
        future: Future[T] = self.executor.hand_in(self.core, self.core.first, fn, args, kwargs)
        return future

    _own_submit = submit

    def run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Have `fn(*args, **kwargs)` run in the lane, from a running asyncio loop; see `AdaptiveExecutor.run`."""
        future: asyncio.Future[T] = self.executor.run_in(self.core, fn, args, kwargs)
        return future

    def within(self, max_wait: float | None = None, *, deadline: float | None = None) -> Within:
        """Return a view of the lane for calls that are useless if late; see `AdaptiveExecutor.within`."""
        return Within(self.executor, self.core, max_wait, deadline)

    def stats(self) -> LaneStats:
        """Return a snapshot of the lane, taken at one moment."""
        from ebbpool._pool.reports import LaneStats

        counts: dict[str, Any] = count_lane(self.core.pool, self.core)
        return LaneStats(self.name, **counts)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False, timeout: float | None = None) -> None:
        """Take no more tasks; queued ones still run, unless cancelled. The pool goes on.

        Args:
            wait: Whether to wait until the lane's tasks are done.
            cancel_futures: Whether to cancel tasks that have not started; those that run learn of it.
            timeout: Seconds to wait at most; None for no limit.

        Raises:
            TypeError: `timeout` is not a number of seconds.
            ValueError: `timeout` is negative or NaN.
            TimeoutError: `timeout` ran out; the message says how many tasks are left. The lane stays shut down.
            RuntimeError: Called with `wait` by a task of this same pool, which would wait for itself.
        """
        limit = waiting_limit("timeout", timeout)
        if cancel_futures:
            self._cancelling = True
        self.core.pool.close_lane(self.core)
        if cancel_futures:
            for future in self.core.pool.waiting(self.core, True):
                future.cancel()
        if not wait:
            return
        if self.core.pool.runs_here():
            raise RuntimeError("a task cannot wait for a lane of its own pool to shut down")
        if not self.core.pool.await_idle(-1.0 if limit is None else limit, self.core) and not self.core.pool.excused():
            left = self.stats()
            raise TimeoutError(
                f"lane {self.name!r}: after {limit:g} s {left.running} tasks are still running, {left.queued} waiting"
            )

    def __repr__(self) -> str:
        counts = count_lane(self.core.pool, self.core)
        return (
            f"<{type(self).__name__} {self.name!r} at {id(self):#x}: {counts['running']} of at most "
            f"{counts['limit']} tasks run, {counts['queued']} queued>"
        )

    # Private attributes of a ThreadPoolExecutor that libraries read. There they are plain; here they are computed.
    _max_workers: Any = property(lambda self: self.core.limit)
    _threads: Any = property(lambda self: self.executor._threads)
    _work_queue: Any = property(
        lambda self: QueueView(partial(self.executor._qsize, self.core), partial(self.executor._hand_back, self.core))
    )
    _initializer: Any = property(lambda self: self.executor._initializer)
    _initargs: Any = property(lambda self: self.executor._initargs)
    _shutdown: Any = property(lambda self: bool(self.core.closed or self.core.pool.closed))
    _discarding: Any = property(lambda self: self._cancelling or self.executor._discarding)
    _broken: Any = property(lambda self: self.executor._broken)
    _thread_name_prefix: Any = property(lambda self: self.executor._thread_name_prefix)
