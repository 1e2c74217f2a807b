"""multiprocessing's helper processes, on which the parent of `ebbpool.prefork` depends: their start, and repairs."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from ebbpool._prefork.child import FROM_THE_PARENT, log

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, SpawnContext

PRELOADED: Final = ["ebbpool._prefork.child", "ebbpool.socketserver"]
"""What the fork server imports, once, for all children. None of it starts a thread, and none of it is user code."""
PROMPT: Final = 1.0
"""Seconds within which the fork server should answer. After that it is continued, because it may have been stopped."""
PATIENCE: Final = 3.0
"""Seconds after which a fork server that does not answer is killed, if the parent has been told to stop."""
GLANCE: Final = 0.25
"""Seconds between two looks at a start that is under way."""


def start_helpers(context: SpawnContext | ForkServerContext) -> None:
    """Start the helpers with signals blocked, so that signals to the process group do not end them."""
    if os.name != "posix":
        return
    from multiprocessing import forkserver, resource_tracker

    # The tracker's start unblocks two of these signals, so it has a block of its own.
    with blocked():
        resource_tracker.ensure_running()
    if context.get_start_method() == "forkserver":
        chosen = getattr(_server(), "_preload_modules", None)
        if not chosen or list(chosen) == ["__main__"]:
            context.set_forkserver_preload(PRELOADED)
        with blocked():
            forkserver.ensure_running()


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Block the parent's signals, so that a new process, which inherits the mask, gets none before it handles them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FROM_THE_PARENT)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def continue_server() -> None:
    """Continue the fork server, if it was stopped; no harm is done if it runs."""
    _signal_server(signal.SIGCONT, "fork_server_silent")


def kill_server() -> None:
    """Kill the fork server; the next start makes another one. Processes that it has started live on.

    A thread that waits for its answer gets an `EOFError` or an `OSError`, and 255 as the exit code of a child.
    """
    _signal_server(signal.SIGKILL, "fork_server_killed")


@contextlib.contextmanager
def answered(limit: float, hurried: Callable[[], bool]) -> Iterator[None]:
    """Bound the wait for the fork server in a block: continue it after a second, and kill it if that does not help.

    Args:
        limit: Seconds until it is killed, `PATIENCE` at least.
        hurried: Called in a thread of its own; returns whether to kill it after `PATIENCE` already.
    """
    over = threading.Event()
    # Started before `blocked` is entered: this thread receives the signals that are blocked in the main thread.
    watch = threading.Thread(target=_watch, args=(over, limit, hurried), name="ebbpool-prefork-watch", daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join()


def _watch(over: threading.Event, limit: float, hurried: Callable[[], bool]) -> None:
    # Looks are counted, and not seconds, because time in which the whole program was stopped must not count.
    looks = 0
    while not over.wait(GLANCE):
        looks += 1
        waited = looks * GLANCE
        if waited == PROMPT:
            continue_server()
        if waited >= PATIENCE and (waited >= limit or hurried()):
            kill_server()
            return


def _server() -> Any:
    from multiprocessing import forkserver

    return getattr(forkserver, "_forkserver", None)


def _signal_server(number: int, event: str) -> None:
    pid = getattr(_server(), "_forkserver_pid", None)
    if pid is not None:
        log(logging.WARNING, {"event": event, "pid": pid})
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
