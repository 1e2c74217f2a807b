"""Delivery of results to asyncio: the loop's own future for an offloaded call, and the mailbox of each loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import weakref
from asyncio import _get_running_loop as running_loop
from collections.abc import Callable
from concurrent.futures.thread import BrokenThreadPool
from typing import Any, TypeVar

from ebbpool._core.accel import LoopCall, Mailbox, connect, relay_by
from ebbpool._errors import QueueTimeout, traceback_of, with_traceback
from ebbpool._interpreter import LACKING
from ebbpool._pool import late

T = TypeVar("T")

NOT_RUN = (QueueTimeout, BrokenThreadPool)
"""What a call that does not run fails with; nobody has raised it, so it has no traceback."""

MAILBOX = "_ebbpool_mailbox"
"""The attribute of an event loop that holds its mailbox, so that both are collected together."""


def _presentable(error: Any) -> Any:
    """Return an error as asyncio shows it: with asyncio's own cancellation and state errors, without StopIteration."""
    kind = type(error)
    if issubclass(kind, StopIteration):
        shown: BaseException = RuntimeError(
            "StopIteration interacts badly with generators and cannot be raised into a Future"
        )
        shown.__cause__ = error
        shown.__context__ = error
        return shown
    if kind is concurrent.futures.CancelledError:
        return with_traceback(asyncio.CancelledError(*error.args), traceback_of(error))
    if kind is concurrent.futures.InvalidStateError:
        return with_traceback(asyncio.InvalidStateError(*error.args), traceback_of(error))
    return error


class LoopFuture(asyncio.Future[T]):
    """The loop's own future, for a call that a pool runs; see `AdaptiveExecutor.run`."""

    __slots__ = ("_call", "quiet")

    _call: LoopCall | None
    quiet: bool  # set if the loop is told of no error that comes too late, as with `run_in_executor` of other loops

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
        if hasattr(self, "quiet") or issubclass(type(error), concurrent.futures.CancelledError):
            return
        if issubclass(type(error), NOT_RUN) and traceback_of(error) is None:
            return
        message = "exception in an offloaded call whose future was cancelled"
        self.get_loop().call_exception_handler({"message": message, "exception": error, "future": self})


def mailbox_of(loop: asyncio.AbstractEventLoop) -> Mailbox:
    """Return the mailbox through which a loop gets the results of its calls, made on first use; any thread may."""
    found: Mailbox | None = getattr(loop, MAILBOX, None)
    if found is not None:
        return found
    # The loop holds the mailbox. A weak reference back, so that there is no cycle.
    reference = weakref.ref(loop)

    def wake(deliver: Callable[[int], None], ring: int) -> None:
        loop = reference()
        if loop is None:
            raise RuntimeError("the event loop is gone")
        loop.call_soon_threadsafe(deliver, ring)

    def again(deliver: Callable[[int], None], ring: int) -> None:
        loop = reference()
        if loop is not None:
            loop.call_soon(deliver, ring)

    def runs() -> bool:
        loop = reference()
        return loop is not None and loop.is_running()

    mailbox = Mailbox(wake, again, asyncio.current_task)
    try:
        setattr(loop, MAILBOX, mailbox)
    except AttributeError:
        # A loop that takes no attributes has a new mailbox, and is woken, for every call.
        return mailbox
    if running_loop() is loop:
        late.register(mailbox, runs)
    else:
        mailbox.relay(late.register, mailbox, runs)
    return mailbox


def _chained() -> Any:
    """Return the code of the callback by which `asyncio.wrap_future` has a loop told; None if it is another by now."""
    futures: Any = asyncio.futures
    for code in futures._chain_future.__code__.co_consts:
        if getattr(code, "co_freevars", ())[:3] == ("_set_state", "dest_loop", "destination"):
            return code
    return None


CHAINED = _chained()
if CHAINED is None:
    LACKING.append("asyncio.futures._chain_future")


def relayed(listener: Any, source: Any) -> bool:
    """Do what such a callback does, but through the loop's mailbox; return False, having done nothing, if it is none.

    asyncio puts each outcome on the loop by itself: of 10,000 at once it makes one turn, in which nothing else runs.
    """
    if listener.__code__ is not CHAINED:
        return False
    set_state, loop, destination = [cell.cell_contents for cell in listener.__closure__[:3]]
    if loop is None or loop is running_loop() or loop.is_closed():
        return False
    mailbox_of(loop).relay(set_state, destination, source)
    return True


connect(asyncio.get_running_loop, mailbox_of, LoopFuture, MAILBOX)
relay_by(relayed)
