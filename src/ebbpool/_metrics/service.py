"""The metrics of a whole service: those of all children of `ebbpool.prefork`, added up in the parent."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from ebbpool._metrics.reporter import Reporter
from ebbpool._metrics.sums import Pools, Sums
from ebbpool._metrics.table import BY_NAME, Amounts
from ebbpool._prefork.child import log

MEMORY: Final = 300.0
"""Seconds for which counters are kept of a label that no pool has."""


class Service:
    """Reads what the children report, and adds it up.

    Args:
        sample: The share of tasks whose times the children keep; None for none.
        clock: Seconds of a clock that never goes back.
    """

    def __init__(self, sample: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._sample = sample
        self._reporters: dict[int, Reporter] = {}
        self._lines: dict[int, socket.socket] = {}
        self._begun: dict[int, bytes] = {}
        # The loop of the parent writes them, and the threads of the endpoint read them.
        self._sums = Sums(MEMORY, clock)
        self._lock = threading.Lock()

    def admit(self, serial: int) -> Reporter:
        """Return what a new child reports with."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._lines[serial] = ours
        self._begun[serial] = b""
        reporter = self._reporters[serial] = Reporter(theirs, self._sample)
        return reporter

    def handed_over(self, serial: int) -> None:
        """Close this process's copy of the child's end."""
        reporter = self._reporters.pop(serial, None)
        if reporter is not None:
            reporter.close()

    def sources(self) -> list[socket.socket]:
        """Return the sockets on which children report."""
        return list(self._lines.values())

    def hear(self) -> None:
        """Read what has been reported, without waiting."""
        for serial in list(self._lines):
            self._read(serial)

    def gone(self, serial: int) -> None:
        """Keep what a child had counted that has ended, or was never started."""
        self._read(serial)
        self._hang_up(serial)
        self._begun.pop(serial, None)
        with self._lock:
            self._sums.end(serial)

    def forsake(self) -> None:
        """Close all sockets: at the end, and in a process that was forked from this one."""
        for line in self._lines.values():
            line.close()
        for reporter in self._reporters.values():
            reporter.close()

    def read(self) -> dict[str, Amounts]:
        """Return the metrics of the pools of all children, those of one label added up; in any thread."""
        with self._lock:
            return self._sums.read()

    def _read(self, serial: int) -> None:
        line = self._lines.get(serial)
        if line is None:
            return
        with contextlib.suppress(BlockingIOError):
            while data := _received(line):
                self._begun[serial] += data
            # The child has closed its end, or has ended: `gone` follows.
            self._hang_up(serial)
        *whole, self._begun[serial] = self._begun[serial].split(b"\n")
        for report in whole:
            try:
                pools = _parsed(report)
            except Exception as error:
                # Nothing that a child says may end its parent.
                log(logging.WARNING, {"event": "metrics_unreadable", "error": f"{type(error).__name__}: {error}"})
                self._hang_up(serial)
                return
            with self._lock:
                self._sums.update(serial, pools)

    def _hang_up(self, serial: int) -> None:
        line = self._lines.pop(serial, None)
        if line is not None:
            line.close()


def _received(line: socket.socket) -> bytes:
    try:
        return line.recv(1 << 16)
    except ConnectionError:
        return b""


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
