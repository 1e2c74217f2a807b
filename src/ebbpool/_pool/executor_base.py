"""The private base of `AdaptiveExecutor`: its settings, refused calls, attributes that libraries look at."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures.thread import BrokenThreadPool
from math import inf
from queue import Empty
from sys import maxsize
from typing import TYPE_CHECKING, Any, Final, Literal

from ebbpool._checks import above_zero, seconds, whole
from ebbpool._core.accel import (
    ExecutorCore,
    LaneCore,
    LoopCall,
    Probe,
    orphans,
    perform,
    retry_after,
    survey,
    unclaimed,
)
from ebbpool._core.latch import allocate_lock
from ebbpool._errors import QueueFull, QueueTimeout
from ebbpool._pool import lifecycle, tracing
from ebbpool._pool.crew import Crew
from ebbpool._pool.tracing import QueueView

if TYPE_CHECKING:
    from typing import Self

DEFAULT_MAX_WORKERS: Final = 256
KEEP_ALIVE: Final = 10.0
KIND: Final = "AdaptiveExecutor"

INSTEAD: Final = {
    "BROKEN": "it is BrokenThreadPool",
    "_adjust_thread_count": "use daemon, initializer, min_workers or thread_stack_size",
    "_idle_semaphore": "use stats().idle",
    "_initializer_failed": "the futures raise BrokenThreadPool",
    "_threads": "use min_workers and resize()",
    "_work_queue": "use submit_first, lane() or max_queue",
    "prepare_context": "use initializer and finalizer",
}
"""What an `AdaptiveExecutor` does not look at, though a `ThreadPoolExecutor` does, and what to do instead."""

WhenFull = Literal["block", "reject", "caller_runs"]


class Unmade:
    """The attributes of an object whose `__init__` was never called: to read any of them is an error."""

    def __init__(self, owner: str) -> None:
        self.__owner = owner

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"{self.__owner}.__init__() was never called")


def longest_wait(value: float | None) -> float | None:
    """Check a `max_wait`; None and infinity are no limit."""
    return None if value is None else above_zero("max_wait", seconds("max_wait", value))


class Settings:
    """What may be changed while a pool lives, all at once; an error names a value that is wrong."""

    def __init__(
        self,
        max_workers: int,
        min_workers: int,
        min_spare_workers: int,
        keep_alive: float | None,
        max_queue: int | None,
        max_wait: float | None,
    ) -> None:
        most: Any = max_workers
        # The standard library takes 4.0: it only compares it.
        whole_most = int(most) if isinstance(most, float) and most.is_integer() else most
        self.max_workers = whole("max_workers", whole_most, 1)
        self.min_workers = whole("min_workers", min_workers, 0)
        self.min_spare_workers = whole("min_spare_workers", min_spare_workers, 0)
        self.keep_alive = None if keep_alive is None else seconds("keep_alive", keep_alive)
        self.max_queue = None if max_queue is None else whole("max_queue", max_queue, 0)
        self.max_wait = longest_wait(max_wait)
        for name in ("min_workers", "min_spare_workers"):
            if getattr(self, name) > self.max_workers:
                raise ValueError(
                    f"{name} must not exceed max_workers: {name}={getattr(self, name)}, max_workers={self.max_workers}"
                )


def _computed(name: str, read: Callable[[Any], Any]) -> property:
    def refuse(self: Any, _: object) -> None:
        raise AttributeError(f"{name} of an {KIND} cannot be set: {INSTEAD[name]}")

    return property(read, refuse)


_NOTHING_UNLIMITED = LaneCore(orphans, 1, True)


class ExecutorBase(tracing.Instrumentable, ExecutorCore):
    """The private part of `AdaptiveExecutor`. If a subclass forgets `__init__`, every method raises an error."""

    _crew: Crew
    _settings: Settings
    _when_full: WhenFull
    _own_submit: Any = ExecutorCore.submit

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls)
        self._pool = orphans
        vars(self).update(dict.fromkeys(("_crew", "_settings", "_lanes", "_lane_cores"), Unmade(KIND)))
        vars(self)["_unlimited"] = _NOTHING_UNLIMITED
        return self

    def _apply(self, settings: Settings) -> None:
        self._settings = settings
        keep_alive = settings.keep_alive
        if keep_alive is None:
            keep_alive = inf if settings.max_workers == 1 else KEEP_ALIVE
        self._pool.configure(
            settings.min_workers,
            # Compiled code adds to it, in a machine word.
            min(settings.max_workers, maxsize // 2),
            settings.min_spare_workers,
            # As a lock takes it: -1 for ever.
            keep_alive if keep_alive <= threading.TIMEOUT_MAX else -1.0,
            -1 if settings.max_queue is None else settings.max_queue,
            self._when_full == "reject",
            0.0 if settings.max_wait in (None, inf) else settings.max_wait,
        )

    def _instrumented(self, queue: Callable[..., Any], fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return tracing.submit(self, queue, fn, args, kwargs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for base in cls.__mro__[: cls.__mro__.index(ExecutorBase)]:
            for name in INSTEAD.keys() & vars(base).keys():
                raise TypeError(f"{cls.__name__} overrides {name}, which no {KIND} calls: {INSTEAD[name]}")

    def _qsize(self, lane: Any = None) -> int:
        return int(unclaimed(self._pool, lane))

    def _hand_back(self, lane: Any = None) -> tracing.WorkItem:
        call = self._pool.hand_back(lane)
        if call is None:
            raise Empty
        future, fn, args, kwargs = call
        if isinstance(fn, Probe):
            fn = fn.fn
        if self._pool.contextual and not isinstance(future, LoopCall):
            # It was to run in a context.
            fn, *args = args
        return tracing.WorkItem(future, fn, tuple(args), kwargs if isinstance(kwargs, dict) else {})

    def _forget_delayed(self, future: Any) -> None:
        self._crew.timers.strike(future)

    def _refused(self, future: Any, refusal: str | None, first: bool) -> None:
        while refusal is not None:
            if refusal == "broken":
                raise BrokenThreadPool(self._crew.cause)
            if refusal == "closed":
                if self._pool is orphans:
                    raise RuntimeError(f"{KIND}.__init__() was never called")
                when = "interpreter shutdown" if lifecycle.exiting() else "shutdown"
                raise RuntimeError(f"cannot schedule new futures after {when}")
            if self._when_full == "reject":
                self._pool.count_reject()
                waiting = f"max_queue={self._settings.max_queue} tasks are waiting in pool {self._crew.name!r}"
                raise QueueFull(f"{waiting}, and every worker is busy", retry_after(self._pool))
            in_line = isinstance(future, LoopCall) and self._when_full == "block"
            if in_line or self._pool.forbids() is not None:
                refusal = self._pool.push(future, False, True)
                continue
            if self._when_full == "caller_runs" or self._pool.runs_here():
                perform(future)
                del future  # breaks a cycle; see `perform`
                return
            refusal = self._push_and_wait(future, first)

    def _push_and_wait(self, future: Any, first: bool) -> str | None:
        """Queue a task once there is room, and return why it is refused; the calling thread waits for that."""
        pool, told = self._pool, allocate_lock()
        told.acquire()
        refusal: str | None = pool.push(future, first, True, told)
        if refusal is not None:
            return refusal
        left = pool.wait_left(future)
        try:
            late = not told.acquire(True, min(left, threading.TIMEOUT_MAX)) and pool.leave_room(future)
        except BaseException:
            if not pool.leave_room(future):
                future.cancel()
            raise
        if late:
            pool.count_reject()
            raise QueueTimeout(f"no room in the queue of pool {self._crew.name!r} for {left:g} s{pool.hung()}", left)
        return ("broken" if pool.broken else "closed") if pool.was_refused(future) else None

    # Private attributes of a ThreadPoolExecutor that libraries read. There they are plain; here they are computed.
    _max_workers: Any = property(lambda self: self._settings.max_workers, lambda self, n: self.resize(max_workers=n))
    _threads: Any = _computed("_threads", lambda self: frozenset(survey(self._pool).threads))
    _work_queue: Any = _computed("_work_queue", lambda self: QueueView(self._qsize, self._hand_back))
    _adjust_thread_count: Any = _computed("_adjust_thread_count", lambda self: lambda: None)
    _shutdown: Any = property(lambda self: bool(self._pool.closed))
    _broken: Any = property(lambda self: self._crew.cause or False)
    _thread_name_prefix: Any = property(lambda self: self._crew.prefix)
    _initializer: Any = property(lambda self: self._crew.initializer)
    _initargs: Any = property(lambda self: self._crew.initargs)
