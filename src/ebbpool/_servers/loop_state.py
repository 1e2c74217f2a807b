"""Whether a server's loop runs: how it is told to end, who waits for that, and what the exit does."""

from __future__ import annotations

import threading
import weakref
from time import sleep

from ebbpool._clock import monotonic
from ebbpool._frames import is_joined
from ebbpool._pool import lifecycle
from ebbpool._pool.threads import WorkerThread
from ebbpool._stdio import Bell

START_UP = 1.0
"""Seconds that a thread has, once the main thread has ended, to begin the loop for which it was started."""
GLANCE = 0.001
"""Seconds between two looks at whether it has."""
LOOK = 0.25
"""Seconds between two looks at whether a thread waits for the main thread."""


class Loop:
    """The state that `serve_forever`, `shutdown` and `server_close` of one server share."""

    def __init__(self) -> None:
        self.stopping = False  # whether the loop is to end
        self.threads: set[threading.Thread] = set()  # the loop's; that of the last one, too, while it is in `end`
        self.expected = False  # whether the server listens and no loop has begun yet
        self.over = threading.Event()  # set while no loop runs, once one has begun
        self._bell: Bell | None = None
        _loops[id(self)] = self

    @property
    def is_mine(self) -> bool:
        return threading.current_thread() in self.threads

    def begin(self) -> Bell:
        """Be the thread that runs the loop, until `end`; return a bell that is rung when `stopping` is set."""
        # Done first: a signal handler that interrupts this thread from here on must not wait for the loop's end.
        self.threads.add(threading.current_thread())
        self.over.clear()
        self.expected = False
        bell = self._bell = Bell()
        if self.stopping:
            # The thread that set it may have found no bell to ring.
            bell.ring()
        return bell

    def end(self) -> None:
        """Let the loop be over, even if `begin` was interrupted."""
        bell, self._bell = self._bell, None
        if bell is not None:
            bell.close()
        self.stopping = False
        self.over.set()
        # Last: until then a signal handler sees that this is the loop's own thread, and does not wait.
        self.threads.discard(threading.current_thread())

    def tell(self) -> None:
        """End the loop that runs, or the next one, without waiting for that."""
        self.stopping = True
        bell = self._bell
        if bell is not None:
            bell.ring()

    def stop(self) -> None:
        """End the loop that runs, or the next one, and wait for its end unless this is the loop's own thread."""
        self.tell()
        if not self.is_mine:
            self.over.wait()

    def outlasts_main(self) -> bool:
        """Return whether the loop keeps the process alive though the main thread has ended."""
        # `is_alive`, because in a forked child the other threads are gone.
        return any(
            not thread.daemon and thread is not threading.current_thread() and thread.is_alive()
            for thread in list(self.threads)
        )


_loops: weakref.WeakValueDictionary[int, Loop] = weakref.WeakValueDictionary()


def _known() -> list[Loop]:
    return [loop for loop in (reference() for reference in _loops.valuerefs()) if loop is not None]


def _may_begin() -> bool:
    """Return whether a thread may have yet to begin the loop of a server that listens."""
    return any(loop.expected for loop in _known()) and any(
        not (thread.daemon or isinstance(thread, WorkerThread) or thread is threading.current_thread())
        for thread in threading.enumerate()
    )


def _outlast() -> None:
    """Wait for the loops that keep the process alive, then end the others.

    For `Thread.join` the main thread has not ended before this returns. So this does not wait while a thread waits for
    the main thread, perhaps in order to end a loop then.
    """
    deadline = monotonic() + START_UP
    while True:
        loop = next((loop for loop in _known() if loop.outlasts_main()), None)
        if loop is not None and not is_joined(threading.main_thread()):
            loop.over.wait(LOOK)
        elif loop is not None:
            return
        elif _may_begin() and monotonic() < deadline:
            sleep(GLANCE)
        else:
            break
    for loop in _known():
        if loop.threads:
            loop.tell()


def _forked() -> None:
    # Of all threads only the calling one exists in the child.
    for loop in _known():
        loop.threads.intersection_update({threading.current_thread()})


lifecycle.outlast(_outlast)
lifecycle.after_fork(_forked)
