"""Where the metrics come from: the pools of this process, read at one moment each, and added up by name."""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

import ebbpool
from ebbpool._core.accel import Pool
from ebbpool._metrics.durations import Samples, Turn, bounds_of, observe, one_in
from ebbpool._metrics.table import GROWING, Amounts, add, amounts, counters, label_of
from ebbpool.executor import AdaptiveExecutor

Pools: TypeAlias = dict[int, tuple[str, Amounts]]
"""The label and the metrics of pools, by a number that no other pool of their process has had."""

MOST_NAMES: Final = 1000
"""Of how many labels of pools that have ended the counters are kept."""

_turn: Final = Turn()


def _pools_of(pools: Any) -> tuple[AdaptiveExecutor, ...] | None:
    if pools is None:
        return None
    if isinstance(pools, AdaptiveExecutor):
        raise TypeError(f"pools must be a list of AdaptiveExecutors, such as [pool], not {pools!r}")
    try:
        chosen = tuple(pools)
    except TypeError:
        raise TypeError(f"pools must be a list of AdaptiveExecutors, not {pools!r}") from None
    for pool in chosen:
        if not isinstance(pool, AdaptiveExecutor):
            raise TypeError(f"pools must be a list of AdaptiveExecutors, but one is {pool!r}")
    return chosen


def checked(
    pools: Any, sample: Any, buckets: Any
) -> tuple[tuple[AdaptiveExecutor, ...] | None, int, tuple[float, ...]]:
    """Return the pools, the n of a sample of 1/n (0 for None), and the bounds of the buckets.

    Raises:
        TypeError: One of the arguments is of the wrong type.
        ValueError: One is out of range, or there are buckets without a sample.
    """
    chosen, bounds = _pools_of(pools), bounds_of(buckets)
    if sample is None and buckets is not None:
        raise ValueError(f"buckets={buckets!r} needs a sample, such as sample=1/64")
    return chosen, one_in(sample), bounds


@dataclass(frozen=True)
class _Seen:
    """What is kept of a pool without its executor, which may be collected."""

    number: int
    label: str
    pool: Pool
    samples: Samples


class Source:
    """The metrics of pools; it keeps no executor alive.

    Args:
        pools: The pools; None for all that there are when they are read.
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
        self._chosen = None if pools is None else [weakref.ref(pool) for pool in pools]
        self._every = every
        self._bounds = bounds
        self._numbers = itertools.count()
        self._known: WeakKeyDictionary[AdaptiveExecutor, _Seen] = WeakKeyDictionary()
        self._shown: dict[int, _Seen] = {}
        self._sums = Sums(memory, time.monotonic)
        self._closed = False
        self._pools()

    def _pools(self) -> list[tuple[AdaptiveExecutor, _Seen]]:
        """Return the pools: those that are open, and those that were and still have threads.

        The tasks of those that are new are sampled from now on.
        """
        if self._chosen is None:
            pools = ebbpool.pools()
            pools += [pool for pool in self._alive() if pool not in pools and pool._pool.headcount > 0]
        else:
            pools = [pool for pool in (reference() for reference in self._chosen) if pool is not None]
        found = []
        for pool in pools:
            seen = self._known.get(pool)
            if seen is None:
                seen = _Seen(next(self._numbers), label_of(pool.name), pool._pool, Samples(self._bounds))
                self._known[pool] = seen
                if self._every and not self._closed:
                    observe(pool, self._every, seen.samples.record)
            found.append((pool, seen))
        return found

    def _alive(self) -> list[AdaptiveExecutor]:
        return [pool for pool in (reference() for reference in self._known.keyrefs()) if pool is not None]

    def take(self) -> Iterator[tuple[str, tuple[float, float]]]:
        """Yield the samples since the last time: the label of their pool, and how long a task has waited and run."""
        for pool in self._alive():
            seen = self._known[pool]
            yield from ((seen.label, sample) for sample in seen.samples.take())

    def pools(self) -> tuple[Pools, Pools]:
        """Return the metrics of each pool, and the counters of those that have ended since the last time."""
        shown: Pools = {}
        for pool, seen in self._pools():
            lanes = [(label_of(lane.name), lane.stats()) for lane in pool.lanes()]
            shown[seen.number] = seen.label, amounts(pool.stats(), lanes) | seen.samples.amounts()
            self._shown[seen.number] = seen
        ended: Pools = {}
        for number in self._shown.keys() - shown.keys():
            # The executor is gone, or has no thread any more. While it has, it goes on to count.
            seen = self._shown[number]
            over = not seen.pool.headcount
            (ended if over else shown)[number] = seen.label, counters(seen.pool.counts()) | seen.samples.amounts()
            if over:
                del self._shown[number]
        return shown, ended

    def read(self) -> dict[str, Amounts]:
        """Return the metrics of the pools, those of one label added up; in any thread."""
        with _turn.lock:
            shown, ended = self.pools()
            # What has ended is shown once, and so counted to its end.
            for pools in (shown | ended, shown):
                self._sums.update(0, pools)
            return self._sums.read()

    def close(self) -> None:
        """Measure no more tasks."""
        with _turn.lock:
            self._closed = True
            for pool in self._alive():
                observe(pool, 0, self._known[pool].samples.record)


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
