"""Delivery of results to asyncio: the loop's own future for an offloaded call, and the mailbox of each loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from ebbpool._core.accel import LoopCall, Mailbox, connect
from ebbpool._errors import QueueTimeout
from ebbpool._pool import late

T = TypeVar("T")

MAILBOX = "_ebbpool_mailbox"
"""The attribute of an event loop that holds its mailbox, so that both are collected together."""


def _presentable(error: Any) -> Any:
    """Return an error as asyncio shows it: with asyncio's own cancellation and state errors, without StopIteration."""
    kind = type(error)
    if isinstance(error, StopIteration):
        shown: BaseException = RuntimeError(
            "StopIteration interacts badly with generators and cannot be raised into a Future"
        )
        shown.__cause__ = error
        shown.__context__ = error
        return shown
    if kind is concurrent.futures.CancelledError:
        return asyncio.CancelledError(*error.args).with_traceback(error.__traceback__)
    if kind is concurrent.futures.InvalidStateError:
        return asyncio.InvalidStateError(*error.args).with_traceback(error.__traceback__)
    return error


class LoopFuture(asyncio.Future[T]):
    """The loop's own future, for a call that a pool runs; see `AdaptiveExecutor.run`."""

    __slots__ = ("_call",)

    _call: LoopCall | None

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the future; a call that has not started is taken off the queue, one that runs learns of it."""
        call = getattr(self, "_call", None)
        if call is not None:
            self._call = None
            if not call.withdraw():
                call.abandon()
        return super().cancel(msg)

    def set_exception(self, exception: type[BaseException] | BaseException, /) -> None:
        """Set what the call raised, in the form in which asyncio shows errors of executors."""
        super().set_exception(_presentable(exception))

    def abandoned(self, error: BaseException) -> None:
        """Tell the loop what a call raised after its future was cancelled, unless that is why it left or never ran."""
        if isinstance(error, concurrent.futures.CancelledError):
            return
        if isinstance(error, QueueTimeout) and error.__traceback__ is None:
            # Nobody raised it: the call never ran.
            return
        message = "exception in an offloaded call whose future was cancelled"
        self.get_loop().call_exception_handler({"message": message, "exception": error, "future": self})


def mailbox_of(loop: asyncio.AbstractEventLoop) -> Mailbox:
    """Return the mailbox through which a loop gets the results of its calls, made on first use in its thread."""
    found: Mailbox | None = getattr(loop, MAILBOX, None)
    if found is not None:
        return found
    # The loop holds the mailbox. A weak reference back, so that there is no cycle.
    reference = weakref.ref(loop)

    def wake(deliver: Callable[[], None]) -> None:
        loop = reference()
        if loop is None:
            raise RuntimeError("the event loop is gone")
        loop.call_soon_threadsafe(deliver)

    def again(deliver: Callable[[], None]) -> None:
        loop = reference()
        if loop is not None:
            loop.call_soon(deliver)

    def runs() -> bool:
        loop = reference()
        return loop is not None and loop.is_running()

    mailbox = Mailbox(wake, again, asyncio.current_task)
    try:
        setattr(loop, MAILBOX, mailbox)
    except AttributeError:
        # A loop that takes no attributes has a new mailbox, and is woken, for every call.
        return mailbox
    late.register(mailbox, runs)
    return mailbox


connect(asyncio.get_running_loop, mailbox_of, LoopFuture, MAILBOX)
