"""What the calling thread is, and events that count a worker in `wait` or `as_completed` as blocked."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ebbpool._core.pool import Pool


class Here(threading.local):
    """What the calling thread is. The defaults spare each look in other threads the making of an `AttributeError`."""

    worker: Any = None
    keeps_time: bool = False  # whether it is the timekeeper's, which must not wait for any pool


here = Here()


class Observers(list[Any]):
    """A future's waiters as `wait` and `as_completed` install them: the events of some threads are replaced."""

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self._pool = pool

    def append(self, waiter: Any) -> None:
        replaces = self._pool.runs_here() or self._pool.forbids() is not None
        if replaces and getattr(waiter.event, "pool", None) is not self._pool:
            waiter.event = _PoolEvent(waiter.event, self._pool)
        super().append(waiter)

    def tell(self, future: Any, cancelled: bool, error: BaseException | None) -> None:
        for waiter in self:
            if cancelled:
                waiter.add_cancelled(future)
            elif error is not None:
                waiter.add_exception(future)
            else:
                waiter.add_result(future)


class _PoolEvent:
    """The event of a waiter, whose wait counts a worker as blocked and is an error where a thread must not wait."""

    def __init__(self, event: threading.Event, pool: Pool) -> None:
        self.pool = pool
        self.set = event.set
        self.clear = event.clear
        self.is_set = event.is_set
        self._wait = event.wait

    def wait(self, timeout: float | None = None) -> bool:
        if not self.is_set() and (timeout is None or timeout > 0):
            reason = self.pool.forbids()
            if reason is not None:
                raise RuntimeError(f"cannot wait for futures here: {reason}")
        told: bool = self.pool.wait_counted(self._wait, None if timeout is None else max(0.0, timeout))
        return told


def runs_loop() -> bool:
    """Return whether an asyncio loop runs in the calling thread."""
    events: Any = sys.modules.get("asyncio.events")
    return events is not None and events._get_running_loop() is not None
