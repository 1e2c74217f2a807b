"""Where the results and failures of `ebbpool.fastthreadpool` go, and how its jobs run in workers."""

from __future__ import annotations

import contextlib
import logging
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, wraps
from inspect import isgeneratorfunction
from itertools import islice
from time import monotonic, perf_counter
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from ebbpool import sync

if TYPE_CHECKING:
    from ebbpool._core.accel import Future
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


class Outlet:
    """The queues and callbacks for results and failures of a pool's jobs. Jobs hold it; it does not hold the pool.

    Attributes:
        done, failed: Results and failures, in the order in which they came.
        done_cnt, failed_cnt: Count them, if each is taken after acquiring the count.
        caller: An executor with one thread, which calls the pool's own callbacks; None if it has none.
        pending: Jobs by their ids, at least those that wait.
        generation: A number that changes when workers are to drop the slices that they run.
    """

    def __init__(
        self,
        done_callback: Callable[..., object] | None,
        failed_callback: Callable[..., object] | None,
        log_level: int,
        result_id: bool,
        exc_stack: bool,
        exc_args: bool,
        done_max: int,
    ) -> None:
        self._done_callback = done_callback
        self._failed_callback = failed_callback
        self._log_level = log_level
        self.result_id = result_id
        self._exc_stack = exc_stack
        self._exc_args = exc_args
        self.done: deque[Any] = Bounded(done_max) if done_max else deque()
        self.failed: deque[Any] = deque()
        self.done_cnt, self.failed_cnt = Semaphore(0), Semaphore(0)
        self._queues = ((self.done, self.done_cnt), (self.failed, self.failed_cnt))
        self.caller: AdaptiveExecutor | None = None
        self.pending: WeakValueDictionary[int, Future[Any]] = WeakValueDictionary()
        self.generation = 0
        self._lock = threading.Lock()
        self._next_id = 1

    def ids(self, count: int) -> range:
        """Return `count` consecutive ids that have not been used."""
        with self._lock:
            first = self._next_id
            self._next_id += count
        return range(first, first + count)

    def runner(self, sink: Sink) -> Callable[..., Any]:
        """Return what runs a job in a worker: ``run(its id, fn, args, kwargs)``.

        It returns or raises what `fn` does, for the future, and does with results what `sink` says. A job without an id
        gets one when it runs, if jobs have ids.
        """
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
        if self._done_callback is not None:
            return partial(self._call, self._done_callback), _nothing
        return (self.done.put if isinstance(self.done, Bounded) else self.done.append), self.done_cnt.release

    def run_slice(
        self,
        sink: Sink,
        ids: Iterable[int | None],
        fn: Callable[..., Any],
        items: Sequence[Any],
        unpack: bool | None,
        generation: int,
    ) -> None:
        """Run a slice of a map's items, in one worker, for as long as this is the `generation`."""
        if unpack is None:
            kinds = {issubclass(kind, tuple) for kind in set(map(type, items))}
            unpack = kinds.pop() if len(kinds) == 1 else None
        kept = sink is True and self._done_callback is None and not isinstance(self.done, Bounded)
        if unpack is not None and (kept or sink is False) and not self.result_id and not isgeneratorfunction(fn):
            self._run_portions(kept, fn, items, unpack, generation)
            return
        run = self.runner(sink)
        for job_id, item in zip(ids, items, strict=False):
            if self.generation != generation:
                return
            spread = isinstance(item, tuple) if unpack is None else unpack
            try:
                args = tuple(item) if spread else (item,)
            except Exception as error:
                self.fail(job_id, error, (item,), {})
            else:
                run_quietly(run, job_id, fn, args, {})

    def _run_portions(
        self, keeps: bool, fn: Callable[..., Any], items: Sequence[Any], spread: bool, generation: int
    ) -> None:
        """Run items in portions, of one item at first, and of more while they are quick."""
        source = iter(items)
        size = 1
        item: Any = None
        while self.generation == generation and (portion := list(islice(source, size))):
            began = perf_counter()
            out: list[Any] = []
            left = iter(portion)
            over = False
            while not over:
                try:
                    for item in left:
                        out.append(fn(*item) if spread else fn(item))
                    over = True
                except BaseException as error:
                    self.fail(None, error, _as_args(item, spread), {})
            if keeps and out:
                self.done.extend(out)
                self.done_cnt.release(len(out))
            size = min(2 * size, PORTION) if perf_counter() - began < BRISK else max(1, size // 2)

    def fail(self, job_id: int | None, error: BaseException, args: Any, kwargs: dict[str, Any]) -> None:
        """Give a failure to the log, to the pool's callback, or to `failed`, as the pool's arguments say."""
        if self._log_level and self._log_level <= logging.ERROR:
            LOGGER.error("Exception in a job:", exc_info=error)
        entry: list[Any] = [] if job_id is None else [job_id]
        entry.append("".join(traceback.format_exception(error)) if self._exc_stack else error)
        if self._exc_args:
            entry += args, kwargs
        if self._failed_callback is not None:
            self._call(self._failed_callback, *entry)
        elif not self._log_level:
            self.failed.append(entry[0] if len(entry) == 1 else tuple(entry))
            self.failed_cnt.release()

    def _call(self, callback: Callable[..., object], *args: Any) -> None:
        try:
            assert self.caller is not None
            self.caller.submit(_report, callback, args)
        except RuntimeError:
            # The executor takes no more calls, because the interpreter exits; or its thread cannot be started.
            _report(callback, args)

    def at_hand(self) -> Iterator[Any]:
        """Take the results and failures that are there."""
        for queue, count in self._queues:
            # A worker appends an entry first, and then counts it.
            while count.acquire(False):
                try:
                    entry = queue.popleft()
                except IndexError:
                    # The program has taken an entry from the queue directly, without acquiring `count`.
                    continue
                yield entry

    def drain(self, wait_idle: Callable[[float], bool], limit: float) -> Iterator[Any]:
        """Take results and failures as they come, until `limit` (monotonic seconds) or until no job is left."""
        idle = False
        patience = 0.001
        while True:
            found = False
            for entry in self.at_hand():
                found = True
                yield entry
            left = min(patience, limit - monotonic())
            # A result is counted before its job is over, so nothing more comes once the pool was idle.
            if not found and (idle or left <= 0):
                return
            patience = 0.001 if found else min(2 * patience, LONGEST_LOOK)
            idle = left > 0 and wait_idle(left)

    def clear(self) -> None:
        """Drop all results and failures."""
        for queue, count in self._queues:
            queue.clear()
            while count.acquire(False):
                pass


def run_quietly(run: Callable[..., Any], job_id: int | None, fn: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """Run a job whose failure goes to `Outlet.fail`, and is not raised as well."""
    with contextlib.suppress(BaseException):
        run(job_id, fn, args, kwargs)


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
