"""How `ebbpool.anyio` runs calls for anyio's asyncio backend, on whatever loop asyncio runs on.

It follows ``run_sync_in_worker_thread`` of ``anyio._backends._asyncio`` (MIT licence), and uses its cancel scope and
the variables through which ``anyio.from_thread`` finds its way back.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from asyncio import CancelledError, current_task
from asyncio import _get_running_loop as running_loop
from collections.abc import Callable, Generator
from contextvars import copy_context
from math import inf
from types import coroutine
from typing import Any
from weakref import ref

from anyio import CapacityLimiter
from anyio._backends._asyncio import AsyncIOBackend, CancelScope, _task_states
from anyio._core._eventloop import threadlocals

from ebbpool._anyio import CANCELLED, call, way_back
from ebbpool._clock import monotonic
from ebbpool._core.accel import LoopCall
from ebbpool._loops import mailbox_of
from ebbpool._pool import lifecycle
from ebbpool.executor import AdaptiveExecutor

STATE = "_ebbpool_anyio"
"""The attribute of an event loop with the mailbox of its calls and their way back: all are collected together."""

ANYIO = "Cancelled via cancel scope "
"""How the message of a cancellation by anyio begins, by which anyio itself recognises it."""

task_states: Any = _task_states.data  # type: ignore[attr-defined]  # not in typeshed


class CallFuture(asyncio.Future[Any]):
    """The future on which a task waits for the outcome of one call."""

    __slots__ = ("call", "heir", "shielded")

    call: LoopCall | None  # None once it can no longer be cancelled
    shielded: bool  # whether a cancellation by anyio has to wait until the call has ended, if it has begun
    heir: CallFuture | None  # gets the outcome after such a cancellation

    def cancel(self, msg: Any | None = None) -> bool:
        """Give up waiting for the call, and take it off the queue; or set the error if the pool has cancelled it."""
        call, self.call = self.call, None
        if call is not None and not self.done():
            if call.cancelled():
                self.set_exception(concurrent.futures.CancelledError(CANCELLED))
                return False
            by_anyio = isinstance(msg, str) and msg.startswith(ANYIO)
            if not call.withdraw(by_anyio):
                if self.shielded and by_anyio:
                    self.heir = CallFuture(loop=self.get_loop())
                    self.heir.call, self.heir.heir, self.heir.shielded = call, None, False
                call.abandon(self.heir)
        return super().cancel(msg)

    def abandoned(self, error: BaseException) -> None:
        """Drop the error of an abandoned call, as anyio does."""


@coroutine
def turn() -> Generator[None, None, None]:
    """Give other tasks a turn, as `asyncio.sleep(0)` does."""
    yield


async def run_sync(
    executor: AdaptiveExecutor,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    abandon_on_cancel: bool,
    limiter: CapacityLimiter | None,
    lifts_ceiling: bool,
) -> Any:
    """See `ebbpool.anyio.run_sync`; the executor's bounds are no limit if the call `lifts_ceiling`.

    anyio has the task wait in a shielded scope. Here the scope is made only at the first cancellation, because most
    calls are never cancelled. If the call still waits for capacity then, the cancellation goes through, as it does with
    anyio for a call that waits for a token.
    """
    if limiter is not None:
        async with limiter:
            return await run_sync(executor, func, args, abandon_on_cancel, None, lifts_ceiling)
    await turn()
    task: Any = current_task()
    state = task_states.get(ref(task))
    scope = None if state is None else state.cancel_scope
    if abandon_on_cancel and scope is not None:
        with CancelScope() as own:
            return await _start(executor, func, args, own, False, lifts_ceiling)
    requests = task.cancelling()
    ticket = _start(executor, func, args, scope, not abandon_on_cancel, lifts_ceiling)
    try:
        return await ticket
    except CancelledError:
        heir = getattr(ticket, "heir", None)
        # If Task.cancel() came too, asyncio merged both; let the native one win.
        if heir is None or task.cancelling() > requests + 1:
            if heir is not None:
                heir.cancel()
            raise
    finally:
        # Breaks a cycle: the ticket holds the error, whose traceback holds this frame.
        del ticket
    try:
        with CancelScope(shield=True):
            return await heir
    finally:
        del heir


def _start(
    executor: AdaptiveExecutor,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    scope: CancelScope | None,
    shielded: bool,
    lifts_ceiling: bool,
) -> Any:
    """Return what the task is to wait for: a call's ticket, or a call of anyio's own once the interpreter exits."""
    loop: Any = running_loop()
    state = getattr(loop, STATE, None)
    if state is None:
        state = mailbox_of(loop), way_back(AsyncIOBackend, loop)
        setattr(loop, STATE, state)
    mailbox, attributes = state
    ticket = CallFuture()
    ticket.heir = None
    ticket.shielded = shielded
    lane = executor._unlimited if lifts_ceiling else None
    work = (attributes, scope, func, args)
    try:
        ticket.call = executor.offload(mailbox, ticket, copy_context(), _perform, work, None, lane)
    except RuntimeError:
        if not lifecycle.exiting():
            raise
        # A token that is held cannot be borrowed once more.
        return AsyncIOBackend.run_sync_in_worker_thread(func, args, not shielded, CapacityLimiter(1))
    return ticket


def deadline() -> float:
    """Return when the scopes around the call in this worker expire. The loop's thread may change them meanwhile."""
    first = inf
    scope = getattr(threadlocals, "current_cancel_scope", None)
    loop = None if scope is None else threadlocals.current_token.native_token
    while scope is not None:
        first = min(first, -inf if scope.cancel_called else scope.deadline)
        scope = None if scope.shield else scope._parent_scope
    # asyncio's loops have a clock that a test may have frozen; uvloop's stands still while that waits.
    return first + monotonic() - loop.time() if isinstance(loop, asyncio.BaseEventLoop) else first


def _perform(
    attributes: dict[str, Any], scope: CancelScope | None, func: Callable[..., Any], args: tuple[Any, ...]
) -> Any:
    """Run the call, in a worker; or in the loop's own thread, from which it cannot wait for the loop."""
    return call(func, args, attributes if running_loop() is None else None, scope)
