"""A thread pool that ebbs and flows: a drop-in for `concurrent.futures.ThreadPoolExecutor`.

pytest would rewrite it for its plugin, and warn where a program has imported it before: PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from concurrent.futures.thread import BrokenThreadPool

from ebbpool._core.accel import COMPILED, Future
from ebbpool._errors import QueueFull, QueueTimeout
from ebbpool._maps.delayed import ScheduledTask
from ebbpool._maps.streams import Stream
from ebbpool._pool.cancelling import cancelled, check_cancelled, on_cancel, time_left
from ebbpool._pool.late import LoopLag
from ebbpool._pool.running import RunningTask
from ebbpool._pool.stats import Decision, LaneStats, PoolStats
from ebbpool._version import __version__
from ebbpool.executor import AdaptiveExecutor, pools
from ebbpool.lane import Lane, Within
from ebbpool.session import Session
from ebbpool.switch import Installed, install

__all__ = [
    "COMPILED",
    "AdaptiveExecutor",
    "BrokenThreadPool",
    "Decision",
    "Future",
    "Installed",
    "Lane",
    "LaneStats",
    "LoopLag",
    "PoolStats",
    "QueueFull",
    "QueueTimeout",
    "RunningTask",
    "ScheduledTask",
    "Session",
    "Stream",
    "Within",
    "__version__",
    "cancelled",
    "check_cancelled",
    "install",
    "on_cancel",
    "pools",
    "time_left",
]
