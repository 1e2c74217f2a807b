"""Delayed calls: `Timers` of one pool, the lock-free heap `Alarms`, and the base class of the timekeeper."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Any

from ebbpool._core import uncompiled as cython
from ebbpool._core.latch import LockType, allocate_lock

if not TYPE_CHECKING and cython.compiled:
    import cython
if not cython.compiled:
    # For compiled code timers_c.pxd declares these.
    from ebbpool._core.uncompiled import CANCELLED, fence

FOLD = 128  # new entries, and swept ones, that one visit deals with: looks at pools must not wait for more
VOID = 64  # the heap is swept if at least so many entries are void, and they are half of it


Entry = tuple[float, int, Any, Any]
"""When it is due, a number that decides ties in order of arrival, its book, and the thing that waits.

The timekeeper's thread asks `book.wants(thing)` whether that still waits, and calls `book.fire(thing)` when its time
has come, which must not block or run user code.
"""


class Alarms:
    """The entries. `add` and `void` may be called by any thread, the other methods only by one thread.

    Added entries wait in a deque until that thread puts them into the heap. An entry is void when its book no longer
    wants it. Void entries stay where they are until they are half of the heap; then the others are moved to a fresh
    heap, in slices. Both are valid heaps all the while, because a heap without its last item is still a heap.
    """

    def __init__(self) -> None:
        self._arrived: deque[Entry] = deque()
        self._arrive: Callable[[Entry], None] = self._arrived.append
        # Two heaps, which are never replaced: other threads count their entries.
        self._even: list[Entry] = []
        self._odd: list[Entry] = []
        self._even_is_stale: bool = False
        self._voids: deque[None] = deque()
        self._numbers: itertools.count[int] = itertools.count(1)

    def __len__(self) -> int:
        return self._count()

    def _count(self) -> int:
        return len(self._arrived) + len(self._even) + len(self._odd)

    def _fresh(self) -> list[Entry]:
        return self._odd if self._even_is_stale else self._even

    def _stale(self) -> list[Entry]:
        return self._even if self._even_is_stale else self._odd

    def add(self, due: float, book: Any, thing: Any) -> bool:
        """Add an entry, in any thread, without a lock; return whether it is time for `merge`."""
        number = next(self._numbers)
        self._arrive((due, number, book, thing))
        return number % 1024 == 0

    def void(self) -> bool:
        """Count an entry as void, in any thread; return whether it is time for `merge`."""
        self._voids.append(None)
        return self._half_void()

    def _half_void(self) -> bool:
        return len(self._voids) >= VOID and 2 * len(self._voids) >= self._count()

    def merge(self) -> bool:
        """Take in added entries and throw out void ones, a slice of each; return whether there is more to do."""
        arrived = self._arrived
        heap = self._fresh()
        for _ in range(min(len(arrived), FOLD)):
            entry = arrived.popleft()
            if entry[2].wants(entry[3]):
                heappush(heap, entry)
        if not self._stale() and self._needs_sweep():
            self._voids.clear()
            self._even_is_stale = not self._even_is_stale
        heap, old = self._fresh(), self._stale()
        for _ in range(min(len(old), FOLD)):
            entry = old.pop()
            if entry[2].wants(entry[3]):
                heappush(heap, entry)
        # Entries may have become void in the course of a sweep that ends here.
        return bool(arrived or old or self._needs_sweep())

    def _needs_sweep(self) -> bool:
        # If all entries are void, they are swept however few they are.
        return self._half_void() or 0 < self._count() <= len(self._voids)

    def arrived(self) -> bool:
        """Return whether entries were added that have not been taken in yet."""
        if cython.compiled:
            # `_wake` was written before; see `KeeperCore.call_at`.
            fence()
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
        heap, old = self._fresh(), self._stale()
        return old if old and (not heap or old[0] < heap[0]) else heap


class KeeperCore:
    """The part of the timekeeper that every delayed call passes."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock: Callable[[], float] = clock  # seconds, from any origin; never goes back
        self.exiting: bool = False  # whether the interpreter exits, and no delayed call is taken any more
        self.forget()

    def forget(self) -> None:
        """Reset to no thread and no entries."""
        self._alarms: Alarms = Alarms()
        self._wake: float = inf
        self._bell: LockType = allocate_lock()
        self._bell.acquire()
        self._runs: bool = False  # whether there is a thread

    def start(self) -> None:
        """Start the thread if it does not run."""
        raise NotImplementedError

    def call_at(self, due: float, book: Any, thing: Any) -> None:
        """Have `book.fire(thing)` called in the timekeeper's thread at `due`; takes no lock while the thread runs."""
        merges = self._alarms.add(due, book, thing)
        if cython.compiled:
            fence()
        if merges or due < self._wake:
            self._ring()
        # The entry is there before this line, and a thread that ends clears `_runs` before it looks at its queues for
        # the last time. So either it sees the entry, or this sees that there is no thread.
        if not self._runs:
            self.start()

    def void(self) -> None:
        """Count one entry as void: its book no longer wants it. Takes no lock: a finaliser may call it."""
        if self._alarms.void():
            self._ring()

    def _ring(self) -> None:
        # If the bell has been rung already, that is enough: the thread will read its queues after this line.
        try:
            self._bell.release()
        except RuntimeError:
            pass


class Timers:
    """The delayed calls and schedules of one pool. Every method may be called by any thread."""

    def __init__(self, keeper: KeeperCore) -> None:
        self.keeper: KeeperCore = keeper
        self.waiting: dict[Any, Any] = {}  # futures, and their executor, which is kept alive for the call
        self.schedules: dict[Any, Any] = {}  # those that have not ended, and the call of each

    def prepare(self) -> None:
        """Start the timekeeper's thread if it does not run; RuntimeError if none can be, or the interpreter exits."""
        if self.keeper.exiting:
            raise RuntimeError("cannot schedule new futures after interpreter shutdown")
        if not self.keeper._runs:
            self.keeper.start()

    def add(self, executor: Any, future: Any, due: float) -> None:
        """Have the held `future` queued once the keeper's clock says `due`, or cancelled if the pool is shut down."""
        self.prepare()
        self.waiting[future] = executor
        try:
            KeeperCore.call_at(self.keeper, due, self, future)
        except RuntimeError:
            # The thread has just ended. The entry stays where it is, and must not keep the call and the executor.
            future.cancel()
            raise
        # A pool is closed before `close` empties `waiting`: either `close` finds this future there, or this line sees
        # that the pool is closed.
        if executor._pool.closed:
            future.cancel()
        # A schedule's future may be cancelled before it is in `waiting`, where it was not found then.
        if future._code >= CANCELLED:
            executor._forget_delayed(future)

    def add_after(self, executor: Any, future: Any, delay: float) -> None:
        """Do what `add` does, `delay` seconds from now."""
        self.add(executor, future, self.keeper.clock() + delay)

    def wants(self, thing: Any) -> bool:
        """See `Entry`. A future that is done is struck off at once, so it need not be looked for in `waiting`."""
        return bool(thing._code < CANCELLED)

    def fire(self, thing: Any) -> None:
        """See `Entry`."""
        executor = self.waiting.get(thing)
        # In a closed pool, `close` cancels the future, in the thread that shuts down, where callbacks may run. So the
        # future stays in `waiting` until it is queued: the pool may be closed at this very moment.
        if executor is None or executor._pool.closed:
            return
        try:
            # Behind a full queue it waits its turn: this thread must not.
            refusal = executor._pool.push(thing, False, True)
        except BaseException as error:
            thing.reject(error)
            if not isinstance(error, RuntimeError):
                raise
            return
        if refusal is None:
            self.waiting.pop(thing, None)

    def close(self, error: BaseException | None = None) -> tuple[int, int]:
        """Cancel the calls whose time has not come, or fail them with `error`, and end the schedules; count both.

        The pool has to be closed already. Callbacks of the futures run in the calling thread.
        """
        calls = 0
        schedules = sum(task.stop(error) for task in list(self.schedules))
        for future in list(self.waiting):
            if self.waiting.pop(future, None) is None:
                continue
            if error is None:
                calls += future.cancel()
            else:
                future.reject(error)
                calls += 1
            # After that, or a sweep might find the entry wanted still, and take it for another that is void.
            self.keeper.void()
        return calls, schedules

    def renew(self, error: BaseException) -> None:
        """In a forked child: fail what waits, without running callbacks, and forget the schedules."""
        waiting, self.waiting, self.schedules = self.waiting, {}, {}
        for future in waiting:
            future.disown(error)

    def strike(self, future: Any) -> None:
        """Strike off a delayed call that is done, in any thread."""
        if self.waiting.pop(future, None) is not None:
            self.keeper.void()
