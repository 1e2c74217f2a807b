"""The base class of executors, which every task passes: it queues calls for `submit`, `run` and `submit_later`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import thread
from contextvars import Context, copy_context
from functools import partial
from math import inf
from types import FunctionType
from typing import TYPE_CHECKING, Any

from ebbpool._core import uncompiled as cython
from ebbpool._core.scope import Scope

if not TYPE_CHECKING and cython.compiled:
    import cython
if not cython.compiled:
    # For compiled code executor_core_c.pxd declares these.
    from ebbpool._clock import HORIZON
    from ebbpool._core.future import _EMPTY, _NOBODY, FutureCore, _bare, _Future
    from ebbpool._core.loop_calls import LoopCall, Mailbox
    from ebbpool._core.pool import Pool
    from ebbpool._core.staff import Staff
    from ebbpool._core.task import LaneCore, Line
    from ebbpool._core.uncompiled import COMING, PENDING, blank, breathe, has_code, identity
    from ebbpool._core.worker import Probe

_Standard = thread.ThreadPoolExecutor
_own: Any = _Standard.submit
"""The standard library's `ThreadPoolExecutor.submit`; None if a tool had replaced it before this import."""
if (
    type(_own) is not FunctionType
    or _own.__globals__ is not vars(thread)
    or "cannot schedule new futures after shutdown" not in _own.__code__.co_consts
):
    _own = None
_own_code: Any = _own and _own.__code__


def instrumented() -> bool:
    """Return whether a tool has replaced `ThreadPoolExecutor.submit` or, as ddtrace does, its code."""
    if _Standard.submit is not _own:
        return True
    return not has_code(_own, _own_code) if cython.compiled else _own.__code__ is not _own_code


def _measured(pool: Pool, fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return what to call in place of `fn`, so that `record` is told of it; begin to count to the next such call."""
    pool.wrapping.skip_some()
    with pool.mutex:
        record = pool.wrapping.record
    return fn if record is None else Probe(fn, record)


class ExecutorCore:
    """The part of an executor that every task passes."""

    _pool: Pool
    _way: int  # 1 if `offload` is the engine's own, 2 if a subclass or a tool has another, 0 if not looked yet
    if not cython.compiled:
        # What a subclass has.
        _crew: Any
        _connect: Callable[[], None]
        _delay: Callable[..., Any]
        _instrumented: Callable[..., Any]
        _refused: Callable[[Any, str | None, bool], None]

    @cython.nonecheck(False)
    @cython.locals(
        pool=Pool, future=FutureCore, staff=Staff, queue=Line, special=cython.bint, actions=cython.Py_ssize_t
    )
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Queue `fn(*args, **kwargs)` and return its `Future`; any thread may call this, a task of this pool included.

        While `max_queue` tasks wait, `when_full` says whether this waits for room, raises, or runs the call itself.

        Raises:
            TypeError: `fn` is not callable.
            RuntimeError: The executor has been shut down, or it has no thread and none can be started.
            BrokenThreadPool: A worker's initializer failed.
            QueueFull: `max_queue` tasks wait and `when_full` is "reject".
            QueueTimeout: This has waited for room for `max_wait` seconds.
        """
        if instrumented():
            return ExecutorCore.hand_in(self, None, False, fn, args, kwargs)
        pool = self._pool
        if pool is None:
            raise RuntimeError(f"{type(self).__name__}.__init__() was never called")
        future = blank(FutureCore, _Future, _EMPTY) if cython.compiled else _bare(_Future)
        if cython.compiled or pool.wrapping.wraps or not callable(fn):
            self._prepare(future, fn, args, kwargs)
        else:
            # What `_prepare` does, without the cost of a call for each task.
            future._code = PENDING
            future._result = future._exception = future._audience = future._cond = future._observers = None
            future._lane = future._not_run = future._scope = future._executor = future._known = None
            future._latest = 0.0
            future._pool = pool
            future._fn = fn
            future._args = args
            future._kwargs = kwargs if kwargs else None
        staff: Staff = pool.staff
        queue: Line = pool.backlog.queue
        future._line = queue
        actions = 0
        special = False
        try:
            with pool.mutex:
                special = pool.special
                if not special:
                    future._queued_at = pool.clock
                    queue.append(future)
                    # Otherwise there is nothing to do: see `Pool._balance`.
                    if not staff.counts[COMING] and (staff.parked or pool.next_look > pool.clock + HORIZON):
                        try:
                            actions = pool._balance(False)
                        except BaseException:
                            queue.tasks.remove(future)
                            raise
                        future._queued_at = pool.clock
            if actions:
                pool._perform(actions, future)
        except BaseException:
            pool.make_up()
            raise
        if special:
            future._line = None
            refusal = pool.push(future)
            if refusal is not None:
                self._refused(future, refusal, False)
                try:
                    return future
                finally:
                    future = None  # breaks a cycle; see `perform`
        return future

    def submit_first(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Queue `fn(*args, **kwargs)` ahead of all that waits; return its `Future`, or raise what `submit` raises.

        Once an ordinary task has waited for 0.1 s, ordinary tasks and those that go first are taken in turn.
        """
        return self.hand_in(None, True, fn, args, kwargs)

    def hand_in(
        self,
        lane: LaneCore | None,
        first: bool,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        scope: Scope | None = None,
        shown: bool = False,
    ) -> Any:
        """Queue a call, `first` or not, in a lane and with a limit of its wait; `shown` if a tool has seen it."""
        if not shown and instrumented():
            own: Any = ExecutorCore
            return self._instrumented(
                partial(own.hand_in, self, lane, first, scope=scope, shown=True), fn, args, kwargs
            )
        future = blank(FutureCore, _Future, _EMPTY) if cython.compiled else _bare(_Future)
        self._prepare(future, fn, args, kwargs)
        future._lane = lane
        if scope is not None:
            future.limit(scope)
        refusal = self._pool.push(future, first)
        if refusal is not None:
            self._refused(future, refusal, first)
        try:
            return future
        finally:
            future = None  # breaks a cycle; see `perform`

    def submit_later(self, delay: float, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Queue `fn(*args, **kwargs)` once, `delay` seconds from now and never earlier; return its `Future`.

        Any thread may call this. The future can be cancelled until the call starts, also while it is queued. Until it
        is due, the call takes no thread and no place in the queue. If the queue is full by then, it waits its turn
        behind blocked submitters, whatever `when_full` says. The clock is `time.monotonic`: setting the wall clock
        changes nothing, and the time for which a machine is suspended counts on Windows, not on Linux and macOS. The
        pool stays alive until the call is done. `shutdown`, also at the end of ``with``, and the end of the interpreter
        cancel calls that are not due; their callbacks then run in the thread that does so.

        Args:
            delay: Seconds, 0 or more.
            fn: Called in a worker.
            args: Its arguments.
            kwargs: Its keyword arguments.

        Raises:
            TypeError: `fn` is not callable, or `delay` is not a number.
            ValueError: `delay` is negative, infinite or not a number.
            RuntimeError: The executor has been shut down, the interpreter exits, or no thread can be started.
            BrokenThreadPool: A worker's initializer failed.
        """
        if type(delay) is not float or not 0.0 <= delay < inf or instrumented():
            return self._delay(delay, fn, args, kwargs)
        future = self.hold_back(fn, args, kwargs)
        self._crew.timers.add_after(self, future, delay)
        return future

    @cython.locals(future=FutureCore)
    def hold_back(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        """Return a pending future for a call that is on no queue yet. Raise what `submit` raises."""
        if self._pool.closed:
            self._refused(None, "broken" if self._pool.broken else "closed", False)
        future = blank(FutureCore, _Future, _EMPTY) if cython.compiled else _bare(_Future)
        self._prepare(future, fn, args, kwargs)
        future._executor = self
        future._audience = _NOBODY
        return future

    def offload(
        self,
        mailbox: Mailbox,
        ticket: Any,
        context: Context | None,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None,
        lane: LaneCore | None = None,
        scope: Scope | None = None,
    ) -> LoopCall:
        """Queue a call, to be run in `context` if there is one, whose outcome goes to `ticket` through `mailbox`.

        With a full queue and `when_full` "block" it waits its turn without blocking the thread. Where tasks wait, it is
        looked up whether such calls are short. It raises what `submit` raises.
        """
        pool = self._pool
        if lane is None and pool.runs_here():
            # The loop's worker waits for the call, which must not wait for a worker.
            lane = mailbox.lane
            if lane is None or lane.pool is not pool or lane.limit != pool.staff.ceiling:
                lane = mailbox.lane = LaneCore(pool, pool.staff.ceiling, True, True, max_wait=-1.0)
        known: Any = None
        # A call that finds an idle worker is not measured, and goes first.
        may_lead = pool.staff.short_room > 0 and (lane is None or (lane.limit > 1 and not lane.first))
        if may_lead and not pool.finds_idle():
            known = pool.backlog.functions.of(fn, args)
        if context is None and pool.contextual:
            context = copy_context()
        if not cython.compiled and context is not None and callable(fn):
            fn, args, kwargs = context.run, (partial(fn, **kwargs) if kwargs else fn, *args), None
            context = None
        call: LoopCall = LoopCall.__new__(LoopCall)
        self._prepare(call, fn, args, kwargs)
        call._context = context
        if cython.compiled:
            call._looped = True  # a field there, and of the class in plain code
        call._mailbox = mailbox
        call._ticket = ticket
        call._audience = _NOBODY
        call._lane = lane
        call._rings = mailbox.rings
        if scope is not None:
            call.limit(scope)
        call._short = may_lead
        if known is not None:
            call._known = known
            task = mailbox.task()
            call._task = 0 if task is None else identity(task)
        first = lane is not None and lane.first
        refusal = pool.push(call, first)
        if refusal is not None:
            self._refused(call, refusal, first)
        try:
            return call
        finally:
            call = ticket = None  # type: ignore[assignment]  # breaks a cycle; see `perform`

    def _prepare(
        self, future: FutureCore, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None
    ) -> None:
        if not callable(fn):
            raise TypeError(f"fn must be callable, not {fn!r}")
        if cython.compiled:
            breathe()
        pool = self._pool
        wrapping = pool.wrapping
        if wrapping.wraps:
            if pool.contextual and type(future) is not LoopCall:
                if not cython.compiled and kwargs:
                    fn, kwargs = partial(fn, **kwargs), None
                fn, args = copy_context().run, (fn, *args)
            if wrapping.every > 0:
                wrapping.skip -= 1
                if wrapping.skip < 0:
                    fn = _measured(pool, fn)
        if not cython.compiled:
            future._code = PENDING
            future._result = future._exception = future._audience = future._cond = future._observers = None
            future._lane = future._not_run = future._scope = future._executor = future._known = None
            future._line = None
            future._latest = 0.0
        future._pool = pool
        future._fn = fn
        if cython.compiled and len(args) == 1 and not kwargs:
            future._args = args[0]
            future._kwargs = True
        else:
            future._args = args
            future._kwargs = kwargs if kwargs else None

    def run(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Have a worker run `fn(*args, **kwargs)`, in a copy of the caller's context variables; for asyncio and uvloop.

        A plain function, to be called in the thread of a running loop, which it never blocks: while `max_queue` tasks
        wait and `when_full` is "block", the call waits its turn. With "caller_runs" it runs in the loop's thread.

        Returns:
            An `asyncio.Future` of that loop: await it, gather it, or cancel it, which takes a call that has not begun
            off the queue. Its callbacks run in the loop's thread. It may raise `QueueTimeout`.

        Raises:
            TypeError: `fn` is not callable.
            RuntimeError: No asyncio loop runs in this thread, or as `submit` does.
            BrokenThreadPool: A worker's initializer failed.
            QueueFull: `max_queue` tasks wait and `when_full` is "reject".
        """
        return ExecutorCore.run_in(self, None, fn, args, kwargs)

    def run_in(
        self,
        lane: LaneCore | None,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        scope: Scope | None = None,
    ) -> Any:
        """Do what `run` does, in a lane and with a limit of the wait, if these are given."""
        if not _connected:
            self._connect()
        try:
            loop = _get_loop()
        except RuntimeError:
            raise RuntimeError("no running event loop; use submit() outside asyncio") from None
        return ExecutorCore.run_on(self, loop, None, copy_context(), fn, args, kwargs, lane, scope)

    def run_on(
        self,
        loop: Any,
        ticket: Any,
        context: Context | None,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None,
        lane: LaneCore | None = None,
        scope: Scope | None = None,
    ) -> Any:
        """Do what `run` does, for `loop`, with a given future or a new one of the running loop."""
        mailbox = getattr(loop, _mailbox_name, None)
        if mailbox is None:
            mailbox = _make_mailbox(loop)
        if ticket is None:
            ticket = _LoopFuture()
        if cython.compiled and self._takes_calls():
            ticket._call = ExecutorCore.offload(self, mailbox, ticket, context, fn, args, kwargs, lane, scope)
        else:
            ticket._call = self.offload(mailbox, ticket, context, fn, args, kwargs, lane, scope)
        try:
            return ticket
        finally:
            ticket = None  # breaks a cycle; see `perform`

    def _takes_calls(self) -> bool:
        """Return whether `offload` is the engine's own, so that compiled code need not look it up for each call."""
        if self._way == 0:
            own: Any = ExecutorCore
            self._way = 1 if type(self).offload is own.offload else 2
        return self._way == 1


_connected = False
_get_loop: Any = None
_make_mailbox: Any = None
_mailbox_name: Any = None
_LoopFuture: Any = None


def connect(
    get_loop: Callable[[], Any], make_mailbox: Callable[[Any], Mailbox], loop_future: type, mailbox_name: str
) -> None:
    """Set what the engine needs from asyncio; called by `ebbpool._loops`."""
    global _get_loop, _make_mailbox, _LoopFuture, _mailbox_name, _connected
    _get_loop = get_loop
    _mailbox_name = mailbox_name
    _make_mailbox = make_mailbox
    _LoopFuture = loop_future
    # Last: other threads look for this one.
    _connected = True
