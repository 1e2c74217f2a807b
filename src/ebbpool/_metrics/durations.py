"""How long sampled tasks waited and ran: who measures them, and the samples and histograms that come of it."""

from __future__ import annotations

import itertools
import math
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

from ebbpool._metrics.table import HISTOGRAMS, Amounts
from ebbpool._pool import lifecycle

Record: TypeAlias = Callable[[float, float], object]

BUCKETS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
"""Upper bounds in seconds: from a tenth of a millisecond to a minute."""
AT_ONCE: Final = 1024
"""How many samples a worker may leave before one of them sorts them in."""
MOST: Final = 4096
"""How many samples of a pool are kept for one collection where they cannot be sorted in by a worker."""


class _Turn:
    """A lock of which a forked child has a new one, because the thread that held the old one may be gone."""

    def __init__(self) -> None:
        self.renew()
        lifecycle.after_fork(self.renew)

    def renew(self) -> None:
        # Re-entrant: who reads the metrics of pools reads their samples, too.
        self.lock = threading.RLock()


turn: Final = _Turn()
"""Who holds its lock reads or changes what is known of pools."""
_observers: Final[WeakKeyDictionary[Any, list[tuple[int, Record]]]] = WeakKeyDictionary()


def one_in(sample: Any, name: str = "sample") -> int:
    """Return the n of a sample of 1/n, rounded to a whole number, 0 for None; errors call it `name`.

    Raises:
        TypeError: It is not a number.
        ValueError: It is not above 0 and at most 1.
    """
    if sample is None:
        return 0
    try:
        share = float(_no_text(sample))
    except (TypeError, OverflowError):
        raise TypeError(f"{name} must be a share of the tasks such as 1/64, not {sample!r}") from None
    if not 2**-31 < share <= 1:
        raise ValueError(f"{name} must be above 0 (one in 2,147,483,647) and at most 1 (every task), not {sample!r}")
    return round(1 / share)


def bounds_of(buckets: Any) -> tuple[float, ...]:
    """Return the upper bounds of buckets as floats, without infinity; the usual ones for None.

    Raises:
        TypeError: They are no numbers.
        ValueError: There is none, they do not ascend, or one is not above 0.
    """
    if buckets is None:
        return BUCKETS
    try:
        bounds = tuple(map(float, _no_text(buckets)))
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"buckets must be upper bounds in seconds, not {buckets!r}") from None
    if bounds and bounds[-1] == math.inf:
        bounds = bounds[:-1]
    if not bounds or not all(0 < bound < above for bound, above in itertools.pairwise((*bounds, math.inf))):
        raise ValueError(f"buckets must be upper bounds in seconds, above 0 and ascending, not {buckets!r}")
    return bounds


def _no_text(value: Any) -> Any:
    if isinstance(value, (bool, str, bytes)):
        raise TypeError("text, or a truth value, for a number")
    return value


def observe(crew: Any, every: int, record: Record) -> None:
    """Have `record(seconds waited, seconds run)` called after one in `every` tasks of a pool; for 0 no more."""
    with turn.lock:
        observers = [(n, other) for n, other in _observers.get(crew, []) if other != record]
        if every:
            observers.append((every, record))
        _observers[crew] = observers
        # 0 if there are none.
        common = math.gcd(*(n for n, _ in observers))
        crew.pool.observe(common, _all([(n // common, other) for n, other in observers]) if observers else None)


def _all(observers: list[tuple[int, Record]]) -> Record:
    turns = itertools.count(1)

    def record(waited: float, ran: float) -> None:
        turn = next(turns)
        for every, other in observers:
            if turn % every == 0:
                other(waited, ran)

    return record


class Samples:
    """How long sampled tasks of one pool took.

    Args:
        bounds: The upper bounds of buckets, without infinity, into which workers sort all samples; None to keep the
            samples until they are taken: all of them or, of a flood, an even share.
    """

    def __init__(self, bounds: tuple[float, ...] | None = None) -> None:
        self._kept: deque[tuple[float, float]] = deque()
        self._most = MOST if bounds is None else AT_ONCE
        self._stride = 1
        self._turns = itertools.count(1)
        self._bounds = () if bounds is None else (*bounds, math.inf)
        self._counts = [[0] * len(self._bounds) for _ in HISTOGRAMS]
        self._sums = [0.0 for _ in HISTOGRAMS]

    def record(self, waited: float, ran: float) -> None:
        """Note one sample; in the worker's thread, which never waits here."""
        if next(self._turns) % self._stride:
            return
        self._kept.append((waited, ran))
        if len(self._kept) >= self._most and (lock := turn.lock).acquire(False):
            try:
                if self._bounds:
                    self._sort()
                elif len(self._kept) >= self._most:
                    self._thin()
            finally:
                lock.release()

    def _thin(self) -> None:
        self._stride *= 2
        for _ in range(len(self._kept) // 2):
            self._kept.popleft()
            self._kept.append(self._kept.popleft())

    def _sort(self) -> None:
        for _ in range(len(self._kept)):
            for place, seconds in enumerate(self._kept.popleft()):
                self._counts[place][bisect_left(self._bounds, seconds)] += 1
                self._sums[place] += seconds

    def take(self) -> list[tuple[float, float]]:
        """Return the samples that have been kept since the last time."""
        with turn.lock:
            self._stride = 1
            return [self._kept.popleft() for _ in range(len(self._kept))]

    def amounts(self) -> Amounts:
        """Return how many are in each bucket, and how long they took in all; nothing where there are no buckets."""
        if not self._bounds:
            return {}
        found: Amounts = {}
        with turn.lock:
            self._sort()
            for metric, counts, total in zip(HISTOGRAMS, self._counts, self._sums, strict=True):
                for bound, count in zip(self._bounds, counts, strict=True):
                    found[metric.name, "", "+Inf" if bound == math.inf else repr(bound)] = count
                found[metric.name, "", "sum"] = total
        return found
