"""What is due when: a heap that any thread adds to without a lock, and one thread takes from, a slice at a time."""

from __future__ import annotations

import itertools
from collections import deque
from heapq import heappop, heappush
from math import inf
from typing import Any, Protocol

FOLD = 128
"""How many new entries, and how many swept ones, one visit deals with: looks at pools must not wait for more."""
VOID = 64
"""The heap is swept if at least so many entries are void, and they are half of it."""


class Book(Protocol):
    """The owner of entries."""

    def wants(self, thing: Any) -> bool:
        """Return whether `thing` still waits for its time; asked in the timekeeper's thread."""
        ...

    def fire(self, thing: Any) -> None:
        """Deal with `thing`, whose time has come, in the timekeeper's thread. Must not block or run user code."""
        ...


Entry = tuple[float, int, Book, Any]
"""When it is due, a number that decides ties in order of arrival, its owner, and the thing that waits."""


class Alarms:
    """The entries. `add` and `void` may be called by any thread, the other methods only by one thread.

    Added entries wait in a deque until that thread puts them into the heap. An entry is void when its book no longer
    wants it. Void entries stay where they are until they are half of the heap; then the others are moved to a fresh
    heap, in slices. Both are valid heaps all the while, because a heap without its last item is still a heap.
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
        """Add an entry, in any thread, without a lock; return whether it is time for `merge`."""
        number = next(self._numbers)
        self._arrived.append((due, number, book, thing))
        return number % 1024 == 0

    def void(self) -> bool:
        """Count an entry as void, in any thread; return whether it is time for `merge`."""
        self._voids.append(None)
        return self._crowded()

    def _crowded(self) -> bool:
        return len(self._voids) >= VOID and 2 * len(self._voids) >= len(self)

    def merge(self) -> bool:
        """Take in added entries and throw out void ones, a slice of each; return whether there is more to do."""
        arrived = self._arrived
        for _ in range(min(len(arrived), FOLD)):
            entry = arrived.popleft()
            if entry[2].wants(entry[3]):
                heappush(self._heap, entry)
        if not self._old and (self._crowded() or 0 < len(self) <= len(self._voids)):
            # If all entries are void, they are swept however few they are.
            self._voids.clear()
            self._old, self._heap = self._heap, self._old
        old = self._old
        for _ in range(min(len(old), FOLD)):
            entry = old.pop()
            if entry[2].wants(entry[3]):
                heappush(self._heap, entry)
        return bool(arrived or old)

    def arrived(self) -> bool:
        """Return whether entries were added that have not been taken in yet."""
        return bool(self._arrived)

    def next_due(self) -> float:
        """Return when the first entry is due, infinity if there is none; entries not taken in yet do not count."""
        first = self._first()
        return first[0][0] if first else inf

    def pop_due(self, now: float) -> Entry | None:
        """Remove and return the first entry that is due at `now`; None if none is."""
        first = self._first()
        return heappop(first) if first and first[0][0] <= now else None

    def _first(self) -> list[Entry]:
        heap, old = self._heap, self._old
        return old if old and (not heap or old[0] < heap[0]) else heap
