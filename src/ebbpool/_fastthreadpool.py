"""Where the results and failures of `ebbpool.fastthreadpool` go, and how its jobs run in workers."""

from __future__ import annotations

import contextlib
import logging
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from inspect import isgeneratorfunction
from itertools import islice, starmap
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
        self._append = self.done.put if isinstance(self.done, Bounded) else self.done.append
        self.failed: deque[Any] = deque()
        self.done_cnt, self.failed_cnt = Semaphore(0), Semaphore(0)
        self._queues = ((self.done, self.done_cnt), (self.failed, self.failed_cnt))
        self.caller: AdaptiveExecutor | None = None
        self.pending: WeakValueDictionary[int, Future[Any]] = WeakValueDictionary()
        self.generation = 0
        self._lock = threading.Lock()
        self._next_id = 1
        self.keep = self._keeper()

    def ids(self, count: int) -> range:
        """Return `count` consecutive ids that have not been used."""
        with self._lock:
            first = self._next_id
            self._next_id += count
        return range(first, first + count)

    def _keeper(self) -> Callable[..., Any] | None:
        """Return what `work` does in the most common case, at half the cost; None where the case is another one."""
        if self._done_callback is not None or self.result_id or isinstance(self.done, Bounded):
            return None
        append, arrived, fail = self.done.append, self.done_cnt.release, self.fail

        def keep(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            try:
                value = fn(*args, **kwargs)
                if type(value) is GeneratorType and isgeneratorfunction(fn):
                    for item in value:
                        append(item)
                        arrived()
                    return None
            except BaseException as error:
                fail(None, error, args, kwargs)
                raise
            append(value)
            arrived()
            return value

        return keep

    def work(self, sink: Sink, job_id: int | None, fn: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """Run a job in a worker; return or raise what `fn` does, for the future. A job without an id gets one now."""
        if job_id is None and self.result_id:
            (job_id,) = self.ids(1)
        try:
            value = fn(*args, **kwargs)
            if type(value) is GeneratorType and isgeneratorfunction(fn):
                for item in value:
                    self._hand(sink, job_id, item)
                return None
            self._hand(sink, job_id, value)
        except BaseException as error:
            self.fail(job_id, error, args, kwargs)
            raise
        return value

    def work_quietly(self, *job: Any) -> None:
        """Run a job whose failure goes to `fail`, and is not raised as well."""
        with contextlib.suppress(BaseException):
            self.work(*job)

    def work_slice(
        self,
        sink: Sink,
        ids: Sequence[int | None],
        fn: Callable[..., Any],
        items: Sequence[Any],
        unpack: bool | None,
        generation: int,
    ) -> None:
        """Run a slice of a map's items, in one worker, for as long as this is the `generation`."""
        if unpack is None:
            kinds = {issubclass(kind, tuple) for kind in set(map(type, items))}
            unpack = kinds.pop() if len(kinds) == 1 else None
        straight = not self.result_id and (sink is False or (sink is True and self.keep is not None))
        if straight and unpack is not None and not isgeneratorfunction(fn):
            self._run_portions(bool(sink), fn, items, unpack, generation)
            return
        for job_id, item in zip(ids, items, strict=True):
            if self.generation != generation:
                return
            spread = isinstance(item, tuple) if unpack is None else unpack
            try:
                args = tuple(item) if spread else (item,)
            except Exception as error:
                self.fail(job_id, error, (item,), {})
            else:
                self.work_quietly(sink, job_id, fn, args, {})

    def _run_portions(
        self, keeps: bool, fn: Callable[..., Any], items: Sequence[Any], spread: bool, generation: int
    ) -> None:
        """Run items in portions, of one item at first, and of more while they are quick."""
        source = iter(items)
        each: Any = starmap if spread else map
        size = 1
        while self.generation == generation and (portion := list(islice(source, size))):
            began = perf_counter()
            calls = iter(portion)
            out: list[Any] = []
            failures = 0
            while len(out) + failures < len(portion):
                try:
                    out.extend(each(fn, calls))
                    if len(out) + failures < len(portion):
                        # A call has raised StopIteration, which ends the built-in `map` silently.
                        raise StopIteration
                except BaseException as error:
                    item = portion[len(out) + failures]
                    failures += 1
                    self.fail(None, error, _as_args(item, spread), {})
            if keeps and out:
                self.done.extend(out)
                self.done_cnt.release(len(out))
            size = min(2 * size, PORTION) if perf_counter() - began < BRISK else max(1, size // 2)

    def _hand(self, sink: Sink, job_id: int | None, value: Any) -> None:
        if sink is not True:
            if sink is not False:
                sink(value)
            return
        entry = value if job_id is None else (job_id, value)
        if self._done_callback is not None:
            self._call(self._done_callback, entry)
        else:
            self._append(entry)
            self.done_cnt.release()

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

    def drain(self, wait_idle: Callable[[float], bool], limit: float, most: int) -> Iterator[Any]:
        """Take results and failures as they come, until `limit` (monotonic seconds) or until no job is left."""
        taken = 0
        idle = False
        patience = 0.001
        while True:
            before = taken
            for queue, count in self._queues:
                # A worker appends an entry first, and then counts it.
                while count.acquire(False):
                    try:
                        entry = queue.popleft()
                    except IndexError:
                        # Somebody has taken it without acquiring it.
                        continue
                    yield entry
                    taken += 1
                    if taken == most:
                        return
            left = min(patience, limit - monotonic())
            # A result is counted before its job is over, so nothing more comes once the pool was idle.
            if taken == before and (idle or left <= 0):
                return
            patience = min(2 * patience, LONGEST_LOOK) if taken == before else 0.001
            idle = left > 0 and wait_idle(left)

    def clear(self) -> None:
        for queue, count in self._queues:
            queue.clear()
            while count.acquire(False):
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
