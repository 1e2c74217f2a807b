"""Names of metrics keep the rules of ``promtool check metrics``."""

from __future__ import annotations

import re

import pytest

from ebbpool._metrics.table import HISTOGRAMS, METRICS, Metric, text

ALL = (*METRICS, *HISTOGRAMS)
RESERVED = ("_count", "_sum", "_bucket", "_info")
KINDS = {"counter", "gauge", "histogram", "summary", "untyped", "metric"}
NO_BASE_UNITS = {
    "s", "ms", "us", "ns", "sec", "min", "milliseconds", "microseconds", "nanoseconds", "minutes", "hours", "days",
    "weeks", "kb", "mb", "gb", "kilobytes", "megabytes", "gigabytes", "bits", "percent",
}  # fmt: skip


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.name)
def test_a_name_keeps_the_rules(metric: Metric) -> None:
    about, kind = text([metric], {}).splitlines()
    _, _, name, told = about.split(" ", 3)
    assert told.strip()
    assert kind.split(" ")[2] == name
    assert re.fullmatch("ebbpool(_[a-z]+)+", name), "lower case, and no colon"
    assert name.endswith("_total") == (metric.kind == "counter")
    assert not name.endswith(RESERVED), "that is what the parts of a histogram are called"
    words = set(name.split("_"))
    assert not words & (KINDS | NO_BASE_UNITS)
    assert name.removesuffix("_total").endswith("_seconds") == (metric.unit == "s")
    assert metric.label not in ("le", "quantile")


def test_no_two_have_one_name() -> None:
    assert len({metric.prometheus_name for metric in ALL}) == len(ALL)
