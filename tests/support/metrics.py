"""A pool with something in each of its metrics, and what these have to be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ebbpool import AdaptiveExecutor
from ebbpool._metrics import source as source
from ebbpool._metrics.source import MOST as MOST
from ebbpool._metrics.source import Source as Source
from ebbpool._metrics.source import one_in as one_in
from ebbpool._metrics.table import BUCKETS as BUCKETS
from ebbpool._metrics.table import HISTOGRAMS as HISTOGRAMS
from ebbpool._metrics.table import METRICS as METRICS
from ebbpool._metrics.table import add as add
from ebbpool._metrics.table import in_prometheus as in_prometheus
from support.common import LONG, TIMEOUT, Gate, eventually, fail
from support.seams import crew_of


@contextmanager
def busy_pool(name: str = "web") -> Iterator[AdaptiveExecutor]:
    """A pool in which all threads run, one waits for another task, and tasks wait, in a lane too."""
    with AdaptiveExecutor(2, name, max_queue=50, when_full="reject", keep_alive=LONG) as pool, Gate() as gate:
        pool.submit(int).result(TIMEOUT)
        assert pool.submit(fail).exception(TIMEOUT) is not None
        lane = pool.lane("db", limit=1)
        parent = pool.submit(lambda: pool.submit(gate).result())
        gate.await_begun()
        gate.hold(lane)
        lane.submit(gate)
        for _ in range(3):
            pool.submit(gate)
        pool.submit(gate).cancel()
        pool.submit_later(LONG, gate)
        eventually(lambda: pool.stats().blocked == 1)
        yield pool
        gate.open()
        parent.result(TIMEOUT)


COUNTERS = {
    "thread.starts": "started",
    "thread.exits": "retired",
    "task.submissions": "submitted",
    "task.rejections": "rejected",
    "task.went_first": "went_first",
    "task.expirations": "expired",
}
LEVELS = {
    "thread.limit": "max_workers",
    "queue.length": "queued",
    "queue.limit": "max_queue",
    "task.abandoned": "abandoned",
    "task.delayed": "delayed",
}
LEVELS_OF_LANES = {"lane.running": "running", "lane.limit": "limit", "lane.queue.length": "queued"}
TIMES = ("queue.oldest_wait", "task.longest_abandoned", "task.longest_running", "lane.queue.oldest_wait")
"""The metrics that are times, which differ from one reading to the next."""
NAMES = {
    "counter": [*COUNTERS, "task.completions"],
    "level": ["threads", *LEVELS, *LEVELS_OF_LANES],
    "longest": [*TIMES, "loop.lag", "loop.lag.most"],
}
"""The names of all metrics but the histograms, by how they change; each follows "ebbpool."."""


def expected(pool: AdaptiveExecutor) -> dict[tuple[str, str, str], float]:
    """What the metrics of a pool and its lanes are, by name, lane and label; those that are times left out."""
    stats = pool.stats()
    threads = {"idle": stats.idle, "busy": stats.running - stats.blocked, "blocked": stats.blocked}
    outcomes = {"completed": stats.completed, "failed": stats.failed, "cancelled": stats.cancelled}
    found = {("threads", "", state): number for state, number in threads.items()}
    found |= {("task.completions", "", outcome): number for outcome, number in outcomes.items()}
    found |= {(name, "", ""): getattr(stats, figure) for name, figure in (COUNTERS | LEVELS).items()}
    for each in pool.lanes():
        found |= {(name, each.name, ""): getattr(each.stats(), figure) for name, figure in LEVELS_OF_LANES.items()}
    return {(f"ebbpool.{name}", lane, label): n for (name, lane, label), n in found.items() if n is not None}


def without_times(found: dict[tuple[str, str, str], float]) -> dict[tuple[str, str, str], float]:
    """The metrics of a `busy_pool` without those that are times, all of which have to be there."""
    times = {(f"ebbpool.{name}", "db" if "lane" in name else "", "") for name in TIMES}
    assert all(found[key] >= 0 for key in times)
    return {key: number for key, number in found.items() if key not in times}


def sampled(pool: AdaptiveExecutor) -> list[int]:
    """One in how many tasks each observer of a pool is told of."""
    return list(source._observers.get(crew_of(pool), {}).values())
