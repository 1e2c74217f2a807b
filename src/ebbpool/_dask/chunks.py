"""Maps over a cluster: the items of one call to it are as many as take it a little while."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from math import ceil, inf
from time import monotonic
from typing import Any, Final, NoReturn

from ebbpool._checks import time_limit, whole_or_none
from ebbpool._dask.packing import Mapped
from ebbpool._dask.remote import Failed, apply, brief, error_of
from ebbpool._pool.running import called_name

TARGET: Final = 0.05
"""Seconds that a chunk should take on a worker: so long that what a call costs by itself does not matter."""
GROWTH: Final = 16
"""How many times larger than the largest so far a chunk may be."""


class ClusterMap(Iterator[Any]):
    """The iterator that a map over a cluster returns.

    When it is dropped after its first result, calls that have not begun are not made.
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
    """One map of an executor or of a lane, which is its `place`.

    Its calls are made by turns: tasks of the executor, each of which sends a chunk, and then has another turn queued in
    its stead, so that the map makes way for other calls.
    """

    def __init__(
        self,
        place: Any,
        fn: Callable[..., Any],
        iterables: tuple[Iterable[Any], ...],
        timeout: float | None,
        chunksize: int | None,
        buffersize: int | None,
        in_order: bool,
    ) -> None:
        executor = getattr(place, "executor", place)
        chunksize = whole_or_none("chunksize", chunksize)
        self._room = whole_or_none("buffersize", buffersize)
        self._deadline = inf if timeout is None else monotonic() + time_limit("timeout", timeout)
        self._link: Any = executor._link
        self._link.check(fn)
        # An unpicklable function is refused here, as by `submit`.
        self._mapped = Mapped(fn, self._link.values())
        self._fn = fn
        # Either may be dropped before the map is done.
        self._home, self._place = weakref.ref(executor), weakref.ref(place)
        self._pool = executor._pool
        self._lane = getattr(place, "core", None)
        self._width: int = self._link.width if self._lane is None else min(self._lane.limit, self._link.width)
        self._in_order = in_order
        self._fixed = chunksize is not None
        self._size = chunksize or 1
        self._source = zip(*iterables, strict=False)
        # The consumer's: how many items it has read, and how many results it has handed out.
        self._read_all = False
        self._taken = 0
        self._handed = 0
        self._results: deque[Any] = deque()
        # Why the iterable was not read to its end: it is raised after the last result.
        self._cut_off: Exception | None = None
        self._waiting: deque[tuple[Any, ...]] = deque()
        # What follows is changed under this lock only. Results are filed by the position of the first of a chunk: that
        # of its item or, where any order will do, one in the order in which chunks come back.
        self._changed = threading.Condition()
        self._claimed = 0
        self._turns = 0
        self._sent: set[int] = set()
        self._done: dict[int, list[Any]] = {}
        self._filed = 0
        # Why what has not begun is not sent: it is raised once what has begun is handed out.
        self._given_up: BaseException | None = None

    # What the consumer does.

    def started(self) -> ClusterMap:
        """Send the first chunks on their way; return the iterator over the results."""
        try:
            self._read()
            if self._cut_off is not None:
                raise self._cut_off
            self._add_turns()
        except BaseException:
            self.close()
            raise
        # Without a buffer all is queued by now, and the executor may be dropped.
        return ClusterMap(self, None if self._room is None else self._place())

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
            self._fill_up()
        result = self._results.popleft()
        self._handed += 1
        if isinstance(result, Failed):
            if self._in_order:
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

    def _fill_up(self) -> None:
        """Read what there will be room for once the next result has been handed out."""
        try:
            self._read(leaving=1)
        finally:
            try:
                self._add_turns()
            except RuntimeError as refusal:
                self._give_up(refusal)

    def _read(self, leaving: int = 0) -> None:
        try:
            while not self._read_all and (self._room is None or self._taken - self._handed - leaving < self._room):
                item = next(self._source)
                if self._room is not None and self._pool.closed:
                    raise RuntimeError("cannot schedule new futures after shutdown")
                self._waiting.append(item)
                self._taken += 1
        except StopIteration:
            self._read_all = True
        except Exception as error:
            self._read_all = True
            self._cut_off = error

    def _wait(self) -> list[Any]:
        """Return the next results, or raise why there are none; that ends the map."""
        with self._changed:
            while (found := self._done.pop(self._handed, None)) is None:
                under_way = self._handed in self._sent if self._in_order else bool(self._sent)
                left = self._deadline - monotonic()
                if self._given_up is not None and not under_way:
                    self.close()
                    raise self._given_up
                if left <= 0:
                    self.close()
                    raise TimeoutError(f"a result of {brief(self._fn)} was not there in time")
                self._changed.wait(min(left, threading.TIMEOUT_MAX))
            return found

    # What turns do, and both.

    def _add_turns(self) -> None:
        """See to it that there are turns for the items that wait.

        Raises:
            RuntimeError: The executor takes no tasks, and none is under way that could send the items.
        """
        while True:
            with self._changed:
                if self._turns >= min(self._width, len(self._waiting) + len(self._sent)):
                    return
                self._turns += 1
            try:
                self._add_turn()
            except RuntimeError:
                with self._changed:
                    self._turns -= 1
                    if self._turns:
                        return
                raise

    def _add_turn(self) -> None:
        executor = self._home()
        if executor is None:
            raise RuntimeError("cannot schedule new futures: nobody refers to the executor any more")
        executor._start_turn(self._lane, self._take_turn).add_done_callback(self._ended)

    def _ended(self, turn: Future[None]) -> None:
        error = CancelledError() if turn.cancelled() else turn.exception()
        if error is not None:
            with self._changed:
                self._turns -= 1
            self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        with self._changed:
            self._waiting.clear()
            self._given_up = self._given_up or error
            self._changed.notify_all()

    def _take_turn(self) -> None:
        """Send a chunk, and the following ones if no other turn can."""
        while True:
            if any(getattr(owner(), "_discarding", False) for owner in (self._place, self._home)):
                # The executor, or its lane, was shut down with `cancel_futures`. That cancels turns that wait; this one
                # runs, and has to end by itself.
                self._give_up(CancelledError())
            start, items = self._claim()
            if not items:
                return
            name = called_name(self._fn)
            results: list[Any] = []
            seconds = 0.0
            try:
                outcome = self._link.send(name, self._mapped.call(apply, items), alone=True)
                results, seconds = self._link.result_of(name, outcome), outcome[2]
            except BaseException as error:
                self._give_up(error)
            self._finish(start, results, seconds)
            # A bounded queue may refuse a turn, or have it wait for room here.
            if self._pool.max_queue < 0:
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
                self._turns -= 1
            return start, items

    def _finish(self, start: int, results: list[Any], seconds: float) -> None:
        with self._changed:
            self._sent.discard(start)
            if results:
                self._done[start if self._in_order else self._filed] = results
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
