"""How a child of `ebbpool.prefork` tells its parent the metrics of its pools."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import socket
import threading
from typing import Final

from ebbpool._metrics.durations import BUCKETS, Buckets, Samples, one_in
from ebbpool._metrics.source import Source

LOGGER: Final = logging.getLogger("ebbpool.prefork")
INTERVAL = 1.0
"""Seconds between two reports."""
LAST: Final = 1.0
"""Seconds for which a process that ends waits until its last report is sent."""


class Reporter:
    """Writes the metrics of this process to its parent, one line of JSON each second; picklable until it is started.

    A line is a list of pools: a number that no other pool of the process has had, the pool's label, and its metrics,
    each a list of name, lane, value of the metric's label, and number.

    Args:
        line: The socket that the parent reads.
        sample: The share of tasks whose times are kept; None for none.
    """

    def __init__(self, line: socket.socket, sample: float | None) -> None:
        self._line = line
        self._sample = sample

    def start(self) -> threading.Thread:
        """Begin to report, in a thread of its own, which may wait for a parent that does not read."""
        self._prepare()
        thread = threading.Thread(target=self._tell, name="ebbpool-prefork-metrics", daemon=True)
        thread.start()
        return thread

    def _prepare(self) -> None:
        every = one_in(self._sample)
        self._source = Source(None, every, functools.partial(Buckets, BUCKETS) if every else Samples)
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
                try:
                    line = self._written()
                except Exception:
                    # What a subclass of the executor does must not end all reports.
                    LOGGER.exception("the metrics of this process cannot be reported")
                else:
                    self._line.sendall(line)
                if wanted:
                    self._wanted.clear()
                    self._told.set()

    def _written(self) -> bytes:
        shown, ended = self._source.pools()
        pools = [
            [number, label, [[*key, amount] for key, amount in found.items()]]
            for number, (label, found) in (shown | ended).items()
        ]
        return json.dumps(pools).encode() + b"\n"
