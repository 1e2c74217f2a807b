"""A pool that waits for its time on a timekeeper which the test holds in its hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ebbpool import AdaptiveExecutor
from ebbpool._testing.seams import ManualTimekeeper
from support.common import TIMEOUT, Boom, wait_for_idle


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
