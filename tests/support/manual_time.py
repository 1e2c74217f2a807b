"""A timekeeper whose clock and whose turns a test holds in its hand, and a pool that waits for its time on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import Any

from ebbpool import AdaptiveExecutor
from ebbpool._core.accel import Timers
from ebbpool._pool.timekeeper import Timekeeper
from support.common import TIMEOUT, Boom, wait_for_idle


class ManualTimekeeper(Timekeeper):
    """A timekeeper without a thread: the test says what time it is, and takes the turns."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self.rings = 0
        super().__init__(lambda: self.now)

    def start(self) -> None:
        pass

    def _ring(self) -> None:
        self.rings += 1
        super()._ring()

    def settle(self) -> float:
        """Take turns until there is nothing more to do now; return how many seconds later there is."""
        for _ in range(100_000):
            wake = self.turn()
            if wake > self.now:
                return wake - self.now if wake != inf else inf
        raise AssertionError("the timekeeper finds no rest")

    def advance(self, seconds: float) -> float:
        """Let `seconds` pass at once, as when a machine was suspended, and take the turns that follow."""
        self.now += seconds
        return self.settle()

    def entries(self) -> int:
        return len(self._alarms)


@contextmanager
def timed_pool(max_workers: int | None = None, **settings: Any) -> Iterator[tuple[AdaptiveExecutor, ManualTimekeeper]]:
    """A pool, and the timekeeper that its delayed calls wait on; its workers have the real one."""
    keeper = ManualTimekeeper()
    pool = AdaptiveExecutor(max_workers, **settings)
    pool._crew.timers = Timers(keeper)
    try:
        yield pool, keeper
    finally:
        pool.shutdown(cancel_futures=True, timeout=TIMEOUT)


def pass_time(pool: AdaptiveExecutor, keeper: ManualTimekeeper, seconds: float) -> None:
    """Let time pass, and what was due in it run to its end."""
    keeper.advance(seconds)
    wait_for_idle(pool)
    keeper.settle()


def break_down() -> None:
    raise Boom("broken down")
