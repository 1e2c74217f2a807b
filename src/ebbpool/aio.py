"""Event loops of any class whose `run_in_executor` hands calls to a pool by a short, fast way."""

from __future__ import annotations

import asyncio
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

__all__ = ["LoopFuture", "mailbox_of", "new_loop_factory"]


class _ShortWay:
    """A mix-in for event loop classes: the short way to a pool, if the executor has one."""

    prefix: str
    """The prefix of thread names of a default executor that the loop makes: the package of the class it is added to."""

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

_made: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def new_loop_factory(
    loop_class: Callable[[], asyncio.AbstractEventLoop] | None = None, executor: AdaptiveExecutor | None = None
) -> Callable[[], asyncio.AbstractEventLoop]:
    """Return a function that makes event loops with a fast `run_in_executor`, for `asyncio.run(..., loop_factory=...)`.

    `run_in_executor`, `asyncio.to_thread` and everything built on them take the same short way as
    `AdaptiveExecutor.run` if the executor is an `AdaptiveExecutor`, and the ordinary way otherwise.

    Args:
        loop_class: What the loops are, such as `uvloop.Loop`; None for asyncio's own. It is made without arguments.
        executor: The default executor; None for one that each loop makes on first use. It is shut down when the loop
            ends, as `asyncio.run` does with any default executor.

    Raises:
        TypeError: `loop_class` is not a class of event loops, or `executor` not an `AdaptiveExecutor`.
    """
    if loop_class is None:
        loop_class = _StandardLoop
    if not isinstance(loop_class, type) or not issubclass(loop_class, asyncio.AbstractEventLoop):
        raise TypeError(f"loop_class must be a class of event loops, not {loop_class!r}")
    if executor is not None and not isinstance(executor, AdaptiveExecutor):
        raise TypeError(f"executor must be an AdaptiveExecutor, not {executor!r}")
    package = loop_class.__module__.partition(".")[0]
    short: Any = type(loop_class.__name__, (_ShortWay, loop_class), {"__module__": __name__, "prefix": package})

    def new_loop() -> asyncio.AbstractEventLoop:
        loop = short()
        _made[id(loop)] = loop
        if executor is not None:
            loop.set_default_executor(executor)
        return loop  # type: ignore[no-any-return]

    return new_loop


def live_loops() -> list[Any]:
    """Return the loops that such factories have made and that live, closed ones included."""
    return [loop for loop in (reference() for reference in _made.valuerefs()) if loop is not None]
