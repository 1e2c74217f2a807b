"""The ways in which jobs come into `ebbpool.fastthreadpool`: now, first, later, repeatedly, and in slices."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from ebbpool._checks import time_limit, whole
from ebbpool._core.accel import Future
from ebbpool._maps.schedule import ScheduledTask

if TYPE_CHECKING:
    from ebbpool._fastthreadpool.outlet import Outlet, Sink
    from ebbpool.executor import AdaptiveExecutor

PIECES_PER_CHILD: Final = 4
"""Into how many slices a map's items are cut for each thread that there may be."""


class PoolStopped(RuntimeError):
    """The pool takes no more jobs; `Pool.clear` makes it usable again."""


class TimerObj:
    """What `Pool.schedule` and `Pool.submit_at` return, for `Pool.cancel`.

    Attributes:
        timer_id: The `ScheduledTask`, or the `Future` of a job that runs once.
    """

    def __init__(self, timer_id: ScheduledTask | Future[Any], book: dict[TimerObj, None]) -> None:
        self.timer_id = timer_id
        self._book = book
        book[self] = None
        if isinstance(timer_id, Future):
            timer_id.add_done_callback(functools.partial(_strike_off, book, self))

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
        self._book.pop(self, None)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.timer_id!r}>"


class Jobs:
    """The half of a pool that takes jobs.

    Attributes:
        max_children: How many threads there may be.
    """

    max_children: int
    _executor: AdaptiveExecutor
    _outlet: Outlet
    _default: Sink
    _enter: Callable[..., Any]
    _keep: Callable[..., Any] | None
    _delayed: dict[Future[Any], None]
    _scheduled: dict[TimerObj, None]

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
        if self._keep is None:
            return self._queue(self._enter, self._default, fn, args, kwargs)
        if not callable(fn):
            raise TypeError(f"fn must be callable, not {fn!r}")
        try:
            return self._enter(self._keep, fn, args, kwargs)
        except RuntimeError as error:
            raise self._refusal(error) from error

    def submit_done(
        self, fn: Callable[..., Any], done_callback: Callable[[Any], object] | bool, *args: Any, **kwargs: Any
    ) -> Any:
        """Do what `submit` does, but treat the job's result as `done_callback` says.

        Args:
            fn: The job.
            done_callback: True to treat the result as the pool does, False to drop it, or a function to be called with
                each result, in the job's own thread and without its id; what it raises is the job's failure.
            args: Arguments for `fn`.
            kwargs: Keyword arguments for `fn`.
        """
        return self._queue(self._enter, _sink(done_callback), fn, args, kwargs)

    def submit_first(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Do what `submit` does, at the head of the queue."""
        return self._queue(self._executor.submit_first, self._default, fn, args, kwargs)

    def submit_done_first(
        self, fn: Callable[..., Any], done_callback: Callable[[Any], object] | bool, *args: Any, **kwargs: Any
    ) -> Any:
        """Do what `submit_done` does, at the head of the queue."""
        return self._queue(self._executor.submit_first, _sink(done_callback), fn, args, kwargs)

    def submit_later(self, delay: float, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        """Queue a job `delay` seconds from now; return its `Future`, which `cancel` takes as `timer`.

        Raises:
            TypeError: `fn` is not callable, or `delay` is no number.
            PoolStopped: As for `submit`.
        """
        return self._later(delay, self._default, fn, args, kwargs)

    def submit_done_later(
        self,
        delay: float,
        fn: Callable[..., Any],
        done_callback: Callable[[Any], object] | bool,
        *args: Any,
        **kwargs: Any,
    ) -> Future[Any]:
        """Do what `submit_later` does, with `done_callback` as in `submit_done`."""
        return self._later(delay, _sink(done_callback), fn, args, kwargs)

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
        done_callback: Callable[[Any], object] | bool,
        *args: Any,
        **kwargs: Any,
    ) -> TimerObj:
        """Do what `submit_at` does, with `done_callback` as in `submit_done`."""
        return self._at(_runat, interval, _sink(done_callback), fn, args, kwargs)

    def schedule(self, interval: float, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> TimerObj:
        """Queue a job every `interval` seconds, first after that time; once if `interval` is 0.

        The times do not drift, and a job never overlaps itself: see `ebbpool.ScheduledTask`.

        Raises:
            TypeError: `fn` is not callable, or `interval` is no number.
            PoolStopped: As for `submit`.
        """
        return self._repeat(interval, interval, self._default, fn, args, kwargs)

    def schedule_done(
        self,
        interval: float,
        fn: Callable[..., Any],
        done_callback: Callable[[Any], object] | bool,
        *args: Any,
        **kwargs: Any,
    ) -> TimerObj:
        """Do what `schedule` does, with `done_callback` as in `submit_done`."""
        return self._repeat(interval, interval, _sink(done_callback), fn, args, kwargs)

    def map(
        self,
        fn: Callable[..., Any],
        itr: Iterable[Any],
        done_callback: Callable[[Any], object] | bool = True,
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
        sink = _sink(done_callback)
        if not callable(fn):
            raise TypeError(f"fn must be callable, not {fn!r}")
        items = itr if isinstance(itr, (tuple, range)) else list(itr)
        size = (
            -(-len(items) // (PIECES_PER_CHILD * self.max_children))
            if chunksize is None
            else whole("chunksize", chunksize, 1)
        )
        outlet = self._outlet
        ids = outlet.ids(len(items)) if outlet.result_id else None
        try:
            if not items and self.is_shutdown:
                raise RuntimeError("shut down")
            for start in range(0, len(items), max(size, 1)):
                first_id = None if ids is None else ids[start]
                part = items[start : start + size]
                self._enter(outlet.work_slice, outlet.generation, sink, first_id, fn, part, unpack_args)
        except RuntimeError as error:
            raise self._refusal(error) from error
        return ids

    def _queue(
        self, enter: Callable[..., Any], sink: Sink, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        if not callable(fn):
            raise TypeError(f"fn must be callable, not {fn!r}")
        outlet = self._outlet
        job_id = outlet.new_id()
        try:
            future = enter(outlet.work, sink, job_id, fn, args, kwargs)
        except RuntimeError as error:
            raise self._refusal(error) from error
        if job_id is None:
            return future
        outlet.waiting[job_id] = future
        # A job removes itself from `waiting` when it begins. If that was before the line above, remove it here.
        if not waits(future):
            outlet.waiting.pop(job_id, None)
        return job_id

    def _later(
        self, delay: float, sink: Sink, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Any
    ) -> Future[Any]:
        if not callable(fn):
            raise TypeError(f"fn must be callable, not {fn!r}")
        delay = time_limit("delay", delay)
        outlet = self._outlet
        try:
            future: Future[Any] = self._executor.submit_later(
                delay, outlet.work, sink, outlet.new_id(), fn, args, kwargs
            )
        except RuntimeError as error:
            raise self._refusal(error) from error
        self._delayed[future] = None
        future.add_done_callback(functools.partial(_strike_off, self._delayed, future))
        return future

    def _at(
        self,
        when: float | time.struct_time,
        interval: float,
        sink: Sink,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Any,
    ) -> TimerObj:
        moment = time.mktime(when) if isinstance(when, time.struct_time) else time_limit("_runat", when)
        delay = moment - time.time()
        if delay < 0:
            raise ValueError(f"_runat must be a time to come, not {when!r}, which was {-delay:g} s ago")
        return self._repeat(delay, interval, sink, fn, args, kwargs)

    def _repeat(
        self, first: float, interval: float, sink: Sink, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Any
    ) -> TimerObj:
        if not callable(fn):
            raise TypeError(f"fn must be callable, not {fn!r}")
        interval = time_limit("interval", interval)
        first = time_limit("interval", first)
        outlet = self._outlet
        timer: ScheduledTask | Future[Any]
        try:
            if interval > 0:
                timer = self._executor.schedule(interval, outlet.work_again, sink, fn, args, kwargs, first=first)
            else:
                timer = self._executor.submit_later(first, outlet.work_again, sink, fn, args, kwargs)
        except RuntimeError as error:
            raise self._refusal(error) from error
        return TimerObj(timer, self._scheduled)

    def _refusal(self, error: RuntimeError) -> RuntimeError:
        return PoolStopped(f"the pool takes no jobs: {error}") if self.is_shutdown else error


def _sink(done_callback: Any) -> Sink:
    if done_callback is not True and done_callback is not False and not callable(done_callback):
        raise TypeError(f"done_callback must be callable, True or False, not {done_callback!r}")
    sink: Sink = done_callback
    return sink


def waits(future: Future[Any]) -> bool:
    """Return whether a job has not begun, and may still do so."""
    return not (future.running() or future.done())


def _strike_off(book: dict[Any, None], key: Any, _: object) -> None:
    book.pop(key, None)
