"""Reads this process's pools, and samples their tasks."""

from __future__ import annotations

import itertools
import math
import threading
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from ebbpool._core.accel import Pool, survey
from ebbpool._metrics.table import GROWING, Amounts, add, amounts, label_of
from ebbpool._pool import lifecycle
from ebbpool.executor import AdaptiveExecutor

if TYPE_CHECKING:
    from ebbpool._pool.crew import Crew

MOST: Final = 4096
"""How many samples of a pool are kept for one collection, the last ones."""

# Re-entrant: who reads the metrics of pools may observe new ones.
_turn = threading.RLock()
"""Who holds it reads or changes what is known of pools."""
_observers: Final[WeakKeyDictionary[Crew, dict[_Seen, int]]] = WeakKeyDictionary()
"""Who is told of one in how many tasks, by the crew of the pool."""


def _after_fork() -> None:
    # The thread that held it may be gone.
    global _turn
    _turn = threading.RLock()


lifecycle.after_fork(_after_fork)


def one_in(sample: Any) -> int:
    """Return the n of a sample of 1/n of the tasks; 0 for None."""
    if sample is None:
        return 0
    try:
        if isinstance(sample, (bool, str, bytes)):
            raise TypeError
        share = float(sample)
    except (TypeError, OverflowError):
        raise TypeError(f"sample must be a share of the tasks such as 1/64, not {sample!r}") from None
    if not 2**-31 < share <= 1:
        raise ValueError(f"sample must be above 0 (one in 2,147,483,647) and at most 1 (every task), not {sample!r}")
    return round(1 / share)


@dataclass(frozen=True, eq=False)
class _Seen:
    """What is kept of a pool without its executor and its crew, which may be collected."""

    label: str
    pool: Pool
    samples: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MOST))
    """How long tasks waited and ran."""

    def read(self, owner: AdaptiveExecutor | None) -> Amounts:
        """Return the metrics; without the executor, what has been counted."""
        if owner is None:
            return amounts(SimpleNamespace(**survey(self.pool).counts), [], counters_only=True)
        return amounts(owner.stats(), [(label_of(lane.name), lane.stats()) for lane in owner.lanes()])


def _observe(crew: Crew, every: int, seen: _Seen) -> None:
    """Under the lock: have one in `every` tasks of a pool measured for `seen`; for 0 no more."""
    observers = {other: n for other, n in (_observers.get(crew, {}) | {seen: every}).items() if n}
    _observers[crew] = observers
    # 0 if there are none.
    common = math.gcd(*observers.values())
    turns = itertools.count(common, common)
    # Not `seen` itself, which would be a cycle: it holds the pool, which holds `tell`.
    kept = [(other.samples, n) for other, n in observers.items()]

    def tell(waited: float, ran: float) -> None:
        turn = next(turns)
        for samples, n in kept:
            if turn % n == 0:
                samples.append((waited, ran))

    crew.pool.observe(common, tell if observers else None)


class Source:
    """The metrics of all pools that there are when they are read; it keeps no executor alive.

    One in `every` task is measured, none if that is 0, and left to `take`. With `last` a pool that has ended is shown
    once more, for its last counts. Counters of a label go on for as long as a pool has it.
    """

    def __init__(self, every: int = 0, last: bool = False) -> None:
        self._every = every
        self._known: WeakKeyDictionary[Crew, _Seen] = WeakKeyDictionary()
        self._last = last
        self._shown: dict[_Seen, Amounts] = {}
        self._ended: dict[str, Amounts] = {}
        """What pools that have ended had counted, by the label, which another pool has."""
        self._closed = False
        with _turn:
            self._in_view()

    def _in_view(self) -> dict[_Seen, AdaptiveExecutor | None]:
        """Return the pools with their executors, None for a collected one; sample the tasks of those that are new."""
        found: dict[_Seen, AdaptiveExecutor | None] = {}
        for crew, owner in lifecycle.in_view():
            if owner is None and not crew.pool.staff.headcount:
                continue
            seen = self._known.get(crew)
            if seen is None:
                seen = self._known[crew] = _Seen(label_of(crew.name), crew.pool)
                if self._every and not self._closed:
                    _observe(crew, self._every, seen)
            found[seen] = owner
        return found

    def read(self) -> dict[str, Amounts]:
        """Return the metrics of the pools, those of one label taken together; in any thread."""
        with _turn:
            return self._read()

    def _read(self) -> dict[str, Amounts]:
        in_view = self._in_view()
        # If reading one fails, the next read finds the same pools to have ended.
        self._shown = {seen: {} for seen in in_view} | self._shown
        now = {seen: seen.read(in_view.get(seen)) for seen in self._shown}
        total = {label: dict(counted) for label, counted in self._ended.items()}
        for seen, found in now.items():
            # A thread that the system refuses is no longer counted, nor is its task. A counter that went back with
            # them would pass for that of a new process.
            before = {key: number for key, number in self._shown[seen].items() if key[0] in GROWING}
            found.update({key: max(number, found.get(key, 0)) for key, number in before.items()})
            add(total.setdefault(seen.label, {}), found)
            if seen not in in_view:
                add(self._ended.setdefault(seen.label, {}), found)
        self._shown = {seen: now[seen] for seen in in_view}
        alive = {seen.label for seen in in_view}
        self._ended = {label: counted for label, counted in self._ended.items() if label in alive}
        return total if self._last else {label: total[label] for label in alive}

    def take(self) -> list[tuple[str, tuple[float, float]]]:
        """Return the samples since the last time: the label of their pool, and how long a task has waited and run."""
        with _turn:
            known = list(self._known.values())
            return [(seen.label, seen.samples.popleft()) for seen in known for _ in range(len(seen.samples))]

    def close(self) -> None:
        with _turn:
            self._closed = True
            for crew, seen in list(self._known.items()):
                _observe(crew, 0, seen)
