"""The plots: what waited, and how many threads each server had."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.demo.load import Load, Run

# Okabe and Ito's colours: told apart with every kind of colour vision.
COLORS = ("#D55E00", "#777777", "#0072B2")
_STEP = 0.02


def plain(axes: Axes, label: str) -> None:
    """Label the vertical axis, from 0 up, and leave out what is no data."""
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color="#E5E5E5", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def in_flight(run: Run, times: Sequence[float]) -> list[int]:
    """Return for each time how many requests were due and not yet answered."""
    due = sorted(outcome.due for outcome in run.outcomes)
    done = sorted(outcome.done for outcome in run.outcomes)
    return [bisect_right(due, at) - bisect_right(done, at) for at in times]


def save(figure: Figure, axes: Axes, stem: Path) -> None:
    """Write ``stem``.png and ``stem``.svg; `axes` are the lowest."""
    axes.set_xlabel("seconds since the load began")
    for suffix in ("png", "svg"):
        figure.savefig(stem.with_suffix(f".{suffix}"))


def draw(runs: Sequence[Run], load: Load, title: str, stem: Path) -> None:
    """Write ``stem``.png and ``stem``.svg: requests in flight and threads over one time axis."""
    end = max(run.samples[-1].at for run in runs)
    figure = Figure(figsize=(11, 7.5), dpi=110, layout="constrained")
    waiting, threads = figure.subplots(2, 1, sharex=True)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    times = [step * _STEP for step in range(int(end / _STEP) + 1)]
    for run, color in zip(runs, COLORS, strict=True):
        waiting.plot(times, in_flight(run, times), color=color, linewidth=1.5, label=run.name)
        at, counts = zip(*((sample.at, sample.threads) for sample in run.samples), strict=True)
        threads.step(at, counts, where="post", color=color, linewidth=2)
        threads.annotate(
            str(counts[-1]), (at[-1], counts[-1]), xytext=(5, 1), textcoords="offset points", color=color,
            fontweight="bold", annotation_clip=False,
        )  # fmt: skip
    plain(waiting, "unanswered requests")
    plain(threads, "threads of the server\n(without the event loop's)")
    for axes in (waiting, threads):
        if load.trouble[1]:
            axes.axvspan(*load.trouble, color="#F6E3B4", zorder=0)
        for moment in (load.burst_at, load.steady_at, load.steady_at + load.steady):
            axes.axvline(moment, color="#BBBBBB", linewidth=0.8, linestyle=":", zorder=0)
    if load.trouble[1]:
        place = waiting.get_xaxis_transform()
        waiting.text(sum(load.trouble) / 2, 1.02, "upstream slow: 1 s per call", transform=place, ha="center")
    waiting.legend(loc="upper right", frameon=False)
    marked = {load.steady_at: "steady load", load.steady_at + load.steady: "steady load ends", load.burst_at: "burst"}
    for moment, label in marked.items():
        threads.text(moment, 1.01, label, transform=threads.get_xaxis_transform(), color="#777777", fontsize=8)
    threads.set_xlim(0, end * 1.03)
    save(figure, threads, stem)
