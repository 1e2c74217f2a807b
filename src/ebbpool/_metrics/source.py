"""The metrics of the pools of this process, each read at one moment; and sums by name, over processes too."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

from ebbpool._core.accel import Pool
from ebbpool._metrics.durations import Samples, bounds_of, observe, one_in, turn
from ebbpool._metrics.table import GROWING, Amounts, add, amounts, counters, label_of
from ebbpool._pool import lifecycle
from ebbpool.executor import AdaptiveExecutor

Pools: TypeAlias = dict[int, tuple[str, Amounts]]
"""The label and the metrics of pools, by a number that no other pool of their process has had."""

MOST_NAMES: Final = 1000
"""Of how many labels of pools that have ended the counters are kept."""


def checked(pools: Any, sample: Any, buckets: Any) -> tuple[list[Any] | None, int, tuple[float, ...]]:
    """Return the pools, the n of a sample of 1/n (0 for None), and the bounds of the buckets.

    Raises:
        TypeError: One of the arguments is of the wrong type.
        ValueError: One is out of range, or there are buckets without a sample.
    """
    chosen: list[Any] | None = None
    if pools is not None:
        chosen = list(pools) if isinstance(pools, Iterable) else [None]
    if chosen is not None and not all(isinstance(pool, AdaptiveExecutor) for pool in chosen):
        raise TypeError(f"pools must be a list of AdaptiveExecutors, such as [pool], not {pools!r}")
    bounds = bounds_of(buckets)
    if sample is None and buckets is not None:
        raise ValueError(f"buckets={buckets!r} needs a sample, such as sample=1/64")
    return chosen, one_in(sample), bounds


@dataclass(frozen=True)
class _Seen:
    """What is kept of a pool without its executor and its crew, which may be collected."""

    number: int
    label: str
    pool: Pool
    samples: Samples

    def read(self, owner: AdaptiveExecutor | None) -> tuple[str, Amounts]:
        """Return the label, and the metrics; without the executor, what has been counted."""
        if owner is None:
            found = counters(self.pool.counts())
        else:
            found = amounts(owner.stats(), [(label_of(lane.name), lane.stats()) for lane in owner.lanes()])
        return self.label, found | self.samples.amounts()


class Source:
    """The metrics of pools; it keeps no executor alive.

    Args:
        pools: The pools; None for all that there are when they are read: those that are open, or still have threads.
        every: One in how many tasks is measured; 0 for none.
        bounds: The upper bounds of the buckets that these are sorted into; None to leave them to `take`.
        memory: For how many seconds counters are kept of a label that no pool has; below 0 for none.
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
        self._numbers = itertools.count()
        self._known: WeakKeyDictionary[Any, _Seen] = WeakKeyDictionary()
        self._shown: dict[int, _Seen] = {}
        self._sums = Sums(memory, time.monotonic)
        self._closed = False
        self._in_view()

    def _in_view(self) -> list[tuple[Any, _Seen]]:
        """Return the executors of the pools, None for one that is collected while its threads still work.

        The tasks of pools that are new are sampled from now on.
        """
        crews = lifecycle.in_view() if self._chosen is None else [(crew, crew.owner()) for crew in list(self._chosen)]
        found = []
        for crew, owner in crews:
            if owner is None and not crew.pool.headcount:
                continue
            seen = self._known.get(crew)
            if seen is None:
                seen = _Seen(next(self._numbers), label_of(crew.name), crew.pool, Samples(self._bounds))
                self._known[crew] = seen
                if self._every and not self._closed:
                    observe(crew, self._every, seen.samples.record)
            found.append((owner, seen))
        return found

    def take(self) -> list[tuple[str, tuple[float, float]]]:
        """Return the samples since the last time: the label of their pool, and how long a task has waited and run."""
        with turn.lock:
            return [(seen.label, sample) for seen in list(self._known.values()) for sample in seen.samples.take()]

    def pools(self) -> tuple[Pools, Pools]:
        """Return the metrics of each pool, and the counters of those that have ended since the last time."""
        shown: Pools = {}
        for owner, seen in self._in_view():
            shown[seen.number] = seen.read(owner)
            self._shown[seen.number] = seen
        ended = {number: seen.read(None) for number, seen in self._shown.items() if number not in shown}
        for number in ended:
            del self._shown[number]
        return shown, ended

    def read(self) -> dict[str, Amounts]:
        """Return the metrics of the pools, those of one label added up; in any thread."""
        with turn.lock:
            shown, ended = self.pools()
            # A pool that has ended is shown once more, for its last counts, and then left out: that ends it in `_sums`.
            for pools in (shown | ended, shown):
                self._sums.update(0, pools)
            return self._sums.read()

    def close(self) -> None:
        """Measure no more tasks."""
        with turn.lock:
            self._closed = True
            for crew, seen in list(self._known.items()):
                observe(crew, 0, seen.samples.record)


class Sums:
    """What processes have shown last of their pools, and what pools that have ended had counted.

    Counters of a label go on where another pool has it, or gets it in time. No lock is in here: the caller has one.

    Args:
        memory: For how many seconds counters are kept of a label that no pool has.
        clock: Seconds of a clock that never goes back.
    """

    def __init__(self, memory: float, clock: Callable[[], float]) -> None:
        self._memory = memory
        self._clock = clock
        self._latest: dict[int, Pools] = {}
        self._ended: dict[str, Amounts] = {}
        self._left: dict[str, float] = {}
        """When a pool of each label has ended, the last one to do so at the end of the dict."""

    def update(self, process: int, pools: Pools, over: bool = False) -> None:
        """Replace what a process has shown, which is `over` or not; pools that are not shown any more have ended."""
        before = self._latest.pop(process, {})
        if not over:
            self._latest[process] = pools
        for number, (label, shown) in before.items():
            counted = {key: amount for key, amount in shown.items() if key[0] in GROWING}
            if number in pools:
                # A thread that the system refuses is no longer counted, nor is its task. A counter that went back with
                # them would pass for that of a new process.
                now = pools[number][1]
                now.update({key: max(amount, now.get(key, 0)) for key, amount in counted.items()})
            else:
                add(self._ended.setdefault(label, {}), counted)
                self._left.pop(label, None)
                self._left[label] = self._clock()
                if len(self._left) > MOST_NAMES:
                    self._forget()

    def read(self) -> dict[str, Amounts]:
        """Return the sums by label."""
        self._forget()
        found = {label: dict(counted) for label, counted in self._ended.items()}
        for pools in self._latest.values():
            for label, shown in pools.values():
                add(found.setdefault(label, {}), shown)
        return found

    def _forget(self) -> None:
        alive = {label for pools in self._latest.values() for label, _ in pools.values()}
        now = self._clock()
        for label in list(self._left):
            if label in alive:
                self._left[label] = now
            elif now - self._left[label] > self._memory or len(self._left) > MOST_NAMES:
                del self._left[label], self._ended[label]
