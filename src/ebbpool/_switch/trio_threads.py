"""What stands in for trio's cache of threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from ebbpool.executor import AdaptiveExecutor


class PoolThreads:
    """What `trio.lowlevel.start_thread_soon` asks for a thread: one of the pool's.

    trio has limited the calls already, so they go beyond the pool's ceiling if need be.
    """

    def __init__(self, executor: AdaptiveExecutor) -> None:
        self.executor = executor
        # trio forgets these in a forked child.
        self._idle_workers: dict[Any, None] = {}

    def start_thread_soon(self, fn: Callable[[], Any], deliver: Callable[[Any], object], name: Any = None) -> None:
        self.executor.hand_in(self.executor._unlimited, True, _perform, (fn, deliver), {})


def _perform(fn: Callable[[], Any], deliver: Callable[[Any], object]) -> None:
    result = outcome.capture(fn)
    # What the caller handed over is not to live on while its result is on the way.
    del fn
    deliver(result)
