"""The names of the fastthreadpool package, on an `AdaptiveExecutor`: to migrate, change one import first.

The migration page of the documentation says what differs from the package, and what to use in place of its calls.
"""

from __future__ import annotations

import atexit
import functools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, repeat
from typing import Any, Final, Self
from weakref import WeakSet

from ebbpool._checks import optional_callable, time_limit, whole
from ebbpool._clock import monotonic
from ebbpool._core.accel import Future
from ebbpool._fastthreadpool import Outlet, PoolCallback, PoolState, PoolStopped, Semaphore, Sink, TimerObj, waits
from ebbpool._maps.delayed import ScheduledTask
from ebbpool.executor import AdaptiveExecutor

__all__ = ["Pool", "PoolCallback", "PoolStopped", "Semaphore", "Shutdown", "TimerObj"]

for _face in (PoolCallback, PoolStopped, Semaphore, TimerObj):
    _face.__module__ = __name__

AS_MANY_AS_CPUS: Final = -9999
PIECES_PER_CHILD: Final = 4
"""Into how many slices a map's items are cut for each thread that there may be."""

_pools: WeakSet[Pool] = WeakSet()
_pools_lock = threading.Lock()


class Pool(PoolState):
    """A pool of threads that leaves results in one queue, `done`, and failures in another, `failed`.

    Threads start on demand and leave when they have been idle for a while. A job that is a generator function has every
    value that it yields as a result. When the interpreter exits, queued jobs are dropped and running ones finish.

    Each method that takes a job calls `fn` with the further arguments. It raises `TypeError` if `fn` is not callable or
    a time is not a number, and `PoolStopped` if the pool has been shut down or `init_callback` failed.

    Where it takes a `done_callback`, this says what becomes of the job's results: True to treat them as the pool does,
    False to drop them, or a function to be called with each, in the job's own thread and without the job's id; what
    that raises is the job's failure.

    Args:
        max_children: How many threads there may be. 0 or less: as many less than there are processors; by default as
            many as there are.
        child_name_prefix: Threads are named ``prefix_0``, ``prefix_1``, ...
        init_callback: Called in each new thread, with the thread and `init_args`, before its first job. If it raises,
            the pool takes no more jobs, and those that it has fail.
        init_args: Further arguments for `init_callback`.
        finish_callback: Called in each thread before it ends.
        done_callback: Called with each result in place of keeping it, in one thread of its own, one result after the
            other; what it raises is logged. False: results are dropped.
        failed_callback: The same for failures: called with what would be the entry of `failed`, as arguments.
        log_level: If not 0 or None, and not above `logging.ERROR`, failures are logged to the logger
            ``fastthreadpool``, at level ERROR, in place of keeping them.
        result_id: Whether results become ``(job id, result)`` and failures begin with the job's id.
        exc_stack: Whether failures are formatted tracebacks and not exceptions.
        exc_args: Whether failures become ``(exception, args, kwargs)``.
        done_max: If above 0, how many results `done` holds at most: jobs wait with theirs until one is taken away, or
            the pool is shut down. With a `done_callback`, as many results may wait for it.

    Raises:
        TypeError: An argument is of the wrong type; the message names it and its value.
        ValueError: There would be no thread, or `done_max` is negative.
    """

    def __init__(
        self,
        max_children: int = AS_MANY_AS_CPUS,
        child_name_prefix: str = "",
        init_callback: Callable[..., object] | None = None,
        init_args: Iterable[Any] | None = None,
        finish_callback: Callable[[], object] | None = None,
        done_callback: Callable[[Any], object] | bool | None = None,
        failed_callback: Callable[..., object] | None = None,
        log_level: int | None = None,
        result_id: bool = False,
        exc_stack: bool = False,
        exc_args: bool = False,
        done_max: int = 0,
    ) -> None:
        super().__init__()
        cpus = os.cpu_count() or 1
        number = whole("max_children", max_children, -(2**63))
        self.max_children: int = cpus if number <= AS_MANY_AS_CPUS else number if number > 0 else cpus + number
        if self.max_children < 1:
            raise ValueError(f"max_children must leave at least one of {cpus} threads, not {number!r}")
        if not isinstance(child_name_prefix, str):
            raise TypeError(f"child_name_prefix must be a string, not {child_name_prefix!r}")
        optional_callable("init_callback", init_callback)
        self._build = functools.partial(
            AdaptiveExecutor,
            self.max_children,
            child_name_prefix or f"ThreadPool{id(self)}",
            None if init_callback is None else lambda *args: init_callback(threading.current_thread(), *args),
            () if init_args is None else tuple(init_args),
            finalizer=optional_callable("finish_callback", finish_callback),
            daemon=True,
        )
        outlet = self._outlet = Outlet(
            None if isinstance(done_callback, bool) else optional_callable("done_callback", done_callback),
            optional_callable("failed_callback", failed_callback),
            whole("log_level", log_level or 0, 0),
            bool(result_id),
            bool(exc_stack),
            bool(exc_args),
            whole("done_max", done_max, 0),
        )
        self.done: deque[Any] = outlet.done
        """The queue of results."""
        self.done_cnt: Semaphore = outlet.done_cnt
        """A semaphore that counts the results in `done`: acquire it, then take one."""
        self.failed: deque[Any] = outlet.failed
        """The queue of failures."""
        self.failed_cnt: Semaphore = outlet.failed_cnt
        """A semaphore that counts the failures in `failed`: acquire it, then take one."""
        self._default: Sink = done_callback is not False
        self._run: Callable[..., Any] = outlet.runner(self._default)
        self._open()
        with _pools_lock:
            _pools.add(self)

    def _open(self) -> None:
        self._executor = self._build()
        self._outlet.open(f"ThreadPoolDone{id(self)}")

    # The ways in.

    def submit(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Queue the job `fn(*args, **kwargs)`.

        Returns:
            The job's id if the pool was made with `result_id`, else its `Future`. `cancel` takes both.
        """
        if self._outlet.result_id or not callable(fn):
            return self._queue(self._executor.submit, self._default, fn, args, kwargs)
        try:
            return self._executor.submit(self._run, None, fn, args, kwargs)
        except RuntimeError as error:
            raise self._refusal(error) from error

    def submit_done(self, fn: Callable[..., Any], done_callback: Sink, *args: Any, **kwargs: Any) -> Any:
        """Do what `submit` does, with a `done_callback`."""
        return self._queue(self._executor.submit, done_callback, fn, args, kwargs)

    def submit_first(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Do what `submit` does, at the head of the queue."""
        return self._queue(self._executor.submit_first, self._default, fn, args, kwargs)

    def submit_done_first(self, fn: Callable[..., Any], done_callback: Sink, *args: Any, **kwargs: Any) -> Any:
        """Do what `submit_done` does, at the head of the queue."""
        return self._queue(self._executor.submit_first, done_callback, fn, args, kwargs)

    def submit_later(self, delay: float, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        """Queue a job `delay` seconds from now; return its `Future`, which `cancel` takes as `timer`."""
        return self.submit_done_later(delay, fn, self._default, *args, **kwargs)

    def submit_done_later(
        self, delay: float, fn: Callable[..., Any], done_callback: Sink, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        """Do what `submit_later` does, with a `done_callback`."""
        enter = functools.partial(self._executor.submit_later, time_limit("delay", delay))
        future: Future[Any] = self._enter(enter, self._runner(fn, done_callback), None, fn, args, kwargs)
        with self._lock:
            self._delayed[future] = None
        return future

    def submit_at(
        self, _runat: float | time.struct_time, interval: float, fn: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> TimerObj:
        """Queue a job at a time of the wall clock, and again every `interval` seconds if that is not 0.

        `_runat` is in seconds as of `time.time`, or a local `time.struct_time`. Setting the wall clock after this call
        changes nothing.

        Raises:
            ValueError: `_runat` is in the past.
        """
        return self.submit_done_at(_runat, interval, fn, self._default, *args, **kwargs)

    def submit_done_at(
        self,
        _runat: float | time.struct_time,
        interval: float,
        fn: Callable[..., Any],
        done_callback: Sink,
        *args: Any,
        **kwargs: Any,
    ) -> TimerObj:
        """Do what `submit_at` does, with a `done_callback`."""
        moment = time.mktime(_runat) if isinstance(_runat, time.struct_time) else time_limit("_runat", _runat)
        delay = moment - time.time()
        if delay < 0:
            raise ValueError(f"_runat must be in the future, not {_runat!r}, which was {-delay:g} s ago")
        return self._repeat(delay, interval, done_callback, fn, args, kwargs)

    def schedule(self, interval: float, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> TimerObj:
        """Queue a job every `interval` seconds, first after that time; once if `interval` is 0.

        The times do not drift, and a job never overlaps itself: see `ebbpool.ScheduledTask`.
        """
        return self.schedule_done(interval, fn, self._default, *args, **kwargs)

    def schedule_done(
        self, interval: float, fn: Callable[..., Any], done_callback: Sink, *args: Any, **kwargs: Any
    ) -> TimerObj:
        """Do what `schedule` does, with a `done_callback`."""
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
            done_callback: What becomes of the results; see `Pool`.
            direct: Accepted for compatibility: threads come and go by themselves.
            unpack_args: Whether an item holds the arguments for a call, or is itself the one argument. None: tuples
                hold arguments, anything else is one.
            chunksize: How many items go into a slice; by default a quarter of each thread's share. One thread
                runs a slice from its start to its end.

        Returns:
            The ids of the items' jobs, in order, if the pool was made with `result_id`, else None.

        Raises:
            TypeError: `itr` cannot be iterated.
            ValueError: `chunksize` is below 1.
        """
        items = list(itr)
        share = -(-len(items) // (PIECES_PER_CHILD * self.max_children)) or 1
        size = share if chunksize is None else whole("chunksize", chunksize, 1)
        outlet = self._outlet
        outlet.check(fn, done_callback)
        ids = outlet.ids(len(items)) if outlet.result_id else None
        # Without items there is one empty slice, so that a pool that has been shut down refuses it.
        for start in range(0, len(items) or 1, size):
            part = slice(start, start + size)
            job = (done_callback, repeat(None) if ids is None else ids[part], fn, items[part], unpack_args)
            self._enter(self._executor.submit, outlet.run_slice, *job, outlet.generation)
        return ids

    def _runner(self, fn: Callable[..., Any], sink: Sink) -> Callable[..., Any]:
        self._outlet.check(fn, sink)
        return self._run if sink is self._default else self._outlet.runner(sink)

    def _queue(self, enter: Callable[..., Any], sink: Sink, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        outlet = self._outlet
        (job_id,) = outlet.ids(1) if outlet.result_id else (None,)
        future = self._enter(enter, self._runner(fn, sink), job_id, fn, args, kwargs)
        if job_id is None:
            return future
        outlet.pending[job_id] = future
        return job_id

    def _repeat(
        self, first: float, interval: float, sink: Sink, fn: Callable[..., Any], args: Any, kwargs: Any
    ) -> TimerObj:
        first, interval = time_limit("interval", first), time_limit("interval", interval)
        if interval > 0:
            enter: Callable[..., Any] = functools.partial(self._executor.schedule, interval, first=first)
        else:
            enter = functools.partial(self._executor.submit_later, first)
        timer = self._enter(enter, self._outlet.run_quietly, self._runner(fn, sink), None, fn, args, kwargs)
        with self._lock:
            self._repeated[timer] = None
        return TimerObj(timer)

    def _enter(self, enter: Callable[..., Any], *job: Any) -> Any:
        try:
            return enter(*job)
        except RuntimeError as error:
            raise self._refusal(error) from error

    def _refusal(self, error: RuntimeError) -> RuntimeError:
        return PoolStopped(f"the pool takes no jobs: {error}") if self.is_shutdown else error

    # What comes out of it, and its end.

    def as_completed(self, wait: float | bool | None = None, cnt_max: int = 0) -> Iterator[Any]:
        """Take results, and failures, from their queues as they come.

        Args:
            wait: None or True: until all jobs are done, except those for later; False: not at all; a number: for so
                many seconds from this call.
            cnt_max: How many entries to take at most; 0 for any number.

        Raises:
            PoolCallback: The pool was made with `done_callback`, `failed_callback` or `log_level`.
            TypeError: `wait` or `cnt_max` is not a number.
            ValueError: `cnt_max` is negative.
            RuntimeError: From the iterator: a job waits for its own pool.
        """
        outlet = self._outlet
        if outlet.calls_back or outlet.log_level:
            raise PoolCallback("there is nothing to iterate over: results or failures do not go to a queue")
        most = whole("cnt_max", cnt_max, 0)
        end = self._end_of("wait", None if wait is None or wait is True else wait or 0)
        return islice(outlet.drain(self._executor.wait_idle, end), most or None)

    def cancel(self, job_id: int | bool | Future[Any] | None = None, timer: Any = None) -> bool:
        """Take jobs that have not begun off the queue, and stop timers.

        Args:
            job_id: The job, by its id or its future; None for all that are queued, False for none. Slices of a map can
                be cancelled only with None.
            timer: What `submit_later`, `submit_at` or `schedule` returned; True for all timers; None for none.

        Returns:
            Whether the job was there to be cancelled; True for None and False.

        Raises:
            TypeError: One of them is of the wrong type.
        """
        if job_id is True or not (job_id is None or isinstance(job_id, (int, Future))):
            raise TypeError(f"job_id must be a job's id or future, None or False, not {job_id!r}")
        if timer is True:
            # One after the other: what is called back for a cancelled job may schedule.
            for future in self.delayed:
                future.cancel()
            for repeated in self.scheduled:
                repeated.cancel()
        elif timer is not None and timer is not False:
            if not hasattr(timer, "cancel"):
                raise TypeError(f"timer must be what a method of the pool returned, True or None, not {timer!r}")
            timer.cancel()
        if job_id is False:
            return True
        if job_id is None:
            self._drop_jobs()
            return True
        job: Any = job_id if isinstance(job_id, Future) else self._outlet.pending.get(job_id)
        return job is not None and waits(job) and bool(job.cancel())

    def _drop_jobs(self) -> None:
        queued = self._executor._pool.waiting()
        # Cancelling the run of a schedule would end the schedule, so these runs are left out. They are collected after
        # the queue: a run in the queue that is no longer the next one of its schedule has begun meanwhile.
        runs = {timer.timer_id._armed[1] for timer in self.scheduled if isinstance(timer.timer_id, ScheduledTask)}
        for future in queued:
            if future not in runs:
                future.cancel()

    def clear(self) -> None:
        """Drop all queued jobs, results and failures; a pool that was shut down takes jobs again."""
        with self._lock:
            self._drop_jobs()
            self._outlet.clear()
            if self.is_shutdown:
                self._open()

    def cleanup_children(self) -> None:
        """Do nothing: threads that have ended are not counted."""

    def shutdown_children(self) -> None:
        """Drop all queued jobs and take no more; do not wait for running ones. A map ends after its next item."""
        self._outlet.generation += 1
        self._stop(True)

    def shutdown(self, timeout: float | None = None, soon: bool = False) -> bool:
        """Take no more jobs, and wait until those it has are done and all callbacks have been called.

        Jobs whose time has not come are dropped, and `done_max` no longer counts. A job, or a callback, of this same
        pool does not wait.

        Args:
            timeout: Seconds to wait at most; None for no limit.
            soon: Whether to drop the queued jobs, too.

        Returns:
            Whether all threads have ended.

        Raises:
            TypeError: `timeout` is not a number.
        """
        end = self._end_of("timeout", timeout)
        self._stop(bool(soon))
        try:
            for executor in self._executors():
                # Refused to a job, and to a callback, of this pool, which would wait for itself.
                executor.wait_idle(0)
            for executor in self._executors():
                executor.shutdown(timeout=max(0.0, end - monotonic()))
        except (RuntimeError, TimeoutError):
            return False
        return True

    def join(self, timeout: float | None = None) -> bool:
        """Do what `shutdown(timeout)` does."""
        return self.shutdown(timeout)

    def _stop(self, drop: bool) -> None:
        self._executor.shutdown(wait=False, cancel_futures=drop)
        self._outlet.lift(True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


def Shutdown(now: bool = True) -> None:
    """Shut down all pools, and wait for them; also called at the interpreter's exit.

    Args:
        now: Whether to drop the queued jobs.
    """
    with _pools_lock:
        pools = list(_pools)
    for pool in pools:
        pool.shutdown_children() if now else pool._stop(False)
    for pool in pools:
        pool.shutdown()


atexit.register(Shutdown)
