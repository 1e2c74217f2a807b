"""A pool that waits for its time on a timekeeper which the test holds in its hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ebbpool import AdaptiveExecutor
from support.common import TIMEOUT, Boom, wait_for_idle
from support.seams import Timekeeper, Timers, crew_of


class ManualTimekeeper(Timekeeper):
    """A timekeeper without a thread: the test says what time it is, and takes the turns."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self.rings = 0
        """How often it was to be woken."""
        super().__init__(lambda: self.now)

    def start(self) -> None: ...

    def _ring(self) -> None:
        self.rings += 1
        super()._ring()

    def settle(self) -> float:
        """Take turns until there is nothing more to do now; return how many seconds later there is."""
        for _ in range(100_000):
            wake = self.turn()
            if wake > self.now:
                return wake - self.now
        raise AssertionError("the timekeeper finds no rest")

    def advance(self, seconds: float) -> float:
        """Let `seconds` pass at once, as when a machine was suspended, and take the turns that follow."""
        self.now += seconds
        return self.settle()

    def entries(self) -> int:
        """Return how many calls are to come."""
        return len(self._alarms)

    def serve(self, pool: Any) -> None:
        """Have the delayed calls of `pool` wait here; its workers have the real timekeeper."""
        crew_of(pool).timers = Timers(self)


@contextmanager
def timed_pool(max_workers: int | None = None, **settings: Any) -> Iterator[tuple[AdaptiveExecutor, ManualTimekeeper]]:
    """A pool, and the timekeeper that its delayed calls wait on; its workers have the real one."""
    keeper = ManualTimekeeper()
    pool = AdaptiveExecutor(max_workers, **settings)
    keeper.serve(pool)
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
