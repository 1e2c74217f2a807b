"""How late event loops are: from the moment a worker wakes one until the loop comes to what it was woken for."""

from __future__ import annotations

import functools
import threading
import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from time import monotonic
from typing import Any, NamedTuple

from ebbpool._core.accel import LAGS, SPELL, SPELLS, Mailbox


@dataclass(frozen=True)
class LoopLag:
    """How late an event loop was in the last minute: how long it took to pick up a result.

    Anything else that wakes the loop waits as long: other threads have the processor or the GIL, or a callback runs on.

    Attributes:
        name: The name of the thread that the loop runs in. Loops of one name are taken together.
        p50: The median, to about 10% (seconds).
        p99: The 99th percentile.
        most: The longest.
    """

    __module__ = "ebbpool"

    name: str
    p50: float
    p99: float
    most: float


_mailboxes: dict[int, tuple[threading.Thread, weakref.ref[Mailbox], Callable[[], bool]]] = {}
_told: weakref.WeakKeyDictionary[Mailbox, float] = weakref.WeakKeyDictionary()
"""Which loops have been told of as late, by when they were woken."""


def _always() -> bool:
    return True


def register(mailbox: Mailbox, runs: Callable[[], bool] = _always) -> None:
    """Have a mailbox of a loop that runs in the calling thread read by `lags`, for as long as it lives.

    Args:
        mailbox: The mailbox.
        runs: Tells whether its loop is running. Nobody waits for one that is not.
    """
    key = id(mailbox)
    reference = weakref.ref(mailbox, functools.partial(_forget, _mailboxes, key))
    _mailboxes[key] = threading.current_thread(), reference, runs


def _forget(mailboxes: dict[int, Any], key: int, _: object) -> None:
    mailboxes.pop(key, None)


def _alive() -> list[tuple[threading.Thread, Mailbox, Callable[[], bool]]]:
    # In a forked child the threads of other loops have ended.
    found = ((thread, reference(), runs) for thread, reference, runs in list(_mailboxes.values()) if thread.is_alive())
    return [(thread, mailbox, runs) for thread, mailbox, runs in found if mailbox is not None]


class LateLoop(NamedTuple):
    """A loop that has not come for a result yet: the name and number of its thread, and for how many seconds."""

    name: str
    ident: int | None
    seconds: float


def late(now: float, limit: float) -> tuple[list[LateLoop], float]:
    """Return the loops that a result has waited `limit` seconds for, each time once, and the longest other wait.

    Args:
        now: The time (monotonic seconds).
        limit: In seconds.
    """
    found = []
    oldest = 0.0
    for thread, mailbox, runs in _alive():
        # In this order: when it was rung is written before it rings.
        if not mailbox.ringing or (rung := mailbox.rung) == _told.get(mailbox) or not runs():
            continue
        seconds = now - rung
        if seconds >= limit:
            _told[mailbox] = rung
            found.append(LateLoop(thread.name, thread.ident, seconds))
        else:
            oldest = max(oldest, seconds)
    return found, oldest


def lags(now: float | None = None) -> tuple[LoopLag, ...]:
    """Return how late each loop was in the last minute, without those that nothing was delivered to.

    Args:
        now: The time (monotonic seconds); None for the present.
    """
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
