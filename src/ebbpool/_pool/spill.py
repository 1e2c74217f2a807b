"""Marked tasks that have waited too long here go to another executor; what comes back runs here."""

from __future__ import annotations

import functools
import logging
import pickle
import sys
import threading
import weakref
from _thread import allocate_lock
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor
from concurrent.futures.thread import BrokenThreadPool
from contextlib import suppress
from contextvars import Context
from functools import partial
from math import inf
from types import BuiltinMethodType, MethodType
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

from ebbpool._checks import finite_seconds
from ebbpool._clock import monotonic
from ebbpool._core.accel import LoopCall, Pool, Probe
from ebbpool._pool.running import called_name
from ebbpool._pool.threads import WorkerThread

P = ParamSpec("P")
T = TypeVar("T")

LOGGER = logging.getLogger("concurrent.futures")

SPILL_AFTER: Final = 0.25  # seconds that a marked task waits here if nothing else is said
CROWDED: Final = 0.05  # seconds until the next look, where the other executor has no room, or the system no thread
LINGER: Final = 1.0  # seconds that the thread which hands tasks over stays without one
FIRST_PAUSE: Final = 0.1  # seconds for which nothing is sent after a task came back; doubled until one ends there
LAST_PAUSE: Final = 5.0  # most seconds for that

_PLACEHOLDER: Final = getattr(functools, "Placeholder", object())
_here = threading.local()


class Spillable:
    """A function `fn` with the mark; see `spillable`."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.fn = fn

    def __repr__(self) -> str:
        return f"<spillable {self.fn!r}>"

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        bound = self.fn.__get__(instance, owner) if hasattr(self.fn, "__get__") else self.fn
        return self if bound is self.fn else Spillable(bound)

    def __reduce__(self) -> str | tuple[Any, ...]:
        # A string is the name that stands for this: that of a decorated function.
        name = str(vars(self).get("__qualname__", ""))
        found: Any = sys.modules.get(getattr(self, "__module__", ""))
        for part in name.split("."):
            found = getattr(found, part, None)
        return name if found is self else (Spillable, (self.fn,))


def spillable(fn: Callable[P, T], /) -> Callable[P, T]:
    """Mark a function whose calls may run elsewhere, and again, for `AdaptiveExecutor(spill=...)`.

    The mark is a promise: a call gives the same result in another process, and whether it is made once or twice. It
    needs nothing of this process (no locks, no connections, no globals that change), and its arguments and its result
    can be pickled where the other executor needs that. It may be used as a decorator, or where a call is submitted:
    ``pool.submit(spillable(render), page)``. In a pool without `spill`, and called directly, it changes nothing.

    Args:
        fn: The function.

    Raises:
        TypeError: `fn` is not callable.
    """
    if isinstance(fn, Spillable):
        return fn
    if not callable(fn):
        raise TypeError(f"fn must be callable, not {fn!r}")
    return Spillable(fn)


class MarkedCall(NamedTuple):
    """A call without what its marked function was wrapped in; with a context if it brought one itself."""

    fn: Spillable
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    context: Context | None


def marked_call(fn: Any, args: tuple[Any, ...] | None, kwargs: dict[str, Any] | None) -> MarkedCall | None:
    """See through partials, contexts and measuring to a marked function; return None where there is none.

    Runs no foreign code: an object may have a `__getattr__` of its own, and a proxy a `__class__`.
    """
    args = args or ()
    kwargs = kwargs or {}
    context: Context | None = None
    while type(fn) is not Spillable:
        owner = fn.__self__ if type(fn) in (BuiltinMethodType, MethodType) else None
        # Compared by identity: an argument may have an `__eq__` of its own.
        if type(fn) is functools.partial and not any(arg is _PLACEHOLDER for arg in fn.args):
            fn, args, kwargs = fn.func, (*fn.args, *args), {**fn.keywords, **kwargs}
        elif type(fn) is Probe:
            fn = fn.fn
        elif type(owner) is Context and args:
            fn, *rest = args
            context, args = owner, tuple(rest)
        else:
            return None
    return MarkedCall(fn, args, kwargs, context)


def checked(owner: object, spill: Any, spill_after: Any) -> tuple[Executor, float] | None:
    """Check arguments of `AdaptiveExecutor`; return where tasks go and after how many seconds, or None."""
    if spill is None:
        if spill_after is not None:
            raise ValueError(f"spill_after={spill_after!r} needs a spill, such as a ClusterExecutor")
        return None
    if not isinstance(spill, Executor):
        raise TypeError(f"spill must be an executor, such as a ClusterExecutor, not {spill!r}")
    after = SPILL_AFTER if spill_after is None else finite_seconds("spill_after", spill_after)
    place: Any = spill
    while place is not None:
        # Of a lane, its executor.
        place = getattr(place, "executor", place)
        if place is owner:
            raise ValueError("spill must not lead back to the pool itself")
        onward = getattr(getattr(place, "_crew", None), "spill", None)
        place = None if onward is None else onward.target
    width = getattr(spill, "_max_workers", None)
    if isinstance(width, bool) or not isinstance(width, int):
        raise TypeError(f"spill must say in _max_workers how many calls it takes at a time, but {spill!r} does not")
    if getattr(spill, "_shutdown", False) or getattr(spill, "_shutdown_thread", False):
        raise ValueError(f"spill must not be shut down, as {spill!r} is")
    return spill, after


class Spill:
    """What goes from one pool to another executor, and comes back; cancelled if it `discards` what does.

    A thread of its own hands tasks over, because pickling runs foreign code and `submit` may wait: neither the
    timekeeper nor a worker can do that.
    """

    def __init__(self, crew: Any, target: Executor, after: float) -> None:
        # Weakly: the crew holds this. What is away holds the crew, so that what comes back finds its pool with it.
        self._crew = weakref.ref(crew)
        self._pool = crew.pool
        self._pool.look_for(marked_call)
        self.target: Any = target
        # Of a lane, its executor.
        self._place: Any = getattr(target, "executor", target)
        # As a cluster may, and go on.
        self._loses_calls = bool(getattr(self._place, "_loses_calls", False))
        self.after = after
        self.discards = False
        self._told: set[str] = set()
        self._begin()

    def renew(self) -> None:
        """In a forked child: no thread, and an executor without threads or connection, unless it is a pool of ours."""
        self._begin()
        if self._loses_calls or not hasattr(self._place, "_crew"):
            self._paused_until = inf

    def _begin(self) -> None:
        self._thread: WorkerThread | None = None
        self._bell = allocate_lock()
        self._bell.acquire()
        self._ending = False
        self._crowded_until = 0.0
        self._paused_until = 0.0
        self._pause = 0.0

    def look(self, now: float) -> None:
        """Have tasks handed over if some have waited too long; at each tick, in the timekeeper's thread."""
        if now < self._crowded_until or not self._wants_more(now):
            return
        self._ring()
        crew = self._crew()
        # If the thread ends at this moment, the next tick comes by.
        if crew is None or (self._thread is not None and not self._thread.ended()):
            return
        thread = WorkerThread(target=self._run, args=(crew,), name=f"{crew.prefix}_spill")
        try:
            thread.start()
        except (RuntimeError, MemoryError):
            self._crowded_until = now + CROWDED
        else:
            self._thread = thread

    def _wants_more(self, now: float) -> bool:
        return now >= self._paused_until and self._pool.overdue(now - self.after)

    def _ring(self) -> None:
        with suppress(RuntimeError):
            self._bell.release()

    def end(self) -> set[WorkerThread]:
        """Have the thread end, which has nothing left to do; return it, if there is one."""
        self._ending = True
        self._ring()
        return set() if self._thread is None else {self._thread}

    def _run(self, crew: Any) -> None:
        while self._bell.acquire(True, LINGER) and not self._ending:
            try:
                self._send(crew)
            except BaseException:
                LOGGER.critical("Exception in the thread that spills tasks of %s:", crew.prefix, exc_info=True)
                self._paused_until = monotonic() + LAST_PAUSE

    def _send(self, crew: Any) -> None:
        """Hand over what is to go and finds room."""
        while monotonic() >= self._paused_until:
            if self._room() <= 0:
                self._crowded_until = monotonic() + CROWDED
                return
            found = self._pool.take_marked(monotonic() - self.after)
            if found is None:
                return
            self._hand_over(crew, *found)
            del found

    def _room(self) -> int:
        """Return how many calls more the other executor takes; those of others that wait there come first."""
        away = len(self._pool.away)
        queue = getattr(self.target, "_work_queue", None)
        others = 0 if queue is None else max(0, queue.qsize() - away)
        return int(self.target._max_workers) - away - others

    def _hand_over(self, crew: Any, future: Any, call: MarkedCall, context: Context | None) -> None:
        context = context if call.context is None else call.context
        place = Context() if context is None else context.copy()
        try:
            # The function itself, unless its name stands for the mark.
            sent = call.fn if isinstance(call.fn.__reduce__(), str) else call.fn.fn
            process: Any = sys.modules.get("concurrent.futures.process")
            if process is not None and isinstance(self.target, process.ProcessPoolExecutor):
                # A process pool would report a call that cannot be pickled as the task's outcome. So try it here first.
                pickle.dumps((sent, call.args, call.kwargs))
            there = place.run(self.target.submit, sent, *call.args, **call.kwargs)
            there.add_done_callback(partial(self._ended, crew, future, call))
        except BaseException as error:
            # RecursionError is a RuntimeError, but comes from pickling, and not from an executor that refuses the call.
            refused = isinstance(error, RuntimeError) and not isinstance(error, RecursionError)
            self._give_back(crew, future, call, error, refused)

    def _ended(self, crew: Any, future: Any, call: MarkedCall, there: Any) -> None:
        """Take the outcome, or the task if it was not made; in whatever thread the other executor calls back."""
        cancelled = there.cancelled()
        error = None if cancelled else there.exception()
        if cancelled or self._is_loss(error):
            self._give_back(crew, future, call, error or BrokenExecutor("it was cancelled there"), True)
        else:
            self._pause = 0.0
            self._finish(future, None if error is not None else there.result(), error)
        if self._wants_more(monotonic()):
            self._ring()

    def _finish(self, future: Any, value: Any, error: BaseException | None, cancels: bool = False) -> None:
        pools = _here.__dict__.setdefault("pools", [])
        pools.append(self._pool)
        # What a callback raises has been logged. The thread is that of the other executor, which need not survive it.
        with suppress(BaseException):
            self._pool.bring_home(future, value, error, cancels)
        pools.pop()

    def _is_loss(self, error: BaseException | None) -> bool:
        """Return whether the other executor has failed, and not the task."""
        if not isinstance(error, BrokenExecutor):
            return False
        if hasattr(self._place, "_broken") and not self._loses_calls:
            return bool(self._place._broken)
        # From a cluster, the task's own error has the traceback on the worker as its cause.
        return type(error.__cause__).__name__ != "RemoteTraceback"

    def _given_up(self, future: Any) -> bool:
        return self.discards or (isinstance(future, LoopCall) and future._unwanted())

    def _give_back(self, crew: Any, future: Any, call: MarkedCall, reason: BaseException, refused: bool) -> None:
        """Queue a task that was away, or end it if the pool takes it no more."""
        first = self._pause == 0.0
        if refused:
            self._pause = min(LAST_PAUSE, 2 * self._pause or FIRST_PAUSE)
            # In a forked child it may be for ever.
            self._paused_until = max(self._paused_until, monotonic() + self._pause)
        back = False
        if self._given_up(future):
            self._finish(future, None, None, True)
        elif not self._pool.take_back(future):
            self._finish(future, None, BrokenThreadPool(crew.cause))
        else:
            back = True
            if self._given_up(future):
                # Who shut the pool down meanwhile, or gave the call up, has not seen it in the queue.
                future.cancel()
        if crew.owner() is None and not self._pool.closed:
            # The executor was collected. Its pool had no threads then that would have had to be told.
            self._pool.close()
        name = called_name(call.fn)
        if refused and first and back:
            LOGGER.warning(
                "%s came back to pool %r from %r, and now runs locally: %s", name, crew.name, self.target, reason
            )
        elif not refused and back and name not in self._told:
            self._told.add(name)
            LOGGER.warning(
                "%s stays in pool %r because it cannot be sent to %r: %r", name, crew.name, self.target, reason
            )


def finishes_here(pool: Pool) -> bool:
    """Return whether the calling thread runs callbacks of a task of `pool` that was away."""
    return any(pool is each for each in getattr(_here, "pools", ()))
