"""Calls from an event loop, and the mailbox that brings their outcomes back."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures._base import LOGGER
from contextvars import Context
from time import sleep, thread_time
from typing import TYPE_CHECKING, Any

from ebbpool._core import uncompiled as cython

if not TYPE_CHECKING and cython.compiled:
    import cython
if not cython.compiled:
    # For compiled code loop_calls_c.pxd declares these.
    from math import log2

    from ebbpool._clock import monotonic

    if TYPE_CHECKING:
        from ebbpool._core.task import LaneCore
    from ebbpool._core.future import FutureCore
    from ebbpool._core.pool import Pool
    from ebbpool._core.task import Line
    from ebbpool._core.uncompiled import CANCELLED, FINISHED, NOTIFIED, PENDING

from ebbpool._interpreter import GIL_ENABLED

# A loop delivers results for `SLICE` seconds of its processor time, `FEWEST` at least and `DELIVERED_AT_ONCE` at most,
# before its other callbacks have their turn.
SLICE = 1e-3
FEWEST = 16
DELIVERED_AT_ONCE = 256
LAGS = 96  # buckets for how late a loop comes: four for each power of two, in microseconds
LAST = LAGS - 1
SPELL = 10.0  # seconds for which such times are added up, before a new count begins
SPELLS = 6  # how many such counts are kept
STINT = 5e-3
"""Seconds of its processor time that a loop spends on results, hardly ever waiting, before others get the GIL.

Between two slices the loop looks for events, which gives the GIL up and takes it straight back. A thread that waits for
the GIL wakes too late each time, and its switch interval begins anew: it would never get the GIL. A loop that had to
wait itself has let others run.
"""
NAP = 50e-6
"""Seconds for which a thread leaves the GIL to others then: as long as a thread needs to wake up."""
BACKLOG = 2
"""Slices of results that may wait for a loop. The worker that brings more leaves the GIL to it, and so does the next
for every `DELIVERED_AT_ONCE` more: those that wait for the GIL may all have their turn before the loop."""
KEPT_WAITING = 1e-3
"""If the loop is later than this, the posting worker sleeps `NAP` so that the loop can take the GIL; the threshold
doubles each time. Otherwise the loop waits a switch interval for the GIL, several times in one turn."""


class LoopCall(FutureCore):
    """A call made from an event loop. Its outcome goes through a mailbox to a ticket, in the loop's thread.

    Compiled code enters the call's context itself: `Context.run`, which plain code puts into the call, would cost a
    bound method and another tuple.

    A ticket has `done`, `set_result`, `set_exception` and `cancel` as an `asyncio.Future` has, and `abandoned(error)`
    for an error that comes after the ticket is done.
    """

    _mailbox: Mailbox
    _ticket: Any
    _context: Context | None
    _rings: int  # those of the mailbox when the call was made

    __slots__ = ("_context", "_mailbox", "_rings", "_ticket")

    def _tell(self, audience: list[Any]) -> None:
        self._mailbox.post(self)

    def _take_context(self) -> Context | None:
        context, self._context = self._context, None
        return context

    def _forget(self) -> None:
        self._fn = self._args = self._kwargs = self._scope = self._context = None

    @cython.locals(pool=Pool, line=Line)
    def withdraw(self, at_ceiling: bool = False) -> bool:
        """Take the call off the queue, in any thread, or tell one that runs that it is cancelled; not the ticket.

        If `at_ceiling`, only where it waits for capacity, and no worker is coming. Return whether it will never run.
        """
        pool: Pool = self._pool
        actions = 0
        with pool.mutex:
            waits = self._code == PENDING
            line: Any = self._line
            if waits and at_ceiling and line is not None and line.queued:
                waits = pool._most() <= pool.staff.active()
            if waits:
                self._move(PENDING, PENDING, NOTIFIED, None, None)
                actions = pool._balance(False)
        if waits:
            self._forget()
            self._ticket = None
            pool.sweep(self)
            pool._perform(actions, None)
        elif self._code < CANCELLED:
            # In another thread: this one may be a loop's, which must not wait for what a callback does.
            self._ensure_scope().cancel(pool.call_soon)
        return self._code == NOTIFIED

    @cython.locals(pool=Pool)
    def abandon(self, heir: Any = None) -> None:
        """Note, in the loop's thread, that nobody wants the outcome; the ticket `heir`, if any, waits for the end."""
        pool: Pool = self._pool
        if heir is not None:
            with pool.mutex:
                # The last reference to the one before may not go under the mutex.
                before, self._ticket = self._ticket, heir
            del before
        if self._code < CANCELLED:
            pool.abandon(self._ensure_scope(), heir is None)

    def deliver(self) -> None:
        """Give the outcome to the ticket, in the loop's thread."""
        ticket, value, error = self._ticket, self._result, self._exception
        self._ticket = self._result = self._exception = None
        if ticket is None:
            return
        if ticket.done():
            if error is not None:
                ticket.abandoned(error)
        elif error is not None:
            ticket.set_exception(error)
        elif self._code == FINISHED:
            ticket.set_result(value)
        else:
            ticket.cancel()


if not cython.compiled:
    LoopCall._looped = True


class Relay(LoopCall):
    """What a mailbox calls in its loop's thread: how a loop's future hears of the future that it waits for."""

    __slots__ = ()

    def deliver(self) -> None:
        """Make the call, once."""
        fn: Any = self._fn
        args = self._args
        self._fn = self._args = None
        fn(*args)


class Mailbox:
    """Where workers leave finished calls for one event loop, which is woken once per batch.

    Invariant: callbacks that a call itself put on the loop run before its result is delivered. The call that wakes the
    loop has ended before the waking callback is put there, so that callback may deliver it. Calls that joined it in the
    mailbox may have put callbacks behind the waking one, so the next callback of the mailbox delivers them.

    Args:
        wake: Has the given function called with its argument in the loop's thread; any thread may call it. An error
            means that the loop has ended: the results are dropped.
        again: Does the same, and is called in the loop's own thread only.
        task: Returns the task of the loop that runs, in its thread.
    """

    def __init__(self, wake: Callable[..., object], again: Callable[..., object], task: Callable[[], object]) -> None:
        if not cython.compiled:
            self.mutex: Any = threading.RLock()
        self.wake = wake
        self.again = again
        self.task = task
        # For calls of a loop that runs in a worker of the pool that they are made by.
        self.lane: LaneCore | None = None
        self.arrived: deque[LoopCall] = deque()  # only the loop's thread takes from it, while it lives
        self.due: int = 0  # how many of these, the first ones, the next callback may deliver
        # Numbers of callbacks: of the last one, and of the last that has come, or in whose place a later one has come.
        # Where these differ there is one on the loop, unless it was lost.
        self.rings: int = 0
        self.come: int = 0
        self.rung: float = 0.0  # when a callback was first put there of those that have not come (monotonic seconds)
        self.nap_after: float = 0.0  # seconds that a worker waits for the loop to come before it naps; 0: for ever
        self.nap_at: int = BACKLOG * FEWEST  # the worker that brings this many results naps
        self.portion: int = FEWEST  # results the next callback delivers: a `SLICE`, by what the last ones took
        self.delivered: int = 0  # those the last callback delivered; 0 if it was not one of the same batch
        self.spent: float = 0.0  # the loop's own processor time when that one began
        self.stint_begun: float = 0.0  # when the present stint of delivering began (monotonic seconds)
        self.stint_spent: float = 0.0  # the loop's own processor time then
        # How often the loop took how long to come, and the most seconds, in each of the last spells; see `LAGS`. Never
        # replaced: other threads read them at any time. Not arrays, which are no safer than C's without a GIL.
        self.lags: list[int] = [0] * (LAGS * SPELLS)
        self.most: list[float] = [0.0] * SPELLS
        self.spell: int = 0  # the present spell, with the first of its buckets, its place in `most`, and its end
        self.first: int = 0
        self.longest: float = 0.0
        self.turn: float = 0.0

    def post(self, call: LoopCall) -> None:
        """Leave a finished call, and wake the loop if no callback of the mailbox is on its way."""
        with self.mutex:
            late = 0.0 < self.nap_after < monotonic() - self.rung
            if late:
                self.nap_after *= 2.0
            self.arrived.append(call)
            many = len(self.arrived) >= self.nap_at
            if many:
                self.nap_at += DELIVERED_AT_ONCE
            if self.rings == self.come:
                # Before `rings`, so that a thread that sees one sees the other.
                self.rung = monotonic()
                self.nap_after = KEPT_WAITING
            # A signal handler's error may come in the place of a callback. One that was on its way when this call was
            # made, or does not come for long, may be lost: it is not relied on.
            rings = late or self.rings in (self.come, call._rings)
            self.rings += rings
            ring = self.rings
        if rings:
            try:
                self.wake(self.open, ring)
            except BaseException:
                # Either the loop has ended, or a signal handler or another thread has raised an error in this thread.
                # Such an error must not lose the results, so the loop is woken once more.
                try:
                    self.wake(self.open, ring)
                except BaseException as error:
                    lost: deque[LoopCall] = deque()
                    with self.mutex:
                        lost.extend(self.arrived)
                        self.arrived.clear()
                        self.come = self.rings
                    if not isinstance(error, RuntimeError):
                        LOGGER.exception("%d results could not be delivered", len(lost))
                else:
                    raise
        if (late or many) and GIL_ENABLED:
            sleep(NAP)

    @cython.locals(call=LoopCall)
    def relay(self, fn: Callable[..., object], *args: Any) -> None:
        """Have `fn(*args)` called in the loop's thread, in its turn among the results."""
        call = Relay.__new__(Relay)
        call._fn = fn
        call._args = args
        call._rings = -1
        self.post(call)

    def _comes(self, ring: int) -> bool:
        """Return whether a callback of this number is the first to come of those that are on the loop."""
        with self.mutex:
            first = ring > self.come
            if first:
                self.come = self.rings
                # That of the callback that this one will put on the loop.
                self.rings += 1
                self.nap_after = 0.0
        return first

    @cython.locals(call=LoopCall)
    def open(self, ring: int) -> None:
        """Deliver the first result, and have the others delivered later; in the loop's thread."""
        if not self._comes(ring):
            return
        try:
            self.note(self.rung, monotonic())
            self.delivered = 0
            if self.arrived:
                call = self.arrived.popleft()
                call.deliver()
        finally:
            self._go_on()

    @cython.locals(call=LoopCall)
    def deliver(self, ring: int) -> None:
        """Deliver as many results as take a `SLICE` with what they lead to, in the loop's thread.

        What the last ones led to has run by now: it was put on the loop before this callback.
        """
        if not self._comes(ring):
            return
        spent = thread_time()
        if self.delivered > 0:
            fit = self.delivered * SLICE / max(spent - self.spent, 1e-6)
            self.portion = int(min(max(fit, float(FEWEST)), float(DELIVERED_AT_ONCE)))
        self.spent = spent
        if GIL_ENABLED:
            now = monotonic()
            if now - self.stint_begun >= 2.0 * STINT:
                self.stint_begun, self.stint_spent = now, spent
            elif spent - self.stint_spent >= STINT:
                self.stint_begun, self.stint_spent = now, spent
                sleep(NAP)
        count = self.delivered = min(self.due, self.portion)
        try:
            while count > 0:
                count -= 1
                call = self.arrived.popleft()
                call.deliver()
        finally:
            self._go_on()

    def note(self, rung: float, now: float) -> None:
        """Note how long the loop took to come after it was `rung`, in its own thread."""
        if now >= self.turn:
            passed = 1 + int(min((now - self.turn) / SPELL, float(SPELLS)))
            self.turn = now + SPELL if passed > SPELLS else self.turn + passed * SPELL
            for _ in range(passed):
                self.spell = (self.spell + 1) % SPELLS
                self.first = self.spell * LAGS
                self.most[self.spell] = self.longest = 0.0
                for bucket in range(LAGS):
                    self.lags[self.first + bucket] = 0
        lag = now - rung
        bucket = int(4.0 * log2(1.0 + 1e6 * lag))
        self.lags[self.first + (bucket if bucket < LAST else LAST)] += 1
        if lag > self.longest:
            self.most[self.spell] = self.longest = lag

    def _go_on(self) -> None:
        with self.mutex:
            self.due = len(self.arrived)
            self.nap_at = BACKLOG * self.portion
            if not self.due:
                self.come = self.rings
                return
            self.rung = monotonic()
            self.nap_after = KEPT_WAITING
            ring = self.rings
        try:
            self.again(self.deliver, ring)
        except BaseException:
            # An error of a signal handler: the results that wait would have to wait for another.
            self.again(self.deliver, ring)
            raise
