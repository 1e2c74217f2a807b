"""Metrics in the shape and in the text format of Prometheus; nothing of its client is needed here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from ebbpool._metrics.table import Amounts, Metric

Sample: TypeAlias = tuple[str, dict[str, str], float]
"""What is added to the name of the metric, the labels, and the number."""

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
KINDS: Final = {"counter": "counter", "level": "gauge", "longest": "gauge", "histogram": "histogram"}


def families(metrics: Iterable[Metric], found: Mapping[str, Amounts]) -> Iterator[tuple[str, str, str, list[Sample]]]:
    """Yield name, help, type and samples of each metric.

    Args:
        metrics: The metrics to show.
        found: The metrics of each pool, by its label.
    """
    by_metric: dict[str, list[tuple[str, str, str, float]]] = {}
    for pool, amounts in found.items():
        for (name, lane, value), number in amounts.items():
            by_metric.setdefault(name, []).append((pool, lane, value, number))
    for metric in metrics:
        rows = by_metric.get(metric.name, ())
        samples = _histogram(rows) if metric.kind == "histogram" else [_sample(metric, *row) for row in rows]
        yield metric.prometheus_name, metric.help, KINDS[metric.kind], samples


def _sample(metric: Metric, pool: str, lane: str, value: str, number: float) -> Sample:
    labels = {"pool": pool}
    if metric.of_lane:
        labels["lane"] = lane
    if metric.label:
        labels[metric.label] = value
    return "_total" if metric.kind == "counter" else "", labels, number


def _histogram(rows: Iterable[tuple[str, str, str, float]]) -> list[Sample]:
    pools: dict[str, dict[str, float]] = {}
    for pool, _, value, number in rows:
        pools.setdefault(pool, {})[value] = number
    samples: list[Sample] = []
    for pool, numbers in pools.items():
        total = numbers.pop("sum")
        below = 0.0
        for bound in sorted(numbers, key=float):
            below += numbers[bound]
            samples.append(("_bucket", {"pool": pool, "le": bound}, below))
        samples.append(("_count", {"pool": pool}, below))
        samples.append(("_sum", {"pool": pool}, total))
    return samples


def text(metrics: Iterable[Metric], found: Mapping[str, Amounts]) -> str:
    """Return the metrics in Prometheus' text format."""
    lines = []
    for name, told, kind, samples in families(metrics, found):
        shown = name + "_total" if kind == "counter" else name
        lines += [f"# HELP {shown} {told}", f"# TYPE {shown} {kind}"]
        for suffix, labels, number in samples:
            written = ",".join(f'{label}="{_escaped(value)}"' for label, value in sorted(labels.items()))
            braces = f"{{{written}}}" if written else ""
            lines.append(f"{name}{suffix}{braces} {float(number)!r}")
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
