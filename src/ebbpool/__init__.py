"""A thread pool that ebbs and flows: a drop-in for `concurrent.futures.ThreadPoolExecutor`."""

from __future__ import annotations

from concurrent.futures.thread import BrokenThreadPool

from ebbpool._accel import COMPILED, Future
from ebbpool._schedule import ScheduledTask
from ebbpool.executor import AdaptiveExecutor, PoolStats, QueueFull
from ebbpool.lane import Lane, LaneStats

__all__ = [
    "COMPILED",
    "AdaptiveExecutor",
    "BrokenThreadPool",
    "Future",
    "Lane",
    "LaneStats",
    "PoolStats",
    "QueueFull",
    "ScheduledTask",
    "__version__",
]

__version__ = "0.1.0"
