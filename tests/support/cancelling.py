"""The ways to cancel a call that runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from support.common import LONG, eventually
from support.loops import until

SOON = 0.3
"""Seconds until a deadline."""


def cancel(way: str, executor: Any, fn: Callable[[threading.Event], object]) -> Any:
    """Have an executor run `fn(begun)`, and cancel that once it has set the event.

    Returns:
        Its future; None if a loop had that.
    """
    begun = threading.Event()

    async def leave() -> None:
        call: Any
        if way == "loop":
            call = asyncio.get_running_loop().run_in_executor(executor, fn, begun)
        elif way == "amap":
            call = asyncio.ensure_future(anext(executor.amap(fn, [begun])))
        else:
            call = (executor if way == "run" else executor.within(LONG)).run(fn, begun)
        await until(begun.is_set)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    if way in ("run", "within", "loop", "amap"):
        asyncio.run(leave())
        return None
    while not begun.is_set():
        future = (executor.within(deadline=SOON) if way == "deadline" else executor).submit(fn, begun)
        # On a busy machine the deadline may pass before a thread comes.
        eventually(lambda: begun.is_set() or future.done())  # noqa: B023  (used at once)
    if way == "future":
        # As with the standard library: it runs, so it is not cancelled.
        assert not future.cancel()
    elif way == "shutdown":
        executor.shutdown(wait=False, cancel_futures=True)
    elif way == "shutdown of the pool":
        executor.executor.shutdown(wait=False, cancel_futures=True)
    return future
