"""What of one pool waits for its time, and its end at shutdown and fork."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any, Protocol

from ebbpool._core.accel import Pool
from ebbpool._pool.timekeeper import Timekeeper


class HasTimers(Protocol):
    """What of an executor is needed here."""

    _pool: Pool

    @property
    def _crew(self) -> TimerOwner: ...

    def hold_back(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any: ...
    def release(self, future: Any) -> bool: ...


class TimerOwner(Protocol):
    """What of a crew is needed here."""

    prefix: str
    timers: Timers


class Repeats(Protocol):
    """What of a schedule is needed here."""

    def stop(self, error: BaseException | None) -> bool:
        """End it; return whether it went on until now."""


class Timers:
    """What of one pool waits for its time. Every method may be called by any thread.

    Attributes:
        keeper: Whose thread queues what is due.
        waiting: The futures that wait for their time. Their executor is kept alive: somebody counts on the call.
        schedules: The schedules that go on.
    """

    def __init__(self, keeper: Timekeeper) -> None:
        self.keeper = keeper
        self.waiting: dict[Any, HasTimers] = {}
        self.schedules: dict[Repeats, None] = {}

    def add(self, executor: HasTimers, future: Any, due: float) -> None:
        """Has the held `future` queued once the keeper's clock says `due`; cancels it if the pool is shut down.

        Raises:
            RuntimeError: No thread can be started; the future stays as it is.
        """
        # First: a schedule's future may be cancelled at any time, and the callback has to find it.
        self.waiting[future] = executor
        # This callback holds the executor until the call is done: its last reference then goes in a worker, and not
        # in the timekeeper's thread.
        future.add_done_callback(MethodType(_forget_done, executor))
        try:
            self.keeper.call_at(due, self, future)
        except RuntimeError:
            if self.waiting.pop(future, None) is not None:
                self.keeper.void()
            raise
        # A pool is closed before `waiting` is emptied: either this future is found there, or this sees the pool closed.
        if executor._pool.closed:
            future.cancel()

    def wants(self, thing: Any) -> bool:
        """See `Book.wants`."""
        return thing in self.waiting

    def fire(self, thing: Any) -> None:
        """See `Book.fire`."""
        executor = self.waiting.get(thing)
        # What is left in a closed pool is cancelled by `close`, in the thread that shuts down: callbacks may run there.
        # So it has to be found there, should the pool be closed in this very moment.
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


def _forget_done(executor: HasTimers, future: Any) -> None:
    timers = executor._crew.timers
    if timers.waiting.pop(future, None) is not None:
        timers.keeper.void()
