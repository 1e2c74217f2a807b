"""A thread pool that ebbs and flows: a drop-in for `concurrent.futures.ThreadPoolExecutor`.

pytest would rewrite it for its plugin, and warn where a program has imported it before: PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from concurrent.futures.thread import BrokenThreadPool
from typing import TYPE_CHECKING

from ebbpool._core.accel import COMPILED, Future
from ebbpool._errors import QueueFull, QueueTimeout
from ebbpool._maps.delayed import ScheduledTask
from ebbpool._maps.streams import Stream
from ebbpool._pool.cancelling import cancelled, check_cancelled, on_cancel, time_left
from ebbpool.executor import AdaptiveExecutor, pools
from ebbpool.lane import Lane, Within
from ebbpool.session import Session
from ebbpool.switch import Installed, install

if TYPE_CHECKING:
    from ebbpool._pool.reports import Decision, LaneStats, LoopLag, PoolStats, RunningTask
    from ebbpool._version import __version__
else:

    def __getattr__(name):
        if name not in __all__:
            from importlib.util import find_spec

            public = name.isidentifier() and not name.startswith("_")
            hint = f": import ebbpool.{name} first" if public and find_spec(f"ebbpool.{name}") else ""
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
        if name == "__version__":
            from ebbpool import _version as module
        else:
            from ebbpool._pool import reports as module
        value = globals()[name] = getattr(module, name)
        return value


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
