"""Figures in the shape and in the text format of Prometheus; nothing of its client is needed here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from ebbpool._figures.table import Amounts, Figure

Sample: TypeAlias = tuple[str, dict[str, str], float]
"""What is added to the name of the figure, the labels, and the number."""

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
KINDS: Final = {"counter": "counter", "level": "gauge", "longest": "gauge", "histogram": "histogram"}


def families(figures: Iterable[Figure], found: Mapping[str, Amounts]) -> Iterator[tuple[str, str, str, list[Sample]]]:
    """Yield name, help, type and samples of each figure.

    Args:
        figures: The figures to show.
        found: The figures of each pool, by its label.
    """
    by_figure: dict[str, list[tuple[str, str, str, float]]] = {}
    for pool, amounts in found.items():
        for (name, lane, value), number in amounts.items():
            by_figure.setdefault(name, []).append((pool, lane, value, number))
    for figure in figures:
        rows = by_figure.get(figure.name, ())
        samples = _histogram(rows) if figure.kind == "histogram" else [_sample(figure, *row) for row in rows]
        yield figure.prometheus_name, figure.help, KINDS[figure.kind], samples


def _sample(figure: Figure, pool: str, lane: str, value: str, number: float) -> Sample:
    labels = {"pool": pool}
    if figure.of_lane:
        labels["lane"] = lane
    if figure.label:
        labels[figure.label] = value
    return "_total" if figure.kind == "counter" else "", labels, number


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


def text(figures: Iterable[Figure], found: Mapping[str, Amounts]) -> str:
    """Return the figures in Prometheus' text format."""
    lines = []
    for name, told, kind, samples in families(figures, found):
        shown = name + "_total" if kind == "counter" else name
        lines += [f"# HELP {shown} {told}", f"# TYPE {shown} {kind}"]
        for suffix, labels, number in samples:
            written = ",".join(f'{label}="{_escaped(value)}"' for label, value in sorted(labels.items()))
            braces = f"{{{written}}}" if written else ""
            lines.append(f"{name}{suffix}{braces} {float(number)!r}")
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
