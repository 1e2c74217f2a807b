"""What a new worker starts with: an empty context, and a stack whose size is lent to one start at a time."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any

from ebbpool._checks import whole

# Reentrant: the garbage collector may run a finaliser inside `start` that starts a worker of another pool.
_lock = threading.RLock()
_usual = 0
"""What the size was when nobody had been lent one; for a forked child."""
_loans = 0


@contextmanager
def _lent(size: int) -> Iterator[None]:
    global _usual, _loans
    with _lock:
        # This sets it to 0, the platform's: a signal before the assignment leaves that, and not `size`.
        usual = threading.stack_size()
        if _loans == 0:
            _usual = usual
        _loans += 1
        try:
            threading.stack_size(size)
            yield
        finally:
            threading.stack_size(usual)
            _loans -= 1


def start(thread: threading.Thread, size: int | None) -> None:
    """Starts `thread` in an empty context, with a stack of `size` bytes; None for what `threading.stack_size` says.

    Threads that other code starts in the same instant may get that size, too.

    From Python 3.14 a thread may inherit the context of the thread that starts it, and instrumentations hand theirs on
    in `Thread.start`. For a worker that is whichever request came first, and its tasks belong to all of them.

    Raises:
        RuntimeError: The system refuses another thread.
    """
    if size is None:
        Context().run(thread.start)
        return
    with _lent(size):
        Context().run(thread.start)


def stack_size(name: str, value: Any) -> int | None:
    """Returns `value`, bytes, rounded up to whole pages of memory, or None for None; starts no thread.

    Raises:
        TypeError: It is no integer, or a bool.
        ValueError: The platform has no such stacks: it is too small, or there is no room for one.
    """
    if value is None:
        return None
    import mmap

    number = whole(name, value, 1)
    pages = -(-number // mmap.PAGESIZE) * mmap.PAGESIZE
    try:
        with _lent(pages):
            pass
        if sys.platform != "win32":
            # The setting takes what no address space holds; there, starting a thread would be the first to fail.
            mmap.mmap(-1, pages, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except (ValueError, OverflowError, OSError, RuntimeError) as error:
        raise ValueError(f"{name} must be a size in bytes that the system accepts, not {value!r}: {error}") from None
    return pages


def _after_fork_in_child() -> None:
    global _lock, _loans
    if _lock.acquire(blocking=False):
        # By this very thread, if by any: it forked in the middle of a start, and will put back the size itself.
        _lock.release()
        return
    _lock = threading.RLock()
    _loans = 0
    threading.stack_size(_usual)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
