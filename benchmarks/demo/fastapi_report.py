"""What the FastAPI case's report says, in figures and words; `table.py` and `fastapi_plot.py` draw it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.engine.model import percentile

from .drills import BRIEF, BURST, TRIVIAL, Side
from .hammer import Mark
from .measure import Common, Run, common, spread
from .plan import Scale
from .report import (
    about_load,
    about_servers,
    about_system,
    answered_by,
    common_rows,
    in_ms,
    pair,
    wrong,
    wrong_outcomes,
)
from .table import Rows

TOO_LATE = 1.0
"""Seconds after which a health check counts as failed: the default of Kubernetes' probes."""
BUSY = 0.9
"""From this share of a processor on, the load generator may be what limits the rates."""


@dataclass(frozen=True)
class Rate:
    """Rounds of as many requests as the answers let through; medians of the rounds."""

    rate: float
    """Right answers per second."""
    p50: float
    p99: float


@dataclass(frozen=True)
class FastSummary(Common):
    """One column of the table. Times in seconds; of `Common`, requests and problems are those of the rounds too."""

    name: str
    burst_size: int
    """How many ask at once in a burst."""
    burst_cold: float
    """The first burst, on a server that has answered nothing yet: until its last answer."""
    burst: float
    """The median of all bursts."""
    round_threads: int
    """The most threads there were in the rounds."""
    rates: dict[str, Rate]
    """By the drill's name."""
    health: tuple[float, float]
    """Median and 99th percentile of the health checks due outside the trouble."""
    health_in_trouble: tuple[float, float]
    """The same for those due in it."""
    health_late: int
    """Health checks that took longer than `TOO_LATE`."""
    health_checks: int
    busy: float
    """How busy the load generator was in the busiest round."""


def took(marks: Sequence[Mark]) -> float:
    """Return the seconds from a round's start to its last answer."""
    return max(mark.answered for mark in marks)


def answered(marks: Sequence[Mark]) -> tuple[list[float], list[int]]:
    """Return the times (ms) at which a round's answers came, and how many had come by then, from nothing on."""
    times = sorted(mark.answered * 1000 for mark in marks)
    return [0.0, *times], list(range(len(times) + 1))


def middle(rounds: Sequence[Sequence[Mark]]) -> Sequence[Mark]:
    """Return the round of median length, the longer of two."""
    return sorted(rounds, key=took)[len(rounds) // 2]


def rate_of(rounds: Sequence[Sequence[Mark]]) -> Rate:
    """Boil rounds down to right answers per second and latencies: each figure is the median of the rounds'."""
    rates, middles, tails = [], [], []
    for marks in rounds:
        latencies = [mark.answered - mark.asked for mark in marks]
        rates.append(sum(1 for mark in marks if not mark.problem) / took(marks))
        middles.append(percentile(latencies, 0.5))
        tails.append(percentile(latencies, 0.99))
    return Rate(statistics.median(rates), statistics.median(middles), statistics.median(tails))


def summarise(side: Side, run: Run, scale: Scale) -> FastSummary:
    """Boil one side's rounds and its run down to one column."""
    health = [outcome for outcome in run.outcomes if outcome.kind == "health"]
    bursts = [took(marks) for marks in side.rounds[BURST]]
    marks = [mark for rounds in side.rounds.values() for marks in rounds for mark in marks]
    shared = common(run, scale.watch)
    shared["requests"] += len(marks)
    shared["problems"] += len([mark for mark in marks if mark.problem])
    return FastSummary(
        **shared,
        name=run.name,
        burst_size=len(side.rounds[BURST][0]),
        burst_cold=bursts[0],
        burst=statistics.median(bursts),
        round_threads=side.peak_threads,
        rates={name: rate_of(side.rounds[name]) for name in (TRIVIAL, BRIEF)},
        health=spread([outcome for outcome in health if outcome.phase != "trouble"]),
        health_in_trouble=spread([outcome for outcome in health if outcome.phase == "trouble"]),
        health_late=sum(1 for outcome in health if outcome.latency > TOO_LATE),
        health_checks=len(health),
        busy=max(side.busy),
    )


def rows(summaries: Sequence[FastSummary], scale: Scale) -> Rows:
    """Return the table's rows: a question, and each side's answer to it."""
    questions: list[tuple[str, Callable[[FastSummary], str]]] = [
        (f"{summaries[0].burst_size} at once, 100 ms each", lambda s: in_ms(s.burst)),
        ("  the very first time", lambda s: in_ms(s.burst_cold)),
        ("  threads that took", lambda s: str(s.round_threads)),
        ("trivial: requests/s", lambda s: f"{s.rates[TRIVIAL].rate:,.0f}"),
        ("  p50 / p99", lambda s: pair((s.rates[TRIVIAL].p50, s.rates[TRIVIAL].p99))),
        ("5 ms of sleep: requests/s", lambda s: f"{s.rates[BRIEF].rate:,.0f}"),
        ("  p50 / p99", lambda s: pair((s.rates[BRIEF].p50, s.rates[BRIEF].p99))),
        ("slow upstream: health checks", lambda s: pair(s.health_in_trouble)),
        (f"  those over {TOO_LATE:g} s", lambda s: f"{s.health_late:,}/{s.health_checks:,}"),
        ("  all requests", lambda s: pair((s.p50, s.p99))),
    ]
    return [*answered_by(summaries, questions), *common_rows(summaries, scale)]


def problems(sides: Sequence[Side], runs: Sequence[Run]) -> list[str]:
    """Return a text for each side whose answers were not all right, with its first few problems."""
    texts = []
    for side, run in zip(sides, runs, strict=True):
        marks = [(name, mark) for name, rounds in side.rounds.items() for marks in rounds for mark in marks]
        found = [f"{name}, asked at {mark.asked:.2f} s: {mark.problem}" for name, mark in marks if mark.problem]
        texts += wrong(run.name, [*found, *wrong_outcomes(run)], len(marks) + len(run.outcomes))
    return texts


def notes(summaries: Sequence[FastSummary], runs: Sequence[Run], facts: dict[str, Any], seconds: float) -> list[str]:
    """Return what a reader of the table has to know beside it."""
    lines = [
        *about_system(runs, facts),
        f"FastAPI {facts['fastapi']}, anyio {facts['anyio']}. {seconds:.0f} s in all.",
        "Times: ms; p50 / p99 where there are two. Above 'slow upstream': rounds on all servers in turn, medians.",
        *about_load([summary.late for summary in summaries], runs, facts),
    ]
    if (busy := max(summary.busy for summary in summaries)) > BUSY:
        lines.append(f"The rounds' load generator was up to {busy:.0%} busy: it may have been what limited the rates.")
    return [*lines, *about_servers(runs, facts)]


def headline(summaries: Sequence[FastSummary]) -> str:
    """Say what was seen, whoever came out ahead: above the table, and the plot's title."""
    bursts = ", ".join(f"{s.name} {in_ms(s.burst)} ms" for s in summaries)
    failed = ", ".join(f"{s.health_late}" for s in summaries)
    threads = ", ".join(f"{s.peak_threads} \N{RIGHTWARDS ARROW} {s.threads_after}" for s in summaries)
    return (
        f"{summaries[0].burst_size} at once on a def endpoint that sleeps 100 ms: {bursts}\n"
        f"While an upstream is slow: health checks over {TOO_LATE:g} s {failed} of {summaries[0].health_checks}; "
        f"peak threads \N{RIGHTWARDS ARROW} threads {summaries[0].watched:.3g} s after the load {threads} (same order)"
    )
