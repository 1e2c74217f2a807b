"""Maps over a cluster: the items of one call to it are as many as take it a little while."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from math import ceil
from time import monotonic
from typing import Any, Final, NoReturn

from ebbpool._checks import time_limit, whole_or_none
from ebbpool._dask.link import Link
from ebbpool._dask.packing import Mapped
from ebbpool._dask.remote import Failed, apply, brief, error_of
from ebbpool._pool.running import called_name

TARGET: Final = 0.05
"""Seconds that a chunk should take on a worker: so long that what a call costs by itself does not matter."""
GROWTH: Final = 16
"""How many times larger than the largest so far a chunk may be."""

Start = Callable[[Callable[[], None]], Future[None]]


class ClusterMap(Iterator[Any]):
    """The iterator that a map over a cluster returns.

    When it is dropped after its first result, calls that have not begun are not made.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._mutex = threading.Lock()
        self._begun = False

    def __next__(self) -> Any:
        # Several threads may share the iterator.
        with self._mutex:
            self._begun = True
            return self._run.next_result()

    def close(self) -> None:
        """End the map: no further call begins."""
        self._run.close()

    def __del__(self) -> None:
        # As with the standard library's: what nobody has asked for a result is made for its effects.
        if getattr(self, "_begun", False):
            self._run.close()


class Run:
    """One map. Its calls are made by turns: tasks of the executor, each of which sends one chunk and makes way."""

    def __init__(
        self,
        link: Link,
        start: Start,
        is_closed: Callable[[], bool],
        width: int,
        makes_way: bool,
        fn: Callable[..., Any],
        iterables: tuple[Iterable[Any], ...],
        timeout: float | None,
        chunksize: int | None,
        buffersize: int | None,
        ordered: bool,
    ) -> None:
        chunksize = whole_or_none("chunksize", chunksize)
        self._room = whole_or_none("buffersize", buffersize)
        limit = None if timeout is None else time_limit("timeout", timeout)
        self._deadline = None if limit is None or limit > threading.TIMEOUT_MAX else monotonic() + limit
        link.check(fn)
        # An unpicklable function is refused here, as by `submit`.
        self._mapped = Mapped(fn, link.values())
        self._name = called_name(fn)
        self.fn = fn
        self._link = link
        self._start = start
        self._is_closed = is_closed
        self._width = width
        self._makes_way = makes_way
        self._ordered = ordered
        self._fixed = chunksize is not None
        self._size = 1 if chunksize is None else chunksize
        self._source = zip(*iterables, strict=False)
        self._read_all = False
        # Why the iterable was not read to its end: it is raised after the last result.
        self._cut_off: BaseException | None = None
        self._results: deque[Any] = deque()
        self._outstanding = 0
        # What follows is changed under this lock only.
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Any, ...]] = deque()
        self._claimed = 0
        self._active = 0
        self._turns: set[Future[None]] = set()
        self._done: dict[int, list[Any]] = {}
        self._next = 0
        self._error: BaseException | None = None
        self._cancelled = False

    def started(self) -> ClusterMap:
        """Send the first chunks on their way; return the iterator over the results."""
        items: list[tuple[Any, ...]] = []
        try:
            self._take(items)
            if self._cut_off is not None:
                raise self._cut_off
            self._queue(items)
        except BaseException:
            self.close()
            raise
        return ClusterMap(self)

    def next_result(self) -> Any:
        """Return the next result, or raise the next error; at the end raise `StopIteration`."""
        if not self._results:
            self._wait()
        if not self._results:
            error, self._cut_off = self._cut_off, None
            if error is None:
                raise StopIteration
            _raise(error)
        if self._room is not None:
            self._read()
        result = self._results.popleft()
        self._outstanding -= 1
        if isinstance(result, Failed):
            if self._ordered:
                self.close()
            _raise(error_of(result.packed))
        return result

    def close(self) -> None:
        """Give up what has not begun and what has not been handed out."""
        self._read_all = True
        self._cut_off = None
        self._outstanding = 0
        self._results.clear()
        with self._changed:
            self._waiting.clear()
            self._done.clear()
            self._error = None
            turns = list(self._turns)
        for turn in turns:
            turn.cancel()

    def cancel(self) -> None:
        """Send nothing that has not begun: once what has begun is handed out, the iterator raises `CancelledError`."""
        with self._changed:
            if self._waiting and self._error is None:
                self._waiting.clear()
                self._error = CancelledError()
                self._cancelled = True
                self._changed.notify_all()

    def _read(self) -> None:
        """Take the items for which there is room once the next result has been handed out, and queue them."""
        items: list[tuple[Any, ...]] = []
        try:
            self._take(items, 1)
        finally:
            try:
                self._queue(items)
            except RuntimeError as error:
                self._refused(error)

    def _take(self, items: list[tuple[Any, ...]], handed_out: int = 0) -> None:
        """Take as many items as there is room for. What the iterable raises is kept."""
        while not self._read_all:
            if self._room is not None and self._outstanding + len(items) - handed_out >= self._room:
                return
            try:
                item = next(self._source)
                if self._room is not None and self._is_closed():
                    raise RuntimeError("cannot schedule new futures after shutdown")
                items.append(item)
            except StopIteration:
                self._read_all = True
            except Exception as error:
                self._read_all = True
                self._cut_off = error

    def _queue(self, items: list[tuple[Any, ...]]) -> None:
        """Count items in, and see to it that there are turns for them.

        Raises:
            RuntimeError: The executor takes no tasks, and none is under way that could send the items.
        """
        self._outstanding += len(items)
        with self._changed:
            self._waiting.extend(items)
            missing = min(self._width, len(self._waiting)) - self._active
            self._active += max(0, missing)
        for started in range(missing):
            try:
                self._add_turn()
            except RuntimeError:
                with self._changed:
                    self._active -= missing - started
                    stuck = self._active == 0
                if stuck:
                    raise
                return

    def _refused(self, error: RuntimeError) -> None:
        """Give up items that nothing will send; the results that are there are handed out first."""
        with self._changed:
            given_up = len(self._waiting)
            self._waiting.clear()
        self._outstanding -= given_up
        self._read_all = True
        self._cut_off = error

    def _add_turn(self) -> None:
        future = self._start(self.take_turn)
        with self._changed:
            self._turns.add(future)
        future.add_done_callback(self._ended)

    def _ended(self, future: Future[None]) -> None:
        with self._changed:
            self._turns.discard(future)
            self._active -= future.cancelled()
            stuck = bool(self._waiting) and self._active == 0
        if stuck:
            self._fail(CancelledError())

    def _wait(self) -> None:
        with self._changed:
            while True:
                if self._ordered:
                    found = self._done.pop(self._next, None)
                else:
                    found = self._done.pop(next(iter(self._done)), None) if self._done else None
                if found is not None:
                    self._next += len(found)
                    self._results.extend(found)
                    return
                under_way = self._cancelled and self._next < self._claimed
                if not self._outstanding or (self._error is not None and not under_way):
                    break
                left = None if self._deadline is None else self._deadline - monotonic()
                if left is not None and left <= 0:
                    break
                self._changed.wait(left)
            error = self._error
            waited = self._outstanding > 0
        if not waited:
            return
        self.close()
        if error is None:
            raise TimeoutError(f"a result of {brief(self.fn)} was not there in time")
        _raise(error)

    def take_turn(self) -> None:
        """Send a chunk, and the following ones if no other turn can."""
        while True:
            start, items = self._claim()
            if not items:
                return
            try:
                outcome = self._link.send(self._name, self._mapped.call(apply, items), alone=True)
                results = self._link.result_of(self._name, outcome)
            except BaseException as error:
                self._fail(error, True)
                return
            if self._finish(start, results, outcome[2]):
                return

    def _claim(self) -> tuple[int, list[tuple[Any, ...]]]:
        """Take the items of the next chunk, and return the place of the first; without any left, the turn ends."""
        with self._changed:
            if self._error is not None:
                # Items that were read since then: after what was given up, their places would be wrong.
                self._waiting.clear()
            left = len(self._waiting)
            size = self._size if self._fixed else min(self._size, ceil(left / (2 * self._width)))
            start = self._claimed
            items = [self._waiting.popleft() for _ in range(min(left, size))]
            self._claimed += len(items)
            if not items:
                self._active -= 1
            return start, items

    def _finish(self, start: int, results: list[Any], seconds: float) -> bool:
        """Keep the results of a chunk; return whether the turn ends, because another one has taken its place."""
        with self._changed:
            self._done[start] = results
            if not self._fixed:
                each = max(seconds / len(results), 1e-9)
                self._size = max(1, min(int(TARGET / each), GROWTH * max(len(results), self._size)))
            self._changed.notify_all()
        if not self._makes_way:
            return False
        try:
            self._add_turn()
        except RuntimeError:
            # The executor has been shut down: what it has accepted is sent all the same.
            return False
        return True

    def _fail(self, error: BaseException, ends: bool = False) -> None:
        """End the map with an error; `ends` says that a turn ends with it."""
        with self._changed:
            self._active -= ends
            self._waiting.clear()
            if self._error is None or self._cancelled:
                self._error = error
                self._cancelled = False
            self._changed.notify_all()


def _raise(error: BaseException) -> NoReturn:
    """Raise an error out of an iterator, as a generator would."""
    try:
        if isinstance(error, StopIteration):
            raise RuntimeError("generator raised StopIteration") from error
        raise error
    finally:
        del error
