"""Event loops of asyncio and uvloop whose `run_in_executor` hands calls to a pool by a short, fast way."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import sys
import warnings
import weakref
from asyncio import _get_running_loop as running_loop
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ebbpool._loops import LoopFuture, mailbox_of
from ebbpool.executor import AdaptiveExecutor
from ebbpool.lane import Lane

__all__ = ["EventLoop", "LoopFuture", "mailbox_of", "new_event_loop", "new_uvloop"]


class _ShortWay:
    """A mix-in for event loop classes: the short way to a pool, if the executor has one."""

    prefix = "asyncio"
    """The prefix of thread names of a default executor that the loop makes, as in the class that this is added to."""

    _default: Any = None
    """The default executor that was set or made; False once it has been shut down."""

    def run_in_executor(self: Any, executor: Any, func: Any, *args: Any) -> Any:
        """Have `func(*args)` run by an executor; the default one, an `AdaptiveExecutor`, is made on first use."""
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        if executor is None and self._default is None:
            self.set_default_executor(AdaptiveExecutor(thread_name_prefix=self.prefix))
        given = self._default if executor is None else executor
        # The short way begins in the thread of a running loop.
        if not isinstance(given, Lane | AdaptiveExecutor) or given.submits_otherwise() or running_loop() != self:
            return super().run_in_executor(executor, func, *args)  # type: ignore[misc]  # of the class that this is added to
        if self.get_debug() and (inspect.iscoroutine(func) or inspect.iscoroutinefunction(func)):
            raise TypeError("coroutines cannot be used with run_in_executor()")
        lane, pool = (given.core, given.executor) if isinstance(given, Lane) else (None, given)
        future: LoopFuture[Any] = LoopFuture(loop=self)
        future.quiet = True
        return pool.run_on(self, future, None, func, args, None, lane)

    def set_default_executor(self, executor: Any) -> None:
        """Set the executor for `run_in_executor(None, ...)`; see `asyncio.loop.set_default_executor`."""
        super().set_default_executor(executor)  # type: ignore[misc]  # of the class that this is added to
        if self._default is not False:
            self._default = executor

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # as asyncio has it
        """Shut the default executor down; see `asyncio.loop.shutdown_default_executor`.

        Args:
            timeout: Seconds to wait for running calls, on CPython 3.11 and early 3.12, too; None for no limit.
        """
        pool, self._default = self._default, False
        if isinstance(pool, AdaptiveExecutor):
            try:
                await asyncio.wait_for(pool.__aexit__(None, None, None), timeout)
            except TimeoutError:
                late = f"the default executor still runs calls after {timeout} seconds"
                warnings.warn(late, RuntimeWarning, stacklevel=2)
            # The class that this is added to shuts one down that it need not wait for.
            super().set_default_executor(ThreadPoolExecutor())  # type: ignore[misc]
            timeout = None
        limit = () if timeout is None else (timeout,)
        await super().shutdown_default_executor(*limit)  # type: ignore[misc]


if sys.platform == "win32":
    _StandardLoop = asyncio.ProactorEventLoop
else:
    _StandardLoop = asyncio.SelectorEventLoop


class EventLoop(_ShortWay, _StandardLoop):  # type: ignore[misc]  # typeshed's two halves of a loop do not fit each other
    """asyncio's event loop, with a fast `run_in_executor`."""


_uvloop_class: Any = None
_made: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def new_event_loop(executor: AdaptiveExecutor | None = None) -> asyncio.AbstractEventLoop:
    """Return an asyncio event loop with a fast `run_in_executor`, for `asyncio.run(..., loop_factory=new_event_loop)`.

    `run_in_executor`, `asyncio.to_thread` and everything built on them take the same short way as
    `AdaptiveExecutor.run` if the executor is an `AdaptiveExecutor`, and the ordinary way otherwise.

    Args:
        executor: The default executor; None for one that the loop makes on first use. It is shut down when the loop
            ends, as `asyncio.run` does with any default executor.
    """
    return _make(EventLoop, executor)


def new_uvloop(executor: AdaptiveExecutor | None = None) -> asyncio.AbstractEventLoop:
    """Return a uvloop event loop with a fast `run_in_executor`; see `new_event_loop`.

    Raises:
        ImportError: uvloop is not installed.
    """
    global _uvloop_class
    if _uvloop_class is None:
        try:
            base = importlib.import_module("uvloop").Loop
        except ImportError as error:
            raise ImportError("new_uvloop needs uvloop: pip install ebbpool[uvloop]") from error
        _uvloop_class = type("UvLoop", (_ShortWay, base), {"__module__": __name__, "prefix": "uvloop"})
    return _make(_uvloop_class, executor)


def live_loops() -> list[Any]:
    """Return the loops that the factories have made and that live, closed ones included."""
    return [loop for loop in (reference() for reference in _made.valuerefs()) if loop is not None]


def _make(loop_class: Callable[[], asyncio.AbstractEventLoop], executor: Any) -> asyncio.AbstractEventLoop:
    if executor is not None and not isinstance(executor, AdaptiveExecutor):
        raise TypeError(f"executor must be an AdaptiveExecutor, not {executor!r}")
    loop = loop_class()
    _made[id(loop)] = loop
    if executor is not None:
        loop.set_default_executor(executor)
    return loop
