"""The names of the fastthreadpool package, on an `AdaptiveExecutor`: to migrate, change one import first.

The migration page of the documentation says what differs from the package, and what to use in place of its calls.
"""

from __future__ import annotations

import atexit
import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from ebbpool._checks import optional_callable, time_limit, whole
from ebbpool._core.accel import Future
from ebbpool._fastthreadpool.jobs import Jobs, PoolStopped, TimerObj, waits
from ebbpool._fastthreadpool.outlet import Bounded, Outlet, Semaphore, Sink
from ebbpool.executor import AdaptiveExecutor

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["Pool", "PoolCallback", "PoolStopped", "Semaphore", "Shutdown", "TimerObj"]

for _borrowed in (PoolStopped, Semaphore, TimerObj):
    _borrowed.__module__ = __name__

T = TypeVar("T")

AS_MANY_AS_CPUS: Final = -9999

_pools: WeakSet[Pool] = WeakSet()
_pools_lock = threading.Lock()


class PoolCallback(Exception):
    """Results or failures go to the pool's callback (failures perhaps to the log), and cannot be iterated over."""


class Pool(Jobs):
    """A pool of threads that leaves results in one queue, `done`, and failures in another, `failed`.

    Threads start on demand and leave when they have been idle for a while. A job that is a generator function has every
    value that it yields as a result. When the interpreter exits, queued jobs are dropped and running ones finish.

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
        self.max_children: int = _children(max_children)
        if not isinstance(child_name_prefix, str):
            raise TypeError(f"child_name_prefix must be a string, not {child_name_prefix!r}")
        optional_callable("init_callback", init_callback)
        optional_callable("finish_callback", finish_callback)
        optional_callable("failed_callback", failed_callback)
        caller = None if isinstance(done_callback, bool) else optional_callable("done_callback", done_callback)
        done_max = whole("done_max", done_max, 0)
        log_level = whole("log_level", log_level or 0, 0)
        self._build = functools.partial(
            AdaptiveExecutor,
            self.max_children,
            child_name_prefix or f"ThreadPool{id(self)}",
            None if init_callback is None else _initialize,
            (init_callback, *(() if init_args is None else init_args)),
            finalizer=finish_callback,
            daemon=True,
        )
        self._has_callback = caller is not None or failed_callback is not None
        self._keeps_nothing = "done" if caller else "failed" if failed_callback or log_level else ""
        self._outlet = Outlet(
            caller, failed_callback, log_level, bool(result_id), bool(exc_stack), bool(exc_args), done_max
        )
        self.done: deque[Any] = self._outlet.done
        """The queue of results."""
        self.done_cnt: Semaphore = self._outlet.done_cnt
        """A semaphore that counts the results in `done`: acquire it, then take one."""
        self.failed: deque[Any] = self._outlet.failed
        """The queue of failures."""
        self.failed_cnt: Semaphore = self._outlet.failed_cnt
        """A semaphore that counts the failures in `failed`: acquire it, then take one."""
        self._callback_queue = done_max or None
        self._default: Sink = done_callback is not False
        self._delayed = WeakKeyDictionary()
        self._scheduled = WeakKeyDictionary()
        self._lock = threading.Lock()
        self._open()
        with _pools_lock:
            _pools.add(self)

    def _open(self) -> None:
        self._executor = self._build()
        self._lift(False)
        if self._has_callback:
            # Always the same thread, so that values which the callback keeps in thread-local storage stay.
            self._outlet.caller = AdaptiveExecutor(
                1, f"ThreadPoolDone{id(self)}", min_workers=1, max_queue=self._callback_queue
            )

    def as_completed(self, wait: float | bool | None = None, cnt_max: int = 0) -> Iterator[Any]:
        """Take results, and failures, from their queues as they come.

        Args:
            wait: None or True: until all jobs are done, except those for later; False: not at all; a number: for so
                many seconds from this call.
            cnt_max: How many entries to take at most; 0 for any number.

        Raises:
            PoolCallback: The pool was made with `done_callback`, `failed_callback` or `log_level`.
            TypeError: `wait` or `cnt_max` is no number.
            ValueError: `cnt_max` is negative.
            RuntimeError: From the iterator: a job waits for its own pool.
        """
        if self._keeps_nothing:
            raise PoolCallback(f"there is nothing to iterate over: {self._keeps_nothing} results do not go to a queue")
        most = whole("cnt_max", cnt_max, 0)
        limit = inf if wait is None or wait is True else monotonic() + time_limit("wait", wait or 0)
        return self._outlet.drain(self._executor.wait_idle, limit, most)

    # What it is doing.

    @property
    def children(self) -> tuple[threading.Thread, ...]:
        """The threads of the pool."""
        return tuple(self._executor._threads)

    @property
    def child_cnt(self) -> int:
        """How many threads there are."""
        return len(self.children)

    @property
    def alive(self) -> int:
        """How many threads are alive."""
        return sum(child.is_alive() for child in self.children)

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
        """The jobs that are queued right now."""
        waiting: list[Any] = self._executor._pool.waiting()
        return deque(waiting)

    @property
    def delayed(self) -> deque[Future[Any]]:
        """The jobs of `submit_later` that have not begun right now."""
        return deque(future for future in _alive(self._delayed) if waits(future))

    @property
    def scheduled(self) -> deque[TimerObj]:
        """The jobs of `schedule` and `submit_at` that have runs to come right now."""
        return deque(timer for timer in map(TimerObj, _alive(self._scheduled)) if timer.active)

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds until no job is queued or running and the pool's callbacks have been called.

        Returns:
            False if `timeout` ran out.

        Raises:
            TypeError: `timeout` is no number.
            RuntimeError: A job, or a callback, waits for its own pool.
        """
        limit = None if timeout is None else monotonic() + time_limit("timeout", timeout)
        caller = self._outlet.caller
        while self._executor.wait_idle(_left(limit)):
            if caller is None:
                return True
            if not caller.wait_idle(_left(limit)):
                return False
            # A callback may have submitted another job.
            if self._executor.wait_idle(0):
                return True
        return False

    # The end.

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
        runs = {timer._next_run for timer in self.scheduled}
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
            TypeError: `timeout` is no number.
        """
        limit = None if timeout is None else monotonic() + time_limit("timeout", timeout)
        self._stop(bool(soon))
        try:
            for executor in filter(None, (self._executor, self._outlet.caller)):
                # Refused to a job, and to a callback, of this pool, which would wait for itself.
                executor.wait_idle(0)
            for executor in filter(None, (self._executor, self._outlet.caller)):
                executor.shutdown(timeout=_left(limit))
        except (RuntimeError, TimeoutError):
            return False
        return True

    def join(self, timeout: float | None = None) -> bool:
        """Do what `shutdown(timeout)` does."""
        return self.shutdown(timeout)

    def _stop(self, drop: bool) -> None:
        """Take no more jobs, without waiting."""
        self._executor.shutdown(wait=False, cancel_futures=drop)
        self._lift(True)

    def _lift(self, lifted: bool) -> None:
        if isinstance(self.done, Bounded):
            self.done.lift(lifted)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        state = "shut down" if self.is_shutdown else f"{self.child_cnt} of at most {self.max_children} threads"
        return f"<{type(self).__name__} at {id(self):#x}: {state}, {self.pending} jobs pending, {len(self.done)} done>"


def Shutdown(now: bool = True) -> None:
    """Shut down all pools, and wait for them; also called at the interpreter's exit.

    Args:
        now: Whether to drop the queued jobs.
    """
    with _pools_lock:
        pools = list(_pools)
    for pool in pools:
        if now:
            pool.shutdown_children()
        else:
            pool._stop(False)
    for pool in pools:
        pool.shutdown()


atexit.register(Shutdown)


def _children(number: Any) -> int:
    cpus = os.cpu_count() or 1
    number = whole("max_children", number, -(2**63))
    children = cpus if number <= AS_MANY_AS_CPUS else number if number > 0 else cpus + number
    if children < 1:
        raise ValueError(f"max_children must leave at least one of {cpus} threads, not {number!r}")
    return int(children)


def _initialize(init_callback: Callable[..., object], *args: Any) -> None:
    init_callback(threading.current_thread(), *args)


def _left(limit: float | None) -> float | None:
    return None if limit is None else max(0.0, limit - monotonic())


def _alive(book: WeakKeyDictionary[T, None]) -> list[T]:
    # Not by iterating over it, because another thread may add to it meanwhile.
    return [key for key in (reference() for reference in book.keyrefs()) if key is not None]
