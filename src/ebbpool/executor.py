"""AdaptiveExecutor, the pool itself: the one class that most users need."""

from __future__ import annotations

import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from math import inf
from types import EllipsisType, TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, get_args

from ebbpool._checks import above_zero, finite_seconds, one_of, optional_callable, time_limit, waiting_limit, whole
from ebbpool._clock import monotonic
from ebbpool._core.accel import LaneCore, relay_by, say_if_plain, survey
from ebbpool._interpreter import daemon_threads
from ebbpool._maps import delayed, streams
from ebbpool._maps.methods import Methods
from ebbpool._pool import lifecycle
from ebbpool._pool.crew import Crew
from ebbpool._pool.executor_base import DEFAULT_MAX_WORKERS, ExecutorBase, Settings, WhenFull, longest_wait
from ebbpool._pool.late import lags
from ebbpool._pool.threads import WorkerThread, stack_size
from ebbpool.lane import Lane, Within
from ebbpool.session import Session, end_all

if TYPE_CHECKING:
    import asyncio

    from ebbpool._pool.reports import Decision, PoolStats, RunningTask

P = ParamSpec("P")
T = TypeVar("T")


class AdaptiveExecutor(ExecutorBase, Methods, ThreadPoolExecutor):
    """A `ThreadPoolExecutor` that grows while tasks wait behind blocked threads and shrinks when idle.

    It starts without threads. The first four parameters are the standard library's.

    Args:
        max_workers: The most threads at a time that count; 256 if None. In all there are at most
            ``2 * max_workers + max(1, max_workers // 16) + blocked + lent``, with 1 only ``1 + blocked + lent``. The
            second `max_workers` are for calls that were abandoned, and a sixteenth for short ones (`short_first`).
            Blocked are workers that wait for a future of this same pool, so nested submits cannot deadlock. Lent are
            threads of sessions, of calls with a limiter of their own, and of calls from an event loop in a worker.
        thread_name_prefix: Threads are named ``prefix_0``, ``prefix_1``, ...; also the pool's `name`.
        initializer: Called with `initargs` in each thread before its first task. If it raises, the pool is broken.
        initargs: Arguments for `initializer`.
        min_workers: Threads that stay however long they are idle, once they have been needed.
        min_spare_workers: Idle threads to keep ahead of demand, started in the background once the pool is in use.
        keep_alive: Seconds after which an idle thread leaves; `math.inf` for never. None for 10, and for never where
            `max_workers` is 1: people count on the one thread of such a pool.
        max_queue: How many tasks may wait for a thread; None for no limit. With 0 nothing waits: a task that finds no
            idle thread gets a new one, up to `max_workers`.
        when_full: What `submit` does when `max_queue` tasks wait:

            * "block": it waits for room. A task that submits to its own pool runs the call in place instead.
            * "reject": it raises `QueueFull`, once the pool cannot grow either.
            * "caller_runs": it runs the call in the submitting thread.

            In ebbpool's timekeeper thread, and in a finaliser or signal handler that has interrupted the pool's code,
            nothing may wait or run a call: there the call itself waits for room, as those of event loops do.
        max_wait: Seconds that a task may wait for a thread. One that has waited longer fails with `QueueTimeout`, as
            soon as a thread would take it or ebbpool's timer looks, whichever comes first. Once the oldest task has
            waited more than a tenth of it for 0.1 s on end, the newest go first: the callers of the oldest are about to
            give up. Turns of maps count, too. Callbacks of a future that fails this way may run in ebbpool's timer
            thread, and must not block. None for no limit.
        finalizer: Called without arguments in each thread before it ends. What it raises is logged.
        propagate_context: Whether a task runs in a copy of its submitter's context variables.
        daemon: Whether the interpreter may exit while tasks run; queued tasks are cancelled then.
        leave_after: Seconds after which `shutdown` no longer waits for abandoned calls, nor the end of ``with``,
            ``async with`` and ``asyncio.run`` (if the pool is the loop's default executor). A warning to the
            ``concurrent.futures`` logger names them, with their stacks. It needs `daemon`. None to wait for them.
        thread_stack_size: Bytes of stack that each thread has at least, rounded up to whole pages of memory; None for
            what `threading.stack_size` says, 8 MiB on most Linux systems. It reserves address space; only the part that
            a thread has used takes memory. `threading.stack_size` is changed for the instant in which a worker is
            started: a thread that other code starts then may get this size, too. On CPython up to 3.13 less than 4 MiB
            is a risk: recursion through C (``__repr__`` of nested objects, a key function, deeply nested JSON) may use
            it up, which kills the process, before the recursion limit raises ``RecursionError``.
        warn_after: Seconds after which a running task is logged once, with its stack, and a queue whose oldest task
            still waits is logged once, until that is over; to the ``concurrent.futures`` logger at level WARNING. Tasks
            that a lane holds back do not count as waiting. None for never.
        warn_lag: Seconds after which an event loop that has not picked up a result of `run` or `ebbpool.anyio` is
            logged, once each time, to the same logger: with the stack of its thread, and of the thread that computed
            most meanwhile. While the pool has threads it checks once in so many seconds, or in 0.01 if that is more. C
            code that holds the GIL prevents the check. None for never.
        short_first: Whether calls of event loops (`run`, `amap`, `ebbpool.aio`, `ebbpool.anyio`) whose function is
            known to be short go ahead of others, and beyond `max_workers` if necessary. Short is less than 1 ms, or
            than a quarter of what all calls take. Once the others have waited for 0.1 s, the two kinds are taken in
            turn; if the others have half of the threads, one of them every 0.1 s. A pool or a lane of one keeps the
            order.

    Raises:
        TypeError: An argument is of the wrong type; the message names it and its value.
        ValueError: An argument is out of range; the message names it and its value.
        RuntimeError: `daemon` is true in a sub-interpreter that has no daemon threads.
    """

    _lane_type: type[Lane] = Lane

    def __init__(
        self,
        max_workers: int | None = None,
        thread_name_prefix: str | None = "",
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] | None = (),
        *,
        min_workers: int = 0,
        min_spare_workers: int = 0,
        keep_alive: float | None = None,
        max_queue: int | None = None,
        when_full: WhenFull = "block",
        max_wait: float | None = None,
        finalizer: Callable[[], object] | None = None,
        propagate_context: bool = False,
        daemon: bool = False,
        leave_after: float | None = None,
        thread_stack_size: int | None = None,
        warn_after: float | None = None,
        warn_lag: float | None = None,
        short_first: bool = True,
    ) -> None:
        most = DEFAULT_MAX_WORKERS if max_workers is None else max_workers
        settings = Settings(most, min_workers, min_spare_workers, keep_alive, max_queue, max_wait)
        if not isinstance(thread_name_prefix or "", str):
            raise TypeError(f"thread_name_prefix must be a string, not {thread_name_prefix!r}")
        optional_callable("initializer", initializer)
        optional_callable("finalizer", finalizer)
        try:
            arguments = () if initargs is None else tuple(initargs)
        except TypeError:
            raise TypeError(f"initargs must be a tuple, or another iterable, not {initargs!r}") from None
        self._when_full = one_of("when_full", when_full, get_args(WhenFull))
        if daemon and not daemon_threads():
            raise RuntimeError(f"daemon={daemon!r} needs daemon threads, which are disabled in this (sub)interpreter")
        if leave_after is not None and not daemon:
            raise ValueError(f"leave_after={leave_after!r} needs daemon=True: the interpreter waits for other threads")
        leave = waiting_limit("leave_after", leave_after)
        stack = stack_size("thread_stack_size", thread_stack_size)
        warnings = {
            name: None if limit is None else above_zero(name, finite_seconds(name, limit))
            for name, limit in {"warn_after": warn_after, "warn_lag": warn_lag}.items()
        }
        say_if_plain()
        self._discarding = False
        prefix = thread_name_prefix or ""
        self._crew = Crew(prefix, initializer, arguments, finalizer, bool(daemon), leave, stack, **warnings)
        self._pool = self._crew.pool
        self._pool.staff.short_first = bool(short_first)
        if propagate_context:
            self._pool.carry_context()
        self._apply(settings)
        # For calls that have a limiter of their own, and must not wait for calls that have none.
        self._unlimited = LaneCore(self._pool, sys.maxsize, True, True, max_wait=-1.0)
        self._lanes: weakref.WeakValueDictionary[str, Lane] = weakref.WeakValueDictionary()
        self._lane_cores: weakref.WeakValueDictionary[str, LaneCore] = weakref.WeakValueDictionary()
        self._crew.serve(self)
        if "EBBPOOL_MONITOR" in os.environ:
            try:
                from ebbpool._monitor.listener import from_environment
            except ImportError as error:
                logging.getLogger("ebbpool.monitor").warning("EBBPOOL_MONITOR is not used: %s", error)
            else:
                from_environment()

    def _delay(self, delay: Any, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return delayed.submit_later(self, delay, fn, args, kwargs)

    def _connect(self) -> None:
        # Imported here, so that asyncio is imported only where it is used.
        import ebbpool._loops  # noqa: F401  (it connects itself)

    if TYPE_CHECKING:

        def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> futures.Future[T]:
            """See `ExecutorCore.submit`; this declares its type."""
            ...

        def submit_first(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> futures.Future[T]:
            """See `ExecutorCore.submit_first`; this declares its type."""
            ...

        def submit_later(
            self, delay: float, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
        ) -> futures.Future[T]:
            """See `ExecutorCore.submit_later`; this declares its type."""
            ...

        def run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
            """See `ExecutorCore.run`; this declares its type."""
            ...

    def within(self, max_wait: float | None = None, *, deadline: float | None = None) -> Within:
        """Return a view whose `submit` and `run` apply these limits, for calls that are useless if late.

        Args:
            max_wait: Seconds that they may wait for a thread, in place of the pool's `max_wait`; after that they fail
                with `QueueTimeout`. None for the pool's own.
            deadline: Seconds after which they should be over. One that still waits then fails with `QueueTimeout`; one
                that runs is told: see `ebbpool.cancelled`, `ebbpool.time_left` and `ebbpool.on_cancel`.

        Raises:
            TypeError: One is not a number of seconds, or both are None.
            ValueError: One is not above 0, infinite or NaN.
        """
        return Within(self, None, max_wait, deadline)

    def lane(self, name: str, *, limit: int, first: bool = False, max_wait: float | None = None) -> Lane:
        """Return a `ThreadPoolExecutor` on the threads of this pool that runs at most `limit` of its tasks at once.

        Use a lane for slow work, and for a resource that takes only so many users at a time: it leaves the pool's other
        threads free.

        Args:
            name: The lane's name, unique among the pool's lanes in use.
            limit: How many of its tasks may be in the pool's queue or run at once; the others wait in the lane.
            first: Whether its tasks go ahead of the pool's ordinary ones: for look-ups, and for cleaning up. Once an
                ordinary task has waited for 0.1 s, the two kinds are taken in turn, so that a flood cannot shut it out.
            max_wait: Seconds that its tasks may wait, in the lane and for a thread; after that they fail with
                `QueueTimeout`. None for as long as those of the pool; `math.inf` for no limit.

        Raises:
            TypeError: `name` is not a string, `limit` is not an integer, or `max_wait` not a number of seconds.
            ValueError: `limit` is below 1, `max_wait` is not above 0, or a lane of this name is in use.
        """
        if not isinstance(name, str):
            raise TypeError(f"name must be a string, not {name!r}")
        limit = whole("limit", limit, 1)
        wait = longest_wait(max_wait) or 0.0
        with self._crew.settings_lock:
            # A lane that has been collected is in use as long as tasks of it are queued or run.
            used = self._lane_cores.get(name)
            if used is not None and not used.closed and (name in self._lanes or used.admitted > 0):
                raise ValueError(f"name={name!r} is already in use by another lane of pool {self._crew.name!r}")
            lane = self._lanes[name] = self._lane_type(self, name, limit, bool(first), -1.0 if wait == inf else wait)
            self._lane_cores[name] = lane.core
        return lane

    def session(self, *, finalizer: Callable[[], object] | None = None) -> Session:
        """Return a serial `ThreadPoolExecutor` that has one thread of this pool to itself, from its first call on.

        It is for what belongs to one thread: a database session, a connection of sqlite3, a request of Django's.

        Args:
            finalizer: Called without arguments in that thread at the end of the session, before the thread goes back
                to the pool. What it raises is logged.

        Raises:
            TypeError: `finalizer` is not callable.
        """
        return Session(self, finalizer)

    def lanes(self) -> list[Lane]:
        """Return the lanes of this pool that are in use, oldest first."""
        # Not `values()`, which fails if another thread adds a lane meanwhile.
        lanes = (reference() for reference in self._lanes.valuerefs())
        return [lane for lane in lanes if lane is not None and not lane.core.closed]

    @property
    def name(self) -> str:
        """The pool's name: `thread_name_prefix`, else ``ebbpool-1``, ``ebbpool-2``, ...

        No two open pools of a process have the same name: the second with the prefix ``web`` is called ``web-2``.
        """
        return self._crew.name

    def resize(
        self,
        *,
        min_workers: int | None = None,
        max_workers: int | None = None,
        min_spare_workers: int | None = None,
        keep_alive: float | None = None,
        max_queue: int | EllipsisType | None = ...,
        max_wait: float | EllipsisType | None = ...,
    ) -> None:
        """Change the given settings while the pool works; surplus threads leave when they have no task in hand.

        Raises:
            TypeError: A value is of the wrong type; nothing has changed.
            ValueError: A value is out of range, alone or together with the others; nothing has changed.
        """
        given = {
            "min_workers": min_workers,
            "max_workers": max_workers,
            "min_spare_workers": min_spare_workers,
            "keep_alive": keep_alive,
        }
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        may_be_none = {"max_queue": max_queue, "max_wait": max_wait}
        changes |= {name: value for name, value in may_be_none.items() if value is not ...}
        with self._crew.settings_lock:
            self._apply(Settings(**vars(self._settings) | changes))

    def stats(self) -> PoolStats:
        """Return a snapshot of the pool, taken at one moment."""
        from ebbpool._pool.reports import PoolStats

        counts: dict[str, Any] = survey(self._pool).counts
        settings = self._settings
        return PoolStats(
            self.name,
            **counts,
            delayed=len(self._crew.timers.waiting),
            min_workers=settings.min_workers,
            max_workers=settings.max_workers,
            max_queue=settings.max_queue,
            max_wait=settings.max_wait,
            last_decision=self._crew.decisions.last(),
            loop_lag=lags(),
        )

    def running(self, *, stacks: bool = False) -> list[RunningTask]:
        """Return the tasks that run, the one that has run longest first.

        Args:
            stacks: Whether to include the stack of each, which takes longer.
        """
        return self._crew.running(bool(stacks))

    def decisions(self) -> list[Decision]:
        """Return why the pool last grew, or did not although tasks waited: at most 64 decisions, oldest first.

        Not among them are threads that `submit` itself starts, as it does in a pool without any.
        """
        from ebbpool._pool.reports import Decision

        return [Decision(*noted) for noted in self._crew.decisions.noted]

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds until nothing is queued or running, callbacks included.

        Returns:
            True if that happened, False if `timeout` ran out.

        Raises:
            RuntimeError: Called by a task of this same pool, which would wait for itself.
            TypeError: `timeout` is not a number.
            ValueError: `timeout` is NaN.
        """
        if self._pool.runs_here():
            raise RuntimeError("a task cannot wait for its own pool to be idle")
        limit = -1.0 if timeout is None else min(time_limit("timeout", timeout), threading.TIMEOUT_MAX)
        return bool(self._pool.await_idle(limit))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False, timeout: float | None = None) -> None:
        """Take no more tasks; queued ones still run, unless cancelled.

        Calls of `submit_later` whose time has not come are cancelled, and schedules end, whatever `cancel_futures`
        says; their number is logged to the ``concurrent.futures`` logger at level INFO.

        Where the system refuses threads for a second and no worker is left for queued tasks, these fail with
        `BrokenThreadPool`.

        Args:
            wait: Whether to wait until all threads have ended, except those that `leave_after` leaves behind.
            cancel_futures: Whether to cancel tasks that have not started. Those that run learn of it: see
                `ebbpool.cancelled`.
            timeout: Seconds to wait at most; None for no limit.

        Raises:
            TypeError: `timeout` is not a number of seconds.
            ValueError: `timeout` is negative or NaN.
            TimeoutError: `timeout` ran out; the message says which tasks still run, for how long, and where, and how
                many wait without a thread. The pool stays shut down.
            RuntimeError: Called with `wait` by a task of this same pool, which would wait for itself.
        """
        limit = waiting_limit("timeout", timeout)
        deadline = None if limit is None else monotonic() + limit
        if cancel_futures:
            self._discarding = True
        self._pool.close()
        delayed.close(self._crew)
        end_all(self._pool)
        if wait and self._pool.runs_here():
            raise RuntimeError("a task cannot wait for its own pool to shut down")
        if cancel_futures:
            for future in self._pool.waiting(None, True):
                future.cancel()
        if wait:
            streams.end_own(self._pool, True)
        if wait and not self._crew.join(limit):
            raise TimeoutError(f"after {limit:g} s {self._crew.report()}")
        self._crew.part(0.0 if not wait else None if deadline is None else max(0.0, deadline - monotonic()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Shut the pool down without blocking the event loop."""
        import asyncio

        self.shutdown(wait=False)
        streams.end_own(self._pool, False)
        loop = asyncio.get_running_loop()
        ended: futures.Future[None] = futures.Future()
        # The thread goes on where the task that waits for it is cancelled.
        ended.set_running_or_notify_cancel()

        def wait() -> None:
            try:
                self._wait_for_end()
            except BaseException as error:
                ended.set_exception(error)
            else:
                ended.set_result(None)

        WorkerThread(target=wait, name=f"{self._crew.prefix}_shutdown").start()
        await asyncio.wrap_future(ended, loop=loop)

    def _wait_for_end(self) -> None:
        self._crew.join(None)
        self._crew.part(None)

    def __repr__(self) -> str:
        counts, most = survey(self._pool).counts, self._settings.max_workers
        size = f"{counts['workers']} of at most {most} workers, {counts['queued']} queued"
        if self._pool.closed:
            size += ", shut down"
        return f"<{type(self).__name__} {self._crew.name!r} at {id(self):#x}: {size}>"


def pools() -> list[AdaptiveExecutor]:
    """Return the executors of this process that live and have not been shut down, oldest first."""
    owners = (crew.owner() for crew in lifecycle.live() if not crew.pool.closed)
    return [owner for owner in owners if isinstance(owner, AdaptiveExecutor)]


def must_be_executor(executor: Any) -> None:
    """Raise TypeError for an argument `executor` of another type."""
    if not isinstance(executor, AdaptiveExecutor):
        raise TypeError(f"executor must be an ebbpool.AdaptiveExecutor or None, not {executor!r}")


def must_be_open(executor: Any) -> None:
    """Raise TypeError for an argument `executor` of another type, and RuntimeError for one that has been shut down."""
    must_be_executor(executor)
    if executor._pool.closed:
        raise RuntimeError(f"executor must be open, not {executor!r}")


def _relayed(callback: Any, future: Any) -> bool:
    # Imported here, so that asyncio is imported only where it is used.
    import ebbpool._loops  # it connects itself, in the place of this

    return ebbpool._loops.relayed(callback, future)


relay_by(_relayed)
