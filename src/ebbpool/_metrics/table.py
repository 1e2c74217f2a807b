"""The table of metrics that `prometheus` and `opentelemetry` share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

Kind: TypeAlias = Literal["counter", "level", "longest"]
"""A counter only grows. Counters and levels of pools of one name add up; of durations the longest counts."""

Amounts: TypeAlias = dict[tuple[str, str, str], float]
"""The metrics of one pool: a number for the name of each metric, the lane ("" for none) and the value of the metric's
label ("" for none)."""


def in_prometheus(name: str, unit: str) -> str:
    return name.replace(".", "_") + ("_seconds" if unit == "s" else "")


@dataclass(frozen=True)
class Metric:
    """One metric of a pool or, if its name says so, of a lane; named as OpenTelemetry writes it."""

    name: str
    kind: Kind
    read: str | Callable[[Any], Mapping[str, float | None]]
    """The attribute of `PoolStats`, or of `LaneStats`, that holds it; or what returns it by values of the label."""
    help: str
    label: str = ""
    """By what it is split up; "" if it is not."""

    @property
    def of_lane(self) -> bool:
        return self.name.startswith("ebbpool.lane.")

    @property
    def unit(self) -> str:
        """As OpenTelemetry writes it: "s", or what is counted in braces."""
        if self.kind == "longest":
            return "s"
        return "{thread}" if self.name.startswith("ebbpool.thread") else "{task}"

    @property
    def prometheus_name(self) -> str:
        """The name as Prometheus writes it, without the "_total" of a counter."""
        return in_prometheus(self.name, self.unit)

    def labels(self, pool: str, lane: str, value: str) -> dict[str, str]:
        given = {"pool": pool, "lane": lane, self.label: value}
        return {name: given[name] for name in ("pool", "lane" * self.of_lane, self.label) if name}


def _threads(stats: Any) -> Mapping[str, float]:
    return {"idle": stats.idle, "busy": stats.running - stats.blocked, "blocked": stats.blocked}


def _outcomes(stats: Any) -> Mapping[str, float]:
    return {"completed": stats.completed, "failed": stats.failed, "cancelled": stats.cancelled}


def _lag(stats: Any) -> Mapping[str, float]:
    return {lag.name: lag.p99 for lag in stats.loop_lag}


def _most_lag(stats: Any) -> Mapping[str, float]:
    return {lag.name: lag.most for lag in stats.loop_lag}


METRICS: Final = (
    Metric("ebbpool.threads", "level", _threads, "Threads: idle, busy, or blocked by a task of their pool.", "state"),
    Metric(
        "ebbpool.thread.limit",
        "level",
        "max_workers",
        "Maximum number of threads; more only for short calls, or in place of blocked ones.",
    ),
    Metric("ebbpool.thread.starts", "counter", "started", "Threads started so far."),
    Metric("ebbpool.thread.exits", "counter", "retired", "Threads that have exited so far."),
    Metric("ebbpool.queue.length", "level", "queued", "Tasks that wait for a thread."),
    Metric("ebbpool.queue.limit", "level", "max_queue", "Maximum number of waiting tasks; missing without a limit."),
    Metric("ebbpool.queue.oldest_wait", "longest", "oldest_wait", "How long the oldest waiting task has waited."),
    Metric("ebbpool.task.submissions", "counter", "submitted", "Tasks accepted so far."),
    Metric("ebbpool.task.completions", "counter", _outcomes, "Tasks that are done, by their outcome.", "outcome"),
    Metric("ebbpool.task.rejections", "counter", "rejected", "Tasks refused because the queue was full."),
    Metric("ebbpool.task.went_first", "counter", "went_first", "Calls of event loops taken for short, to go first."),
    Metric("ebbpool.task.expirations", "counter", "expired", "Tasks that failed because they had waited for too long."),
    Metric("ebbpool.task.abandoned", "level", "abandoned", "Running tasks whose await was given up."),
    Metric("ebbpool.task.longest_abandoned", "longest", "longest_abandoned", "Longest time abandoned, still running."),
    Metric("ebbpool.task.delayed", "level", "delayed", "Delayed calls that are not due yet."),
    Metric("ebbpool.task.longest_running", "longest", "longest_running", "How long the longest-running task has run."),
    Metric(
        "ebbpool.loop.lag", "longest", _lag, "How late a loop picks up results: 99th percentile of a minute.", "loop"
    ),
    Metric("ebbpool.loop.lag.most", "longest", _most_lag, "Largest lag of a loop in the last minute.", "loop"),
    Metric("ebbpool.lane.running", "level", "running", "Running tasks of the lane."),
    Metric("ebbpool.lane.limit", "level", "limit", "Maximum number of running tasks of the lane."),
    Metric("ebbpool.lane.queue.length", "level", "queued", "Tasks of the lane that wait, for their turn or a thread."),
    Metric("ebbpool.lane.queue.oldest_wait", "longest", "oldest_wait", "How long the lane's oldest task has waited."),
)

BUCKETS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
"""Upper bounds in seconds: from a tenth of a millisecond to a minute."""
HISTOGRAMS: Final = {
    "ebbpool.task.wait.duration": "How long sampled tasks waited.",
    "ebbpool.task.run.duration": "How long sampled tasks ran.",
}
"""What they say of themselves, by name. Their unit is the second; the order is that of a sample."""
BY_NAME: Final = {metric.name: metric for metric in METRICS}
GROWING: Final = frozenset(metric.name for metric in BY_NAME.values() if metric.kind == "counter")
"""The names of the metrics that only grow."""


def amounts(pool: Any, lanes: list[tuple[str, Any]], *, counters_only: bool = False) -> Amounts:
    """Return the metrics in a `PoolStats`, and in those of its lanes; lanes of one name are taken together."""
    found: Amounts = {}
    for metric in METRICS:
        if metric.kind == "counter" or not counters_only:
            for lane, stats in lanes if metric.of_lane else [("", pool)]:
                read = {"": getattr(stats, metric.read)} if isinstance(metric.read, str) else metric.read(stats)
                add(found, {(metric.name, lane, value): n for value, n in read.items() if n is not None})
    return found


def add(total: Amounts, more: Amounts) -> None:
    """Add the metrics of another pool, or lane, of the same name: each as its `Kind` says."""
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
