"""The bases of `ebbpool.fastthreadpool`: its state, its timers, its errors, and queues and callbacks for results."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial, wraps
from inspect import isgeneratorfunction
from itertools import islice
from math import inf
from types import GeneratorType
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakValueDictionary

from ebbpool import sync
from ebbpool._checks import time_limit
from ebbpool._clock import monotonic, perf_counter
from ebbpool._core.accel import Future
from ebbpool._errors import traceback_of, written
from ebbpool._maps.delayed import ScheduledTask
from ebbpool.executor import AdaptiveExecutor

LOGGER = logging.getLogger("fastthreadpool")

PORTION: Final = 64
"""How many items of a map have their results handed over together at most."""
BRISK: Final = 500e-6
"""Seconds: a portion that took less is followed by one twice as large."""
LONGEST_LOOK: Final = 0.02
"""Seconds between two looks for a result at most."""

Sink = bool | Callable[[Any], object]
"""What to do with a result: keep it (True), drop it (False), or give it to a function in the worker."""


class Semaphore(sync.Semaphore):
    """`ebbpool.sync.Semaphore`, with its counter as `value`."""

    @property
    def value(self) -> int:
        """How many permits are free."""
        return int(self._value)


def _making_room(take: Callable[..., Any]) -> Any:
    @wraps(take)
    def method(self: Bounded, *args: Any) -> Any:
        taken = take(self, *args)
        with self._room:
            self._room.notify_all()
        return taken

    return method


class Bounded(deque[Any]):
    """A queue of at most `most` results: workers wait while it is full, and whatever takes a result makes room."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._lifted = False
        self._room = threading.Condition()

    def put(self, value: Any) -> None:
        """Append `value`, in a worker, once there is room."""
        with self._room:
            self._room.wait_for(lambda: len(self) < self._most or self._lifted)
            self.append(value)

    def lift(self, lifted: bool) -> None:
        """Put the bound out of force, or in force again."""
        with self._room:
            self._lifted = lifted
            self._room.notify_all()

    popleft = _making_room(deque.popleft)
    pop = _making_room(deque.pop)
    remove = _making_room(deque.remove)
    clear = _making_room(deque.clear)
    __delitem__ = _making_room(deque.__delitem__)


class PoolStopped(RuntimeError):
    """The pool takes no more jobs; `Pool.clear` makes it usable again."""


class PoolCallback(Exception):
    """Results or failures go to the pool's callback (failures perhaps to the log), and cannot be iterated over."""


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

    def cancel(self) -> None:
        """Cancel all further runs."""
        self.timer_id.cancel()


class PoolState:
    """What a pool shows of itself, and its jobs for later."""

    _executor: AdaptiveExecutor
    _outlet: Outlet

    def __init__(self) -> None:
        # Dictionaries for their order: oldest first.
        self._delayed: WeakKeyDictionary[Future[Any], None] = WeakKeyDictionary()
        self._repeated: WeakKeyDictionary[ScheduledTask | Future[Any], None] = WeakKeyDictionary()
        self._lock = threading.RLock()

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
        with self._lock:
            return deque(filter(waits, list(self._delayed)))

    @property
    def scheduled(self) -> deque[TimerObj]:
        """The jobs of `schedule` and `submit_at` that have runs to come right now."""
        with self._lock:
            return deque(timer for timer in map(TimerObj, list(self._repeated)) if timer.active)

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds until no job is queued or running and the pool's callbacks have been called.

        Returns:
            False if `timeout` ran out.

        Raises:
            TypeError: `timeout` is not a number.
            RuntimeError: A job, or a callback, waits for its own pool.
        """
        end = self._end_of("timeout", timeout)
        while all(executor.wait_idle(end - monotonic()) for executor in self._executors()):
            # A callback may have submitted another job.
            if self._executor.wait_idle(0):
                return True
        return False

    def _end_of(self, name: str, seconds: float | None) -> float:
        """Return when a time is over that begins now, or infinity."""
        return inf if seconds is None else monotonic() + time_limit(name, seconds)

    def _executors(self) -> list[AdaptiveExecutor]:
        caller = self._outlet.caller
        return [self._executor] if caller is None else [self._executor, caller]


@dataclass(eq=False)
class Outlet:
    """The queues and callbacks for results and failures of a pool's jobs. Jobs hold it; it does not hold the pool.

    The first fields are what the arguments of `Pool` of these names say.
    """

    done_callback: Callable[[Any], object] | None
    failed_callback: Callable[..., object] | None
    log_level: int
    result_id: bool
    exc_stack: bool
    exc_args: bool
    done_max: int
    caller: AdaptiveExecutor | None = None  # has one thread, which calls the pool's own callbacks
    generation: int = 0  # changes when workers are to drop the slices that they run

    def __post_init__(self) -> None:
        self.done: deque[Any] = Bounded(self.done_max) if self.done_max else deque()
        self.failed: deque[Any] = deque()
        self.done_cnt, self.failed_cnt = Semaphore(0), Semaphore(0)
        self._queues = ((self.done, self.done_cnt), (self.failed, self.failed_cnt))
        self.pending: WeakValueDictionary[int, Future[Any]] = WeakValueDictionary()  # by ids, at least those that wait
        self._lock = threading.Lock()
        self._next_id = 1

    @property
    def calls_back(self) -> bool:
        """Whether results or failures go to callbacks of the pool's own."""
        return self.done_callback is not None or self.failed_callback is not None

    def open(self, name: str) -> None:
        """Put `done_max` in force; have the pool's callbacks called in a thread of this name."""
        self.lift(False)
        if self.calls_back:
            # Always the same thread, so that values which the callback keeps in thread-local storage stay.
            self.caller = AdaptiveExecutor(1, name, min_workers=1, max_queue=self.done_max or None)

    def lift(self, lifted: bool) -> None:
        """Put `done_max` out of force, or in force again."""
        if isinstance(self.done, Bounded):
            self.done.lift(lifted)

    def ids(self, count: int) -> range:
        """Return `count` consecutive ids that have not been used."""
        with self._lock:
            first = self._next_id
            self._next_id += count
        return range(first, first + count)

    @staticmethod
    def check(fn: Any, sink: Any) -> None:
        """Raise `TypeError` unless a job and what becomes of its results can be called, or `sink` is a bool."""
        if not callable(fn):
            raise TypeError(f"fn must be callable, not {fn!r}")
        if sink is not True and sink is not False and not callable(sink):
            raise TypeError(f"done_callback must be callable, True or False, not {sink!r}")

    def runner(self, sink: Sink) -> Callable[..., Any]:
        """Return what runs a job in a worker: it returns or raises what `fn` does, for the future."""
        has_ids, numbered = self.result_id, self.result_id and sink is True
        (take, arrived), ids, fail = self._way(sink), self.ids, self.fail

        def run(job_id: int | None, fn: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
            if has_ids and job_id is None:
                (job_id,) = ids(1)
            try:
                value = fn(*args, **kwargs)
                if type(value) is GeneratorType and isgeneratorfunction(fn):
                    for item in value:
                        take((job_id, item) if numbered else item)
                        arrived()
                    return None
                take((job_id, value) if numbered else value)
                arrived()
            except BaseException as error:
                fail(job_id, error, args, kwargs)
                raise
            return value

        return run

    def _way(self, sink: Sink) -> tuple[Callable[[Any], object], Callable[[], object]]:
        """Return what takes a result, and what is called once it has."""
        if sink is not True:
            return (_nothing if sink is False else sink), _nothing
        if self.done_callback is not None:
            return partial(self._call, self.done_callback), _nothing
        return (self.done.put if isinstance(self.done, Bounded) else self.done.append), self.done_cnt.release

    @staticmethod
    def run_quietly(run: Callable[..., Any], job_id: int | None, fn: Any, args: Any, kwargs: Any) -> None:
        """Run a job whose failure goes to `fail`, and is not raised as well."""
        try:
            run(job_id, fn, args, kwargs)
        except BaseException:
            pass

    def run_slice(
        self,
        sink: Sink,
        ids: Iterable[int | None],
        fn: Callable[..., Any],
        items: Iterable[Any],
        unpack: bool | None,
        generation: int,
    ) -> None:
        """Run a slice of a map's items, until `generation` is over."""
        kinds = {issubclass(kind, tuple) for kind in set(map(type, items))} if unpack is None else {unpack}
        kept = sink is True and self.done_callback is None and not isinstance(self.done, Bounded)
        if len(kinds) == 1 and (kept or sink is False) and not self.result_id and not isgeneratorfunction(fn):
            self._run_portions(kept, fn, items, kinds.pop(), generation)
            return
        run = self.runner(sink)
        for job_id, item in zip(ids, items, strict=False):
            if self.generation != generation:
                return
            try:
                args = tuple(item) if (isinstance(item, tuple) if unpack is None else unpack) else (item,)
            except BaseException as error:
                self.fail(job_id, error, (item,), {})
            else:
                self.run_quietly(run, job_id, fn, args, {})

    def _run_portions(
        self, kept: bool, fn: Callable[..., Any], items: Iterable[Any], unpack: bool, generation: int
    ) -> None:
        """Run items, and keep the results of a portion together; while they are quick, of a larger and larger one."""
        source = iter(items)
        size = 1
        while self.generation == generation and (portion := list(islice(source, size))):
            began = perf_counter()
            out: list[Any] = []
            for item in portion:
                try:
                    out.append(fn(*item) if unpack else fn(item))
                except BaseException as error:
                    self.fail(None, error, _as_args(item, unpack), {})
            if kept and out:
                self.done.extend(out)
                self.done_cnt.release(len(out))
            size = min(2 * size, PORTION) if perf_counter() - began < BRISK else max(1, size // 2)

    def fail(self, job_id: int | None, error: BaseException, args: Any, kwargs: dict[str, Any]) -> None:
        """Give a failure to the log, to the pool's callback, or to `failed`, as the pool's arguments say."""
        if self.log_level and self.log_level <= logging.ERROR:
            LOGGER.error("Exception in a job:", exc_info=(type(error), error, traceback_of(error)))
        entry: list[Any] = [] if job_id is None else [job_id]
        entry.append(written(error) if self.exc_stack else error)
        if self.exc_args:
            entry += args, kwargs
        if self.failed_callback is not None:
            self._call(self.failed_callback, *entry)
        elif not self.log_level:
            self.failed.append(entry[0] if len(entry) == 1 else tuple(entry))
            self.failed_cnt.release()

    def _call(self, callback: Callable[..., object], *args: Any) -> None:
        try:
            assert self.caller is not None
            self.caller.submit(_report, callback, args)
        except RuntimeError:
            # The executor takes no more calls, because the interpreter exits; or its thread cannot be started.
            _report(callback, args)

    def drain(self, wait_idle: Callable[[float], bool], end: float) -> Iterator[Any]:
        """Take results and failures as they come, until `end` (monotonic seconds) or until no job is left."""
        idle = False
        patience = 0.001
        while True:
            found = False
            for queue, count in self._queues:
                # A worker appends an entry first, and then counts it.
                while count.acquire(False):
                    try:
                        entry = queue.popleft()
                    except IndexError:
                        # The program has taken an entry without acquiring `count`.
                        continue
                    found = True
                    yield entry
            time_left = min(patience, end - monotonic())
            # A result is counted before its job is over, so nothing more comes once the pool was idle.
            if not found and (idle or time_left <= 0):
                return
            patience = 0.001 if found else min(2 * patience, LONGEST_LOOK)
            idle = time_left > 0 and wait_idle(time_left)

    def clear(self) -> None:
        """Drop all results and failures."""
        for queue, count in self._queues:
            queue.clear()
            while count.acquire(False):
                pass


def waits(future: Future[Any]) -> bool:
    """Return whether a job has not begun, and may still do so."""
    return not (future.running() or future.done())


def _nothing(_: object = None) -> None:
    pass


def _as_args(item: Any, spread: bool) -> tuple[Any, ...]:
    try:
        return tuple(item) if spread else (item,)
    except Exception:
        return (item,)


def _report(callback: Callable[..., object], args: tuple[Any, ...]) -> None:
    """Call a pool's callback; log what it raises."""
    try:
        callback(*args)
    except BaseException:
        LOGGER.exception("Exception in the callback %r:", callback)
