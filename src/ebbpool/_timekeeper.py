"""One thread for all pools: it looks at those whose tasks wait, and sleeps without a time-out when none do."""

from __future__ import annotations

import contextlib
import logging
import threading
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic, process_time
from typing import NamedTuple, Protocol

from ebbpool._sizing import TICK

try:
    from resource import RUSAGE_SELF, getrusage
except ImportError:

    def preemptions() -> int:
        """How often a thread of this process has been driven from its processor; unknown on this platform."""
        return 0
else:

    def preemptions() -> int:
        """How often a thread of this process has been driven from its processor so far."""
        return getrusage(RUSAGE_SELF).ru_nivcsw


LOGGER = logging.getLogger("concurrent.futures")
NAME = "ebbpool-timekeeper"
RETRY = 0.05
"""Seconds until the next look after one that went wrong."""


class Tick(NamedTuple):
    """What one turn of the timekeeper knows. Times are in seconds.

    Attributes:
        now: `time.monotonic()`.
        cpu: Processor time of the whole process so far.
        late: How much later than asked this turn came.
        preempted: How often a thread of the process has been driven from its processor so far; 0 where unknown.
    """

    now: float
    cpu: float
    late: float
    preempted: int


class Watched(Protocol):
    """What the timekeeper looks at."""

    def look(self, tick: Tick) -> float | None:
        """Looks once, in the timekeeper's thread.

        Returns:
            After how many seconds to look again; None for not before `Timekeeper.watch` is called again.
        """
        ...


class Timekeeper:
    """The thread, which starts on first need and stays, and the list of what it watches."""

    def __init__(self) -> None:
        self._watched: dict[Watched, float] = {}
        self.renew()

    def renew(self) -> None:
        """Starts afresh without a thread, as a forked child has to."""
        self._watched.clear()
        self._arrivals: deque[Watched] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._bell = allocate_lock()
        self._bell.acquire()
        self._starting = threading.RLock()
        self._thread: threading.Thread | None = None
        self._stopping = False

    def start(self) -> None:
        """Starts the thread if it does not run yet.

        Raises:
            RuntimeError: No thread can be started.
        """
        if self._thread is not None:
            return
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=NAME, daemon=True)
                thread.start()
                self._thread = thread

    def watch(self, watched: Watched) -> None:
        """Has `watched` looked at every tick from now on. Takes no lock: a finaliser may call it."""
        self._arrivals.append(watched)
        self._ring()

    def call_soon(self, call: Callable[[], None]) -> None:
        """Has `call()` made in the timekeeper's thread. Takes no lock: a finaliser may call it."""
        self._calls.append(call)
        self._ring()

    def stop(self) -> None:
        """Ends the thread and waits for it; it can be started again."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        self._stopping = True
        self._ring()
        thread.join()
        self._stopping = False
        self._thread = None

    def _ring(self) -> None:
        # Whoever finds the bell rung already may rely on the thread to look at its queues after this.
        with contextlib.suppress(RuntimeError):
            self._bell.release()

    def _run(self) -> None:
        while not self._stopping:
            while self._calls:
                self._safely(self._calls.popleft())
            while self._arrivals:
                self._watched[self._arrivals.popleft()] = monotonic() + TICK
            if not self._watched:
                # Nothing can be missed: whatever is queued rings the bell afterwards.
                self._bell.acquire()
                continue
            asked = min(self._watched.values())
            now = monotonic()
            if now < asked:
                self._bell.acquire(True, asked - now)
                now = monotonic()
            if now >= asked:
                self._turn(Tick(now, process_time(), now - asked, preemptions()))

    def _turn(self, tick: Tick) -> None:
        for watched, due in list(self._watched.items()):
            if due <= tick.now:
                again = self._safely(partial(watched.look, tick), RETRY)
                if again is None:
                    del self._watched[watched]
                else:
                    self._watched[watched] = monotonic() + again

    def _safely(self, call: Callable[[], float | None], otherwise: float | None = None) -> float | None:
        try:
            return call()
        except Exception:
            LOGGER.critical("Exception in the timekeeper of ebbpool:", exc_info=True)
            return otherwise


timekeeper = Timekeeper()
