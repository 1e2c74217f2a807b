"""The delayed calls and schedules of one pool, and their end at shutdown and fork."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ebbpool._core.accel import Pool
from ebbpool._pool.timekeeper import Timekeeper


class HasTimers(Protocol):
    """The part of an executor that is needed here."""

    _pool: Pool

    @property
    def _crew(self) -> TimerOwner: ...

    def hold_back(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any: ...
    def release(self, future: Any) -> bool: ...
    def _forget_delayed(self, future: Any) -> None: ...


class TimerOwner(Protocol):
    """The part of a crew that is needed here."""

    prefix: str
    timers: Timers


class Repeats(Protocol):
    """The part of a schedule that is needed here."""

    def stop(self, error: BaseException | None) -> bool:
        """End the schedule; return whether it had not ended before."""
        ...


class Timers:
    """The delayed calls and schedules of one pool. Every method may be called by any thread.

    Attributes:
        keeper: The timekeeper, whose thread queues what is due.
        waiting: The futures that wait for their time, and their executor, which is kept alive for the call.
        schedules: The schedules that have not ended.
    """

    def __init__(self, keeper: Timekeeper) -> None:
        self.keeper = keeper
        self.waiting: dict[Any, HasTimers] = {}
        self.schedules: dict[Repeats, None] = {}

    def add(self, executor: HasTimers, future: Any, due: float) -> None:
        """Have the held `future` queued once the keeper's clock says `due`; it is cancelled if the pool is shut down.

        Raises:
            RuntimeError: No thread can be started; the future stays as it is.
        """
        # Added before the callback: a schedule's future may be cancelled at any time, and the callback has to find it.
        self.waiting[future] = executor
        # This callback holds the executor until the call is done, so that the last reference to the executor is dropped
        # in a worker, and not in the timekeeper's thread.
        future.add_done_callback(executor._forget_delayed)
        try:
            self.keeper.call_at(due, self, future)
        except RuntimeError:
            if self.waiting.pop(future, None) is not None:
                self.keeper.void()
            raise
        # A pool is closed before `close` empties `waiting`: either `close` finds this future there, or this line sees
        # that the pool is closed.
        if executor._pool.closed:
            future.cancel()

    def wants(self, thing: Any) -> bool:
        """See `Book.wants`."""
        return thing in self.waiting

    def fire(self, thing: Any) -> None:
        """See `Book.fire`."""
        executor = self.waiting.get(thing)
        # In a closed pool, `close` cancels the future, in the thread that shuts down, where callbacks may run. So the
        # future stays in `waiting` until it is queued: the pool may be closed at this very moment.
        if executor is None or executor._pool.closed:
            return
        try:
            queued = executor.release(thing)
        except BaseException as error:
            thing.reject(error)
            raise
        if queued:
            self.waiting.pop(thing, None)

    def close(self, error: BaseException | None = None) -> tuple[int, int]:
        """Cancel the calls whose time has not come, or fail them with `error`, and end the schedules.

        The pool has to be closed already. Callbacks of the futures run in the calling thread.

        Returns:
            How many calls, and how many schedules, were ended.
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
        """In a forked child: fail what waits, without running callbacks, and forget the schedules."""
        waiting, self.waiting, self.schedules = self.waiting, {}, {}
        for future in waiting:
            future.disown(error)


def forget_delayed(executor: HasTimers, future: Any) -> None:
    """Strike off a delayed call that is done: the method `_forget_delayed` of executors."""
    timers = executor._crew.timers
    if timers.waiting.pop(future, None) is not None:
        timers.keeper.void()
