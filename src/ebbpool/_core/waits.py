"""Replaces the event in `wait` and `as_completed`: a worker counts as blocked, and who must not wait gets an error.

Not compiled: nothing here is on the way of a task.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import threading

    from ebbpool._core.pool import Pool


class Observers(list[Any]):
    """A future's waiters as `concurrent.futures.wait` and `as_completed` install them.

    Where a worker is about to wait for a future of its own pool, or a thread that must not wait, its event is replaced.
    """

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self._pool = pool

    def append(self, waiter: Any) -> None:
        minded = self._pool.runs_here() or self._pool.forbids() is not None
        if minded and getattr(waiter.event, "pool", None) is not self._pool:
            waiter.event = _PoolEvent(waiter.event, self._pool)
        super().append(waiter)


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
