"""The names of the fastthreadpool package, on an `AdaptiveExecutor`; the migration page says what differs."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from inspect import isgeneratorfunction
from itertools import repeat
from math import inf
from types import GeneratorType
from typing import Any, Final, Self, cast
from weakref import WeakSet, WeakValueDictionary

from ebbpool import sync
from ebbpool._checks import optional_callable, time_limit, whole
from ebbpool._clock import monotonic
from ebbpool._core.accel import Future
from ebbpool._errors import traceback_of, written
from ebbpool._maps.delayed import ScheduledTask
from ebbpool._pool.cancelling import cancelled
from ebbpool.executor import AdaptiveExecutor

__all__ = ["Pool", "PoolCallback", "PoolStopped", "Semaphore", "Shutdown", "TimerObj"]

AS_MANY_AS_CPUS: Final = -9999
PIECES_PER_CHILD: Final = 4  # into how many slices a map's items are cut for each thread that there may be
LOOK: Final = 0.005  # seconds between two looks of `as_completed` for a result
LOGGER = logging.getLogger("fastthreadpool")

Job = Callable[..., Any]
Sink = bool | Callable[[Any], object]
Moment = float | time.struct_time
Timer = ScheduledTask | Future[Any]
TimerObj = ScheduledTask

_pools: WeakSet[Pool] = WeakSet()
_pools_lock = threading.Lock()


class PoolStopped(RuntimeError):
    """The pool takes no more jobs; `Pool.clear` makes it usable again."""


class PoolCallback(Exception):
    """Results or failures go to the pool's callback (failures perhaps to the log), and cannot be iterated over."""


class Semaphore(sync.Semaphore):
    """`ebbpool.sync.Semaphore`, with its counter as `value`."""

    @property
    def value(self) -> int:
        """How many permits are free."""
        return int(self._value)


class _Bounded(deque[Any]):
    """A queue of at most `most` results: workers wait while it is full."""

    def __init__(self, most: float) -> None:
        super().__init__()
        self._most = most
        self._room = threading.Condition()

    def bound(self, most: float) -> None:
        with self._room:
            self._most = most
            self._room.notify_all()

    def append(self, value: Any, /) -> None:
        with self._room:
            self._room.wait_for(lambda: len(self) < self._most)
            super().append(value)

    def popleft(self) -> Any:
        with self._room:
            self._room.notify()
            return super().popleft()

    def clear(self) -> None:
        with self._room:
            self._room.notify_all()
            super().clear()


class Pool:
    """A pool of threads that leaves results in one queue, `done`, and failures in another, `failed`.

    Threads start on demand and leave when they have been idle for a while. A job that is a generator function has every
    value that it yields as a result. When the interpreter exits, queued jobs are dropped and running ones finish.

    Methods that take a job call `fn` with the further arguments; they raise `PoolStopped` if the pool was shut down or
    `init_callback` failed. All methods raise `TypeError` or `ValueError` for an argument that is not as said here.

    A method's `done_callback` says what becomes of the job's results: True to treat them as the pool does, False to
    drop them, or a function to be called with each, in the job's own thread and without the job's id; what that raises
    is the job's failure.

    Args:
        max_children: How many threads there may be. 0 or less: that many fewer than CPUs; by default as many.
        child_name_prefix: Threads are named ``prefix_0``, ``prefix_1``, ...
        init_callback: Called in each new thread, with the thread and `init_args`, before its first job. If it raises,
            the pool takes no more jobs, and those that it has fail.
        init_args: Further arguments for `init_callback`.
        finish_callback: Called in each thread before it ends.
        done_callback: Called with each result in place of keeping it, in a separate thread, one result after the
            other; what it raises is logged. False: results are dropped.
        failed_callback: The same for failures: called with what would be the entry of `failed`, as arguments.
        log_level: If not 0 or None, and not above `logging.ERROR`, failures are logged to the logger
            ``fastthreadpool``, at level ERROR, in place of keeping them.
        result_id: Whether results become ``(job id, result)`` and failures begin with the job's id.
        exc_stack: Whether failures are formatted tracebacks and not exceptions.
        exc_args: Whether failures become ``(exception, args, kwargs)``.
        done_max: If above 0, how many results may be in `done`, or wait for the `done_callback`: jobs wait with theirs
            until `as_completed`, `popleft` or `clear` takes one away, or the pool is shut down.

    Attributes:
        done, failed: The queues of results and of failures.
        done_cnt, failed_cnt: A semaphore for each that counts its entries: acquire it, then take one.
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
        cpus = os.cpu_count() or 1
        number = whole("max_children", max_children, -(2**63))
        self.max_children: int = cpus if number <= AS_MANY_AS_CPUS else number if number > 0 else cpus + number
        if self.max_children < 1:
            raise ValueError(f"max_children must leave at least one of {cpus} threads, not {number!r}")
        if not isinstance(child_name_prefix, str):
            raise TypeError(f"child_name_prefix must be a string, not {child_name_prefix!r}")
        optional_callable("init_callback", init_callback)
        finish = optional_callable("finish_callback", finish_callback)
        prepare = None if init_callback is None else lambda *args: init_callback(threading.current_thread(), *args)
        name = child_name_prefix or f"ThreadPool{id(self)}"
        if not isinstance(init_args, Iterable | None):
            raise TypeError(f"init_args must be an iterable or None, not {init_args!r}")
        self._build = partial(
            AdaptiveExecutor, self.max_children, name, prepare, tuple(init_args or ()), finalizer=finish, daemon=True
        )
        self._sink: Sink = done_callback is not False
        given = None if isinstance(done_callback, bool) else done_callback
        self._done_callback = optional_callable("done_callback", given)
        self._failed_callback = optional_callable("failed_callback", failed_callback)
        self._log_level, self._done_max = whole("log_level", log_level or 0, 0), whole("done_max", done_max, 0)
        self._result_id, self._exc_stack, self._exc_args = bool(result_id), bool(exc_stack), bool(exc_args)
        self.done: deque[Any] = _Bounded(self._done_max) if self._done_max else deque()
        self.failed: deque[Any] = deque()
        self.done_cnt: Semaphore = Semaphore(0)
        self.failed_cnt: Semaphore = Semaphore(0)
        self._queues = ((self.done, self.done_cnt), (self.failed, self.failed_cnt))
        self._lock, self._next_id = threading.RLock(), 1
        self._numbered: WeakValueDictionary[int, Future[Any]] = WeakValueDictionary()
        self._open()
        with _pools_lock:
            _pools.add(self)

    def _open(self) -> None:
        self._executor = self._build()
        self._executors = [self._executor]
        if self._done_callback is not None or self._failed_callback is not None:
            # Always the same thread, so that values which a callback keeps in thread-local storage stay.
            caller = AdaptiveExecutor(1, f"ThreadPoolDone{id(self)}", min_workers=1, max_queue=self._done_max or None)
            self._executors.append(caller)
        if isinstance(self.done, _Bounded):
            self.done.bound(self._done_max)

    def submit(self, fn: Job, *args: Any, **kwargs: Any) -> Any:
        """Queue the job `fn(*args, **kwargs)`; return its id if the pool has `result_id`, else its `Future`."""
        return self._queue(self._executor.submit, self._sink, fn, args, kwargs)

    def submit_done(self, fn: Job, done_callback: Sink, *args: Any, **kwargs: Any) -> Any:
        """Do what `submit` does, with a `done_callback`."""
        return self._queue(self._executor.submit, done_callback, fn, args, kwargs)

    def submit_first(self, fn: Job, *args: Any, **kwargs: Any) -> Any:
        """Do what `submit` does, at the head of the queue."""
        return self._queue(self._executor.submit_first, self._sink, fn, args, kwargs)

    def submit_done_first(self, fn: Job, done_callback: Sink, *args: Any, **kwargs: Any) -> Any:
        """Do what `submit_done` does, at the head of the queue."""
        return self._queue(self._executor.submit_first, done_callback, fn, args, kwargs)

    def submit_later(self, delay: float, fn: Job, *args: Any, **kwargs: Any) -> Future[Any]:
        """Queue a job `delay` seconds from now; return its `Future`, which `cancel` takes as `timer`."""
        return cast("Future[Any]", self._at("delay", delay, 0, self._sink, fn, args, kwargs))

    def submit_done_later(self, delay: float, fn: Job, done_callback: Sink, *args: Any, **kwargs: Any) -> Future[Any]:
        """Do what `submit_later` does, with a `done_callback`."""
        return cast("Future[Any]", self._at("delay", delay, 0, done_callback, fn, args, kwargs))

    def submit_at(self, _runat: Moment, interval: float, fn: Job, *args: Any, **kwargs: Any) -> Timer:
        """Queue a job at a time of the wall clock, and again every `interval` seconds if that is not 0.

        `_runat` is in seconds as of `time.time`, or a local `time.struct_time`, and not in the past. Setting the wall
        clock after this call changes nothing. Returns what `schedule` does.
        """
        return self._at("_runat", _runat, interval, self._sink, fn, args, kwargs)

    def submit_done_at(
        self, _runat: Moment, interval: float, fn: Job, done_callback: Sink, *args: Any, **kwargs: Any
    ) -> Timer:
        """Do what `submit_at` does, with a `done_callback`."""
        return self._at("_runat", _runat, interval, done_callback, fn, args, kwargs)

    def schedule(self, interval: float, fn: Job, *args: Any, **kwargs: Any) -> Timer:
        """Queue a job every `interval` seconds, first after that time; once if `interval` is 0.

        Returns a `ScheduledTask`, which says when it runs, or the `Future` of a job that runs once; for `cancel`.
        """
        return self._at("interval", interval, interval, self._sink, fn, args, kwargs)

    def schedule_done(self, interval: float, fn: Job, done_callback: Sink, *args: Any, **kwargs: Any) -> Timer:
        """Do what `schedule` does, with a `done_callback`."""
        return self._at("interval", interval, interval, done_callback, fn, args, kwargs)

    def map(
        self, fn: Job, itr: Iterable[Any], done_callback: Sink = True, direct: bool = True, unpack_args: Any = None
    ) -> range | None:
        """Queue a job for each item, in slices; return their ids, in order, if the pool has `result_id`.

        Args:
            fn: Called with each item; may be a generator function.
            itr: The items; read to its end before this returns.
            done_callback: What becomes of the results; see `Pool`.
            direct: Has no effect: threads come and go.
            unpack_args: Whether an item holds the arguments for a call, or is itself the one argument. None: tuples
                hold arguments, anything else is one.
        """
        self._check(fn, done_callback)
        items = list(itr)
        ids = self._ids(len(items)) if self._result_id else None
        size = -(-len(items) // (PIECES_PER_CHILD * self.max_children)) or 1
        # Without items there is one empty slice, so that a pool that has been shut down refuses it.
        for start in range(0, len(items) or 1, size):
            part = slice(start, start + size)
            job = (done_callback, repeat(None) if ids is None else ids[part], fn, items[part], unpack_args)
            self._enter(self._executor.submit, self._run_slice, *job)
        return ids

    def _check(self, fn: Any, sink: Any) -> None:
        if not callable(fn):
            raise TypeError(f"fn must be callable, not {fn!r}")
        if sink is not True and sink is not False and not callable(sink):
            raise TypeError(f"done_callback must be callable, True or False, not {sink!r}")

    def _ids(self, count: int) -> range:
        with self._lock:
            first, self._next_id = self._next_id, self._next_id + count
        return range(first, first + count)

    def _queue(self, enter: Job, sink: Sink, fn: Job, args: Any, kwargs: Any) -> Any:
        self._check(fn, sink)
        if not self._result_id:
            return self._enter(enter, self._run, sink, None, fn, args, kwargs)
        (job_id,) = self._ids(1)
        self._numbered[job_id] = self._enter(enter, self._run, sink, job_id, fn, args, kwargs)
        return job_id

    def _at(self, name: str, when: Moment, interval: float, sink: Sink, fn: Job, args: Any, kwargs: Any) -> Timer:
        self._check(fn, sink)
        first = time.mktime(when) if isinstance(when, time.struct_time) else time_limit(name, when)
        if name == "_runat":
            first -= time.time()
            if first < 0:
                raise ValueError(f"_runat must be in the future, not {when!r}, which was {-first:g} s ago")
        enter: Job = partial(self._executor.submit_later, first)
        run: Job = self._run
        if time_limit("interval", interval) > 0:
            enter, run = partial(self._executor.schedule, interval, first=first), self._run_quietly
        timer: Timer = self._enter(enter, run, sink, None, fn, args, kwargs)
        return timer

    def _enter(self, enter: Job, *job: Any) -> Any:
        try:
            return enter(*job)
        except RuntimeError as error:
            raise PoolStopped(f"the pool takes no jobs: {error}") from error

    def _run(self, sink: Sink, job_id: int | None, fn: Job, args: Any, kwargs: Any) -> Any:
        if job_id is None and self._result_id:
            # A run of a schedule, or a job for later.
            (job_id,) = self._ids(1)
        try:
            value = fn(*args, **kwargs)
            if type(value) is GeneratorType and isgeneratorfunction(fn):
                for item in value:
                    self._take(sink, job_id, item)
                return None
            self._take(sink, job_id, value)
            return value
        except BaseException as error:
            self._fail(job_id, error, args, kwargs)
            raise

    def _run_quietly(self, sink: Sink, job_id: int | None, fn: Job, args: Any, kwargs: Any) -> None:
        try:
            self._run(sink, job_id, fn, args, kwargs)
        except BaseException:
            pass

    def _run_slice(self, sink: Sink, ids: Iterable[Any], fn: Job, items: list[Any], unpack: bool | None) -> None:
        for job_id, item in zip(ids, items, strict=False):
            if cancelled():
                return
            spread = isinstance(item, tuple) if unpack is None else unpack
            self._run_quietly(sink, job_id, fn, item if spread else (item,), {})

    def _take(self, sink: Sink, job_id: int | None, value: Any) -> None:
        if callable(sink):
            sink(value)
        elif sink:
            entry = value if job_id is None else (job_id, value)
            if self._done_callback is None:
                self.done.append(entry)
                self.done_cnt.release()
            else:
                self._call(self._done_callback, entry)

    def _fail(self, job_id: int | None, error: BaseException, args: Any, kwargs: dict[str, Any]) -> None:
        if self._log_level and self._log_level <= logging.ERROR:
            LOGGER.error("Exception in a job:", exc_info=(type(error), error, traceback_of(error)))
        entry: list[Any] = [] if job_id is None else [job_id]
        entry.append(written(error) if self._exc_stack else error)
        if self._exc_args:
            entry += args, kwargs
        if self._failed_callback is not None:
            self._call(self._failed_callback, *entry)
        elif not self._log_level:
            self.failed.append(entry[0] if len(entry) == 1 else tuple(entry))
            self.failed_cnt.release()

    def _call(self, callback: Callable[..., object], *args: Any) -> None:
        def report() -> None:
            try:
                callback(*args)
            except BaseException:
                LOGGER.exception("Exception in the callback %r:", callback)

        try:
            self._executors[-1].submit(report)
        except RuntimeError:
            # The executor takes no more calls, because the interpreter exits; or its thread cannot be started.
            report()

    @property
    def is_shutdown(self) -> bool:
        """Whether the pool takes no more jobs."""
        return bool(self._executor._shutdown)

    @property
    def children(self) -> tuple[threading.Thread, ...]:
        """The threads of the pool."""
        return tuple(self._executor._threads)

    @property
    def child_cnt(self) -> int:
        """How many threads there are."""
        return len(self.children)

    alive = child_cnt

    @property
    def busy(self) -> int:
        """How many threads have a job; a slice of a map counts as one."""
        return self._executor.stats().running

    @property
    def pending(self) -> int:
        """How many jobs are queued or running; a slice of a map counts as one."""
        stats = self._executor.stats()
        return stats.queued + stats.running

    @property
    def jobs(self) -> deque[Future[Any]]:
        """The jobs that are queued right now, without runs of schedules."""
        return self._without_runs(self._executor._pool.waiting())

    @property
    def delayed(self) -> deque[Future[Any]]:
        """The jobs that run once, and whose time has not come."""
        return self._without_runs(list(self._executor._crew.timers.waiting))

    @property
    def scheduled(self) -> deque[ScheduledTask]:
        """The schedules that go on."""
        return deque(list(self._executor._crew.timers.schedules))

    def _without_runs(self, futures: list[Any]) -> deque[Future[Any]]:
        # Collected after `futures`: one that is no longer the next run of its schedule has begun meanwhile.
        runs = {task._armed[1] for task in self.scheduled}
        return deque(future for future in futures if future not in runs)

    def as_completed(self, wait: float | bool | None = None, cnt_max: int = 0) -> Iterator[Any]:
        """Take results, and failures, from their queues as they come.

        Args:
            wait: None or True: until all jobs are done, except those for later; False: not at all; a number: for so
                many seconds.
            cnt_max: How many entries to take at most; 0 for any number.

        Raises:
            PoolCallback: The pool was made with `done_callback`, `failed_callback` or `log_level`.
            RuntimeError: A job waits for its own pool.
        """
        if len(self._executors) > 1 or self._log_level:
            raise PoolCallback("there is nothing to iterate over: results or failures do not go to a queue")
        end = _end_of("wait", None if wait is None or wait is True else wait or 0)
        most = whole("cnt_max", cnt_max, 0) or sys.maxsize
        idle = False
        while True:
            taken = 0
            for queue, count in self._queues:
                # A worker appends an entry first, and then counts it.
                while taken < most and count.acquire(False):
                    # Unless the program has taken an entry without acquiring `count`.
                    with suppress(IndexError):
                        yield queue.popleft()
                        taken += 1
            most -= taken
            time_left = end - monotonic()
            # A result is counted before its job is over, so nothing more comes once the pool was idle.
            if most == 0 or (not taken and (idle or time_left <= 0)):
                return
            idle = time_left > 0 and self._executor.wait_idle(min(time_left, LOOK))

    def cancel(self, job_id: int | bool | Future[Any] | None = None, timer: Timer | bool | None = None) -> bool:
        """Take jobs that have not begun off the queue, and stop timers; return whether the job was there.

        Args:
            job_id: The job, by its id or its future; None for all that are queued, slices of maps among them; False for
                none.
            timer: What `submit_later`, `submit_at` or `schedule` returned; True for all timers; None for none.
        """
        if job_id is True or not isinstance(job_id, int | Future | None):
            raise TypeError(f"job_id must be a job's id or future, None or False, not {job_id!r}")
        if not isinstance(timer, bool | Future | ScheduledTask | None):
            raise TypeError(f"timer must be what a method of the pool returned, True or None, not {timer!r}")
        timers: Any = (*self.delayed, *self.scheduled) if timer is True else (timer,) if timer else ()
        for each in timers:
            each.cancel()
        if job_id is None:
            # Without runs of schedules: these would end with them.
            for future in self.jobs:
                future.cancel()
        if job_id is None or job_id is False:
            return True
        job = job_id if isinstance(job_id, Future) else self._numbered.get(job_id)
        return job is not None and not (job.running() or job.done()) and job.cancel()

    def clear(self) -> None:
        """Drop all queued jobs, results and failures; a pool that was shut down takes jobs again."""
        self.cancel()
        for queue, count in self._queues:
            queue.clear()
            while count.acquire(False):
                pass
        with self._lock:
            if self.is_shutdown:
                self._open()

    def cleanup_children(self) -> None:
        """Do nothing: threads that have ended are not counted."""

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds until no job is queued or running, and no callback due; return False if in vain.

        Raises:
            RuntimeError: A job, or a callback, waits for its own pool.
        """
        end = _end_of("timeout", timeout)
        while all(executor.wait_idle(end - monotonic()) for executor in self._executors):
            # A callback may have submitted another job.
            if self._executor.wait_idle(0):
                return True
        return False

    def shutdown_children(self) -> None:
        """Do what `shutdown(soon=True)` does, without waiting."""
        self._stop(True)

    def shutdown(self, timeout: float | None = None, soon: bool = False) -> bool:
        """Take no more jobs; wait until those it has are done and all callbacks have been called; return False if not.

        Jobs whose time has not come are dropped, and `done_max` no longer counts. A job, or a callback, of this same
        pool does not wait.

        Args:
            timeout: Seconds to wait at most; None for no limit.
            soon: Whether to drop the queued jobs, too, and to end maps after their next item.
        """
        end = _end_of("timeout", timeout)
        self._stop(bool(soon))
        if not any(executor._pool.runs_here() for executor in self._executors):
            with suppress(TimeoutError):
                for executor in self._executors:
                    executor.shutdown(timeout=max(0.0, end - monotonic()))
                return True
        return False

    join = shutdown

    def _stop(self, drop: bool) -> None:
        self._executor.shutdown(wait=False, cancel_futures=drop)
        if isinstance(self.done, _Bounded):
            self.done.bound(inf)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


def Shutdown(now: bool = True) -> None:
    """Shut down all pools, dropping their queued jobs if `now`, and wait for them; also called at the exit."""
    with _pools_lock:
        pools = list(_pools)
    for pool in pools:
        pool._stop(now)
    for pool in pools:
        pool.shutdown()


atexit.register(Shutdown)


def _end_of(name: str, seconds: float | None) -> float:
    """Return when a time is over that begins now, or infinity."""
    return inf if seconds is None else monotonic() + time_limit(name, seconds)
