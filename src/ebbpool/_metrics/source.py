"""Where the metrics come from: the pools of this process, read at one moment each."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

import ebbpool
from ebbpool._metrics import durations
from ebbpool._metrics.table import GROWING, Amounts, add, amounts, label_of
from ebbpool.executor import AdaptiveExecutor


class Recorder(Protocol):
    """What takes the samples of one pool."""

    def record(self, waited: float, ran: float) -> None:
        """Note one sample."""


R = TypeVar("R", bound=Recorder)


def pools_of(pools: Any) -> tuple[AdaptiveExecutor, ...] | None:
    """Return the pools as a tuple; None for None, which means all.

    Raises:
        TypeError: One is no `AdaptiveExecutor`.
    """
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


class Source(Generic[R]):
    """The metrics of pools; it keeps no pool alive.

    Args:
        pools: The pools; None for all that live when they are read.
        every: One in how many tasks is measured; 0 for none.
        recorder: Makes what takes the samples of one pool.
    """

    def __init__(self, pools: Iterable[AdaptiveExecutor] | None, every: int, recorder: Callable[[], R]) -> None:
        self._chosen = None if pools is None else [weakref.ref(pool) for pool in pools]
        self._every = every
        self._recorder = recorder
        self._recorders: WeakKeyDictionary[AdaptiveExecutor, R] = WeakKeyDictionary()
        self._peaks: WeakKeyDictionary[AdaptiveExecutor, Amounts] = WeakKeyDictionary()
        """The counters of each pool that has been seen."""
        self._ended: dict[str, Amounts] = {}
        """By label, what pools had counted that were shown and have ended while another has the name."""
        self._shown: dict[str, Amounts] = {}
        self._closed = False
        self.pools()

    def pools(self) -> list[AdaptiveExecutor]:
        """Return the pools: those that are open, and those that were and still have threads.

        The tasks of those that are new are sampled from now on.
        """
        if self._chosen is None:
            pools = ebbpool.pools()
            pools += [pool for pool in _alive(self._peaks) if pool not in pools and pool._pool.headcount > 0]
        else:
            pools = [pool for pool in (reference() for reference in self._chosen) if pool is not None]
        for pool in pools:
            self._peaks.setdefault(pool, {})
            if self._every and not self._closed:
                fresh = self._recorder()
                if self._recorders.setdefault(pool, fresh) is fresh:
                    durations.observe(pool, self._every, fresh.record)
        return pools

    def recorder_of(self, pool: AdaptiveExecutor) -> R | None:
        """Return what takes the samples of one pool; None if nothing does."""
        return self._recorders.get(pool)

    def recorders(self) -> list[tuple[str, R]]:
        """Return the label of each pool whose tasks are sampled, and what takes them."""
        found = ((pool, self.recorder_of(pool)) for pool in _alive(self._recorders))
        return [(label_of(pool.name), recorder) for pool, recorder in found if recorder is not None]

    def read(self) -> dict[str, Amounts]:
        """Return the metrics of each pool, by its label; the recorder's are not among them."""
        found: dict[str, Amounts] = {}
        for pool, label in self.named():
            add(found.setdefault(label, {}), self.read_one(pool))
        before, self._shown = self._shown, {label: dict(numbers) for label, numbers in found.items()}
        self._ended = {
            label: self._and_ended(label, numbers, before.get(label, {})) for label, numbers in found.items()
        }
        return found

    def _and_ended(self, label: str, numbers: Amounts, before: Amounts) -> Amounts:
        """Add to the counters of a label what those had counted that have ended since `before`; return that."""
        ended = dict(self._ended.get(label, {}))
        for key in numbers:
            if key[0] in GROWING:
                # The counter of one pool does not go back, so a sum that does lacks one.
                ended[key] = ended.get(key, 0) + max(0, before.get(key, 0) - numbers[key])
                numbers[key] += ended[key]
        return ended

    def named(self) -> list[tuple[AdaptiveExecutor, str]]:
        """Return the pools as `pools` does, each with its label."""
        return [(pool, label_of(pool.name)) for pool in self.pools()]

    def read_one(self, pool: AdaptiveExecutor) -> Amounts:
        """Return the metrics of one pool."""
        lanes = [(label_of(lane.name), lane.stats()) for lane in pool.lanes()]
        now = amounts(pool.stats(), lanes)
        # A thread that is refused by the system, or a task that is refused with it, is taken back, and a counter must
        # not go back: it would pass for that of a new process.
        peaks = self._peaks[pool]
        for key, number in now.items():
            if key[0] in GROWING:
                now[key] = peaks[key] = max(number, peaks.get(key, 0))
        return now

    def close(self) -> None:
        """Measure no more tasks."""
        self._closed = True
        for pool in _alive(self._recorders):
            recorder = self._recorders.pop(pool, None)
            if recorder is not None:
                durations.forget(pool, recorder.record)


def _alive(pools: WeakKeyDictionary[AdaptiveExecutor, Any]) -> list[AdaptiveExecutor]:
    # Not by iterating over it, because another scrape may add to it meanwhile.
    return [pool for pool in (reference() for reference in pools.keyrefs()) if pool is not None]


class Sampled(Source[durations.Buckets]):
    """A source that sorts the samples into buckets, and reads them with the other metrics.

    Args:
        pools: The pools; None for all that live when they are read.
        sample: The share of tasks that is measured; None for none.
        buckets: Upper bounds in seconds; None for the usual ones.
    """

    def __init__(self, pools: Any, sample: Any, buckets: Any) -> None:
        chosen = pools_of(pools)
        bounds = durations.bounds_of(buckets)
        if sample is None and buckets is not None:
            raise ValueError(f"buckets={buckets!r} needs a sample, such as sample=1/64")
        every = 0 if sample is None else durations.one_in(sample)
        super().__init__(chosen, every, lambda: durations.Buckets(bounds))

    def read_one(self, pool: AdaptiveExecutor) -> Amounts:
        """Return the metrics of one pool, with those of its samples."""
        found = super().read_one(pool)
        recorder = self.recorder_of(pool)
        if recorder is not None:
            found |= recorder.amounts()
        return found


class Shared:
    """One reading for all instruments of a collection, which ask one by one, in one thread.

    Args:
        read: Reads the metrics.
    """

    def __init__(self, read: Callable[[], dict[str, Amounts]]) -> None:
        self._read = read
        self._here = threading.local()

    def read_for(self, asker: str) -> dict[str, Amounts]:
        """Return the metrics; anew if `asker` has seen these already, which shows that a new collection has begun."""
        seen: set[str] = getattr(self._here, "seen", set())
        if not seen or asker in seen:
            self._here.seen = seen = set()
            self._here.found = self._read()
        seen.add(asker)
        found: dict[str, Amounts] = self._here.found
        return found
