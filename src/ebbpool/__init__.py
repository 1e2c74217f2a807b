"""A thread pool that ebbs and flows: a drop-in for `concurrent.futures.ThreadPoolExecutor`."""

from __future__ import annotations

from concurrent.futures.thread import BrokenThreadPool

from ebbpool._accel import COMPILED, Future
from ebbpool._schedule import ScheduledTask
from ebbpool._stats import LaneStats, PoolStats
from ebbpool._stream import Stream
from ebbpool.executor import AdaptiveExecutor, QueueFull
from ebbpool.lane import Lane

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
    "Stream",
    "__version__",
]

__version__ = "0.1.0"
