"""Reads this process's pools, samples their tasks, writes a child's report, and adds up those of several processes."""

from __future__ import annotations

import itertools
import json
import math
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

from ebbpool._clock import monotonic
from ebbpool._core.accel import Pool
from ebbpool._metrics.table import GROWING, HISTOGRAMS, Amounts, add, amounts, label_of
from ebbpool._pool import lifecycle
from ebbpool.executor import AdaptiveExecutor

Record: TypeAlias = Callable[[float, float], object]
Shown: TypeAlias = Mapping[Any, tuple[str, Amounts]]
"""The label and the metrics of pools, each by a key that no other pool of its process has, or ever had."""

BUCKETS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
"""Upper bounds in seconds: from a tenth of a millisecond to a minute."""
AT_ONCE: Final = 1024
"""How many samples a worker may leave before one of them sorts them in."""
MOST: Final = 4096
"""How many samples of a pool are kept for one collection where they cannot be sorted in by a worker."""
MOST_NAMES: Final = 1000
"""Of how many labels of pools that have ended the counters are kept."""
SHOWN: Final = 10.0
"""Seconds for which a child of `ebbpool.prefork` reports the counters of a pool that has ended: reports get lost."""

# Re-entrant: who reads the metrics of pools reads their samples, too.
_turn = threading.RLock()
"""Who holds it reads or changes what is known of pools."""
_observers: Final[WeakKeyDictionary[Any, dict[Record, int]]] = WeakKeyDictionary()
"""Who is told of one in how many tasks, by the crew of the pool."""


def _after_fork() -> None:
    # The thread that held it may be gone.
    global _turn
    _turn = threading.RLock()


lifecycle.after_fork(_after_fork)


def checked(pools: Any, sample: Any, buckets: Any) -> tuple[list[Any] | None, int, tuple[float, ...]]:
    """Return the pools, the n of a sample of 1/n (0 for None), and the upper bounds of the buckets without infinity."""
    chosen: list[Any] | None = None
    if pools is not None:
        chosen = list(pools) if isinstance(pools, Iterable) else [None]
        if not all(isinstance(pool, AdaptiveExecutor) for pool in chosen):
            raise TypeError(f"pools must be a list of AdaptiveExecutors, such as [pool], not {pools!r}")
    bounds = _bounds_of(buckets)
    if sample is None and buckets is not None:
        raise ValueError(f"buckets={buckets!r} needs a sample, such as sample=1/64")
    return chosen, one_in(sample), bounds


def one_in(sample: Any, name: str = "sample") -> int:
    """Return the n of a sample of 1/n, rounded to a whole number, 0 for None; errors call it `name`."""
    if sample is None:
        return 0
    try:
        share = float(_no_text(sample))
    except (TypeError, OverflowError):
        raise TypeError(f"{name} must be a share of the tasks such as 1/64, not {sample!r}") from None
    if not 2**-31 < share <= 1:
        raise ValueError(f"{name} must be above 0 (one in 2,147,483,647) and at most 1 (every task), not {sample!r}")
    return round(1 / share)


def _bounds_of(buckets: Any) -> tuple[float, ...]:
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


def _observe(crew: Any, every: int, record: Record) -> None:
    """Have `record(seconds waited, seconds run)` called after one in `every` tasks of a pool; for 0 no more."""
    with _turn:
        observers = {other: n for other, n in (_observers.get(crew, {}) | {record: every}).items() if n}
        _observers[crew] = observers
        # 0 if there are none.
        common = math.gcd(*observers.values())
        turns = itertools.count(common, common)

        def tell(waited: float, ran: float) -> None:
            turn = next(turns)
            for other, n in observers.items():
                if turn % n == 0:
                    other(waited, ran)

        crew.pool.observe(common, tell if observers else None)


class Samples:
    """How long sampled tasks of one pool took.

    Workers sort the samples into buckets, with these upper bounds. Without bounds all are kept until they are taken or,
    of a flood, an even share.
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
        if len(self._kept) >= self._most and (lock := _turn).acquire(False):
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
        with _turn:
            self._stride = 1
            return [self._kept.popleft() for _ in range(len(self._kept))]

    def amounts(self) -> Amounts:
        """Return how many are in each bucket, and how long they took in all; nothing where there are no buckets."""
        if not self._bounds:
            return {}
        found: Amounts = {}
        with _turn:
            self._sort()
            for metric, counts, total in zip(HISTOGRAMS, self._counts, self._sums, strict=True):
                for bound, count in zip(self._bounds, counts, strict=True):
                    found[metric.name, "", "+Inf" if bound == math.inf else repr(bound)] = count
                found[metric.name, "", "sum"] = total
        return found


@dataclass(frozen=True, eq=False)
class _Seen:
    """What is kept of a pool without its executor and its crew, which may be collected."""

    label: str
    pool: Pool
    samples: Samples

    def read(self, owner: AdaptiveExecutor | None) -> tuple[str, Amounts]:
        """Return the label, and the metrics; without the executor, what has been counted."""
        if owner is None:
            found = amounts(SimpleNamespace(**self.pool.counts()), [], ["counter"])
        else:
            found = amounts(owner.stats(), [(label_of(lane.name), lane.stats()) for lane in owner.lanes()])
        return self.label, found | self.samples.amounts()


class Source:
    """The metrics of these pools, or of all that there are when they are read; it keeps no executor alive.

    One in `every` task is measured, none if that is 0, and sorted into buckets or, without `bounds`, left to `take`.
    `memory` is for how many seconds counters are kept of a label that no pool has; below 0 for none.
    """

    def __init__(
        self,
        pools: Iterable[AdaptiveExecutor] | None,
        every: int = 0,
        bounds: tuple[float, ...] | None = None,
        memory: float = -1.0,
    ) -> None:
        # A dictionary for its order.
        self._chosen = None if pools is None else WeakKeyDictionary({pool._crew: None for pool in pools})
        self._every = every
        self._bounds = bounds
        self._known: WeakKeyDictionary[Any, _Seen] = WeakKeyDictionary()
        self._shown: set[_Seen] = set()
        self._sums = Sums(memory)
        self._closed = False
        self._in_view()

    def _in_view(self) -> dict[_Seen, Any]:
        """Return the pools with their executors, None for a collected one; sample the tasks of those that are new."""
        crews = lifecycle.in_view() if self._chosen is None else [(crew, crew.owner()) for crew in list(self._chosen)]
        found: dict[_Seen, Any] = {}
        for crew, owner in crews:
            if owner is None and not crew.pool.headcount:
                continue
            seen = self._known.get(crew)
            if seen is None:
                seen = self._known[crew] = _Seen(label_of(crew.name), crew.pool, Samples(self._bounds))
                if self._every and not self._closed:
                    _observe(crew, self._every, seen.samples.record)
            found[seen] = owner
        return found

    def read(self) -> dict[str, Amounts]:
        """Return the metrics of the pools, those of one label added up; in any thread."""
        with _turn:
            in_view = self._in_view()
            # If reading one fails, the next read finds the same pools to have ended.
            self._shown.update(in_view)
            found = {seen: seen.read(in_view.get(seen)) for seen in self._shown}
            self._shown = set(in_view)
            # A pool that has ended is shown once more, for its last counts, and then left out: that ends it in `_sums`.
            self._sums.update(0, found)
            self._sums.update(0, {seen: found[seen] for seen in in_view})
            return self._sums.read()

    def take(self) -> list[tuple[str, tuple[float, float]]]:
        """Return the samples since the last time: the label of their pool, and how long a task has waited and run."""
        with _turn:
            return [(seen.label, sample) for seen in list(self._known.values()) for sample in seen.samples.take()]

    def close(self) -> None:
        with _turn:
            self._closed = True
            for crew, seen in list(self._known.items()):
                _observe(crew, 0, seen.samples.record)


def reporter(every: int) -> Callable[[], bytes]:
    """Return what writes the metrics of this process for its parent, as JSON: by label, the rows of `Amounts`."""
    source = Source(None, every, BUCKETS if every else None, SHOWN)

    def written() -> bytes:
        found = source.read()
        return json.dumps({pool: [[*key, n] for key, n in amounts.items()] for pool, amounts in found.items()}).encode()

    return written


class Sums:
    """What processes have shown last of their pools, and what pools that have ended had counted.

    Counters of a label go on where another pool has it, or gets it within `memory` seconds.
    """

    def __init__(self, memory: float, clock: Callable[[], float] = monotonic) -> None:
        self._memory = memory
        self._clock = clock
        self._latest: dict[int, Shown] = {}
        self._ended: dict[str, tuple[float, Amounts]] = {}
        """When a pool of each label has ended, the last one to do so at the end, and what such pools had counted."""

    def update(self, process: int, pools: Shown) -> None:
        """Replace what a process has shown; pools that are not shown any more have ended."""
        with _turn:
            before = self._latest.pop(process, {})
            if pools:
                self._latest[process] = pools
            for key, (label, shown) in before.items():
                counted = {name: amount for name, amount in shown.items() if name[0] in GROWING}
                if key in pools:
                    # A thread that the system refuses is no longer counted, nor is its task. A counter that went back
                    # with them would pass for that of a new process.
                    now = pools[key][1]
                    now.update({name: max(amount, now.get(name, 0)) for name, amount in counted.items()})
                else:
                    _, total = self._ended.pop(label, (0.0, {}))
                    add(total, counted)
                    self._ended[label] = self._clock(), total
            if len(self._ended) > MOST_NAMES:
                self._forget()

    def read(self) -> dict[str, Amounts]:
        with _turn:
            self._forget()
            found = {label: dict(counted) for label, (_, counted) in self._ended.items()}
            for pools in self._latest.values():
                for label, shown in pools.values():
                    add(found.setdefault(label, {}), shown)
            return found

    def _forget(self) -> None:
        alive = {label for pools in self._latest.values() for label, _ in pools.values()}
        now = self._clock()
        # A label that is alive is stamped anew when its pool ends.
        for label, (left, _) in list(self._ended.items()):
            if label not in alive and (now - left > self._memory or len(self._ended) > MOST_NAMES):
                del self._ended[label]
