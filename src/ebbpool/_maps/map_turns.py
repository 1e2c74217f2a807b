"""The tasks of one map, and its consumer.

A task of a map stands for a worker's turn and not for an item: it claims the next few items, runs them, claims again,
and makes way for other tasks after a while.
"""

from __future__ import annotations

import os
import weakref
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from concurrent.futures.thread import BrokenThreadPool
from contextvars import copy_context
from itertools import islice, starmap
from threading import TIMEOUT_MAX, get_ident
from time import perf_counter
from typing import Any, Final

from ebbpool._core.accel import wait_counted
from ebbpool._maps import map_ledger
from ebbpool._maps.map_ledger import NOTHING, Batch, Ledger, Piece

SLICE_SECONDS: Final = 10e-3
"""Seconds after which a task makes way for others: long enough for the pool to see that those behind it wait."""
UP_FRONT: Final = 500
"""How many tasks may be submitted before the first of them has shown how long items take."""


class MapRun(Ledger):
    """One map: what its consumer and its tasks do with the ledger.

    `abandon` takes no lock, because a thread that holds the lock may collect the consumer as garbage.

    Attributes:
        executor: The executor, weakly: it may be collected once all tasks are submitted.
        context: A copy of the caller's context, if batches are to run in copies of that.
        futures: The futures of the tasks, to be cancelled when the consumer leaves.
        submitter: The thread that submits right now. A task that runs in it (`when_full` is "caller_runs", for example)
            runs one batch and nothing more.
        refusal: What `submit` raised, if no more items are read because of that.
    """

    def __init__(
        self,
        executor: Executor,
        fn: Callable[..., Any],
        spread: bool,
        chunksize: int | None,
        buffersize: int | None,
        ordered: bool,
    ) -> None:
        super().__init__(chunksize, buffersize, ordered)
        self.executor = weakref.ref(executor)
        # Of a lane, its executor's pool.
        self.pool: Any = getattr(getattr(executor, "executor", executor), "_pool", None)
        self.context = copy_context() if getattr(self.pool, "contextual", False) else None
        self.fn = fn
        self.spread = spread
        self.process = os.getpid()
        self.futures: list[Future[Any]] = []
        self.prune_at = 64
        self.submitter: int | None = None
        self.refusal: RuntimeError | None = None

    # What the consumer does, in its own thread.

    def read_all(self, executor: Executor, items: Iterable[Any]) -> None:
        """Take the whole input at once.

        Raises:
            RuntimeError: What `submit` raises.
        """
        if isinstance(items, range):
            items = items[::-1]
        else:
            items = list(items)
            items.reverse()
        self.taken = self.begun = len(items)
        if items:
            self.segments.append((0, items))
            self.refusal = self.recruit(executor)
            self.insist()

    def read(self, executor: Any, source: Iterator[Any], room: int | None) -> None:
        """Read up to `room` items, and have them run as they come.

        If the executor refuses tasks, no more items are read, now and later, and `insist` raises what `submit` raised.
        It is called once the results of the items that were read before have been handed out.
        """
        if self.refusal is not None:
            return
        if executor._shutdown:
            # No item may go to the inbox, where tasks that still run would take it. Only look whether there is one.
            for _ in islice(source, 1 if room is None else min(room, 1)):
                self.refusal = _refusal_of(executor)
        elif self.fixed is not None:
            self._read_chunks(executor, source, room, self.fixed)
        else:
            self._read_items(executor, source, room)

    def _read_items(self, executor: Executor, source: Iterator[Any], room: int | None) -> None:
        inbox = self.inbox
        count = 0
        try:
            for _ in map(inbox.append, islice(source, room)):
                count += 1
                if self.hungry:
                    self.refusal = self.recruit(executor)
                    if self.refusal is not None:
                        break
            else:
                if inbox:
                    self.refusal = self.recruit(executor)
            if self.refusal is not None:
                with self.lock:
                    refused = [inbox.pop() for _ in range(min(count, len(inbox)))]
                count -= len(refused)
                del refused
        finally:
            self.taken += count

    def _read_chunks(self, executor: Executor, source: Iterator[Any], room: int | None, size: int) -> None:
        while room is None or room >= size:
            items = list(islice(source, size))
            if not items:
                return
            if room is not None:
                room -= len(items)
            self.chunks.append((self.taken, items))
            self.taken += len(items)
            with self.lock:
                self.queued += 1
            self.refusal = self._submit(executor, 1)
            if self.refusal is not None:
                with self.lock:
                    refused = self.chunks and self.chunks[-1][1] is items and self.chunks.pop()
                if refused:
                    self.taken -= len(items)
                return

    def insist(self) -> None:
        """Raise what `submit` raised, if no more items are read because of that.

        Raises:
            RuntimeError: What `submit` raised.
        """
        refusal, self.refusal = self.refusal, None
        try:
            if refusal is not None:
                raise refusal
        finally:
            # Breaks a cycle: the error's traceback holds this frame.
            del refusal

    def recruit(self, executor: Executor) -> RuntimeError | None:
        """Submit the tasks that the unclaimed items need; return what `submit` raised, or None."""
        short = 1
        while short > 0:
            with self.lock:
                short = self._short(executor) if self._wants_tasks(executor) else 0
                if self._left() and not self._must_stay(executor):
                    # One is always in the queue, as in `_missing`.
                    short = max(short, 1 - self.queued)
                short = min(short, UP_FRONT - self.queued)
                if short > 0:
                    self.queued += short
                self._note(executor)
            if short > 0 and (refusal := self._submit(executor, short)) is not None:
                return refusal
        return None

    def _submit(self, executor: Executor, count: int) -> RuntimeError | None:
        """Submit tasks that `queued` counts already, as far as they are needed; return what `submit` raised."""
        fresh: list[Future[Any]] = []
        try:
            while count:
                if not self._wants_tasks(executor):
                    # `submit` has waited for room in the queue, and meanwhile all items were claimed.
                    return None
                self.submitter = get_ident()
                future = executor.submit(self.work)
                self.submitter = None
                fresh.append(future)
                count -= 1
        except RuntimeError as error:
            # Without its traceback, which holds this map: the map will hold the error.
            return error.with_traceback(None)
        finally:
            self.submitter = None
            with self.lock:
                self.queued -= count
                self._remember(fresh)
            if fresh:
                # The last to be queued is also the last to run or to be cancelled, so it stands for all of them.
                fresh[-1].add_done_callback(self._ended)
        return None

    def wait_for_pieces(self, position: int, limit: float | None) -> list[Piece]:
        """Wait until there are results at `position` (`ANY`: anywhere), and return them.

        Args:
            position: The position of an item that has been read.
            limit: When to stop waiting (`perf_counter`).

        Raises:
            TimeoutError: `limit` has passed.
            BrokenThreadPool: The process was forked, and the map's tasks stayed with the parent.
            BaseException: The error in place of items that will not run.
        """
        while True:
            if os.getpid() != self.process:
                raise BrokenThreadPool("the process was forked while the map was under way")
            with self.lock:
                now = perf_counter()
                pieces = self._ready(position)
                if not pieces and self._recall(now):
                    pieces = self._ready(position)
                fate = self.fate if self._is_lost(position) else None
                patience = -1.0
                watched = None if pieces else self._watched(position)
                if watched is not None:
                    patience = max(0.0, watched.since + map_ledger.STALE - now)
                if limit is not None and (patience < 0 or limit - now < patience):
                    patience = min(max(0.0, limit - now), TIMEOUT_MAX)
                if not pieces:
                    self.wanted = position
                    self.untimed = watched is None
            if pieces:
                return pieces
            if fate is not None:
                raise CancelledError if isinstance(fate, CancelledError) else fate
            self._reinforce()
            if not self._wait(patience) and limit is not None and perf_counter() >= limit:
                with self.lock:
                    pieces = self._ready(position)
                if pieces:
                    return pieces
                raise TimeoutError

    def _wait(self, patience: float) -> bool:
        told = False
        try:
            told = wait_counted(self.pool, self.bell.acquire, True, patience)
        finally:
            with self.lock:
                if self.wanted == NOTHING and not told:
                    # The bell was rung after all. An interrupted `acquire` may have taken it already, so do not wait
                    # for it here.
                    self.bell.acquire(False)
                    told = True
                self.wanted = NOTHING
        return told

    def _reinforce(self) -> None:
        """Submit more tasks if recalled items need them; an error of `submit` is ignored, as other tasks run them."""
        executor = self.executor()
        if executor is not None and self.segments and not self._must_stay(executor):
            self.recruit(executor)

    def abandon(self) -> None:
        """Drop all items that have not begun, because the consumer leaves. Takes no lock."""
        if self.closed or os.getpid() != self.process:
            return
        self.closed = True
        self.segments = []
        self.inbox.clear()
        self.chunks.clear()
        for batch in list(self.divided.values()):
            batch.drain()
        futures, self.futures = self.futures, []
        for future in futures:
            future.cancel()
        self.batches = {}
        self.finished.clear()

    # What tasks do, in workers.

    def work(self) -> None:
        """Run batches for `SLICE_SECONDS`, or all that are left if the pool takes no more tasks; a task of the pool."""
        aside = self.submitter == get_ident()
        until = perf_counter() + SLICE_SECONDS
        with self.lock:
            self.queued -= 1
            self.hungry = self.hungry or self.queued == 0
            if self.closed or not (self.chunks or self._left()):
                return
            self.running += 1
        while True:
            batch, more = self._next(aside)
            if batch is None:
                return
            for _ in range(more):
                self._queue_another()
            run = self._run_each if isinstance(batch.source, deque) else self._run_all
            if self.context is None:
                run(batch)
            else:
                self.context.copy().run(run, batch)
            stays = self._finish_claim(batch, aside, until)
            batch = None
            if not stays:
                return

    def _next(self, aside: bool) -> tuple[Batch | None, int]:
        """Claim a batch; return it, and how many other tasks should be queued.

        While other tasks have batches that may have to be recalled, it waits for that. If no items are left it returns
        None, and the task ends.
        """
        while True:
            with self.lock:
                now = perf_counter()
                batch = self._lay(now)
                if batch is not None:
                    return batch, 0 if aside else self._missing()
                if aside or self.closed or self.fixed is not None or not self.divided:
                    self.running -= 1
                    if self._found_more(aside):
                        continue
                    return None, 0
                guard = allocate_lock()
                guard.acquire()
                self.guards.append(guard)
                patience = max(0.0, min(batch.since for batch in self.divided.values()) + map_ledger.STALE - now)
            guard.acquire(True, patience)

    def _run_all(self, batch: Batch) -> None:
        out = batch.out
        each: Any = starmap if self.spread else map
        try:
            complete = False
            while not complete:
                try:
                    out.extend(each(self.fn, batch.source))
                except BaseException as error:
                    batch.fail(error)
                    continue
                with self.lock:
                    complete = self.closed or len(out) >= batch.size
                if not complete:
                    # A call has raised StopIteration, which ends the built-in `map` silently.
                    batch.fail(StopIteration())
        finally:
            # Breaks a cycle: the batch holds errors, whose tracebacks hold this frame.
            del batch, out

    def _run_each(self, batch: Batch) -> None:
        fn, spread, out, take = self.fn, self.spread, batch.out, batch.source.popleft
        item = None
        try:
            while True:
                try:
                    item = take()
                except IndexError:
                    return
                try:
                    out.append(fn(*item) if spread else fn(item))
                except BaseException as error:
                    batch.fail(error)
                item = None
        finally:
            del batch, out, take, item

    def _finish_claim(self, batch: Batch, aside: bool, until: float) -> bool:
        """Hand over a batch's results, and the task's turn to another task; return whether this one has to go on."""
        executor = self.executor()
        with self.lock:
            batch.done = True
            batch.source = None
            # If it was recalled before any of its items began, another batch may be at its position now.
            if self.divided.get(batch.start) is batch:
                del self.divided[batch.start]
            if self.guards and not self.divided:
                self._free_guards()
            self.running -= 1
            if self.closed:
                return False
            now = perf_counter()
            self._adapt(len(batch.out), now - batch.since)
            if not self.ordered and batch.handed < batch.size:
                self.finished.append(batch)
            if self.wanted in (map_ledger.ANY, batch.start + batch.handed):
                self._ring()
            if aside or self.fixed is not None or not self._left():
                return self._found_more(aside)
            goes_on = now < until and (self.segments or self.inbox)
            if goes_on or executor is None or self._must_stay(executor):
                self.running += 1
                submits = False
            elif self._short(executor) <= 0:
                self._note(executor)
                return False
            else:
                self.queued += 1
                submits = True
        if submits:
            if self._enlist(executor):
                return False
            with self.lock:
                self.running += 1
        if getattr(executor, "_discarding", False):
            self.fail(CancelledError())
        return True

    def _found_more(self, aside: bool) -> bool:
        """Look at the inbox once more before the task ends; return whether it goes on."""
        # `hungry` is set first: the consumer adds an item, and reads `hungry` then. So either this task sees the item,
        # or the consumer sees that a task is needed.
        self.hungry = True
        found = bool(self.inbox) and self.fate is None and not (aside or self.closed)
        self.running += found
        return found

    def _short(self, executor: Any) -> int:
        """Return how many tasks are missing in the queue for the unclaimed items.

        Pledged tasks count as missing, because the pool may be closed before they are submitted.
        """
        items = len(self.inbox)
        for _, rest in self.segments:
            items += len(rest)
        wanted = min(-(-items // self.size), executor._max_workers - self.running)
        return int(max(wanted, 1 if self.divided else 0) - (self.queued - self.pledged))

    def _wants_tasks(self, executor: Any) -> bool:
        """Return whether another task would find items to claim or, where it may wait for that, to recall."""
        if self.segments or self.inbox or self.chunks:
            return True
        return self.fixed is None and bool(self.divided) and not self._must_stay(executor)

    def _note(self, executor: Any) -> None:
        tasks = self.queued + self.running
        self.hungry = self.queued == 0 or (self.size == 1 and tasks < executor._max_workers)

    def _missing(self) -> int:
        """Return how many tasks to queue, and pledge them; one is always queued, so that the pool sees the work."""
        executor: Any = self.executor()
        if self.fixed is not None or executor is None or not self._left() or self._must_stay(executor):
            return 0
        missing = min(2, max(self._short(executor) - self.pledged, 1 - self.queued))
        if missing <= 0:
            return 0
        self.queued += missing
        self.pledged += missing
        return missing

    def _must_stay(self, executor: Any) -> bool:
        """Return whether a task has to go on itself, because the pool takes no more tasks, or may refuse them."""
        return bool(executor._shutdown) or getattr(self.pool, "max_queue", -1) >= 0

    def _queue_another(self) -> None:
        executor = self.executor()
        try:
            if executor is not None:
                self._enlist(executor)
        finally:
            with self.lock:
                self.pledged -= 1
                if executor is None:
                    self.queued -= 1

    def _enlist(self, executor: Any) -> bool:
        """Submit a task that `queued` counts already; if that fails, count it off and return False."""
        try:
            future = executor.submit(self.work)
        except RuntimeError:
            with self.lock:
                self.queued -= 1
            return False
        with self.lock:
            self._remember([future])
        future.add_done_callback(self._ended)
        return True

    def _remember(self, futures: Iterable[Future[Any]]) -> None:
        self.futures.extend(futures)
        if self.closed:
            for future in self.futures:
                future.cancel()
        elif len(self.futures) > self.prune_at:
            self.futures = [future for future in self.futures if not future.done()]
            self.prune_at = 2 * len(self.futures) + 64

    def _ended(self, future: Future[Any]) -> None:
        """End the map if the task of `future` did not run; a callback, in the thread that ends the future."""
        if self.closed or os.getpid() != self.process:
            return
        if future.cancelled():
            self.fail(CancelledError())
        else:
            error = future.exception()
            if error is not None:
                self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Put an error in place of all items that have not begun."""
        with self.lock:
            if self.closed or self.fate is not None:
                return
            self.fate = error
            trash = [self.segments, list(self.inbox), list(self.chunks)]
            self.segments = []
            self.inbox.clear()
            self.chunks.clear()
            if self.fixed is None:
                for batch in self.divided.values():
                    rest = batch.drain()
                    trash.append(rest)
                    self._cut(batch, len(rest))
                self.divided.clear()
                self._free_guards()
            self._ring()
        del trash


def _refusal_of(executor: Executor) -> RuntimeError:
    """Return the error that an executor raises which has been shut down."""
    try:
        executor.submit(int)
    except RuntimeError as error:
        return error.with_traceback(None)
    return RuntimeError(f"{executor!r} has been shut down")
