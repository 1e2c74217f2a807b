"""One thread for all pools: it looks at those whose tasks wait, queues what is due, and sleeps otherwise."""

from __future__ import annotations

import logging
import threading
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable
from contextvars import Context
from functools import partial
from math import inf
from time import monotonic, process_time
from typing import Any, NamedTuple, Protocol

from ebbpool._alarms import Alarms, Book
from ebbpool._sizing import TICK

LOGGER = logging.getLogger("concurrent.futures")
NAME = "ebbpool-timekeeper"
RETRY = 0.05
"""Seconds until the next look after one that went wrong."""
FIRE = 64
"""How much is fired between two looks at the pools."""


class Tick(NamedTuple):
    """What one turn of the timekeeper knows. Times are in seconds.

    Attributes:
        now: `time.monotonic()`.
        cpu: Processor time of the whole process so far.
        late: How much later than asked this turn came.
    """

    now: float
    cpu: float
    late: float


class Watched(Protocol):
    """What the timekeeper looks at."""

    def begin(self, tick: Tick) -> None:
        """Notes what the first look is to be compared with, in the timekeeper's thread."""
        ...

    def look(self, tick: Tick) -> float | None:
        """Looks once, in the timekeeper's thread.

        Returns:
            After how many seconds to look again; None for not before `Timekeeper.watch` is called again.
        """
        ...


class Timekeeper:
    """The thread, which starts on first need and stays; what it watches, and what is due when.

    Args:
        clock: Seconds, from any origin; never goes back.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.clock = clock
        self._watched: dict[Watched, float] = {}
        self.renew()

    def renew(self) -> None:
        """Starts afresh without a thread and with nothing to do, as a forked child has to."""
        self._watched.clear()
        self._arrivals: deque[Watched] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._alarms = Alarms()
        self._wake = inf
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
                # Not in that of the request that happens to be first: see `_stack.start`.
                Context().run(thread.start)
                self._thread = thread

    def watch(self, watched: Watched) -> None:
        """Has `watched` looked at every tick from now on. Takes no lock: a finaliser may call it."""
        self._arrivals.append(watched)
        self._ring()

    def call_soon(self, call: Callable[[], None]) -> None:
        """Has `call()` made in the timekeeper's thread. Takes no lock: a finaliser may call it."""
        self._calls.append(call)
        self._ring()

    def call_at(self, due: float, book: Book, thing: Any) -> None:
        """Has `book.fire(thing)` called in the timekeeper's thread, not before its clock says `due`.

        Takes no lock: a finaliser may call it. The bell is rung only if the thread would sleep too long.
        """
        if self._alarms.add(due, book, thing) or due < self._wake:
            self._ring()

    def void(self) -> None:
        """Says that the book of one entry does not want it any more. Takes no lock: a finaliser may call it."""
        if self._alarms.void():
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
        try:
            self._bell.release()
        except RuntimeError:
            pass

    def _run(self) -> None:
        while not self._stopping:
            wake = self.turn()
            if wake == inf:
                # Nothing can be missed: whatever is queued rings the bell afterwards.
                self._bell.acquire()
                continue
            pause = wake - self.clock()
            if pause > 0:
                self._bell.acquire(True, min(pause, threading.TIMEOUT_MAX))

    def turn(self) -> float:
        """Does what there is to do, in slices, so that no look waits for much else; in the timekeeper's thread.

        Returns:
            Until when there is nothing to do, by its clock, unless the bell rings.
        """
        while self._calls:
            self._safely(self._calls.popleft())
        while self._arrivals:
            watched = self._arrivals.popleft()
            now = self.clock()
            self._watched[watched] = now + TICK
            self._safely(partial(watched.begin, Tick(now, process_time(), 0.0)))
        more = self._alarms.settle()
        asked = min(self._watched.values(), default=inf)
        now = self.clock()
        if now >= asked:
            self._look(Tick(now, process_time(), now - asked))
        self._fire(now)
        wake = min(self._alarms.next_due(), min(self._watched.values(), default=inf))
        # Whoever adds an entry reads `_wake` after that, and rings if the entry is due before it. Here it is the other
        # way round, so that one of the two sees the other.
        self._wake = wake
        return -inf if more or self._alarms.arrived() else wake

    def _look(self, tick: Tick) -> None:
        for watched, due in list(self._watched.items()):
            if due <= tick.now:
                again = self._safely(partial(watched.look, tick), RETRY)
                if again is None:
                    del self._watched[watched]
                else:
                    self._watched[watched] = self.clock() + again

    def _fire(self, now: float) -> None:
        for _ in range(FIRE):
            entry = self._alarms.take(now)
            if entry is None:
                return
            _, _, book, thing = entry
            try:
                book.fire(thing)
            except Exception:
                LOGGER.critical("Exception in the timekeeper of ebbpool:", exc_info=True)

    def _safely(self, call: Callable[[], float | None], otherwise: float | None = None) -> float | None:
        try:
            return call()
        except Exception:
            LOGGER.critical("Exception in the timekeeper of ebbpool:", exc_info=True)
            return otherwise


timekeeper = Timekeeper()
