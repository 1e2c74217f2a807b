"""The ledger of one map: which items are unclaimed, which batches are under way, and their results.

A *batch* is the items that one worker claims at a time. Batches grow while items are tiny, and shrink as soon as they
are not. Items that were claimed together with one that takes long are *recalled*: taken from the batch, so that other
workers run them.
"""

from __future__ import annotations

import sys
from _thread import allocate_lock
from collections import deque
from itertools import repeat
from operator import itemgetter
from typing import Any, Final

from ebbpool import _interpreter

QUICK: Final = 300e-6
"""Seconds: after a batch that took less, the next may be twice as large, or four times if it took far less."""
TARGET: Final = 500e-6
"""Seconds that a batch should take."""
STALE: Final = 2e-3
"""Seconds after which the items of a batch that have not begun are recalled."""
ITERATORS: Final = sys.implementation.name == "cpython" and _interpreter.GIL_ENABLED
"""Whether threads that share a list iterator get each item once, and one of them can empty it in one step.

The GIL makes it so, because neither step runs bytecode. Elsewhere a deque does the same, and is slower.
"""

ANY: Final = -1
"""The position for which a consumer waits that takes any result."""
NOTHING: Final = -2
"""The position when no consumer waits."""

Piece = list[Any] | BaseException
"""Results, oldest first, or the error in place of one."""


class Batch:
    """Consecutive items that one worker has claimed, to run them.

    Attributes:
        start: The position of its first item in the map.
        handed: How many of its results the consumer has taken.
        size: How many items it has, recalled ones left out.
        source: The items that have not begun.
        out: Results so far; None stands in place of an error, or of a result that the consumer has taken.
        errors: Errors by their place in `out`.
        since: When it was made (`perf_counter`).
        recalled: Whether items that had not begun were taken from it.
        done: Whether `out` is complete.
    """

    __slots__ = ("done", "errors", "handed", "out", "recalled", "since", "size", "source", "start")

    def __init__(self, start: int, items: list[Any] | range, since: float, iterators: bool) -> None:
        self.start = start
        self.handed = 0
        self.size = len(items)
        # The only reference to the items, so that each is dropped as soon as it has been run or recalled.
        self.source: Any = iter(items) if iterators else deque(items)
        self.out: list[Any] = []
        self.errors: dict[int, BaseException] = {}
        self.since = since
        self.recalled = False
        self.done = False

    def drain(self) -> list[Any]:
        """Take the items that have not begun, last one first; any thread may call this."""
        source = self.source
        if source is None:
            return []
        if not isinstance(source, deque):
            rest = list(source)
            rest.reverse()
            return rest
        rest = []
        try:
            while True:
                rest.append(source.pop())
        except IndexError:
            return rest

    def fail(self, error: BaseException) -> None:
        """Put an error where the next result would be."""
        trace = error.__traceback__
        # Without the frame that caught it, which holds this batch: batch, error, traceback and frame would be a cycle.
        self.errors[len(self.out)] = error if trace is None else error.with_traceback(trace.tb_next)
        self.out.append(None)

    def collect(self) -> list[Piece]:
        """Return the results that are there and have not been taken; the batch drops them."""
        if self.done and not self.handed and not self.errors:
            return [self.out]
        first, last = self.handed, len(self.out)
        values = self.out[first:last]
        self.out[first:last] = [None] * (last - first)
        self.handed = last
        pieces: list[Piece] = []
        begin = 0
        for place in sorted(place for place in list(self.errors) if place < last):
            if place - first > begin:
                pieces.append(values[begin : place - first])
            pieces.append(self.errors.pop(place))
            begin = place - first + 1
        if begin < len(values):
            pieces.append(values[begin:] if begin else values)
        return pieces


class Ledger:
    """Which items are claimed, and which results are there. One lock guards it; callers of the methods hold it.

    Attributes:
        taken: How many items were read from the input; only the consumer's thread counts them.
        size: How many items the next batch takes at most.
        segments: (position, items) of items read at once or recalled, first position last. The items are a list
            or a range, last one first.
        inbox: Items behind those, as they are read; `begun` is the position of the first.
        chunks: (position, items) for the tasks of a map whose chunks have a given size.
        batches: Batches with results to come or to take, by the position of the first of these results.
        divided: Batches under way that may have items to recall, by position.
        finished: Complete batches in the order in which they ended, if the consumer takes any result.
        queued: How many tasks are on the way to a worker.
        pledged: How many of them workers have yet to submit; that fails if the pool is closed before.
        running: How many tasks workers are running.
        hungry: Whether the consumer should consider more tasks when it has read an item.
        wanted: The position of the result that the consumer waits for, `ANY` or `NOTHING`.
        untimed: Whether the consumer waits without regard to a batch that may have to be recalled.
        guards: Locks of tasks that wait until batches may have to be recalled.
        closed: Whether the consumer has left.
        fate: The error in place of every item that will not run, or None.
    """

    def __init__(self, chunksize: int | None, buffersize: int | None, ordered: bool) -> None:
        self.fixed = chunksize
        self.largest = sys.maxsize if buffersize is None else max(1, buffersize // 4)
        self.ordered = ordered
        self.iterators = ITERATORS
        self.lock = allocate_lock()
        self.taken = 0
        self.size = 1
        self.segments: list[tuple[int, list[Any] | range]] = []
        self.inbox: deque[Any] = deque()
        self.begun = 0
        self.chunks: deque[tuple[int, list[Any]]] = deque()
        self.batches: dict[int, Batch] = {}
        self.divided: dict[int, Batch] = {}
        self.finished: deque[Batch] = deque()
        self.queued: int = 0
        self.pledged: int = 0
        self.running = 0
        self.hungry = True
        self.wanted = NOTHING
        self.untimed = False
        self.bell: Any = allocate_lock()
        self.bell.acquire()
        self.guards: list[Any] = []
        self.closed = False
        self.fate: BaseException | None = None

    def _ready(self, position: int) -> list[Piece]:
        if position == ANY:
            if self.finished:
                batch = self.finished.popleft()
                del self.batches[batch.start + batch.handed]
                return batch.collect()
            for batch in list(self.batches.values()):
                if batch.recalled and len(batch.out) > batch.handed:
                    return self._advance(batch)
            return []
        found = self.batches.get(position)
        if found is None:
            return []
        if found.done:
            del self.batches[position]
            return found.collect()
        return self._advance(found) if found.recalled else []

    def _advance(self, batch: Batch) -> list[Piece]:
        """Take the results that a batch under way has so far."""
        if len(batch.out) == batch.handed:
            return []
        del self.batches[batch.start + batch.handed]
        pieces = batch.collect()
        if batch.handed < batch.size:
            self.batches[batch.start + batch.handed] = batch
        return pieces

    def _is_lost(self, position: int) -> bool:
        return self.fate is not None and (not self.batches if position == ANY else position not in self.batches)

    def _watched(self, position: int) -> Batch | None:
        """Return the batch that has to be recalled if it does not end soon, or None."""
        if self.fixed is not None:
            return None
        if position == ANY:
            return next(iter(self.divided.values()), None)
        batch = self.batches.get(position)
        return batch if batch is not None and batch.start in self.divided else None

    def _ring(self) -> None:
        if self.wanted != NOTHING:
            self.wanted = NOTHING
            self.bell.release()

    def _lay(self, now: float) -> Batch | None:
        if self.closed or self.fate is not None:
            return None
        items: list[Any] | range
        if self.fixed is not None:
            try:
                start, items = self.chunks.popleft()
            except IndexError:
                return None
        else:
            self._recall(now)
            segments = self.segments
            size = self.size
            if segments:
                start, rest = segments.pop()
                items = rest[: -size - 1 : -1]
                if len(rest) > size:
                    if isinstance(rest, range):
                        rest = rest[:-size]
                    else:
                        del rest[-size:]
                    segments.append((start + size, rest))
            else:
                inbox = self.inbox
                start = self.begun
                try:
                    items = list(map(deque.popleft, repeat(inbox, min(size, len(inbox)))))
                except IndexError:
                    # The consumer has left.
                    return None
                if not items:
                    return None
                self.begun += len(items)
        batch = Batch(start, items, now, self.iterators)
        self.batches[start] = batch
        if batch.size > 1:
            self.divided[start] = batch
            if self.untimed and self.fixed is None and self.wanted in (ANY, start):
                self._ring()
        return batch

    def _adapt(self, count: int, seconds: float) -> None:
        if seconds < QUICK:
            if count >= self.size:
                self.size = min((2 if seconds > QUICK / 8 else 4) * self.size, self.largest)
        else:
            self.size = max(1, min(self.size, int(count * TARGET / seconds)))

    def _recall(self, now: float) -> bool:
        """Recall items of batches that have been under way too long; return whether there was such a batch."""
        recalled = False
        if self.fixed is not None:
            return recalled
        for batch in list(self.divided.values()):
            if now - batch.since < STALE:
                continue
            rest = batch.drain()
            self._cut(batch, len(rest))
            del self.divided[batch.start]
            if rest and not self.closed:
                self.segments.append((batch.start + batch.size, rest))
            recalled = True
        if recalled:
            self.size = 1
            self.segments.sort(key=itemgetter(0), reverse=True)
            if not self.divided:
                self._free_guards()
        return recalled

    def _cut(self, batch: Batch, count: int) -> None:
        """Take the last `count` items, which have been drained, off a batch's size."""
        batch.size -= count
        batch.recalled = True
        if not batch.size:
            # It will never have a result.
            self.batches.pop(batch.start, None)

    def _free_guards(self) -> None:
        for guard in self.guards:
            guard.release()
        self.guards.clear()

    def _left(self) -> bool:
        return bool(self.segments or self.inbox or self.divided)
