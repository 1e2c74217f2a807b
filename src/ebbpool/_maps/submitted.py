"""A map whose items pass through an executor's `submit`, where that is not the engine's own."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from concurrent.futures.thread import BrokenThreadPool
from itertools import islice
from queue import Empty, SimpleQueue
from threading import TIMEOUT_MAX
from typing import Any

from ebbpool._called import called_name
from ebbpool._clock import perf_counter
from ebbpool._core.accel import wait_counted


class Submitted:
    """One map, as the standard library makes it: a call of `submit` for each item, in the thread that reads the items.

    It has the methods of `MapRun` that the consumer calls.
    """

    def __init__(self, executor: Executor, fn: Callable[..., Any], spread: bool, ordered: bool) -> None:
        # Weakly: it may be collected once all items are submitted.
        self._executor: Callable[[], Any] = weakref.ref(executor)
        self._pool: Any = getattr(getattr(executor, "executor", executor), "_pool", None)
        self._fn = fn
        self._spread = spread
        self._ordered = ordered
        self._process = os.getpid()
        self._held: dict[Future[Any], None] = {}  # those that have not been handed out, in the order of the items
        self._turn: SimpleQueue[Future[Any]] = SimpleQueue()  # those to be handed out next, one after the other
        self.taken = 0

    def read_all(self, items: Iterable[Any]) -> None:
        """Submit the whole input at once."""
        self.read(iter(items), None)

    def read(self, source: Iterator[Any], room: int | None) -> None:
        """Submit up to `room` items; raise what `source` or `submit` raises."""
        for item in islice(source, room):
            executor = self._executor()
            future = executor.submit(self._fn, *item) if self._spread else executor.submit(self._fn, item)
            self.taken += 1
            self._held[future] = None
            if self._ordered:
                self._turn.put(future)
            else:
                future.add_done_callback(self._over)

    def _over(self, future: Future[Any]) -> None:
        # Not one that `abandon` has cancelled: it would be in a cycle, by way of its callback and the queue.
        if future in self._held:
            self._turn.put(future)

    def insist(self) -> None:
        """Do nothing: `read` has raised what there was to raise."""

    def next_piece(self, _position: int, limit: float) -> list[Any] | BaseException:
        """Wait until `limit` (`perf_counter`) for the next result, and return it in a list, or the error of its call.

        A call that is cancelled ends the map.
        """
        if os.getpid() != self._process:
            raise BrokenThreadPool("the process was forked while the map was under way")
        try:
            future = self._next(limit)
            error = future.exception(_left(limit))
        except (Empty, TimeoutError):
            raise TimeoutError(f"a result of {called_name(self._fn)} was not there in time") from None
        self._held.pop(future, None)
        return [future.result()] if error is None else error

    def _next(self, limit: float) -> Future[Any]:
        try:
            return self._turn.get_nowait()
        except Empty:
            # Where the order matters, there is always one.
            future: Future[Any] = wait_counted(self._pool, self._turn.get, True, _left(limit))
            return future

    def abandon(self) -> None:
        """Cancel all calls, the last one first, so that none moves up in a queue while others go."""
        held, self._held = self._held, {}
        self._turn = SimpleQueue()
        while held:
            held.popitem()[0].cancel()


def _left(limit: float) -> float:
    return min(max(0.0, limit - perf_counter()), TIMEOUT_MAX)
