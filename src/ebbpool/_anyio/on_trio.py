"""How `ebbpool.anyio` runs calls for anyio's trio backend. Imported only where trio runs.

It follows ``trio/_threads.py`` (MIT and Apache licences), and uses the variables through which ``trio.from_thread``
finds its way back, and the messages that it sends.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from contextvars import copy_context
from math import inf
from types import CoroutineType
from typing import Any

import trio
from anyio import CapacityLimiter
from anyio._backends._trio import TrioBackend
from outcome import Value
from trio._core._run import GLOBAL_RUN_CONTEXT
from trio._threads import PARENT_TASK_DATA, Run, RunSync, _active_threads_local, _ActiveThreadCount

from ebbpool._anyio import CANCELLED, call, way_back
from ebbpool._core.accel import LoopCall, Mailbox
from ebbpool._pool import late, lifecycle
from ebbpool.executor import AdaptiveExecutor


class RunState:
    """The mailbox, ways back and counter that every call from one run of trio needs."""

    def __init__(self) -> None:
        self.trio_token = trio.lowlevel.current_trio_token()
        self.attributes = way_back(TrioBackend, self.trio_token)
        self.mailbox = Mailbox(self.trio_token.run_sync_soon, self.trio_token.run_sync_soon, trio.lowlevel.current_task)
        late.register(self.mailbox)
        # The counter of ``trio.testing.wait_all_threads_completed``.
        try:
            self.active = _active_threads_local.get()
        except LookupError:
            self.active = _ActiveThreadCount(0, trio.Event())
            _active_threads_local.set(self.active)


_state: trio.lowlevel.RunVar[RunState] = trio.lowlevel.RunVar("ebbpool.anyio")


class TrioCall:
    """The ticket of one call, whose outcome a task waits for in trio's thread.

    The lists `task`, to wake, and `cancel_with`, which raises `trio.Cancelled` once the task is cancelled, are where
    trio looks for these. It has borrowed a token from `limiter`, which gets it back when the call is over.
    """

    __slots__ = ("abandon", "call", "cancel_with", "error", "limiter", "state", "task", "value")

    call: LoopCall

    def __init__(
        self, state: RunState, task: trio.lowlevel.Task, abandon: bool, limiter: CapacityLimiter | None
    ) -> None:
        self.state = state
        self.abandon = abandon
        self.task: list[trio.lowlevel.Task | None] = [task]
        self.cancel_with: list[Any] = [None]
        self.limiter = limiter
        self.value: Any = None
        self.error: BaseException | None = None

    def done(self) -> bool:
        return self.task[0] is None and self.limiter is None

    def set_result(self, value: Any) -> None:
        self.value = value
        if self.limiter is not None:
            self._give_back()
        task = self.task[0]
        self.task[0] = None
        if task is not None:
            trio.lowlevel.reschedule(task, Value(self))

    def set_exception(self, error: BaseException) -> None:
        self.error = error
        self.set_result(None)

    def cancel(self) -> None:
        """Wake the task: the pool has cancelled the call."""
        self.set_exception(concurrent.futures.CancelledError(CANCELLED))

    def abandoned(self, error: BaseException) -> None:
        """Drop the error of an abandoned call, as trio does."""

    def _give_back(self) -> None:
        limiter, self.limiter = self.limiter, None
        if limiter is not None:
            try:
                limiter.release_on_behalf_of(self)
            except BaseException as error:
                # As in trio: a limiter may be the user's own, and its error replaces the outcome.
                error.__context__ = self.error
                self.error = error

    def abort(self, raise_cancel: Any) -> trio.lowlevel.Abort:
        """Answer trio whether the task may be cancelled: if the call waits for capacity, or may be abandoned."""
        self.cancel_with[0] = raise_cancel
        withdrawn = self.call.withdraw(True)
        if withdrawn:
            self._give_back()
        else:
            self.call.abandon(None if self.abandon else self)
        if withdrawn or self.abandon:
            self.task[0] = None
            return trio.lowlevel.Abort.SUCCEEDED
        return trio.lowlevel.Abort.FAILED


@trio.lowlevel.enable_ki_protection
async def run_sync(
    executor: AdaptiveExecutor,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    abandon_on_cancel: bool,
    limiter: CapacityLimiter | None,
    lifts_ceiling: bool,
) -> Any:
    """See `ebbpool.anyio.run_sync`; the executor's bounds are no limit if the call `lifts_ceiling`."""
    await trio.lowlevel.checkpoint_if_cancelled()
    try:
        state = _state.get()
    except LookupError:
        state = RunState()
        _state.set(state)
    ticket = TrioCall(state, trio.lowlevel.current_task(), abandon_on_cancel, limiter)
    active = state.active
    exits = False
    try:
        if limiter is not None:
            await limiter.acquire_on_behalf_of(ticket)
        active.count += 1
        try:
            try:
                lane = executor._unlimited if lifts_ceiling else None
                work = (ticket, func, args)
                ticket.call = executor.offload(state.mailbox, ticket, copy_context(), _perform, work, None, lane)
            except BaseException as refusal:
                ticket._give_back()
                if not isinstance(refusal, RuntimeError) or not lifecycle.exiting():
                    raise
                exits = True
            if exits:
                # trio's own threads go on.
                return await TrioBackend.run_sync_in_worker_thread(func, args, abandon_on_cancel, limiter)
            message = await trio.lowlevel.wait_task_rescheduled(ticket.abort)
            while message is not ticket:
                if type(message) is RunSync:
                    message.run_sync()
                elif type(message) is Run:
                    await message.run()
                else:
                    raise TypeError(f"a worker sent trio an unknown message: {message!r}")
                message = await trio.lowlevel.wait_task_rescheduled(ticket.abort)
        finally:
            active.count -= 1
            if active.count == 0:
                active.event.set()
                active.event = trio.Event()
        error = ticket.error
        if error is None:
            return ticket.value
        raise error
    finally:
        # Breaks a cycle: the error's traceback holds this frame and that of `_perform`, and with them the ticket.
        ticket.error = error = message = None


def deadline() -> float:
    """Return that there is none: those of trio's scopes are not known in a worker."""
    return inf


def _perform(ticket: TrioCall, func: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Run the call, in a worker; or in trio's own thread, from which it cannot wait for trio."""
    # What `in_trio_run` asks for, without the error that it would make, and drop, in each worker.
    if "runner" in GLOBAL_RUN_CONTEXT.__dict__:
        value = call(func, args, None)
    else:
        data = PARENT_TASK_DATA.__dict__
        data["token"] = ticket.state.trio_token
        data["abandon_on_cancel"] = ticket.abandon
        data["cancel_register"] = ticket.cancel_with
        data["task_register"] = ticket.task
        try:
            value = call(func, args, ticket.state.attributes)
        finally:
            del data["token"], data["abandon_on_cancel"], data["cancel_register"], data["task_register"]
    if isinstance(value, CoroutineType):
        value.close()
        raise TypeError(
            f"Trio expected a sync function, but {getattr(func, '__qualname__', func)!r} appears to be asynchronous"
        )
    return value
