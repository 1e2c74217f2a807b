"""A batch of a map: consecutive items that one worker has claimed, and their results so far."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, Final

from ebbpool import _interpreter

ITERATORS: Final = sys.implementation.name == "cpython" and _interpreter.GIL_ENABLED
"""Whether threads that share a list iterator get each item once, and one of them can empty it in one step.

The GIL makes it so, because neither step runs bytecode. Elsewhere a deque does the same, and is slower.
"""


class Failure:
    """What a call raised, in place of its result."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        trace = error.__traceback__
        # Without the frame that caught it, which holds the batch: batch, error, traceback and frame would be a cycle.
        self.error = error if trace is None else error.with_traceback(trace.tb_next)


class Batch:
    """Consecutive items that one worker has claimed, to run them.

    Attributes:
        start: The position in the map of its first result that is not in `Ledger.ready`.
        size: How many results are to come from there on.
        out: Those of them that are there, with a `Failure` in place of an error.
        failed: Whether there may be such; set before the first is added.
        source: The items that have not begun, for the worker.
        since: When it was made (`perf_counter`).
    """

    __slots__ = ("_items", "failed", "out", "since", "size", "source", "start")

    def __init__(self, start: int, items: Any, since: float) -> None:
        self.start = start
        self.size = len(items)
        self.out: list[Any] = []
        self.failed = False
        self.since = since
        # The only reference to the items, so that each is dropped as soon as it has been run or recalled.
        self._items: Any = iter(items) if ITERATORS else deque(items)
        self.source: Any = self._items if ITERATORS else _emptying(self._items)

    def fail(self, error: BaseException) -> None:
        """Put an error where the next result would be."""
        self.failed = True
        self.out.append(Failure(error))

    def run(self, calls: Callable[..., Iterator[Any]], is_complete: Callable[[Batch], bool]) -> None:
        """Run the items that have not begun; `calls` returns an iterator over the results of its argument's items."""
        results = None
        try:
            while True:
                try:
                    results = calls(self.source)
                    if ITERATORS:
                        self.out.extend(results)
                    else:
                        # `extend` may keep the list locked, which others have to read meanwhile.
                        deque(map(self.out.append, results), 0)
                except BaseException as error:
                    self.fail(error)
                    continue
                if is_complete(self):
                    return
                # A call has raised StopIteration, which ends the built-in `map` silently.
                self.fail(StopIteration())
        finally:
            # Breaks a cycle: the batch holds errors, whose tracebacks hold this frame.
            del self, results

    def drain(self) -> list[Any]:
        """Take the items that have not begun, last one first; any thread may call this."""
        rest: list[Any] = []
        if ITERATORS:
            rest.extend(self._items)
            rest.reverse()
        else:
            with suppress(IndexError):
                while True:
                    rest.append(self._items.pop())
        return rest


def _emptying(items: deque[Any]) -> Iterator[Any]:
    with suppress(IndexError):
        while True:
            yield items.popleft()


def chunks(inbox: deque[Any], items: Iterator[Any], size: int) -> Iterator[int]:
    """Move `items` to `inbox`, `size` at a time; yield how many were moved at once."""
    while chunk := list(islice(items, size)):
        inbox.extend(chunk)
        yield len(chunk)
