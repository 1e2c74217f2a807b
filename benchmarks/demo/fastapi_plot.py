"""The FastAPI case's plot: a burst, the rates, and what a slow upstream does to requests and threads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .drills import BRIEF, BURST, TRIVIAL, Side
from .fastapi_report import FastSummary, answered, middle
from .measure import Run, in_flight
from .plan import Scale
from .plot import moments, plain, save, threads_over_time
from .trouble import trouble

# Told apart with every kind of colour vision; where two sides do the same, the wide one shows beneath the narrow one.
STYLES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("#D55E00", {"linewidth": 2.0, "zorder": 3}),
    ("#AAAAAA", {"linewidth": 5.0, "zorder": 2}),
    ("#0072B2", {"linewidth": 1.6, "zorder": 3}),
)


def _burst(axes: Axes, sides: Sequence[Side]) -> None:
    for side, (color, style) in zip(sides, STYLES, strict=True):
        times, counts = answered(middle(side.rounds[BURST]))
        axes.step(times, counts, where="post", color=color, **style)
    axes.set_title(f"{len(sides[0].rounds[BURST][0])} at once, each sleeps 100 ms", loc="left", fontsize=10)
    axes.set_xlabel("ms since all were sent")
    axes.set_xlim(left=0)
    plain(axes, "answered")


def _rates(axes: Axes, summaries: Sequence[FastSummary]) -> None:
    names = {TRIVIAL: "trivial", BRIEF: "sleeps 5 ms"}
    width = 0.8 / len(summaries)
    for index, (summary, (color, _)) in enumerate(zip(summaries, STYLES, strict=True)):
        at = [place + (index - (len(summaries) - 1) / 2) * width for place in range(len(names))]
        bars = axes.bar(at, [summary.rates[name].rate for name in names], width * 0.92, color=color)
        axes.bar_label(bars, fmt="{:,.0f}", fontsize=9)
    axes.set_xticks(range(len(names)), names.values())
    axes.set_title("64 clients, as fast as they are answered", loc="left", fontsize=10)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    plain(axes, "requests/s")
    axes.margins(y=0.12)


def draw(
    sides: Sequence[Side], runs: Sequence[Run], summaries: Sequence[FastSummary], scale: Scale, title: str, stem: Path
) -> None:
    """Write ``stem``.png and ``stem``.svg: on the left the rounds, on the right the slow upstream over one time axis.

    Args:
        sides: What the rounds came to, in the order of `STYLES`.
        runs: What the planned load came to, in the same order.
        summaries: The table's columns, in the same order.
        scale: The planned load.
        title: What was seen.
        stem: The files' path without suffix.
    """
    end = max(run.samples[-1].at for run in runs)
    figure = Figure(figsize=(13, 7.5), dpi=110, layout="constrained")
    (burst, waiting), (rates, threads) = figure.subplots(2, 2, gridspec_kw={"width_ratios": (1.0, 1.6)})
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    _burst(burst, sides)
    _rates(rates, summaries)

    times = moments(end)
    for run, (color, style) in zip(runs, STYLES, strict=True):
        waiting.plot(
            times, in_flight(run.outcomes, times), color=color, label=f"{run.name}, at most {run.max_workers}", **style
        )
        threads_over_time(threads, run, color=color, **style)
    waiting.set_title(f"{scale.rate:g} requests/s for {scale.steady:g} s, then nothing more", loc="left", fontsize=10)
    waiting.legend(loc="upper right", frameon=False)
    plain(waiting, "requests due and\nnot yet answered")
    plain(threads, "threads of the server besides\nits event loop's own")
    for axes in (waiting, threads):
        axes.axvspan(*trouble(scale), color="#F6E3B4", zorder=0)
        axes.axvline(scale.steady, color="#BBBBBB", linewidth=0.8, linestyle=":", zorder=0)
        axes.set_xlim(0, end * 1.03)
    middle_of_trouble = sum(trouble(scale)) / 2
    threads.text(
        middle_of_trouble, 1.02, "upstream slow: 1 s a call", transform=threads.get_xaxis_transform(),
        ha="center", color="#7A5C00", fontsize=9,
    )  # fmt: skip
    threads.set_xlabel("seconds since the start of the load")
    save(figure, stem)
