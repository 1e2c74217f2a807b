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
from ebbpool._metrics.table import BY_NAME, GROWING, Amounts, add
from ebbpool._prefork.child import log

MOST_NAMES: Final = 1000
"""Of how many names of pools that have ended the counters are kept."""
MEMORY: Final = 300.0
"""Seconds for which they are kept while no pool has the name."""


class Service:
    """What the children have reported last, and what those that have ended had counted.

    Counters do not go back when a pool is shut down, or when a child ends: they go on where a pool of that name is made
    in another child. They end once there has been none for `MEMORY` seconds.

    Args:
        sample: The share of tasks whose times the children keep; None for none.
        buckets: The upper bounds for these; None for the usual ones.
        clock: Seconds of a clock that never goes back.
    """

    def __init__(
        self,
        sample: float | None = None,
        buckets: tuple[float, ...] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = sample, buckets
        self._clock = clock
        self._reporters: dict[int, Reporter] = {}
        self._lines: dict[int, socket.socket] = {}
        self._begun: dict[int, bytes] = {}
        # The loop of the parent writes what follows, and the threads of the endpoint read it.
        self._lock = threading.Lock()
        self._latest: dict[int, dict[int, tuple[str, Amounts]]] = {}
        self._ended: dict[str, Amounts] = {}
        self._left: dict[str, float] = {}
        """When a pool of each label has ended, the last one to do so at the end of the dict."""

    def admit(self, serial: int) -> Reporter:
        """Return what a new child reports with."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._lines[serial] = ours
        self._begun[serial] = b""
        reporter = self._reporters[serial] = Reporter(theirs, *self._settings)
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
        line = self._lines.pop(serial, None)
        if line is not None:
            line.close()
        self._begun.pop(serial, None)
        with self._lock:
            for label, amounts in self._latest.pop(serial, {}).values():
                self._keep(label, amounts)

    def forsake(self) -> None:
        """Close all sockets: at the end, and in a process that was forked from this one."""
        for line in self._lines.values():
            line.close()
        for reporter in self._reporters.values():
            reporter.close()

    def read(self) -> dict[str, Amounts]:
        """Return the metrics of the pools of all children, those of one label added up; in any thread."""
        with self._lock:
            self._forget()
            found = {label: dict(amounts) for label, amounts in self._ended.items()}
            for pools in self._latest.values():
                for label, amounts in pools.values():
                    add(found.setdefault(label, {}), amounts)
        return found

    def _read(self, serial: int) -> None:
        line = self._lines.get(serial)
        if line is None:
            return
        with contextlib.suppress(BlockingIOError):
            while True:
                try:
                    data = line.recv(1 << 16)
                except ConnectionError:
                    data = b""
                if not data:
                    # The child has closed its end, or has ended: `gone` follows.
                    self._lines.pop(serial).close()
                    break
                self._begun[serial] += data
        *whole, self._begun[serial] = self._begun[serial].split(b"\n")
        for report in whole:
            try:
                now = _parsed(report)
            except Exception as error:
                # Nothing that a child says may end its parent.
                log(logging.WARNING, {"event": "metrics_unreadable", "error": f"{type(error).__name__}: {error}"})
                self._lines.pop(serial).close()
                return
            self._take(serial, now)

    def _take(self, serial: int, now: dict[int, tuple[str, Amounts]]) -> None:
        with self._lock:
            before = self._latest.get(serial, {})
            self._latest[serial] = now
            for number in before.keys() - now.keys():
                self._keep(*before[number])

    def _keep(self, label: str, amounts: Amounts) -> None:
        add(self._ended.setdefault(label, {}), {key: amounts[key] for key in amounts if key[0] in GROWING})
        self._left.pop(label, None)
        self._left[label] = self._clock()
        if len(self._left) > MOST_NAMES:
            self._forget()

    def _forget(self) -> None:
        alive = {label for pools in self._latest.values() for label, _ in pools.values()}
        now = self._clock()
        for label in list(self._left):
            if label in alive:
                self._left[label] = now
            elif now - self._left[label] > MEMORY or len(self._left) > MOST_NAMES:
                del self._left[label], self._ended[label]


def _parsed(report: bytes) -> dict[int, tuple[str, Amounts]]:
    """Return number, label and metrics of each pool, without metrics that this version does not know.

    Raises:
        TypeError: It has another form.
        ValueError: It has another form, or is no JSON.
    """
    found: dict[int, tuple[str, Amounts]] = {}
    for number, label, rows in json.loads(report):
        known = {(metric, lane, value): float(amount) for metric, lane, value, amount in rows if metric in BY_NAME}
        found[int(number)] = str(label), known
    return found
