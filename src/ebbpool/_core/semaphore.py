# cython: nonecheck=False
"""Semaphores with threading's semantics.

One mutex per semaphore guards its permits and its waiters. Nothing that could run foreign code happens under it:
objects are allocated before it is taken, and only this module's own objects are dropped under it.

Waiters are served in order of arrival. A newcomer may take a free permit while others wait, because handing every
permit over would cost a switch of threads each time. A waiter that is woken and finds its permit taken by a newcomer is
handed the next one, so it loses only once. The starvation mode of Go's ``sync.Mutex`` is the model.
"""

from __future__ import annotations

import operator
import os
import sys
import threading
from _thread import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ebbpool._core import uncompiled as cython
from ebbpool._core.latch import allocate_lock

if not TYPE_CHECKING and cython.compiled:
    import cython
if not cython.compiled:
    # For compiled code semaphore_c.pxd declares this.
    from ebbpool._clock import monotonic

from ebbpool._checks import NoCopy, time_limit

COMPILED = bool(cython.compiled)

ONE = 1
MOST = sys.maxsize
"""The most permits there can be: compiled code counts them in a machine word."""

_forks = 0
_survivor = 0


def permits(name: str, value: Any) -> int:
    """Return `value`, an integer of at most `MOST`, as a number of permits; any negative one becomes -1."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {value!r}") from None
    if number > MOST:
        raise ValueError(f"{name} must be at most {MOST}, not {value!r}")
    return max(number, -1)


class Waiter:
    """A thread that waits for a permit."""

    __slots__ = ("bell", "forks", "granted", "rung", "starved", "thread")

    def __init__(self) -> None:
        self.bell = allocate_lock()  # free only when the waiter has been rung for
        self.bell.acquire()
        self.rung = False  # whether it has been rung for and has not yet looked at the permits
        self.granted = False  # whether it has its permit; it is then no longer among the waiters
        self.starved = False  # whether it has woken: it may have found the permit gone, and is handed the next
        self.thread = get_ident()
        self.forks = _forks  # those that this process had been through when the wait began


class SemaphoreCore:
    """Permits, and the threads that wait for them."""

    def __init__(self, value: int = 1) -> None:
        value = permits("value", value)
        if value < 0:
            raise ValueError("semaphore initial value must be >= 0")
        if not cython.compiled:
            # Re-entrant: a signal handler may run between any two steps and release this very semaphore.
            self._mutex = threading.RLock()
        self._waiters: list[Waiter] = []
        self._initial_value: int = MOST
        self._permits: int = value

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Take a permit; wait for one if there is none.

        Waiters get their permits in order of arrival. A free permit goes to the first thread that asks, even if a
        waiter is just waking up for it; that waiter is then handed the next one.

        Args:
            blocking: Whether to wait at all.
            timeout: Seconds to wait at most; None waits for ever, 0 or less not at all.

        Returns:
            Whether a permit was taken.

        Raises:
            ValueError: A timeout was given although `blocking` is false.
            TypeError: No permit is free and `timeout` is no number.
            OverflowError: No permit is free and `timeout` is greater than `threading.TIMEOUT_MAX`.
        """
        if not blocking and timeout is not None:
            raise ValueError("can't specify timeout for non-blocking acquire")
        with self._mutex:
            if self._permits > 0:
                self._permits -= 1
                return True
        if blocking:
            return self._wait(timeout)
        self._check_made()
        return False

    __enter__ = acquire

    @property
    def _value(self) -> int:
        with self._mutex:
            return self._permits

    def release(self, n: int = 1) -> None:
        """Give back `n` permits, and wake threads that wait for them.

        Raises:
            ValueError: `n` is less than one, or more permits than a bounded semaphore began with, or than
                `sys.maxsize`, would be free.
            TypeError: `n` is no integer.
        """
        count = 1 if n is ONE else permits("n", n)
        if count < 1:
            raise ValueError("n must be one or more")
        with self._mutex:
            excess = self._permits > self._initial_value - count
            if not excess:
                self._permits += count
                if self._waiters:
                    self._serve(count > 1)
        if excess:
            self._refuse(n)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    def _check_made(self) -> None:
        # Without `__init__` there are no permits and `_initial_value` is 0, so `acquire` and `release` come here.
        if self._waiters is None:
            raise RuntimeError("Semaphore.__init__() was never called")

    def _refuse(self, n: int) -> None:
        self._check_made()
        if self._initial_value < MOST:
            raise ValueError("Semaphore released too many times")
        raise ValueError(f"n must leave at most {MOST} permits, not add {n!r} to {self._value}")

    def _wait(self, timeout: float | None) -> bool:
        self._check_made()
        limit = -1.0
        deadline = 0.0
        if timeout is not None:
            limit = time_limit("timeout", timeout)
            if limit == 0.0:
                return False
            deadline = monotonic() + limit
        waiter = Waiter()
        # Invariant: an error from here on leaves no waiter behind, and loses no permit that was handed to it.
        try:
            with self._mutex:
                self._waiters.append(waiter)
                self._serve(False)
            over = False
            while not over:
                told = waiter.bell.acquire(True, limit)
                with self._mutex:
                    waiter.starved = True
                    self._serve(False)
                    # Before `over`: a signal handler may serve it between any two of these lines.
                    waiter.rung = False
                    over = waiter.granted or not told
                    if over and not waiter.granted:
                        self._strike(waiter)
                if limit >= 0.0:
                    limit = max(0.0, deadline - monotonic())
        except BaseException:
            with self._mutex:
                if waiter.granted:
                    self._permits += 1
                else:
                    self._strike(waiter)
                self._serve(False)
            raise
        return bool(waiter.granted)

    def _strike(self, waiter: Waiter) -> None:
        try:
            self._waiters.remove(waiter)
        except ValueError:
            # A signal handler has served it meanwhile.
            pass

    def _head(self) -> Waiter | None:
        """Return the waiter whose turn it is, or None; drop waiters whose threads stayed with the parent of a fork."""
        while self._waiters:
            head = self._waiters[0]
            if head.forks == _forks or head.thread == _survivor:
                return head
            del self._waiters[0]
        return None

    def _serve(self, hand_over: bool) -> None:
        # Invariant, whenever the mutex is free: if a permit is free and a thread waits, the head has been rung for.
        while self._permits > 0:
            head = self._head()
            if head is None:
                return
            handed = hand_over or head.starved
            if handed:
                head.granted = True
                self._permits -= 1
                del self._waiters[0]
            if not head.rung:
                head.rung = True
                head.bell.release()
            if not handed:
                return


if not cython.compiled:
    # What a C object has from the start, and keeps where `__init__` is never called.
    SemaphoreCore._mutex = threading.RLock()
    SemaphoreCore._permits = SemaphoreCore._initial_value = 0
    SemaphoreCore._waiters = None  # type: ignore[assignment]  # as `_check_made` wants it


class Semaphore(NoCopy, SemaphoreCore):
    """A semaphore: `threading.Semaphore`, but quicker, and first come, first served among waiters.

    It holds a number of permits, which may grow beyond its initial `value`. `acquire` takes one, `release` gives one
    back; ``with`` does both. A waiter that is interrupted or runs out of time costs no permit.

    A newcomer may take a permit that is free while the waiter it was meant for is still waking up; that waiter is
    then handed the next one.

    After `os.fork` the child has the semaphore as it was, without the waiters whose threads stayed in the parent.

    Raises:
        ValueError: `value` is negative, or greater than `sys.maxsize`.
        TypeError: `value` is no integer.
    """

    __module__ = "ebbpool.sync"

    def __init__(self, value: int = 1) -> None:
        super().__init__(value)

    def __repr__(self) -> str:
        cls = type(self)
        most = f"/{self._initial_value}" if isinstance(self, BoundedSemaphore) else ""
        return f"<{cls.__module__}.{cls.__qualname__} at {id(self):#x}: value={self._value}{most}>"


class BoundedSemaphore(Semaphore):
    """A `Semaphore` that refuses, with ValueError, to hold more permits than it began with."""

    __module__ = "ebbpool.sync"

    def __init__(self, value: int = 1) -> None:
        super().__init__(value)
        self._initial_value = self._value


def _after_fork_in_child() -> None:
    global _forks, _survivor
    _forks += 1
    _survivor = get_ident()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
