"""How late event loops are to what a worker has woken them for; warnings of that, and of tasks and the queue."""

from __future__ import annotations

import functools
import logging
import threading
import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ebbpool._called import called_name
from ebbpool._clock import HORIZON, monotonic
from ebbpool._core.accel import LAGS, SPELL, SPELLS, Mailbox, survey
from ebbpool._frames import stacks
from ebbpool._pool.census import LITTLE, clocks_of
from ebbpool._pool.lifecycle import tell
from ebbpool._pool.timekeeper import Tick

if TYPE_CHECKING:
    from ebbpool._pool.reports import LoopLag

LOGGER = logging.getLogger("concurrent.futures")


_mailboxes: dict[int, tuple[threading.Thread, weakref.ref[Mailbox], Callable[[], bool]]] = {}
_reported: weakref.WeakKeyDictionary[Mailbox, float] = weakref.WeakKeyDictionary()
"""The last late wake-up of each loop that was reported, so that each is logged once."""


def register(mailbox: Mailbox, runs: Callable[[], bool] = lambda: True) -> None:
    """Have a mailbox of a loop in the calling thread read by `lags`; nobody waits for a loop that no longer `runs`."""
    mailboxes, key = _mailboxes, id(mailbox)
    reference = weakref.ref(mailbox, lambda _: mailboxes.pop(key, None))
    _mailboxes[key] = threading.current_thread(), reference, runs


def _alive() -> list[tuple[threading.Thread, Mailbox, Callable[[], bool]]]:
    # In a forked child the threads of other loops have ended.
    found = ((thread, reference(), runs) for thread, reference, runs in list(_mailboxes.values()) if thread.is_alive())
    return [(thread, mailbox, runs) for thread, mailbox, runs in found if mailbox is not None]


def lags(now: float | None = None) -> tuple[LoopLag, ...]:
    """Return how late each loop was in the minute before `now`, without those that nothing was delivered to."""
    from ebbpool._pool.reports import LoopLag

    now = monotonic() if now is None else now
    counts: dict[str, list[int]] = {}
    most: dict[str, float] = {}
    for thread, mailbox, _ in _alive():
        name = thread.name
        passed = 0 if now < mailbox.turn else 1 + int((now - mailbox.turn) / SPELL)
        for before in range(SPELLS - passed):
            spell = (mailbox.spell - before) % SPELLS
            spread = mailbox.lags[spell * LAGS : (spell + 1) * LAGS]
            counts[name] = [sum(pair) for pair in zip(counts.get(name, [0] * LAGS), spread, strict=True)]
            most[name] = max(most.get(name, 0.0), mailbox.most[spell])
    return tuple(
        LoopLag(name, min(_at(0.5, total), most[name]), min(_at(0.99, total), most[name]), most[name])
        for name, total in sorted(counts.items())
        if any(total)
    )


def _at(share: float, spread: Iterable[int]) -> float:
    """Return below how many seconds `share` of the times lie, from the buckets that `Mailbox` sorts them into."""
    below = list(accumulate(spread))
    bucket = bisect_left(below, share * below[-1])
    return float((2.0 ** ((bucket + 0.5) / 4.0) - 1.0) * 1e-6)


def late_loops(now: float, limit: float) -> tuple[list[tuple[threading.Thread, float]], float]:
    """Return the threads of loops that are late, with the wait, each time once; and the longest wait for another."""
    found = []
    oldest = 0.0
    for thread, mailbox, runs in _alive():
        # In this order: when it was rung is written before it rings.
        if mailbox.rings == mailbox.come or (rung := mailbox.rung) == _reported.get(mailbox) or not runs():
            continue
        seconds = now - rung
        if seconds >= limit:
            _reported[mailbox] = rung
            found.append((thread, seconds))
        else:
            oldest = max(oldest, seconds)
    return found, oldest


class Alarm:
    """A look at one pool that comes again and again, as long as the pool has threads: `Watched` by the timekeeper."""

    def __init__(self, crew: Any, limit: float) -> None:
        # Weakly, for the crew holds this.
        self._crew = weakref.ref(crew)
        # Seconds after which something is late.
        self.limit = limit
        self._due = 0.0
        self._writer: threading.Thread | None = None

    def tick(self, tick: Tick) -> float | None:
        crew = self._crew()
        if crew is None or crew.pool.staff.headcount == 0:
            return None
        self._due = self._due or tick.now + self.limit
        if tick.now >= self._due:
            # Also after a look that raises.
            self._due = tick.now + self.limit
            if self._writer is None or not self._writer.is_alive():
                self._due = tick.now + self._look(crew)
        return self._due - tick.now

    begin = tick

    def _tell(self, call: Callable[[], None]) -> None:
        # Not here, where all pools would wait for a slow handler, or for good for one that needs a pool.
        self._writer = tell("ebbpool-warnings", call)

    def _look(self, crew: Any) -> float:
        """Have what is late told of; return in how many seconds something may be late next."""
        raise NotImplementedError


class SlowTasks(Alarm):
    """Warns of tasks that run, and of a queue whose oldest task waits, for too long."""

    # The number of the thread, and since when its task has run; None for the queue.
    _warned: frozenset[tuple[int | None, float] | None] = frozenset()

    def _look(self, crew: Any) -> float:
        now = monotonic()
        seen = survey(crew.pool)
        names = {(task.thread.ident, task.since): task.thread.name for task in seen.running}
        ages = {None: seen.counts["oldest_wait"]} | {task: now - task[1] for task in names}
        late = frozenset(each for each, age in ages.items() if age >= self.limit)
        if fresh := late - self._warned:
            slow = {name for task, name in names.items() if task in fresh}
            self._tell(functools.partial(self._warn, crew, slow, None in fresh))
        self._warned = late
        return max(0.0, self.limit - max((ages[each] for each in ages.keys() - late), default=0.0))

    def _warn(self, crew: Any, threads: set[str], queue_late: bool) -> None:
        for task in crew.running(True) if threads else ():
            if task.thread in threads and task.seconds >= self.limit:
                place = f"pool {crew.name!r}" + (f", lane {task.lane!r}," if task.lane is not None else "")
                told = task.name, place, task.seconds, task.thread, task.stack
                LOGGER.warning("%s in %s has been running for %.1f s on %s:\n%s", *told)
        if queue_late and (seen := survey(crew.pool, True)).oldest is not None:
            since, call = seen.oldest
            LOGGER.warning(
                "%d tasks are waiting in pool %r; the oldest, %s, has waited %.1f s; the pool %s%s",
                seen.counts["queued"],
                crew.name,
                called_name(*call),
                monotonic() - since,
                crew.decisions.last() or "has not grown",
                crew.pool.hung(),
            )


class LateLoops(Alarm):
    """Warns of event loops that are late, and says which thread has computed most since the last look."""

    _used: dict[int, float] | None = None

    def _look(self, crew: Any) -> float:
        late, oldest = late_loops(monotonic(), self.limit)
        # This thread's own looking is left out.
        threads = [each for each in threading.enumerate() if each is not threading.current_thread()]
        used = clocks_of(threads)
        if late:
            # The first look has nothing to compare with.
            before = self._used or used
            shares = {number: seconds - before.get(number, 0.0) for number, seconds in used.items()}
            busiest = max(threads, key=lambda each: shares.get(each.native_id or 0, 0.0), default=None)
            share = 0.0 if busiest is None else shares.get(busiest.native_id or 0, 0.0)
            texts = [self._text(crew, thread, seconds, busiest, share) for thread, seconds in late]
            self._tell(functools.partial(LOGGER.warning, "%s", "\n".join(texts)))
        self._used = used
        return max(self.limit - oldest, HORIZON)

    def _text(
        self, crew: Any, late: threading.Thread, seconds: float, busiest: threading.Thread | None, share: float
    ) -> str:
        [stack] = stacks([late.ident])
        text = f"The event loop in {late.name} has not responded for {seconds:.2f} s. It is at:\n{stack}"
        if busiest is None or busiest is late or share < LITTLE * seconds:
            return text
        [stack] = stacks([busiest.ident])
        task = next((each.name for each in crew.running(False) if each.native_id == busiest.native_id), "other code")
        return f"{text}Meanwhile {task} used the most processor time, {share:.2f} s, on {busiest.name}:\n{stack}"
