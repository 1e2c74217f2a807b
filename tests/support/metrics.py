"""A pool with something in each of its metrics, and what these have to be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ebbpool import AdaptiveExecutor
from ebbpool._metrics import durations, service, source, table  # noqa: F401  (for tests of what is inside)
from support.common import LONG, TIMEOUT, Gate, eventually, fail


@contextmanager
def busy_pool(name: str = "web") -> Iterator[AdaptiveExecutor]:
    """A pool in which all threads run, one waits for another task, and tasks wait, in a lane too."""
    with AdaptiveExecutor(2, name, max_queue=50, when_full="reject", keep_alive=LONG) as pool, Gate() as gate:
        pool.submit(int).result(TIMEOUT)
        assert pool.submit(fail).exception(TIMEOUT) is not None
        lane = pool.lane("db", limit=1)
        parent = pool.submit(lambda: pool.submit(gate).result())
        gate.await_begun()
        lane.submit(gate)
        gate.await_begun()
        lane.submit(gate)
        for _ in range(3):
            pool.submit(gate)
        pool.submit(gate).cancel()
        pool.submit_later(LONG, gate)
        eventually(lambda: pool.stats().blocked == 1)
        yield pool
        gate.open()
        parent.result(TIMEOUT)


def expected(pool: AdaptiveExecutor) -> dict[tuple[str, str, str], float]:
    """What the metrics of a pool and its lanes are, by name, lane and label; those that are times left out."""
    return told_by(pool.stats(), {lane.name: lane.stats() for lane in pool.lanes()})


def told_by(stats: Any, lanes: dict[str, Any]) -> dict[tuple[str, str, str], float]:
    """What the metrics are where `PoolStats` and `LaneStats`, or what has their attributes, are these."""
    found = {
        ("ebbpool.threads", "", "idle"): stats.idle,
        ("ebbpool.threads", "", "busy"): stats.running - stats.blocked,
        ("ebbpool.threads", "", "blocked"): stats.blocked,
        ("ebbpool.thread.limit", "", ""): stats.max_workers,
        ("ebbpool.thread.starts", "", ""): stats.started,
        ("ebbpool.thread.exits", "", ""): stats.retired,
        ("ebbpool.queue.length", "", ""): stats.queued,
        ("ebbpool.task.submissions", "", ""): stats.submitted,
        ("ebbpool.task.completions", "", "completed"): stats.completed,
        ("ebbpool.task.completions", "", "failed"): stats.failed,
        ("ebbpool.task.completions", "", "cancelled"): stats.cancelled,
        ("ebbpool.task.rejections", "", ""): stats.rejected,
        ("ebbpool.task.expirations", "", ""): stats.expired,
        ("ebbpool.task.abandoned", "", ""): stats.abandoned,
        ("ebbpool.task.spills", "", ""): stats.spilled,
        ("ebbpool.task.spill_returns", "", ""): stats.spill_returned,
        ("ebbpool.task.away", "", ""): stats.away,
        ("ebbpool.task.delayed", "", ""): stats.delayed,
    }
    if stats.max_queue is not None:
        found["ebbpool.queue.limit", "", ""] = stats.max_queue
    for name, lane in lanes.items():
        found["ebbpool.lane.running", name, ""] = lane.running
        found["ebbpool.lane.limit", name, ""] = lane.limit
        found["ebbpool.lane.queue.length", name, ""] = lane.queued
    return found


NAMES = {
    "counter": "thread.starts thread.exits task.submissions task.completions task.rejections "
    "task.expirations task.spills "
    "task.spill_returns",
    "level": "threads thread.limit queue.length queue.limit task.abandoned task.away task.delayed lane.running "
    "lane.limit lane.queue.length",
    "longest": "queue.oldest_wait task.longest_abandoned task.longest_running loop.lag loop.lag.most "
    "lane.queue.oldest_wait",
}
"""The names of all metrics but the histograms, by how they change; each follows "ebbpool."."""


TIMES = {
    "ebbpool.queue.oldest_wait",
    "ebbpool.task.longest_abandoned",
    "ebbpool.task.longest_running",
    "ebbpool.lane.queue.oldest_wait",
}
"""The metrics that are times, which differ from one reading to the next."""


def sampled(pool: AdaptiveExecutor) -> list[int]:
    """One in how many tasks each observer of a pool is told of."""
    return [every for every, _ in durations._observers.get(pool, [])]
