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

    When it is dropped after its first result, calls that have not begun are not made. It keeps `keeper`.
    """

    def __init__(self, run: Run, keeper: object) -> None:
        self._run = run
        self._keeper = keeper
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
    """One map. Its calls are made by turns: tasks of the executor, each of which sends one chunk and makes way.

    Args:
        link: The way to the cluster.
        start: Queues a turn; it raises `RuntimeError` once no more are taken.
        closed: Tells whether the executor has been shut down; no more items are read then.
        discards: Tells whether it was with `cancel_futures`.
        width: How many turns there are at most.
        makes_way: Whether a turn ends with its chunk, and another one takes its place.
    """

    def __init__(
        self,
        link: Link,
        start: Start,
        closed: Callable[[], bool],
        discards: Callable[[], bool],
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
        self._closed = closed
        self._discards = discards
        self._width = width
        self._makes_way = makes_way
        self._ordered = ordered
        self._fixed = chunksize is not None
        self._size = 1 if chunksize is None else chunksize
        self._source = zip(*iterables, strict=False)
        # The consumer's: how many items it has read, and how many results it has handed out.
        self._read_all = False
        self._taken = 0
        self._handed = 0
        self._results: deque[Any] = deque()
        # Why the iterable was not read to its end: it is raised after the last result.
        self._cut_off: BaseException | None = None
        # What follows is changed under this lock only. Results are filed by the position of the first of a chunk: that
        # of its item or, where any order will do, one in the order in which chunks come back.
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Any, ...]] = deque()
        self._claimed = 0
        self._active = 0
        self._sent: set[int] = set()
        self._done: dict[int, list[Any]] = {}
        self._filed = 0
        # Why what has not begun is not sent: it is raised once what has begun is handed out.
        self._given_up: BaseException | None = None

    def started(self, keeper: object) -> ClusterMap:
        """Send the first chunks on their way; return the iterator over the results."""
        items: list[tuple[Any, ...]] = []
        try:
            self._take(items, 0)
            if self._cut_off is not None:
                raise self._cut_off
            self._queue(items)
        except BaseException:
            self.close()
            raise
        return ClusterMap(self, keeper)

    def next_result(self) -> Any:
        """Return the next result, or raise the next error; at the end raise `StopIteration`."""
        if not self._results:
            if self._handed == self._taken:
                error, self._cut_off = self._cut_off, None
                if error is None:
                    raise StopIteration
                _raise(error)
            self._results.extend(self._wait())
        if self._room is not None:
            self._read()
        result = self._results.popleft()
        self._handed += 1
        if isinstance(result, Failed):
            if self._ordered:
                self.close()
            _raise(error_of(result.packed))
        return result

    def close(self) -> None:
        """Give up what has not begun and what has not been handed out."""
        self._read_all = True
        self._cut_off = None
        self._taken = self._handed
        self._results.clear()
        with self._changed:
            self._waiting.clear()
            self._done.clear()

    def _give_up(self, error: BaseException) -> None:
        with self._changed:
            self._waiting.clear()
            self._given_up = self._given_up or error
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
                self._give_up(error)

    def _take(self, items: list[tuple[Any, ...]], leaving: int) -> None:
        """Take as many items as there is room for. What the iterable raises is kept."""
        while not self._read_all:
            if self._room is not None and self._taken + len(items) - self._handed - leaving >= self._room:
                return
            try:
                item = next(self._source)
                if self._room is not None and self._closed():
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
        self._taken += len(items)
        with self._changed:
            self._waiting.extend(items)
            missing = max(0, min(self._width, len(self._waiting)) - self._active)
            self._active += missing
        try:
            while missing:
                self._add_turn()
                missing -= 1
        except RuntimeError:
            with self._changed:
                self._active -= missing
                stuck = self._active == 0
            if stuck:
                raise

    def _add_turn(self) -> None:
        self._start(self._take_turn).add_done_callback(self._ended)

    def _ended(self, turn: Future[None]) -> None:
        error = CancelledError() if turn.cancelled() else turn.exception()
        if error is not None:
            with self._changed:
                self._active -= 1
            self._give_up(error)

    def _wait(self) -> list[Any]:
        """Return the next results, or raise why there are none; that ends the map."""
        error: BaseException
        with self._changed:
            while (found := self._done.pop(self._handed, None)) is None:
                under_way = self._handed in self._sent if self._ordered else bool(self._sent)
                if self._given_up is not None and not under_way:
                    error = self._given_up
                    break
                left = None if self._deadline is None else self._deadline - monotonic()
                if left is not None and left <= 0:
                    error = TimeoutError(f"a result of {brief(self.fn)} was not there in time")
                    break
                self._changed.wait(left)
            else:
                return found
        self.close()
        _raise(error)

    def _take_turn(self) -> None:
        """Send a chunk, and the following ones if no other turn can."""
        while True:
            if self._discards():
                # As those of its turns that wait; it would go on by itself.
                self._give_up(CancelledError())
            start, items = self._claim()
            if not items:
                return
            results: list[Any] = []
            seconds = 0.0
            try:
                outcome = self._link.send(self._name, self._mapped.call(apply, items), alone=True)
                results, seconds = self._link.result_of(self._name, outcome), outcome[2]
            except BaseException as error:
                self._give_up(error)
            self._finish(start, results, seconds)
            if self._makes_way:
                try:
                    self._add_turn()
                    return
                except RuntimeError:
                    # The executor has been shut down: what it has accepted is sent all the same.
                    pass

    def _claim(self) -> tuple[int, list[tuple[Any, ...]]]:
        """Take the items of the next chunk, and return the place of the first; without any left, the turn ends."""
        with self._changed:
            if self._given_up is not None:
                # Items that were read since then: after what was given up, their places would be wrong.
                self._waiting.clear()
            left = len(self._waiting)
            size = self._size if self._fixed else min(self._size, ceil(left / (2 * self._width)))
            start = self._claimed
            items = [self._waiting.popleft() for _ in range(min(left, size))]
            self._claimed += len(items)
            if items:
                self._sent.add(start)
            else:
                self._active -= 1
            return start, items

    def _finish(self, start: int, results: list[Any], seconds: float) -> None:
        with self._changed:
            self._sent.discard(start)
            if results:
                self._done[start if self._ordered else self._filed] = results
                self._filed += len(results)
                if not self._fixed:
                    each = max(seconds / len(results), 1e-9)
                    self._size = max(1, min(int(TARGET / each), GROWTH * max(len(results), self._size)))
            self._changed.notify_all()


def _raise(error: BaseException) -> NoReturn:
    """Raise an error out of an iterator, as a generator would."""
    try:
        if isinstance(error, StopIteration):
            raise RuntimeError("generator raised StopIteration") from error
        raise error
    finally:
        del error
