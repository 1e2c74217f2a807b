"""A map at work: workers claim batches, items of a slow batch are recalled, and the consumer takes the results.

A task of a map stands for a worker's turn and not for an item: it claims the next few items, a *batch*, runs them,
claims again, and makes way for other tasks after a while. Batches grow while items are tiny, and shrink as soon as they
are not. Items that were claimed together with one that takes long are *recalled*, so that other workers run them.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from concurrent.futures.thread import BrokenThreadPool
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from itertools import islice, starmap
from math import inf
from threading import TIMEOUT_MAX, Lock, get_ident
from typing import Any, Final

from ebbpool._called import called_name
from ebbpool._clock import perf_counter
from ebbpool._core.accel import ExecutorCore, wait_counted
from ebbpool._core.latch import LockType, allocate_lock
from ebbpool._errors import trimmed, with_traceback
from ebbpool._maps.items import ITERATORS, Batch, Failure, Unclaimed

STALE: Final = 2e-3
"""Seconds after which the items of a batch that have not begun are recalled."""
SLICE_SECONDS: Final = 10e-3
"""Seconds after which a task makes way for others: long enough for the pool to see that those behind it wait."""
UP_FRONT: Final = 500
"""How many tasks the consumer may submit at once."""


class MapRun:
    """One map. `read` and `next_piece` are the consumer's, `work` is the task; one lock guards what they share.

    A chunk size means nothing to threads, as in the standard library: items that block must not stand in line.
    `abandon` takes no lock, because a thread that holds it may collect the consumer as garbage.
    """

    step = 1
    """With a buffer, items are read by so many; the last ones may be fewer."""
    divides = True
    """Whether items of batches may be recalled."""

    def __init__(
        self,
        executor: Executor,
        fn: Callable[..., Any],
        spread: bool,
        _chunksize: object,
        buffersize: int | None,
        ordered: bool,
    ) -> None:
        # Weakly: it may be collected once all tasks are submitted.
        self.executor: Callable[[], Any] = weakref.ref(executor)
        # Of a lane, its executor's pool.
        self.pool: Any = getattr(getattr(executor, "executor", executor), "_pool", None)
        self.lane: Any = getattr(executor, "core", None)
        self.process = os.getpid()
        self.fn = fn
        # An item is a call: it has a context of its own.
        self.call = partial(_apart, copy_context(), fn) if getattr(self.pool, "contextual", False) else fn
        self.each: Callable[..., Iterator[Any]] = starmap if spread else map
        self.ordered = ordered
        self.lock = Lock()
        self.taken = 0  # items read from the input; only the consumer's thread counts them
        # The items that no worker has claimed. Only the consumer adds to its inbox, without the lock.
        self.unclaimed = Unclaimed(1, sys.maxsize if buffersize is None else max(1, buffersize // 4))
        # Batches under way whose results are not all in `ready`, by the position of the first of these.
        self.under_way: dict[int, Batch] = {}
        self.divided: dict[int, Batch] = {}  # those of them that may have items to recall
        # Results, oldest first, or the error in place of one, by position. Where any order will do, results get their
        # positions as they come; `filed` is the next.
        self.ready: dict[int, list[Any] | BaseException] = {}
        self.filed = 0
        self.queued = 0  # tasks on the way to a worker
        self.futures: set[Future[Any]] = set()
        # The thread that submits right now. A task that runs in it (`when_full` is "caller_runs", for example) runs one
        # batch and nothing more.
        self.submitter: int | None = None
        self.refusal: Exception | None = None  # what was raised in place of taking a task: no more items are read
        self.bell: LockType | None = None  # what the consumer waits at for the results at `wanted`
        self.wanted = 0
        self.untimed = False  # it waits without regard to a batch that may have to be recalled
        self.closed = False  # the consumer has left
        self.fate: BaseException | None = None  # the error in place of every item that will not run

    # What the consumer does, in its own thread.

    def read_all(self, items: Iterable[Any]) -> None:
        """Take the whole input at once."""
        self.taken = self.unclaimed.fill(items)
        if self.taken:
            self._recruit()

    def read(self, source: Iterator[Any], room: int | None) -> None:
        """Read up to `room` items, and have them run as they come; no more, now and later, if a task is refused."""
        if self.refusal is not None:
            return
        if self.executor()._shutdown:
            # No item may go to the inbox, where tasks that still run would take it. Only look whether there is one.
            for _ in islice(source, 1 if room is None else min(room, 1)):
                try:
                    self._hand_in(self.executor(), int)
                except RuntimeError as error:
                    self.refusal = with_traceback(error, None)
            return
        step = self.step
        width = self._width(self.executor())
        room = None if room is None else room - room % step
        inbox = self.unclaimed.inbox
        count = 0
        try:
            for _ in map(inbox.append, islice(source, room)):
                count += 1
                if (self.queued <= 0 or self.unclaimed.size == step) and count % step == 0 and self._tasks() < width:
                    self._recruit()
                    if self.refusal is not None:
                        return
            if inbox:
                self._recruit()
        finally:
            self.taken += count

    def insist(self) -> None:
        """Raise why no more items are read, if so; called once all results have been handed out."""
        refusal, self.refusal = self.refusal, None
        try:
            if refusal is not None:
                raise refusal
        finally:
            # Breaks a cycle: the error's traceback holds this frame.
            del refusal

    def next_piece(self, position: int, limit: float) -> list[Any] | BaseException:
        """Wait until `limit` (`perf_counter`) for results at `position`, and return them, or the error of the first.

        The error in place of items that will not run is raised.
        """
        if os.getpid() != self.process:
            raise BrokenThreadPool("the process was forked while the map was under way")
        while True:
            with self.lock:
                now = perf_counter()
                if position not in self.ready:
                    self._recall(now)
                piece = self.ready.pop(position, None)
                if piece is not None:
                    return piece
                if self.fate is not None and not (position in self.under_way if self.ordered else self.under_way):
                    raise CancelledError if issubclass(type(self.fate), CancelledError) else self.fate
                if now >= limit:
                    break
                self.wanted, self.bell = position, allocate_lock()
                self.bell.acquire()
                self.untimed = not self.divided
                bell, timeout = self.bell, min(self._until_recall(now), limit - now, TIMEOUT_MAX)
            wait_counted(self.pool, bell.acquire, True, timeout)
        # Not under the lock: it may run code of the function's own.
        raise TimeoutError(f"a result of {called_name(self.fn)} was not there in time")

    def abandon(self) -> None:
        """Drop all items that have not begun, because the consumer leaves. Takes no lock."""
        if self.closed or os.getpid() != self.process:
            return
        self.closed = True
        # Replaced and not emptied: a task may be taking items right now.
        self.unclaimed, self.ready = Unclaimed(1, 1), {}
        for batch in list(self.divided.values()):
            batch.drain()
        futures, self.futures = self.futures, set()
        for future in list(futures):
            future.cancel()

    def _recruit(self) -> None:
        """Submit the tasks that the unclaimed items need. If one is refused, give up what no other task would run."""
        self.submitter = get_ident()
        try:
            self._submit(self.executor(), UP_FRONT)
        except RuntimeError as error:
            # Without its traceback, which holds this map.
            self.refusal = with_traceback(error, None)
            given_up: deque[Any] = deque()
            with self.lock:
                if not self._tasks():
                    given_up, self.unclaimed.inbox = self.unclaimed.inbox, given_up
            self.taken -= len(given_up)
        finally:
            self.submitter = None

    # What tasks do, in workers.

    def work(self) -> None:
        """Run batches for `SLICE_SECONDS`, or all that are left if the pool takes no more tasks; a task of the pool."""
        once = self.submitter == get_ident()
        until = perf_counter() + SLICE_SECONDS
        batch: Batch | None = None
        try:
            with self.lock:
                self.queued -= 1
                batch = self._claim(once)
            while batch is not None:
                if not once:
                    self._enlist()
                self._run(batch)
                executor = self.executor()
                if getattr(executor, "_discarding", False):
                    self.fail(CancelledError())
                with self.lock:
                    now = perf_counter()
                    self._settle(batch, now)
                    stays = now < until or self.queued <= 0 or executor is None or self._must_stay(executor)
                    done, batch = batch, self._claim(once) if stays and not once else None
                # Not under the lock: it may hold the last references to results.
                del executor, done
        except BaseException as error:
            # Nothing else would tell the consumer, who waits for the results of the batch.
            self.fail(trimmed(error), batch)

    def _run(self, batch: Batch) -> None:
        results: Any = None
        # If a call raises StopIteration, the built-in `map` ends silently.
        raised: BaseException = StopIteration()
        complete = False
        try:
            while not complete:
                try:
                    results = self.each(self.call, batch.source)
                    if ITERATORS:
                        batch.out.extend(results)
                    else:
                        # `extend` may keep the list locked, which others have to read meanwhile.
                        deque(map(batch.out.append, results), 0)
                except BaseException as error:
                    raised = error
                with self.lock:
                    complete = self.closed or len(batch.out) >= batch.size
                if not complete:
                    batch.fail(raised)
                    raised = StopIteration()
        finally:
            # Breaks a cycle: the batch holds errors, whose tracebacks hold this frame.
            del batch, results, raised

    def _enlist(self) -> None:
        """Submit other tasks if items need them. One is always queued, so that the pool sees the work."""
        executor = self.executor()
        if executor is None or self._must_stay(executor):
            return
        # If the pool is closed meanwhile, this task runs what is left.
        with suppress(RuntimeError):
            self._submit(executor, 2)

    # What both do, without the lock.

    def _submit(self, executor: Any, most: int) -> None:
        """Submit the tasks that are missing, but not more than `most`."""
        for _ in range(most):
            # Looked at each time: workers submit some, too, and claim what others were for.
            with self.lock:
                if not self._is_missing(executor):
                    break
            future = self._hand_in(executor, self.work)
            # Counted only now: a task that is refused would never come.
            with self.lock:
                self.queued += 1
            self.futures.add(future)
            future.add_done_callback(self._ended)
            if self.closed:
                future.cancel()

    def _hand_in(self, executor: Any, task: Callable[[], Any]) -> Future[Any]:
        # Not by `submit`: what is not the engine's own there is for calls of the user's, in the user's thread.
        lane, pool = self.lane, getattr(executor, "executor", executor)
        first = lane is not None and lane.first
        future: Future[Any] = ExecutorCore.hand_in(pool, lane, first, task, (), {}, None, True)
        return future

    def _ended(self, future: Future[Any]) -> None:
        """End the map if the task of `future` did not run; a callback, in the thread that ends the future."""
        if self.closed or os.getpid() != self.process:
            return
        self.futures.discard(future)
        if future.cancelled():
            self.fail(CancelledError())
        elif (error := future.exception()) is not None:
            self.fail(error)

    def fail(self, error: BaseException, lost: Batch | None = None) -> None:
        """Put an error in place of all items that have not begun, and of those of a `lost` batch."""
        with self.lock:
            if lost is not None and self.under_way.get(lost.start) is lost:
                del self.under_way[lost.start]
                self.divided.pop(lost.start, None)
                self._ring()
            if self.closed or self.fate is not None:
                return
            self.fate = error
            # Dropped once the lock is free.
            trash = [self.unclaimed, *map(self._cut, list(self.divided.values()))]
            self.unclaimed = Unclaimed(self.unclaimed.size, self.unclaimed.largest)
            self._ring()
        del trash

    def _width(self, executor: Any) -> int:
        """Return how many tasks may run at a time."""
        return int(executor._max_workers)

    def _must_stay(self, executor: Any) -> bool:
        """Return whether a task has to go on itself, because the pool takes no more tasks, or may refuse them."""
        return bool(executor._shutdown) or getattr(self.pool, "max_queue", -1) >= 0

    def _wants_tasks(self, executor: Any) -> bool:
        """Return whether another task would find items to claim or, where one is taken for that, to share."""
        return bool(self.unclaimed or (self.divided and not self._must_stay(executor)))

    # What follows is called with the lock held.

    def _tasks(self) -> int:
        return self.queued + len(self.under_way)

    def _is_missing(self, executor: Any) -> bool:
        """Return whether another task should be queued: there is always one if it would find something to do."""
        if self.queued <= 0:
            return self._wants_tasks(executor)
        return self._tasks() < self._width(executor) and self.queued * self.unclaimed.size < len(self.unclaimed)

    def _claim(self, once: bool) -> Batch | None:
        """Return the next batch, or None if there is none; unless it claims but `once`, it shares with busy tasks."""
        if self.closed or self.fate is not None:
            return None
        now = perf_counter()
        self._recall(now)
        if not once and not self.unclaimed and self._recall(inf):
            self.unclaimed.size = max(1, len(self.unclaimed) // 2)
        return self._lay(now)

    def _lay(self, now: float) -> Batch | None:
        start, items = self.unclaimed.take()
        if not items:
            return None
        batch = self.under_way[start] = Batch(start, items, now)
        if batch.size > 1 and self.divides:
            self.divided[start] = batch
            if self.untimed:
                self._ring()
        return batch

    def _settle(self, batch: Batch, now: float) -> None:
        """Hand over the results of a batch that has been run."""
        # One that was recalled before any of its items began is under way no more, but another may be at its position.
        if self.under_way.get(batch.start) is batch:
            del self.under_way[batch.start]
            self.divided.pop(batch.start, None)
            self.unclaimed.adapt(batch.size, now - batch.since)
            self._file(batch, batch.out)
            if self.fate is not None:
                self._ring()

    def _recall(self, now: float) -> bool:
        """Recall items of batches that have been under way too long; return whether there was such a batch."""
        stale = [batch for batch in self.divided.values() if now - batch.since >= STALE]
        for batch in stale:
            rest = self._cut(batch)
            if rest and not self.closed:
                self.unclaimed.put_back(batch.start + batch.size, rest)
        if stale:
            self.unclaimed.size = 1
        return bool(stale)

    def _until_recall(self, now: float) -> float:
        """Return after how many seconds a batch may have to be recalled."""
        return min((batch.since for batch in self.divided.values()), default=inf) + STALE - now

    def _cut(self, batch: Batch) -> list[Any]:
        """Take from a divided batch what has not begun, which is returned, and the results that are there."""
        rest = batch.drain()
        del self.divided[batch.start], self.under_way[batch.start]
        batch.size -= len(rest)
        values = batch.out[:]
        # Taken off the list itself, to which the worker may be adding.
        del batch.out[: len(values)]
        self._file(batch, values)
        if batch.size:
            self.under_way[batch.start] = batch
        return rest

    def _file(self, batch: Batch, values: list[Any]) -> None:
        """Make the next results of a batch ready, unless the consumer has left."""
        # Looked up first: `abandon` sets `closed`, then replaces it. An error that stayed there would be a cycle.
        ready = self.ready
        if self.closed:
            return
        start = batch.start if self.ordered else self.filed
        self.filed += len(values)
        batch.start += len(values)
        batch.size -= len(values)
        if not batch.failed:
            if values:
                ready[start] = values
        else:
            for position, value in enumerate(values, start):
                ready[position] = value.error if type(value) is Failure else [value]
        if self.wanted in ready:
            self._ring()

    def _ring(self) -> None:
        if self.bell is not None:
            self.bell.release()
            self.bell = None


def _apart(context: Context, fn: Callable[..., Any], *args: Any) -> Any:
    return context.copy().run(fn, *args)
