"""What is due when: a heap that any thread adds to without a lock, and one thread takes from, a slice at a time."""

from __future__ import annotations

import itertools
from collections import deque
from heapq import heappop, heappush
from math import inf
from typing import Any, Protocol

FOLD = 128
"""How many new entries, and how many of those swept, one visit deals with: looks at pools must not wait for more."""
VOID = 64
"""From how many void entries on the heap is looked through for them, if they are half of it."""


class Book(Protocol):
    """Whose entries they are."""

    def wants(self, thing: Any) -> bool:
        """Whether `thing` still waits for its time; asked in the timekeeper's thread."""
        ...

    def fire(self, thing: Any) -> None:
        """Told in the timekeeper's thread, that the time of `thing` has come. Must not block or run user code."""
        ...


Entry = tuple[float, int, Book, Any]
"""When it is due, a number that decides ties in order of arrival, whose it is, and what."""


class Alarms:
    """The entries. `add` and `void` may be called by any thread, the other methods by one alone.

    Added entries wait in a deque until that thread folds them into the heap. Void ones, those their book does not want
    any more, are left where they are; once they are half of the heap it is moved to a fresh one without them. Both are
    valid heaps all the while, for taking the last item off a heap leaves one, so that it can be moved in slices.
    """

    def __init__(self) -> None:
        self._arrived: deque[Entry] = deque()
        self._heap: list[Entry] = []
        self._old: list[Entry] = []
        self._voids: deque[None] = deque()
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        return len(self._arrived) + len(self._heap) + len(self._old)

    def add(self, due: float, book: Book, thing: Any) -> bool:
        """Adds an entry, in any thread, without a lock; True if so many have come that they should be folded in."""
        number = next(self._numbers)
        self._arrived.append((due, number, book, thing))
        return number % 1024 == 0

    def void(self) -> bool:
        """Says, in any thread, that an entry is void; True if it is time to look for such entries."""
        self._voids.append(None)
        return self._crowded()

    def _crowded(self) -> bool:
        return len(self._voids) >= VOID and 2 * len(self._voids) >= len(self)

    def merge(self) -> bool:
        """Takes in what was added and throws out what is void, a slice of each; True if there is more."""
        arrived = self._arrived
        for _ in range(min(len(arrived), FOLD)):
            entry = arrived.popleft()
            if entry[2].wants(entry[3]):
                heappush(self._heap, entry)
        if not self._old and (self._crowded() or 0 < len(self) <= len(self._voids)):
            # Where all are void they are not worth waiting for.
            self._voids.clear()
            self._old, self._heap = self._heap, self._old
        old = self._old
        for _ in range(min(len(old), FOLD)):
            entry = old.pop()
            if entry[2].wants(entry[3]):
                heappush(self._heap, entry)
        return bool(arrived or old)

    def arrived(self) -> bool:
        """Whether something was added that has not been taken in yet."""
        return bool(self._arrived)

    def next_due(self) -> float:
        """When the first entry is due; infinity if there is none. What has not been taken in yet does not count."""
        first = self._first()
        return first[0][0] if first else inf

    def pop_due(self, now: float) -> Entry | None:
        """Takes off the first entry that is due at `now`."""
        first = self._first()
        return heappop(first) if first and first[0][0] <= now else None

    def _first(self) -> list[Entry]:
        heap, old = self._heap, self._old
        return old if old and (not heap or old[0] < heap[0]) else heap
