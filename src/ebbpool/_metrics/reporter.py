"""How a child of `ebbpool.prefork` tells its parent the metrics of its pools."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import socket
import threading
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

from ebbpool._core.accel import Pool
from ebbpool._metrics.durations import Buckets
from ebbpool._metrics.source import Sampled
from ebbpool._metrics.table import Amounts, counters

LOGGER: Final = logging.getLogger("ebbpool.prefork")
INTERVAL = 1.0
"""Seconds between two reports."""
LAST: Final = 1.0
"""Seconds for which a process that ends waits until its last report is sent."""


@dataclass(frozen=True)
class _Seen:
    """What is kept of a pool without its executor, which may be collected."""

    label: str
    pool: Pool
    recorder: Buckets | None


class Reporter:
    """Writes the metrics of this process to its parent, one line of JSON each second; picklable until it is started.

    A line is a list of pools: a number that no other pool of the process has had, the pool's label, and its metrics,
    each a list of name, lane, value of the metric's label, and number.

    Args:
        line: The socket that the parent reads.
        sample: The share of tasks whose times are kept; None for none.
        buckets: The upper bounds for these; None for the usual ones.
    """

    def __init__(self, line: socket.socket, sample: float | None, buckets: tuple[float, ...] | None) -> None:
        self._line = line
        self._settings = sample, buckets

    def start(self) -> threading.Thread:
        """Begin to report, in a thread of its own, which may wait for a parent that does not read."""
        self._prepare()
        thread = threading.Thread(target=self._tell, name="ebbpool-prefork-metrics", daemon=True)
        thread.start()
        return thread

    def _prepare(self) -> None:
        self._source = Sampled(None, *self._settings)
        self._numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._seen: dict[int, _Seen] = {}
        self._next = itertools.count()
        self._wanted = threading.Event()
        self._told = threading.Event()
        self._line.setblocking(True)

    def report(self) -> None:
        """Report at once; return when that is done, or after a second."""
        self._wanted.set()
        self._told.wait(LAST)

    def close(self) -> None:
        """Close the socket; in the parent, when the child has it."""
        self._line.close()

    def _tell(self) -> None:
        # A parent that is gone is noticed by the thread that listens to it.
        with contextlib.suppress(OSError):
            while True:
                wanted = self._wanted.wait(INTERVAL)
                self._line.sendall(self._written_or_nothing())
                if wanted:
                    self._wanted.clear()
                    self._told.set()

    def _written_or_nothing(self) -> bytes:
        try:
            return self._written()
        except Exception:
            # What a subclass of the executor does must not end all reports.
            LOGGER.exception("the metrics of this process cannot be reported")
            return b""

    def _written(self) -> bytes:
        rows: dict[int, tuple[str, Amounts]] = {}
        for pool, label in self._source.named():
            number = self._numbers.get(pool)
            if number is None:
                number = self._numbers[pool] = next(self._next)
            self._seen[number] = _Seen(label, pool._pool, self._source.recorder_of(pool))
            rows[number] = label, self._source.read_one(pool)
        for number in self._seen.keys() - rows.keys():
            # The executor is gone, or has no thread any more: a last time for what it has counted since.
            seen = self._seen[number]
            if not seen.pool.headcount:
                del self._seen[number]
            counted = counters(seen.pool.counts())
            rows[number] = seen.label, counted if seen.recorder is None else counted | seen.recorder.amounts()
        pools = [
            [number, label, [[*key, amount] for key, amount in found.items()]]
            for number, (label, found) in rows.items()
        ]
        return json.dumps(pools).encode() + b"\n"
