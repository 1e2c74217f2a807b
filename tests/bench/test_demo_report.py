"""What the demo reports: percentiles, threads, table, JSON and words. Needs the standard library alone."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.demo import measure, plan, report


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1.0), (0.5, 2.0), (0.51, 3.0), (0.75, 3.0), (0.99, 4.0), (1.0, 4.0)]
)
def test_percentile(share: float, expected: float) -> None:
    assert measure.percentile([3.0, 1.0, 4.0, 2.0], share) == expected


def test_percentile_of_a_hundred() -> None:
    assert measure.percentile(range(1, 101), 0.99) == 99


def test_percentile_of_nothing_is_not_a_number() -> None:
    assert math.isnan(measure.percentile([], 0.5))


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_percentile_refuses_a_share_that_is_none(share: float) -> None:
    with pytest.raises(ValueError, match="share"):
        measure.percentile([1.0], share)


def outcome(phase: plan.Phase, kind: plan.Kind, due: float, done: float, problem: str = "") -> measure.Outcome:
    return measure.Outcome(phase, kind, due, due, done, 0.0, problem)


OUTCOMES = [
    outcome("steady", "search", 0.0, 0.5),
    outcome("steady", "search", 0.25, 1.0),
    outcome("steady", "verify", 0.5, 2.0),
    outcome("burst", "search", 4.0, 4.5),
    outcome("burst", "verify", 4.0, 6.0, "wrong: b'x' instead of b'y'"),
]
SAMPLES = [
    measure.Sample(-0.1, 0, 1.0),
    measure.Sample(4.2, 7, 1.5),
    measure.Sample(6.1, 5, 1.75),
    measure.Sample(8.1, 2, 2.0),
    measure.Sample(8.2, 0, 9.0),
]
RUN = measure.Run("AdaptiveExecutor()", 256, OUTCOMES, SAMPLES, 0.1, 2**20)
FACTS = {
    "python": "3.13.0",
    "processors": 2,
    "files indexed": 4,
    RUN.name: {
        "loop": "asyncio",
        "parser": "h11",
        "ebbpool": "0.1.0",
        "compiled": False,
        "threads counted by": "/proc",
        "threads left": ["ebbpool-timekeeper"],
    },
}


def test_in_flight() -> None:
    assert measure.in_flight(OUTCOMES, [-1.0, 0.0, 0.3, 0.5, 1.5, 3.0, 4.0, 5.0, 6.0]) == [
        0, 1, 2, 2, 1, 0, 2, 1, 0,
    ]  # fmt: skip


def test_arrivals() -> None:
    edges, rates = measure.arrivals(OUTCOMES, 4.4, 0.5)
    assert edges == [slot * 0.5 for slot in range(10)]
    assert rates == [4.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 4.0]


def test_summary() -> None:
    summary = measure.summarise(RUN, burst_at=4.0, watch=2.0)
    assert (summary.requests, summary.problems) == (5, 1)
    assert summary.rate == 4 / (2.0 + 2.0)
    assert summary.burst == 2.0
    assert (summary.p50, summary.p99) == (0.75, 2.0)
    assert summary.kinds["search"] == (0.5, 0.75)
    assert summary.burst_search == (0.5, 0.5)
    assert (summary.peak_threads, summary.threads_after) == (7, 2)
    assert summary.watched == pytest.approx(2.1)
    assert summary.cpu == 1.0


def test_wrong_answers_are_named() -> None:
    (line,) = report.problems([RUN])
    assert "1 of 5 answers were wrong or missing" in line
    assert "b'x' instead of b'y'" in line
    right = measure.Run(RUN.name, 256, OUTCOMES[:4], SAMPLES, 0.1, None)
    assert report.problems([right]) == []


def test_the_table_has_a_cell_for_each_pool() -> None:
    summary = measure.summarise(RUN, 4.0, 2.0)
    rows = dict(report.rows([summary, summary], plan.Scale(watch=2.0)))
    assert all(len(cells) == 2 for cells in rows.values())
    assert rows["peak threads"] == ["7", "7"]
    assert rows["threads 2 s after"] == ["2", "2"]
    assert rows["right answers"][0] == "4/5"
    assert rows["digest, p50 / p99 (ms)"][0] == "- / -"
    assert rows["search, p50 / p99 (ms)"][0] == "500 / 750"


def test_the_headline_says_what_was_seen() -> None:
    said = report.headline([RUN], [measure.summarise(RUN, 4.0, 2.0)])
    assert "AdaptiveExecutor() 7 \N{RIGHTWARDS ARROW} 2" in said
    assert "2,000" in said


def test_the_notes_say_what_was_missing_and_who_is_left() -> None:
    said = "\n".join(report.notes([measure.summarise(RUN, 4.0, 2.0)], [RUN], FACTS, 9.0))
    assert "uvloop is not installed" in said
    assert "httptools is not installed" in said
    assert "ebbpool-timekeeper" in said
    assert "plain Python core" in said


def test_the_json_is_strict_and_complete(tmp_path: Path) -> None:
    summary = measure.summarise(RUN, 4.0, 2.0)
    report.save_json(tmp_path / "demo.json", [report.everything(RUN, summary)], plan.QUICK, FACTS)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    (pool,) = json.loads((tmp_path / "demo.json").read_text(), parse_constant=refuse)["contenders"]
    assert pool["summary"]["kinds"]["digest"] == [None, None]
    assert len(pool["requests"]["rows"]) == 5
    assert len(pool["samples"]["rows"]) == 5
