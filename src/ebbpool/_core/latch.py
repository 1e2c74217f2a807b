"""What a thread waits at until another lets it go on: a lock, or on free-threaded builds what parks a thread at once.

A thread that finds a lock of CPython 3.13t or 3.14t taken yields its processor forty times before it parks, without a
look at the lock in between (python/cpython#135871). Beside threads that compute that takes 30 to 60 ms. A `SimpleQueue`
parks at once. As it wakes, a thread may find the queue's own lock taken for a moment, and yield then.
"""

from __future__ import annotations

from _thread import LockType, allocate_lock
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from ebbpool._interpreter import FREE_THREADED

__all__ = ["LockType", "allocate_lock"]

if not TYPE_CHECKING and FREE_THREADED:

    class LockType(SimpleQueue):
        """What is used of a lock; it is free while one item is in the queue."""

        __slots__ = ()

        def acquire(self, blocking=True, timeout=-1):
            """Take it, within `timeout` seconds if these are not negative; return whether that was possible."""
            try:
                self.get(blocking, None if timeout < 0 else timeout)
            except Empty:
                return False
            return True

        def locked(self):
            """Return whether it is taken."""
            return self.empty()

        def release(self):
            """Free it; raise RuntimeError if it is free, unless another thread frees it at the same time."""
            if not self.empty():
                raise RuntimeError("release unlocked lock")
            self.put(None)

    def allocate_lock():
        """Return one that is free."""
        made = LockType()
        made.put(None)
        return made
