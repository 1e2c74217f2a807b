"""The items of a map: those that nobody has claimed, how many a batch takes, and the batches that workers have."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from itertools import repeat
from operator import itemgetter
from typing import Any, Final

from ebbpool import _interpreter
from ebbpool._errors import trimmed

QUICK: Final = 300e-6
"""Seconds: after a batch that took less, the next may be twice as large, or four times if it took far less."""
TARGET: Final = 500e-6
"""Seconds that a batch should take."""
ITERATORS: Final = sys.implementation.name == "cpython" and _interpreter.GIL_ENABLED
"""Whether threads that share a list iterator get each item once, and one of them can empty it in one step.

The GIL makes it so, because neither step runs bytecode. Elsewhere a deque does the same, and is slower.
"""


class Failure:
    """What a call raised, in place of its result."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        # Breaks a cycle: the frame that caught it holds the batch.
        self.error: BaseException = trimmed(error)


class Batch:
    """Consecutive items that one worker has claimed, to run them."""

    __slots__ = ("_items", "failed", "out", "since", "size", "source", "start")

    def __init__(self, start: int, items: Any, since: float) -> None:
        self.start = start  # the position in the map of its first result that is not in `MapRun.ready`
        self.size = len(items)  # how many results are to come from there on
        self.out: list[Any] = []  # those of them that are there, with a `Failure` in place of an error
        self.failed = False  # whether there may be such; set before the first is added
        self.since = since  # when it was made (`perf_counter`)
        # The only reference to the items, so that each is dropped as soon as it has been run or recalled.
        self._items: Any = iter(items) if ITERATORS else deque(items)
        # The items that have not begun, for the worker. At its end it may raise `IndexError`.
        self.source: Any = self._items if ITERATORS else map(deque.popleft, repeat(self._items))

    def fail(self, error: BaseException) -> None:
        """Put an error where the next result would be."""
        self.failed = True
        self.out.append(Failure(error))

    def drain(self) -> list[Any]:
        """Take the items that have not begun, last one first; any thread may call this."""
        if ITERATORS:
            return list(self._items)[::-1]
        rest: list[Any] = []
        with suppress(IndexError):
            while True:
                rest.append(self._items.pop())
        return rest


class Unclaimed:
    """The items that nobody has claimed, and how many of them the next batch takes."""

    def __init__(self, size: int, largest: int) -> None:
        self.size = size  # the most that the next batch takes
        self.largest = largest  # the most that `size` may become
        # (position, items) of items read at once or recalled, first position last. The items are a list or a range,
        # last one first.
        self.segments: list[tuple[int, list[Any] | range]] = []
        self.inbox: deque[Any] = deque()  # items behind those, as they are read
        self.begun: int = 0  # the position of the first of these

    def __len__(self) -> int:
        count = len(self.inbox)
        for _, rest in self.segments:
            count += len(rest)
        return count

    def fill(self, items: Iterable[Any]) -> int:
        """Take the whole input at once; return how many items it has."""
        rest = items[::-1] if isinstance(items, range) else list(items)
        if isinstance(rest, list):
            rest.reverse()
        if rest:
            self.segments.append((0, rest))
        return len(rest)

    def take(self) -> tuple[int, list[Any] | range]:
        """Return the items of the next batch, none if there are no more, and the position of the first."""
        size = self.size
        if not self.segments:
            start, inbox = self.begun, self.inbox
            items = list(map(deque.popleft, repeat(inbox, min(size, len(inbox)))))
            self.begun += len(items)
            return start, items
        start, rest = self.segments.pop()
        taken = rest[: -size - 1 : -1]
        if isinstance(rest, range):
            rest = rest[:-size]
        else:
            del rest[-size:]
        if rest:
            self.segments.append((start + size, rest))
        return start, taken

    def put_back(self, start: int, rest: list[Any]) -> None:
        """Take items that were recalled, last one first."""
        self.segments.append((start, rest))
        self.segments.sort(key=itemgetter(0), reverse=True)

    def adapt(self, count: int, seconds: float) -> None:
        """Let batches grow while items are tiny, and shrink as soon as they are not: `count` items took `seconds`."""
        if seconds >= QUICK:
            self.size = max(1, min(self.size, int(count * TARGET / seconds)))
        elif count >= self.size:
            self.size = min((2 if seconds > QUICK / 8 else 4) * self.size, self.largest)
