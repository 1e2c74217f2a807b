"""The ways in which jobs come into `ebbpool.fastthreadpool`: now, first, later, repeatedly, and in slices."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from ebbpool._checks import time_limit, whole
from ebbpool._core.accel import Future
from ebbpool._maps.delayed import ScheduledTask

if TYPE_CHECKING:
    from ebbpool._fastthreadpool.outlet import Outlet, Sink
    from ebbpool.executor import AdaptiveExecutor

PIECES_PER_CHILD: Final = 4
"""Into how many slices a map's items are cut for each thread that there may be."""


class PoolStopped(RuntimeError):
    """The pool takes no more jobs; `Pool.clear` makes it usable again."""


@dataclass(frozen=True)
class TimerObj:
    """What `Pool.schedule` and `Pool.submit_at` return, for `Pool.cancel`.

    Attributes:
        timer_id: The `ScheduledTask`, or the `Future` of a job that runs once.
    """

    timer_id: ScheduledTask | Future[Any]

    @property
    def active(self) -> bool:
        """Whether a run will come."""
        return self.timer_id.active if isinstance(self.timer_id, ScheduledTask) else waits(self.timer_id)

    @property
    def _next_run(self) -> Any:
        return self.timer_id._armed[1] if isinstance(self.timer_id, ScheduledTask) else None

    def cancel(self) -> None:
        """Cancel all further runs."""
        self.timer_id.cancel()


class Jobs:
    """The half of a pool that takes jobs.

    Attributes:
        max_children: How many threads there may be.
    """

    max_children: int
    _executor: AdaptiveExecutor
    _outlet: Outlet
    _default: Sink
    _delayed: WeakKeyDictionary[Future[Any], None]
    _scheduled: WeakKeyDictionary[ScheduledTask | Future[Any], None]

    @property
    def is_shutdown(self) -> bool:
        """Whether the pool takes no more jobs."""
        return bool(self._executor._shutdown)

    def submit(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Queue the job `fn(*args, **kwargs)`.

        Returns:
            The job's id if the pool was made with `result_id`, else its `Future`. `cancel` takes both.

        Raises:
            TypeError: `fn` is not callable.
            PoolStopped: The pool has been shut down, or `init_callback` failed.
        """
        keep = self._outlet.keep
        if keep is None or not self._default or not callable(fn):
            return self._queue(self._executor.submit, self._default, fn, args, kwargs)
        try:
            return self._executor.submit(keep, fn, args, kwargs)
        except RuntimeError as error:
            raise self._refusal(error) from error

    def submit_done(self, fn: Callable[..., Any], done_callback: Sink, *args: Any, **kwargs: Any) -> Any:
        """Do what `submit` does, but treat the job's result as `done_callback` says.

        Args:
            fn: The job.
            done_callback: True to treat the result as the pool does, False to drop it, or a function to be called with
                each result, in the job's own thread and without its id; what it raises is the job's failure.
            args: Arguments for `fn`.
            kwargs: Keyword arguments for `fn`.
        """
        return self._queue(self._executor.submit, done_callback, fn, args, kwargs)

    def submit_first(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Do what `submit` does, at the head of the queue."""
        return self._queue(self._executor.submit_first, self._default, fn, args, kwargs)

    def submit_done_first(self, fn: Callable[..., Any], done_callback: Sink, *args: Any, **kwargs: Any) -> Any:
        """Do what `submit_done` does, at the head of the queue."""
        return self._queue(self._executor.submit_first, done_callback, fn, args, kwargs)

    def submit_later(self, delay: float, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        """Queue a job `delay` seconds from now; return its `Future`, which `cancel` takes as `timer`.

        Raises:
            TypeError: `fn` is not callable, or `delay` is no number.
            PoolStopped: As for `submit`.
        """
        return self._later(delay, self._default, fn, args, kwargs)

    def submit_done_later(
        self, delay: float, fn: Callable[..., Any], done_callback: Sink, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        """Do what `submit_later` does, with `done_callback` as in `submit_done`."""
        return self._later(delay, done_callback, fn, args, kwargs)

    def submit_at(
        self, _runat: float | time.struct_time, interval: float, fn: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> TimerObj:
        """Queue a job at a time of the wall clock and, with `interval`, repeatedly from then on.

        Args:
            _runat: When: seconds as of `time.time`, or a local `time.struct_time`. Setting the wall clock after this
                call changes nothing.
            interval: Seconds from run to run; 0 for a single one.
            fn: The job.
            args: Arguments for `fn`.
            kwargs: Keyword arguments for `fn`.

        Raises:
            TypeError: `fn` is not callable, or one of the times is no number.
            ValueError: `_runat` is in the past.
            PoolStopped: As for `submit`.
        """
        return self._at(_runat, interval, self._default, fn, args, kwargs)

    def submit_done_at(
        self,
        _runat: float | time.struct_time,
        interval: float,
        fn: Callable[..., Any],
        done_callback: Sink,
        *args: Any,
        **kwargs: Any,
    ) -> TimerObj:
        """Do what `submit_at` does, with `done_callback` as in `submit_done`."""
        return self._at(_runat, interval, done_callback, fn, args, kwargs)

    def schedule(self, interval: float, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> TimerObj:
        """Queue a job every `interval` seconds, first after that time; once if `interval` is 0.

        The times do not drift, and a job never overlaps itself: see `ebbpool.ScheduledTask`.

        Raises:
            TypeError: `fn` is not callable, or `interval` is no number.
            PoolStopped: As for `submit`.
        """
        return self._repeat(interval, interval, self._default, fn, args, kwargs)

    def schedule_done(
        self, interval: float, fn: Callable[..., Any], done_callback: Sink, *args: Any, **kwargs: Any
    ) -> TimerObj:
        """Do what `schedule` does, with `done_callback` as in `submit_done`."""
        return self._repeat(interval, interval, done_callback, fn, args, kwargs)

    def map(
        self,
        fn: Callable[..., Any],
        itr: Iterable[Any],
        done_callback: Sink = True,
        direct: bool = True,
        unpack_args: bool | None = None,
        chunksize: int | None = None,
    ) -> range | None:
        """Queue a job for each item, in slices, and return at once.

        Args:
            fn: Called with each item; may be a generator function.
            itr: The items; read to its end before this returns.
            done_callback: As in `submit_done`, for each result.
            direct: Accepted for compatibility: threads come and go by themselves.
            unpack_args: Whether an item holds the arguments for a call, or is itself the one argument. None: tuples
                hold arguments, anything else is one.
            chunksize: How many items go into a slice; by default a quarter of each thread's share. One thread
                runs a slice from its start to its end.

        Returns:
            The ids of the items' jobs, in order, if the pool was made with `result_id`, else None.

        Raises:
            TypeError: `fn` is not callable, or `itr` cannot be iterated.
            ValueError: `chunksize` is below 1.
            PoolStopped: As for `submit`.
        """
        items = list(itr)
        share = -(-len(items) // (PIECES_PER_CHILD * self.max_children)) or 1
        size = share if chunksize is None else whole("chunksize", chunksize, 1)
        outlet = self._outlet
        ids = outlet.ids(len(items)) if outlet.result_id else None
        # Without items there is one empty slice, so that a pool that has been shut down refuses it.
        for start in range(0, len(items) or 1, size):
            part = items[start : start + size]
            own = None if ids is None else ids[start : start + size]
            submit = self._executor.submit
            self._enter(submit, outlet.work_slice, done_callback, own, fn, part, unpack_args, outlet.generation)
        return ids

    def _queue(self, enter: Callable[..., Any], sink: Sink, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        outlet = self._outlet
        (job_id,) = outlet.ids(1) if outlet.result_id else (None,)
        future = self._enter(enter, outlet.work, sink, job_id, fn, args, kwargs)
        if job_id is None:
            return future
        outlet.pending[job_id] = future
        return job_id

    def _later(self, delay: float, sink: Sink, fn: Callable[..., Any], args: Any, kwargs: Any) -> Future[Any]:
        enter = functools.partial(self._executor.submit_later, time_limit("delay", delay))
        future: Future[Any] = self._enter(enter, self._outlet.work, sink, None, fn, args, kwargs)
        self._delayed[future] = None
        return future

    def _at(
        self, when: float | time.struct_time, interval: float, sink: Sink, fn: Callable[..., Any], *job: Any
    ) -> TimerObj:
        moment = time.mktime(when) if isinstance(when, time.struct_time) else time_limit("_runat", when)
        delay = moment - time.time()
        if delay < 0:
            raise ValueError(f"_runat must be a time to come, not {when!r}, which was {-delay:g} s ago")
        return self._repeat(delay, interval, sink, fn, *job)

    def _repeat(self, first: float, interval: float, sink: Sink, fn: Callable[..., Any], *job: Any) -> TimerObj:
        first, interval = time_limit("interval", first), time_limit("interval", interval)
        if interval > 0:
            enter: Callable[..., Any] = functools.partial(self._executor.schedule, interval, first=first)
        else:
            enter = functools.partial(self._executor.submit_later, first)
        timer = self._enter(enter, self._outlet.work_quietly, sink, None, fn, *job)
        self._scheduled[timer] = None
        return TimerObj(timer)

    def _enter(
        self, enter: Callable[..., Any], run: Callable[..., Any], sink: Any, ids: Any, fn: Any, *job: Any
    ) -> Any:
        """Hand a job to a method of the executor, and return what that does."""
        if not callable(fn):
            raise TypeError(f"fn must be callable, not {fn!r}")
        if sink is not True and sink is not False and not callable(sink):
            raise TypeError(f"done_callback must be callable, True or False, not {sink!r}")
        try:
            return enter(run, sink, ids, fn, *job)
        except RuntimeError as error:
            raise self._refusal(error) from error

    def _refusal(self, error: RuntimeError) -> RuntimeError:
        return PoolStopped(f"the pool takes no jobs: {error}") if self.is_shutdown else error


def waits(future: Future[Any]) -> bool:
    """Return whether a job has not begun, and may still do so."""
    return not (future.running() or future.done())
