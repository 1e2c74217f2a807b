"""A thread pool that ebbs and flows: a drop-in for `concurrent.futures.ThreadPoolExecutor`."""

from __future__ import annotations

from concurrent.futures.thread import BrokenThreadPool

from ebbpool._accel import COMPILED, Future
from ebbpool.executor import AdaptiveExecutor, PoolStats, QueueFull

__all__ = [
    "COMPILED",
    "AdaptiveExecutor",
    "BrokenThreadPool",
    "Future",
    "PoolStats",
    "QueueFull",
    "__version__",
]

__version__ = "0.1.0"
