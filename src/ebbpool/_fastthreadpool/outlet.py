"""Where the results and failures of `ebbpool.fastthreadpool` go, and how its jobs run in the workers."""

from __future__ import annotations

import logging
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from inspect import isgeneratorfunction
from itertools import islice, starmap
from time import monotonic, perf_counter
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Final

from ebbpool import sync

if TYPE_CHECKING:
    from ebbpool.executor import AdaptiveExecutor

LOGGER = logging.getLogger("fastthreadpool")

PORTION: Final = 64
"""Most items of a map whose results are handed over together."""
LONGEST_LOOK: Final = 0.02
"""Most seconds between two looks for a result."""
BRISK: Final = 500e-6
"""Seconds: a portion that took less is followed by one twice as large."""

Sink = bool | Callable[[Any], object]
"""What becomes of a result: kept (True), dropped (False), or given to a function in the worker."""


class Semaphore(sync.Semaphore):
    """`ebbpool.sync.Semaphore`, with its counter as `value`."""

    @property
    def value(self) -> int:
        """How many permits are free."""
        return int(self._value)


class Bounded(deque[Any]):
    """A queue of results that has workers wait while it is full.

    Whoever takes a result away, by whatever method, lets the next one in.

    Attributes:
        most: Results that fit; 0 for any number.
        lifted: Whether the bound counts for nothing, because the pool shuts down.
    """

    def __init__(self, items: Iterable[Any] = (), most: int = 0) -> None:
        super().__init__(items)
        self.most = most
        self.lifted = False
        self._room = threading.Condition()

    def put(self, value: Any) -> None:
        """Appends `value`, in a worker, once there is room."""
        with self._room:
            while len(self) >= self.most > 0 and not self.lifted:
                self._room.wait()
            self.append(value)

    def lift(self, lifted: bool) -> None:
        """Puts the bound out of force, or in force again."""
        with self._room:
            self.lifted = lifted
            self._room.notify_all()

    def _taken(self) -> None:
        with self._room:
            self._room.notify_all()

    def popleft(self) -> Any:
        """Takes the first result away."""
        value = super().popleft()
        self._taken()
        return value

    def pop(self) -> Any:  # type: ignore[override]  # a deque takes no index
        """Takes the last result away."""
        value = super().pop()
        self._taken()
        return value

    def remove(self, value: Any) -> None:
        """Takes the first result that equals `value` away."""
        super().remove(value)
        self._taken()

    def clear(self) -> None:
        """Takes all results away."""
        super().clear()
        self._taken()

    def __delitem__(self, index: Any) -> None:
        super().__delitem__(index)
        self._taken()


class Outlet:
    """Where the results and the failures of a pool's jobs go. Jobs hold it, and it does not hold the pool.

    Attributes:
        done: Results, in the order in which they came.
        failed: Failures; an entry is what `entry` makes of one.
        done_cnt: Counts the results in `done`, as far as they are taken by way of it.
        failed_cnt: The same for `failed`.
        caller: One thread, in which the pool's own callbacks are called; None if it has none.
        waiting: The jobs that can be cancelled by their id.
        result_id: Whether jobs have ids, and results carry them.
        straight: Whether results go to `done` as they are.
        generation: Another number after each order to the workers to drop what they are at.
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
        self._logs = log_level
        self.result_id = result_id
        self._exc_stack = exc_stack
        self._exc_args = exc_args
        self.done: deque[Any] = Bounded(most=done_max) if done_max else deque()
        self.failed: deque[Any] = deque()
        self._add = self.done.put if isinstance(self.done, Bounded) else self.done.append
        self.done_cnt = Semaphore(0)
        self.failed_cnt = Semaphore(0)
        self.caller: AdaptiveExecutor | None = None
        self.waiting: dict[int, Any] = {}
        self.generation = 0
        self.straight = done_callback is None and not done_max and not result_id
        self._lock = threading.Lock()
        self._next_id = 1

    def ids(self, count: int) -> range:
        """Returns `count` ids in a row that nobody else has had."""
        with self._lock:
            first = self._next_id
            self._next_id += count
        return range(first, first + count)

    def new_id(self) -> int | None:
        """Returns an id for a job, or None if the pool gives its results none."""
        return self.ids(1)[0] if self.result_id else None

    def put(self, value: Any) -> None:
        """Gives a result to the pool's callback or, if it has none, to `done`."""
        if self._done_callback is not None:
            self._call(self._done_callback, (value,))
        else:
            self._add(value)
            self.done_cnt.release()

    def fail(self, job_id: int | None, error: BaseException, args: Any, kwargs: dict[str, Any]) -> None:
        """Gives a failure to the log, to the pool's callback, or to `failed`, as the pool wants it."""
        if self._logs and self._logs <= logging.ERROR:
            LOGGER.error("Exception in a job:", exc_info=error)
        entry: list[Any] = [] if job_id is None else [job_id]
        entry.append("".join(traceback.format_exception(error)) if self._exc_stack else error)
        if self._exc_args:
            entry += args, kwargs
        if self._failed_callback is not None:
            self._call(self._failed_callback, tuple(entry))
        elif not self._logs:
            self.failed.append(entry[0] if len(entry) == 1 else tuple(entry))
            self.failed_cnt.release()

    def drain(self, wait_idle: Callable[[float], bool], limit: float | None, most: int) -> Iterator[Any]:
        """Takes results and failures as they come, until `limit` (monotonic seconds) or until no job is left."""
        queues = ((self.done, self.done_cnt), (self.failed, self.failed_cnt))
        owed = {self.done_cnt: 0, self.failed_cnt: 0}
        taken = 0
        idle = False
        patience = 0.001
        while True:
            before = taken
            for queue, count in queues:
                while True:
                    # A worker counts an entry after it has put it there: what was taken in between is paid for later.
                    while owed[count] and count.acquire(False):
                        owed[count] -= 1
                    try:
                        entry = queue.popleft()
                    except IndexError:
                        break
                    if not count.acquire(False):
                        owed[count] += 1
                    yield entry
                    taken += 1
                    if taken == most:
                        return
            left = patience if limit is None else min(patience, limit - monotonic())
            # A result is in its queue before its job is over: nothing can come any more once the pool was idle.
            if taken == before and (idle or left <= 0):
                return
            patience = min(2 * patience, LONGEST_LOOK) if taken == before else 0.001
            idle = left > 0 and wait_idle(left)

    def prune(self) -> None:
        """Forgets the ids of jobs that were cancelled."""
        for job_id, future in list(self.waiting.items()):
            if future.done():
                self.waiting.pop(job_id, None)

    def clear(self) -> None:
        """Drops all results and failures."""
        for queue, count in ((self.done, self.done_cnt), (self.failed, self.failed_cnt)):
            queue.clear()
            while count.acquire(False):
                pass

    def _call(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        try:
            assert self.caller is not None
            self.caller.submit(_report, callback, args)
        except RuntimeError:
            # It takes nothing any more, for the interpreter exits; or its thread cannot be started.
            _report(callback, args)

    def keeper(self) -> Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]:
        """Returns a function that runs a job and keeps its result: `work` in its commonest case, at half the cost."""
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

    def work(
        self, sink: Sink, job_id: int | None, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs a job in a worker; returns and raises what `fn` does, for the future's sake."""
        if job_id is not None:
            self.waiting.pop(job_id, None)
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

    def work_quietly(
        self, sink: Sink, job_id: int | None, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Runs a job whose failure nobody but `failed` is to hear of."""
        try:
            self.work(sink, job_id, fn, args, kwargs)
        except BaseException:
            return

    def work_again(self, sink: Sink, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Runs a repeated job once; each run has an id of its own."""
        self.work_quietly(sink, self.new_id(), fn, args, kwargs)

    def _hand(self, sink: Sink, job_id: int | None, value: Any) -> None:
        if sink is True:
            self.put(value if job_id is None else (job_id, value))
        elif sink is not False:
            sink(value)

    def work_slice(
        self,
        generation: int,
        sink: Sink,
        first_id: int | None,
        fn: Callable[..., Any],
        items: Sequence[Any],
        unpack: bool | None,
    ) -> None:
        """Runs the items of a map that one worker has been given.

        Args:
            generation: What `generation` was when the map was called; the slice ends when that has changed.
            sink: What becomes of the results.
            first_id: The id of the first item, or None.
            fn: Called with each item.
            items: The slice.
            unpack: Whether an item is a sequence of arguments; None if that goes for tuples only.
        """
        if first_id is None and (sink is False or (sink is True and self.straight)) and not isgeneratorfunction(fn):
            self._run_portions(generation, sink, fn, items, unpack)
            return
        for place, item in enumerate(items):
            if self.generation != generation:
                return
            job_id = None if first_id is None else first_id + place
            try:
                args = tuple(item) if _unpacks(item, unpack) else (item,)
            except Exception as error:
                self.fail(job_id, error, (item,), {})
            else:
                self.work_quietly(sink, job_id, fn, args, {})

    def _run_portions(
        self, generation: int, sink: Sink, fn: Callable[..., Any], items: Sequence[Any], unpack: bool | None
    ) -> None:
        """Runs items in portions, of one item at first, and of more as long as they are quick."""
        source = iter(items)
        size = 1
        while self.generation == generation and (portion := list(islice(source, size))):
            began = perf_counter()
            spread = unpack
            if unpack is None:
                kinds = {issubclass(kind, tuple) for kind in set(map(type, portion))}
                spread = kinds.pop() if len(kinds) == 1 else None
            if spread is None:
                out: list[Any] = []
                for item in portion:
                    out += self._run_portion(fn, [item], isinstance(item, tuple))
            else:
                out = self._run_portion(fn, portion, spread)
            if sink:
                self.done.extend(out)
                if out:
                    self.done_cnt.release(len(out))
            quick = perf_counter() - began < BRISK
            size = min(2 * size, PORTION) if quick else max(1, size // 2)

    def _run_portion(self, fn: Callable[..., Any], portion: list[Any], spread: bool) -> list[Any]:
        source = iter(portion)
        each: Any = starmap if spread else map
        out: list[Any] = []
        failures = 0
        while len(out) + failures < len(portion):
            try:
                out.extend(each(fn, source))
                if len(out) + failures == len(portion):
                    break
                # Raised by a call, it ends a map without a word.
                raise StopIteration
            except BaseException as error:
                item = portion[len(out) + failures]
                failures += 1
                self.fail(None, error, _as_args(item, spread), {})
        return out


def _unpacks(item: Any, unpack: bool | None) -> bool:
    return isinstance(item, tuple) if unpack is None else unpack


def _as_args(item: Any, spread: bool) -> tuple[Any, ...]:
    try:
        return tuple(item) if spread else (item,)
    except Exception:
        return (item,)


def _report(callback: Callable[..., object], args: tuple[Any, ...]) -> None:
    """Calls a pool's callback; what it raises is logged."""
    try:
        callback(*args)
    except BaseException:
        LOGGER.exception("Exception in the callback %r:", callback)
