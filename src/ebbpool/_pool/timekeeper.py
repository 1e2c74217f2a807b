"""One thread for all pools: it looks at pools whose tasks wait, queues calls that are due, and sleeps otherwise."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf
from time import process_time
from typing import NamedTuple, Protocol

from ebbpool._clock import monotonic
from ebbpool._core.accel import KeeperCore
from ebbpool._core.latch import LockType, allocate_lock
from ebbpool._core.waits import here
from ebbpool._pool.threads import WorkerThread

LOGGER = logging.getLogger("concurrent.futures")
NAME = "ebbpool-timekeeper"
AFTER_ERROR = 0.05  # seconds until the next look after one that raised an error
FIRE = 64  # how many entries are fired between two looks at the pools
JOIN_TIMEOUT = 1.0  # seconds to wait for the end of the thread at most: it comes at once, unless the machine is stuck


class Tick(NamedTuple):
    """What one turn of the timekeeper knows, in seconds: `cpu` is what the process has used so far."""

    now: float
    cpu: float
    late: float


class Watched(Protocol):
    """What the timekeeper looks at, in its own thread; again after `AFTER_ERROR` seconds if a look raised an error."""

    def begin(self, tick: Tick) -> float | None:
        """Look for the first time, or anew: `Timekeeper.watch` was called; return what `tick` does."""

    def tick(self, tick: Tick) -> float | None:
        """Look once; return after how many seconds to look again, or None for not before `Timekeeper.watch`."""


class Timekeeper(KeeperCore):
    """The timekeeper's thread, which ends where there is nothing to do, what it watches, and what is due when."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        super().__init__(clock)
        # Whether the thread has to stay although there is nothing to do, for callers of `call_soon`, which cannot start
        # it; asked in the thread. What makes this true has to be set before `start` is called.
        self.needed: Callable[[], bool] = lambda: False
        self._watched: dict[Watched, float] = {}
        self.renew()

    def renew(self) -> None:
        """Reset to no thread and nothing to do, as a forked child has to."""
        self.forget()
        self._watched.clear()
        self._calls: deque[Callable[[], None]] = deque()
        self._starting = threading.RLock()
        self._launching = False
        # Has an entry if a start was requested since the thread last considered its end.
        self._start_requests: deque[None] = deque(maxlen=1)
        self._asking: deque[LockType] = deque()
        self._thread: threading.Thread | None = None  # the last one that was started
        self._stopping = False

    def start(self) -> None:
        """Start the thread if it does not run; raise RuntimeError if there can be none."""
        self._start_requests.append(None)
        if not self._runs:
            self._launch()

    def _launch(self) -> None:
        with self._starting:
            # A finaliser may run in the middle of a start, in the same thread; that start goes on after it.
            if self._runs or self._launching:
                return
            self._launching = True
            try:
                thread = WorkerThread(target=self._run, name=NAME)
                thread.start()
                self._thread = thread
                self._runs = True
            finally:
                self._launching = False

    def watch(self, watched: Watched) -> None:
        """Have the thread look at `watched` from now on; see `start`. While the thread runs this takes no lock."""
        self.start()
        self.consider(watched)
        # A thread that ends clears `_runs` before it looks at its queues for the last time. So either it sees what was
        # queued, or this sees that there is no thread.
        if not self._runs:
            self.start()

    def call_soon(self, call: Callable[[], None]) -> None:
        """Have `call()` called in the thread, which has to be `needed`: a finaliser may call this, and starts none."""
        self._calls.append(call)
        self._ring()

    def consider(self, *watched: Watched) -> None:
        """Have the thread look at `watched` now, and check whether it is needed; a finaliser may call this, too."""
        self._calls.extend(partial(self._begin, each) for each in watched)
        self._ring()

    def dismiss(self, timeout: float = JOIN_TIMEOUT) -> None:
        """Wait up to `timeout` seconds until the thread has ended, if nothing is left to do and it is not `needed`."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        if self._is_run_by(thread):
            if self.needed():
                return
            answer = allocate_lock()
            answer.acquire()
            self._asking.append(answer)
            self._ring()
            # A thread that ends without seeing the question has cleared `_runs` before.
            if self._is_run_by(thread):
                answer.acquire(True, timeout)
        if not self._is_run_by(thread):
            thread.join(timeout)

    def stop(self) -> None:
        """End the thread, whatever is left to do, and wait for it; it can be started again."""
        if self._thread is not None:
            self._stopping = True
            self._ring()
            self._thread.join()
            self._stopping = False

    def _run(self) -> None:
        # From here on, waiting for a pool in this thread is an error: a finaliser, which may run in any thread, would
        # hold up every pool.
        here.keeps_time = True
        me = threading.current_thread()
        with self._starting:
            # `_launch` holds this lock until it has set `_runs`.
            pass
        while self._is_run_by(me) and not self._stopping:
            asking = len(self._asking)
            try:
                wake = self.turn()
            except SystemExit:
                # Of `_safely`, in a forked child. It is not for an application's `threading.excepthook`.
                return
            goes_on = wake != inf or not self._ends(me)
            # Who asks during a turn may have queued before what only the next turn sees.
            self._answer(asking if self._is_run_by(me) else len(self._asking))
            if not goes_on:
                continue
            pause = wake - self.clock()
            if pause > 0:
                # Nothing is missed: the bell is rung after anything is queued.
                self._bell.acquire(True, min(pause, threading.TIMEOUT_MAX))
        if self._is_run_by(me):
            self._runs = False
            self._answer(len(self._asking))

    def _is_run_by(self, thread: threading.Thread) -> bool:
        return self._runs and self._thread is thread

    def _answer(self, count: int) -> None:
        # The thread that came after this one may have answered.
        with suppress(IndexError):
            for _ in range(count):
                self._asking.popleft().release()

    def _ends(self, me: threading.Thread) -> bool:
        """Let the thread end, unless it is `needed` or something has been queued meanwhile; return False if needed."""
        self._start_requests.clear()
        if self.needed():
            return False
        # Cleared before the queues are read: a caller that queues something now, or that has called `start`, is either
        # seen below, or sees that there is no thread, and starts another.
        self._runs = False
        # `arrived` is asked first, for it orders the write of `_runs` before what is read here.
        if self._alarms.arrived() or self._calls or self._start_requests:
            with self._starting:
                if not self._runs:
                    self._thread = me
                    self._runs = True
        return True

    def turn(self) -> float:
        """Do what there is to do, in slices, so that looks are not held up; return until when there is no more."""
        while self._calls:
            self._safely(self._calls.popleft())
        more = self._alarms.merge()
        asked = min(self._watched.values(), default=inf)
        now = self.clock()
        if now >= asked:
            tick = Tick(now, process_time(), now - asked)
            for watched, due in list(self._watched.items()):
                if due <= now:
                    self._look(watched, watched.tick, tick)
        for _ in range(FIRE):
            entry = self._alarms.pop_due(now)
            if entry is None:
                break
            _, _, book, thing = entry
            self._safely(partial(book.fire, thing))
        wake = min(self._alarms.next_due(), min(self._watched.values(), default=inf))
        # `call_at` adds an entry, then reads `_wake`, and rings if the entry is due earlier. Here `_wake` is written
        # first, and new entries are looked for after that. So one of the two threads sees the other's change.
        self._wake = wake
        return -inf if more or self._alarms.arrived() else wake

    def _begin(self, watched: Watched) -> None:
        self._look(watched, watched.begin, Tick(self.clock(), process_time(), 0.0))

    def _look(self, watched: Watched, call: Callable[[Tick], float | None], tick: Tick) -> None:
        again = self._safely(partial(call, tick), AFTER_ERROR)
        if again is None:
            self._watched.pop(watched, None)
        else:
            self._watched[watched] = self.clock() + again

    def _safely(self, call: Callable[[], float | None], otherwise: float | None = None) -> float | None:
        bell = self._bell
        outcome = otherwise
        try:
            outcome = call()
        except BaseException as error:
            # Even a callback's `SystemExit` must not end this thread, on which all pools rely.
            if self._bell is bell or not isinstance(error, SystemExit):
                # Nor must a log handler's error.
                with suppress(BaseException):
                    LOGGER.critical("Exception in the timekeeper of ebbpool:", exc_info=True)
        if self._bell is not bell:
            # This thread has forked, and this is the child: it ends, and a new one takes its place.
            raise SystemExit
        return outcome


timekeeper = Timekeeper()
