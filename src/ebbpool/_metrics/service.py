"""The metrics of a whole service: those of all children of `ebbpool.prefork`, added up in the parent."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from ebbpool._metrics.durations import BUCKETS
from ebbpool._metrics.source import Pools, Source, Sums
from ebbpool._metrics.table import BY_NAME, Amounts
from ebbpool._prefork.child import log

MEMORY: Final = 300.0
"""Seconds for which counters are kept of a label that no pool has."""


class Reports:
    """Writes the metrics of this process, for its parent, as a line of JSON.

    A line is a list of pools: a number that no other pool of the process has had, the pool's label, and its metrics,
    each a list of name, lane, value of the metric's label, and number.

    Args:
        every: One in how many tasks is measured; 0 for none.
    """

    def __init__(self, every: int) -> None:
        self._source = Source(None, every, BUCKETS if every else None)

    def __call__(self) -> bytes:
        """Return a report, without the end of the line."""
        shown, ended = self._source.pools()
        pools = [
            [number, label, [[*key, amount] for key, amount in found.items()]]
            for number, (label, found) in (shown | ended).items()
        ]
        return json.dumps(pools).encode()


class Service:
    """Takes what the children report, and adds it up.

    Args:
        clock: Seconds of a clock that never goes back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        # The loop of the parent writes them, and the threads of the endpoint read them.
        self._sums = Sums(MEMORY, clock)
        self._lock = threading.Lock()

    def hear(self, serial: int, report: bytes | None) -> None:
        """Take in a report of a child, or None if it has ended or was never started: its counters are kept."""
        try:
            pools = {} if report is None else _parsed(report)
        except Exception as error:
            # Nothing that a child says may end its parent.
            log(logging.WARNING, {"event": "metrics_unreadable", "error": f"{type(error).__name__}: {error}"})
            return
        with self._lock:
            self._sums.update(serial, pools, over=report is None)

    def read(self) -> dict[str, Amounts]:
        """Return the metrics of the pools of all children, those of one label added up; in any thread."""
        with self._lock:
            return self._sums.read()


def _parsed(report: bytes) -> Pools:
    """Return number, label and metrics of each pool, without metrics that this version does not know.

    Raises:
        TypeError: It has another form.
        ValueError: It has another form, or is no JSON.
    """
    found: Pools = {}
    for number, label, rows in json.loads(report):
        known = {(metric, lane, value): float(amount) for metric, lane, value, amount in rows if metric in BY_NAME}
        found[int(number)] = str(label), known
    return found
