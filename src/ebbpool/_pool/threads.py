"""Threads whose `start` does not wait, and which begin with an empty context and a stack of the wanted size."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from contextvars import Context
from typing import Any

from ebbpool._checks import whole
from ebbpool._clock import monotonic
from ebbpool._core.waits import here
from ebbpool._interpreter import LACKING, daemon_threads

if sys.platform == "linux":
    from _signal import SIG_BLOCK, SIG_UNBLOCK, pthread_sigmask  # type: ignore[import-not-found]  # as `signal` does

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


def stack_size(name: str, value: Any) -> int | None:
    """Check a size in bytes, without a thread, and return it rounded up to whole pages of memory; None for None."""
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


def forget_loans() -> None:
    """In a forked child: restore the process's own stack size, and free the lock, if another thread had them."""
    global _lock, _loans
    if _lock.acquire(blocking=False):
        # The lock was free, or this thread holds it: then it forked in the middle of a start, and restores the size
        # itself.
        _lock.release()
        return
    _lock = threading.RLock()
    _loans = 0
    threading.stack_size(_usual)


def _be_like_the_main_thread() -> None:
    """Use its CPUs and its nice value, and block no signals that it does not block, whatever was inherited."""
    main = os.getpid()
    # Where the system does not allow it, what was inherited stays.
    with suppress(OSError):
        if os.sched_getaffinity(0) != (processors := os.sched_getaffinity(main)):
            os.sched_setaffinity(0, processors)
    with suppress(OSError):
        if os.getpriority(os.PRIO_PROCESS, 0) != (nice := os.getpriority(os.PRIO_PROCESS, main)):
            os.setpriority(os.PRIO_PROCESS, 0, nice)
    # To read a file may take long where others have the GIL. Few threads block any signal.
    if blocked := pthread_sigmask(SIG_BLOCK, ()):
        with suppress(OSError), open(f"/proc/self/task/{main}/status", "rb") as file:
            [mask] = [int(line.split()[1], 16) for line in file if line.startswith(b"SigBlk:")]
            pthread_sigmask(SIG_UNBLOCK, {number for number in blocked if not mask >> (number - 1) & 1})


class _LaterEvent(threading.Event):
    """An event that `Thread.start` does not wait for."""

    def wait(self, timeout: float | None = None) -> bool:
        return True


class WorkerThread(threading.Thread):
    """A thread whose `start` does not wait until the new thread has had a CPU and the GIL.

    It begins with an empty context: from Python 3.14 a thread may inherit that of the thread that starts it, and
    tracing tools hand theirs on, so that a worker would keep the context of the request that happened to start it. On
    Linux a thread also inherits the CPU affinity, the nice value and the signal mask; it gets those of the main thread.
    """

    _inherits = True

    def __init__(self, *args: Any, daemon: bool | None = None, stack_size: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, daemon=daemon_threads() if daemon is None else daemon, **kwargs)
        self._begun = _LaterEvent()
        if "threading.Thread._started" not in LACKING:
            self._started = self._begun
        self._stack_size = stack_size

    def start(self) -> None:
        """Start the thread; see `threading.Thread.start`."""
        if sys.platform == "linux":
            # The timekeeper is like the main thread already.
            self._inherits = threading.get_ident() == threading.main_thread().ident or here.keeps_time
        with nullcontext() if self._stack_size is None else _lent(self._stack_size):
            Context().run(super().start)

    def run(self) -> None:
        """Call the target; see `threading.Thread.run`."""
        self._begun.set()
        if not self._inherits:
            _be_like_the_main_thread()
        super().run()

    def join(self, timeout: float | None = None) -> None:
        """Wait up to `timeout` seconds for the thread to end; see `threading.Thread.join`."""
        # A thread that has not begun to run yet cannot be joined.
        deadline = None if timeout is None else monotonic() + timeout
        if not threading.Event.wait(self._begun, timeout):
            return
        super().join(None if deadline is None else max(0.0, deadline - monotonic()))

    def ended(self) -> bool:
        """Return whether the thread has begun and ended."""
        return self._begun.is_set() and not self.is_alive()
