"""What all pools of the process do, as text: for a person who looks at a process that hangs."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TextIO

from ebbpool._checks import text_file, whole
from ebbpool._pool import lifecycle
from ebbpool._pool.running import described

# PyPy takes a handler for them, and never calls it.
_NEVER_HANDLED = {getattr(signal, name) for name in ("SIGKILL", "SIGSTOP") if hasattr(signal, name)}


def dump(file: TextIO | None = None) -> None:
    """Write the figures of all pools and lanes, what runs in them, and the stack of each task.

    The names of the threads that belong to no pool come last.
    A pool that has been shut down is among them for as long as it has threads.

    Args:
        file: An open text file; None for `sys.stderr`.

    Raises:
        TypeError: `file` has no `write`.
        OSError: It cannot be written to.
    """
    text = "\n".join(_lines()) + "\n"
    out: TextIO = text_file("file", sys.stderr if file is None else file)
    out.write(text)
    out.flush()


def dump_on_signal(signum: int, file: TextIO | None = None) -> None:
    """Have `dump(file)` called, in a thread of its own, when the process gets a signal.

    Only the main thread may call this. A Python handler that the signal had before is called as well.
    `signal.signal(signum, signal.SIG_DFL)` ends it. Like any handler of Python's it needs the main thread, which runs
    it when it next runs Python code: if that thread is stuck in C code, `faulthandler.register` still answers. If no
    thread can be started, a line on standard error says so. The interpreter's exit waits up to 2 seconds for the text.

    Args:
        signum: The signal, such as `signal.SIGUSR1`.
        file: An open text file; None for `sys.stderr`.

    Raises:
        TypeError: `signum` is not an integer, or `file` has no `write`.
        ValueError: `signum` is no signal that can be handled, or this is not the main thread.
    """
    if file is not None:
        text_file("file", file)
    whole("signum", signum, 1)
    if signum in _NEVER_HANDLED:
        raise ValueError(f"signum must be a signal that can be handled, not {signum!r}")
    try:
        before = signal.getsignal(signum)
        if isinstance(before, _Answer):
            before = before.before
        signal.signal(signum, _Answer(before if callable(before) else None, file))
    except (OSError, ValueError):
        if threading.current_thread() is not threading.main_thread():
            raise
        raise ValueError(f"signum must be a signal that can be handled, not {signum!r}") from None


class _Answer:
    """A signal handler; `before` is the one that the signal had before."""

    def __init__(self, before: Callable[..., Any] | None, file: TextIO | None) -> None:
        self.before = before
        self._file = file

    def __call__(self, signum: int, frame: Any) -> None:
        # Not here: the signal may have interrupted the pool's code, or a write to the same file.
        try:
            lifecycle.tell("ebbpool-dump", partial(dump, self._file))
        except (RuntimeError, MemoryError) as error:
            # An error would end whatever the main thread is doing, just because somebody wanted to look. Past the
            # buffer of standard error, a write to which the signal may have interrupted.
            with contextlib.suppress(OSError, ValueError):
                if sys.__stderr__ is not None:
                    os.write(sys.__stderr__.fileno(), f"ebbpool: the pools cannot be dumped: {error!r}\n".encode())
        if self.before is not None:
            self.before(signum, frame)


def _lines() -> Iterator[str]:
    pools = lifecycle.in_view()
    yield f"ebbpool: {len(pools)} pool{'' if len(pools) == 1 else 's'} in process {os.getpid()}"
    for crew, executor in pools:
        if executor is None:
            yield f"pool {crew.name!r}: its executor has been collected"
            continue
        # A subclass may do what it likes; it must not keep the others from being seen.
        try:
            yield from list(_pool(executor, bool(crew.pool.closed)))
        except Exception as error:
            yield f"pool {crew.name!r}: cannot be looked at: {error!r}"
    yield "threads of no pool: " + ", ".join(map(repr, lifecycle.others()))


def _pool(executor: Any, closed: bool) -> Iterator[str]:
    stats = executor.stats()
    ending = " (shut down)" if closed else ""
    yield (
        f"pool {stats.name!r}{ending}: {stats.workers} of at most {stats.max_workers} threads "
        f"({stats.idle} idle, {stats.running} running, {stats.blocked} of these blocked"
        + (f", {stats.abandoned} abandoned" if stats.abandoned else "")
        + f"), {stats.queued} waiting"
        + (f", the oldest for {stats.oldest_wait:.1f} s" if stats.queued else "")
        + (f"; {stats.expired} waited for too long and were not run" if stats.expired else "")
        + (f"; {stats.away} away, {stats.spill_returned} of {stats.spilled} came back" if stats.spilled else "")
        + (f"; {stats.last_decision}" if stats.last_decision else "")
    )
    for lane in executor.lanes():
        share = lane.stats()
        yield f"  lane {share.name!r}: {share.running} of at most {share.limit} running, {share.queued} waiting"
    for task in executor.running(stacks=True):
        yield from (f"  {line}" for line in described(task).splitlines())
