"""One thread for all pools: it looks at those whose tasks wait, queues what is due, and sleeps otherwise."""

from __future__ import annotations

import logging
import threading
from _thread import LockType, allocate_lock
from collections import deque
from collections.abc import Callable
from contextvars import Context
from functools import partial
from math import inf
from time import monotonic, process_time
from typing import Any, NamedTuple, Protocol

from ebbpool._core.accel import keep_time
from ebbpool._interpreter import daemon_threads
from ebbpool._pool.alarms import Alarms, Book
from ebbpool._pool.sizing import TICK

LOGGER = logging.getLogger("concurrent.futures")
NAME = "ebbpool-timekeeper"
RETRY = 0.05
"""Seconds until the next look after one that went wrong."""
FIRE = 64
"""How much is fired between two looks at the pools."""
PATIENCE = 1.0
"""Seconds for which the end of the thread is waited for. It takes no time, unless the machine is stuck."""


class _Forked(BaseException):
    """The thread itself has forked, and this is the child: another has to take its place, from the beginning."""


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

    def tick(self, tick: Tick) -> float | None:
        """Looks once, in the timekeeper's thread.

        Returns:
            After how many seconds to look again; None for not before `Timekeeper.watch` is called again.
        """
        ...


def _never() -> bool:
    return False


class Timekeeper:
    """The thread; what it watches, and what is due when.

    The thread starts on first need. It ends when nothing is queued, watched or pending, and nobody needs it, and comes
    back when something is there again.

    Args:
        clock: Seconds, from any origin; never goes back.

    Attributes:
        needed: Tells, in the thread, whether it has to stay although there is nothing to do: for those who could not
            start it, see `call_soon`. What makes this true has to be there before `start` is called.
        kind: What the thread is made as; nothing here needs to wait until a started thread runs.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.clock = clock
        self.needed: Callable[[], bool] = _never
        self.kind = threading.Thread
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
        self._launching = False
        # Who has called `start` since the thread last considered its end; one entry says as much as many.
        self._callers: deque[None] = deque(maxlen=1)
        self._asking: deque[LockType] = deque()
        self._thread: threading.Thread | None = None
        self._latest: threading.Thread | None = None
        self._stopping = False

    def start(self) -> None:
        """Starts the thread if it does not run.

        Raises:
            RuntimeError: No thread can be started.
        """
        self._callers.append(None)
        if self._thread is None:
            self._launch()

    def _launch(self) -> None:
        with self._starting:
            # A finaliser that runs in the middle of a start leaves it to that.
            if self._thread is not None or self._launching:
                return
            self._launching = True
            try:
                thread = self.kind(target=self._run, name=NAME, daemon=daemon_threads())
                # Not in that of the request that happens to be first: see `stack_size.start`.
                Context().run(thread.start)
                self._latest = self._thread = thread
            finally:
                self._launching = False

    def watch(self, watched: Watched) -> None:
        """Has `watched` looked at every tick from now on. While the thread runs this takes no lock.

        Raises:
            RuntimeError: No thread can be started.
        """
        self.start()
        self._arrivals.append(watched)
        self._ring()
        self._come_back()

    def call_soon(self, call: Callable[[], None]) -> None:
        """Has `call()` made in the timekeeper's thread. Takes no lock and starts no thread: a finaliser may call it.

        So it is only for those for whom the thread is `needed`.
        """
        self._calls.append(call)
        self._ring()

    def call_at(self, due: float, book: Book, thing: Any) -> None:
        """Has `book.fire(thing)` called in the timekeeper's thread, not before its clock says `due`.

        While the thread runs this takes no lock. The bell is rung only if the thread would sleep too long.

        Raises:
            RuntimeError: No thread can be started; the entry is there all the same.
        """
        if self._alarms.add(due, book, thing) or due < self._wake:
            self._ring()
        self._come_back()

    def void(self) -> None:
        """Says that the book of one entry does not want it any more. Takes no lock: a finaliser may call it."""
        if self._alarms.void():
            self._ring()

    def consider(self) -> None:
        """Has the thread consider whether it is needed. Takes no lock: a finaliser may call it."""
        self._ring()

    def dismiss(self, timeout: float = PATIENCE) -> None:
        """Waits up to `timeout` seconds until the thread has ended, if nothing is left to do and nobody needs it."""
        thread = self._latest
        if thread is None or thread is threading.current_thread():
            return
        if self._thread is thread:
            if self.needed():
                return
            answer = allocate_lock()
            answer.acquire()
            self._asking.append(answer)
            self._ring()
            # If the thread has ended before it could see this, it has said so before.
            if self._thread is thread:
                answer.acquire(True, timeout)
        if self._thread is not thread:
            thread.join(timeout)

    def stop(self) -> None:
        """Ends the thread, whatever is left, and waits for it; it can be started again."""
        thread = self._latest
        if thread is None or thread is threading.current_thread():
            return
        self._stopping = True
        self._ring()
        thread.join()
        self._stopping = False

    def _come_back(self) -> None:
        # Something has been queued first, and the thread says that it ends before it looks for the last time: either it
        # sees what was queued, or this sees that there is no thread.
        if self._thread is None:
            self.start()

    def _ring(self) -> None:
        # A caller that finds the bell rung already rings no more: the thread reads its queues after this line.
        try:
            self._bell.release()
        except RuntimeError:
            pass

    def _run(self) -> None:
        # A finaliser may run in any thread, and whatever else waits here holds up every pool.
        keep_time()
        me = threading.current_thread()
        with self._starting:
            # Whoever starts this thread has now written it down.
            pass
        while self._thread is me and not self._stopping:
            try:
                wake = self.turn()
            except _Forked:
                return
            goes_on = wake != inf or not self._ends(me)
            self._answer()
            if not goes_on:
                continue
            if wake == inf:
                # Nothing can be missed: whatever is queued rings the bell afterwards.
                self._bell.acquire()
                continue
            pause = wake - self.clock()
            if pause > 0:
                self._bell.acquire(True, min(pause, threading.TIMEOUT_MAX))
        if self._thread is me:
            self._thread = None
            self._answer()

    def _ends(self, me: threading.Thread) -> bool:
        """Lets the thread end if it finds nothing more to do and nobody needs it; False if it has to stay."""
        self._callers.clear()
        if self.needed():
            return False
        # First: whoever queues something now, or has called `start` and may need the thread, either is seen here, or
        # sees that there is no thread, and starts another.
        self._thread = None
        if self._calls or self._arrivals or self._callers or self._alarms.arrived():
            with self._starting:
                if self._thread is None:
                    self._thread = me
        return True

    def _answer(self) -> None:
        while self._asking:
            try:
                self._asking.popleft().release()
            except IndexError:
                # The thread that came after this one has answered.
                return

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
        more = self._alarms.merge()
        asked = min(self._watched.values(), default=inf)
        now = self.clock()
        if now >= asked:
            self._check_pools(Tick(now, process_time(), now - asked))
        self._fire(now)
        wake = min(self._alarms.next_due(), min(self._watched.values(), default=inf))
        # Whoever adds an entry reads `_wake` after that, and rings if the entry is due before it. Here it is the other
        # way round, so that one of the two sees the other.
        self._wake = wake
        return -inf if more or self._alarms.arrived() else wake

    def _check_pools(self, tick: Tick) -> None:
        for watched, due in list(self._watched.items()):
            if due <= tick.now:
                again = self._safely(partial(watched.tick, tick), RETRY)
                if again is None:
                    del self._watched[watched]
                else:
                    self._watched[watched] = self.clock() + again

    def _fire(self, now: float) -> None:
        for _ in range(FIRE):
            entry = self._alarms.pop_due(now)
            if entry is None:
                return
            _, _, book, thing = entry
            self._safely(partial(book.fire, thing))

    def _safely(self, call: Callable[[], float | None], otherwise: float | None = None) -> float | None:
        bell = self._bell
        outcome = otherwise
        try:
            outcome = call()
        except BaseException:
            # Even `SystemExit`, from a callback: all pools rely on this thread.
            LOGGER.critical("Exception in the timekeeper of ebbpool:", exc_info=True)
        if self._bell is not bell:
            raise _Forked
        return outcome


timekeeper = Timekeeper()
