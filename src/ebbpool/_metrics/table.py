"""The table of metrics that `ebbpool.prometheus`, `ebbpool.opentelemetry` and `ebbpool.prefork` share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, Literal, TypeAlias

Kind: TypeAlias = Literal["counter", "level", "longest", "histogram"]
"""A counter only grows. Levels of several pools add up; of durations the longest counts."""

Amounts: TypeAlias = dict[tuple[str, str, str], float]
"""The metrics of one pool: a number for the name of each metric, the lane ("" for none) and the value of the metric's
label ("" for none). Of a histogram that value is the upper bound of a bucket, or "sum"."""


@dataclass(frozen=True)
class Metric:
    """One metric of a pool or of a lane.

    Attributes:
        name: As OpenTelemetry writes it.
        kind: How it changes, and how several are added up.
        unit: As OpenTelemetry writes it: "s", or what is counted in braces.
        help: What it tells, in one sentence.
        read: Returns its number for each value of the label, from `PoolStats`, or from `LaneStats` if it is of a lane.
        label: By what it is split up; "" if it is not.
        of_lane: Whether it is a metric of a lane.
    """

    name: str
    kind: Kind
    unit: str
    help: str
    read: Callable[[Any], Mapping[str, float | None]]
    label: str = ""
    of_lane: bool = False

    @property
    def prometheus_name(self) -> str:
        """The name as Prometheus writes it, without the "_total" of a counter."""
        return self.name.replace(".", "_") + ("_seconds" if self.unit == "s" else "")


def _one(field: str) -> Callable[[Any], Mapping[str, float | None]]:
    return lambda stats: {"": getattr(stats, field)}


def _none(stats: Any) -> Mapping[str, float | None]:
    return {}


WAIT: Final = Metric("ebbpool.task.wait.duration", "histogram", "s", "How long sampled tasks waited.", _none)
RUN: Final = Metric("ebbpool.task.run.duration", "histogram", "s", "How long sampled tasks ran.", _none)

METRICS: Final = (
    Metric(
        "ebbpool.threads",
        "level",
        "{thread}",
        "Threads of the pool: without a task, with one, or with one that waits for the same pool.",
        lambda stats: {"idle": stats.idle, "busy": stats.running - stats.blocked, "blocked": stats.blocked},
        label="state",
    ),
    Metric(
        "ebbpool.thread.limit",
        "level",
        "{thread}",
        "The most threads that the pool may have, without the blocked ones.",
        _one("max_workers"),
    ),
    Metric("ebbpool.thread.starts", "counter", "{thread}", "Threads started so far.", _one("started")),
    Metric("ebbpool.thread.exits", "counter", "{thread}", "Threads that have left so far.", _one("retired")),
    Metric("ebbpool.queue.length", "level", "{task}", "Tasks that wait for a thread.", _one("queued")),
    Metric(
        "ebbpool.queue.limit",
        "level",
        "{task}",
        "The most tasks that may wait for a thread; missing where there is no limit.",
        _one("max_queue"),
    ),
    Metric(
        "ebbpool.queue.oldest_wait",
        "longest",
        "s",
        "How long the oldest of the waiting tasks has waited.",
        _one("oldest_wait"),
    ),
    Metric("ebbpool.task.submissions", "counter", "{task}", "Tasks accepted so far.", _one("submitted")),
    Metric(
        "ebbpool.task.completions",
        "counter",
        "{task}",
        "Tasks that returned, that raised, or that were cancelled before they ran.",
        lambda stats: {"completed": stats.completed, "failed": stats.failed, "cancelled": stats.cancelled},
        label="outcome",
    ),
    Metric(
        "ebbpool.task.rejections",
        "counter",
        "{task}",
        "Tasks refused because the queue was full.",
        _one("rejected"),
    ),
    Metric(
        "ebbpool.task.spills",
        "counter",
        "{task}",
        "Tasks sent to the executor that the pool spills to.",
        _one("spilled"),
    ),
    Metric(
        "ebbpool.task.spill_returns",
        "counter",
        "{task}",
        "Tasks of these that came back, to run here.",
        _one("spill_returned"),
    ),
    Metric("ebbpool.task.away", "level", "{task}", "Tasks that are there now.", _one("away")),
    Metric("ebbpool.task.delayed", "level", "{task}", "Calls whose time has not come.", _one("delayed")),
    Metric(
        "ebbpool.task.longest_running",
        "longest",
        "s",
        "How long the longest of the running tasks has run.",
        _one("longest_running"),
    ),
    Metric(
        "ebbpool.loop.lag",
        "longest",
        "s",
        "How late an event loop of the process comes to a result, 99 times in 100 of the last minute.",
        lambda stats: {lag.name: lag.p99 for lag in stats.loop_lag},
        label="loop",
    ),
    Metric(
        "ebbpool.loop.lag.most",
        "longest",
        "s",
        "How late it came at most.",
        lambda stats: {lag.name: lag.most for lag in stats.loop_lag},
        label="loop",
    ),
    Metric(
        "ebbpool.lane.running",
        "level",
        "{task}",
        "Tasks of the lane that run.",
        _one("running"),
        of_lane=True,
    ),
    Metric(
        "ebbpool.lane.limit",
        "level",
        "{task}",
        "The most tasks of the lane that may run at once.",
        _one("limit"),
        of_lane=True,
    ),
    Metric(
        "ebbpool.lane.queue.length",
        "level",
        "{task}",
        "Tasks of the lane that wait, for their turn or for a thread.",
        _one("queued"),
        of_lane=True,
    ),
    Metric(
        "ebbpool.lane.queue.oldest_wait",
        "longest",
        "s",
        "How long the oldest of the lane's waiting tasks has waited.",
        _one("oldest_wait"),
        of_lane=True,
    ),
)

HISTOGRAMS: Final = (WAIT, RUN)
BY_NAME: Final = {metric.name: metric for metric in (*METRICS, *HISTOGRAMS)}
GROWING: Final = frozenset(metric.name for metric in BY_NAME.values() if metric.kind in ("counter", "histogram"))
"""The names of the metrics that only grow."""


def amounts(pool: Any, lanes: list[tuple[str, Any]]) -> Amounts:
    """Return the metrics of a pool.

    Args:
        pool: Its `PoolStats`.
        lanes: The name and the `LaneStats` of each of its lanes. Those of one name are added up.
    """
    found: Amounts = {}
    for metric in METRICS:
        for lane, stats in lanes if metric.of_lane else [("", pool)]:
            for value, number in metric.read(stats).items():
                if number is not None:
                    add(found, {(metric.name, lane, value): number})
    return found


def counters(counts: Mapping[str, float]) -> Amounts:
    """Return the counters of a pool, from what the engine has counted."""
    stats = SimpleNamespace(**counts)
    return {
        (metric.name, "", value): number
        for metric in METRICS
        if metric.kind == "counter"
        for value, number in metric.read(stats).items()
        if number is not None
    }


def add(total: Amounts, more: Amounts) -> None:
    """Add `more` to `total`."""
    for key, number in more.items():
        if key not in total:
            total[key] = number
        elif BY_NAME[key[0]].kind == "longest":
            total[key] = max(total[key], number)
        else:
            total[key] += number


def label_of(name: str) -> str:
    """Return a name as the value of a label, with lone surrogates, which cannot be encoded, escaped."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")
