"""What a new worker starts with: an empty context, and a stack of the size that its pool wants."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any

from ebbpool._checks import whole
from ebbpool._pool import lifecycle

# Re-entrant: the garbage collector may run a finaliser inside `start` that starts a worker of another pool.
_lock = threading.RLock()
_usual = 0
"""The process's own stack size while another is set for a start; a forked child restores it."""
_loans = 0


@contextmanager
def _lent(size: int) -> Iterator[None]:
    global _usual, _loans
    with _lock:
        # The call sets the size to 0, the platform's default. If a signal handler raises before the assignment, that
        # default stays, and not `size`.
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
    """Start `thread` in an empty context, with a stack of `size` bytes; None for what `threading.stack_size` says.

    Threads that other code starts at the same instant may get that size, too.

    The context is empty because a worker runs the tasks of all requests. From Python 3.14 a thread may inherit the
    context of the thread that starts it, and tracing tools hand theirs on in `Thread.start`: a worker would keep the
    context of the request that happened to start it.

    Raises:
        RuntimeError: The system refuses another thread.
    """
    if size is None:
        Context().run(thread.start)
        return
    with _lent(size):
        Context().run(thread.start)


def stack_size(name: str, value: Any) -> int | None:
    """Return `value` (bytes) rounded up to whole pages of memory, or None for None; start no thread.

    Raises:
        TypeError: `value` is not an integer, or a bool.
        ValueError: The platform has no such stacks: `value` is too small, or there is no memory for one.
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
            # `threading.stack_size` accepts sizes that no address space holds; only starting a thread would fail.
            mmap.mmap(-1, pages, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except (ValueError, OverflowError, OSError, RuntimeError) as error:
        raise ValueError(f"{name} must be a size in bytes that the system accepts, not {value!r}: {error}") from None
    return pages


def _after_fork_in_child() -> None:
    global _lock, _loans
    if _lock.acquire(blocking=False):
        # The lock was free, or this thread holds it: then it forked in the middle of a start, and restores the size
        # itself.
        _lock.release()
        return
    _lock = threading.RLock()
    _loans = 0
    threading.stack_size(_usual)


lifecycle.after_fork(_after_fork_in_child)
