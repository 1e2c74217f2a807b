"""The metrics of pools, added up by name, so that no counter goes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from ebbpool._metrics.table import GROWING, Amounts, add

Pools: TypeAlias = dict[int, tuple[str, Amounts]]
"""The label and the metrics of pools, by a number that no other pool of their process has had."""

MOST_NAMES: Final = 1000
"""Of how many labels of pools that have ended the counters are kept."""


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
        for number, (label, amounts) in before.items():
            counted = {key: amount for key, amount in amounts.items() if key[0] in GROWING}
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
        found = {label: dict(amounts) for label, amounts in self._ended.items()}
        for pools in self._latest.values():
            for label, amounts in pools.values():
                add(found.setdefault(label, {}), amounts)
        return found

    def _forget(self) -> None:
        alive = {label for pools in self._latest.values() for label, _ in pools.values()}
        now = self._clock()
        for label in list(self._left):
            if label in alive:
                self._left[label] = now
            elif now - self._left[label] > self._memory or len(self._left) > MOST_NAMES:
                del self._left[label], self._ended[label]
