"""A trial of one of anyio's backends: whether its calls run on a pool and keep what anyio promises, in this version."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import anyio
import anyio.from_thread
import anyio.lowlevel

from ebbpool._interpreter import daemon_threads
from ebbpool.executor import AdaptiveExecutor

TIMEOUT: Final = 30.0
"""Seconds that a trial may take. It takes some milliseconds, unless it waits for something that does not come."""


def attempt(way: Any, backend: str) -> None:
    """Raise an error if calls of a new loop, in a thread of its own, do not do what they should.

    The way in which they run is a module: `on_asyncio` or `on_trio`.
    """
    told: list[bool] = []
    # A trial that hangs must not hold up the interpreter's exit.
    pool = AdaptiveExecutor(1, "ebbpool-anyio-trial", daemon=daemon_threads())
    try:
        calls = partial(_calls, way, pool, told)
        pool.submit(partial(anyio.run, calls, backend=backend)).result(TIMEOUT)
    finally:
        pool.shutdown(wait=False)
    pool.shutdown(timeout=TIMEOUT)
    if len(told) != 2:
        raise RuntimeError("a call is not told that its task has been cancelled")


async def _calls(way: Any, pool: AdaptiveExecutor, told: list[bool]) -> None:
    """Make two calls that find their way back and cancel their own task, which abandons only the second."""
    for abandon in (False, True):
        waited = False
        with anyio.CancelScope() as scope:
            call = partial(_call, way.deadline, scope, told)
            await way.run_sync(pool, call, (), abandon, anyio.CapacityLimiter(1), True)
            waited = len(told) == 1
            await anyio.lowlevel.checkpoint()
        if waited is abandon or not scope.cancelled_caught:
            raise RuntimeError("a cancelled task leaves its call, or waits for it, when it should not")


def _call(deadline: Callable[[], float], scope: anyio.CancelScope, told: list[bool]) -> None:
    deadline()
    anyio.from_thread.run(anyio.lowlevel.checkpoint)
    anyio.from_thread.run_sync(scope.cancel)
    try:
        anyio.from_thread.check_cancelled()
    except BaseException:
        told.append(True)
