"""The metrics of a whole service: what each child of `ebbpool.prefork` reports, and their sum in the parent."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Final

from ebbpool._metrics.source import BUCKETS, Source, Sums
from ebbpool._metrics.table import BY_NAME, Amounts
from ebbpool._prefork.child import log

MEMORY: Final = 300.0
"""Seconds for which the parent keeps counters of a label that no pool has."""
SHOWN: Final = 10.0
"""Seconds for which a child reports them: a report may not get through."""


def reporter(every: int) -> Callable[[], bytes]:
    """Return what writes the metrics of this process, for its parent, as a line of JSON without its end.

    For each label of a pool it has the metrics, each a list of name, lane, value of the metric's label, and number.

    Args:
        every: One in how many tasks is measured; 0 for none.
    """
    source = Source(None, every, BUCKETS if every else None, SHOWN)

    def written() -> bytes:
        found = source.read()
        return json.dumps({pool: [[*key, n] for key, n in amounts.items()] for pool, amounts in found.items()}).encode()

    return written


def hear(sums: Sums, serial: int, report: bytes | None) -> None:
    """Take in a report of a child, or None if it has ended or was never started: its counters are kept."""
    try:
        pools = {} if report is None else _parsed(report)
    except Exception as error:
        # Nothing that a child says may end its parent.
        log(logging.WARNING, {"event": "metrics_unreadable", "error": f"{type(error).__name__}: {error}"})
        return
    sums.update(serial, pools)


def _parsed(report: bytes) -> dict[str, tuple[str, Amounts]]:
    """Return what a report tells, without metrics that this version does not know."""
    found = {}
    for label, rows in json.loads(report).items():
        known = {(metric, lane, value): float(amount) for metric, lane, value, amount in rows if metric in BY_NAME}
        found[label] = label, known
    return found
