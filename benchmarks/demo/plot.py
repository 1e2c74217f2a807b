"""The plots: what waited, and how many threads each server had."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from benchmarks.demo.case import Run
    from benchmarks.demo.cluster import Load as ClusterLoad
    from benchmarks.demo.cluster import Side
    from benchmarks.demo.load import Load

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


def _save(figure: Figure, axes: Axes, stem: Path) -> None:
    axes.set_xlabel("seconds since the start of the load")
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
    plain(waiting, "requests due and\nnot yet answered")
    plain(threads, "threads of the server\nbesides its event loop's own")
    for axes in (waiting, threads):
        if load.trouble[1]:
            axes.axvspan(*load.trouble, color="#F6E3B4", zorder=0)
        for moment in (load.burst_at, load.steady_at, load.steady_at + load.steady):
            axes.axvline(moment, color="#BBBBBB", linewidth=0.8, linestyle=":", zorder=0)
    if load.trouble[1]:
        place = waiting.get_xaxis_transform()
        waiting.text(sum(load.trouble) / 2, 1.02, "upstream slow: 1 s a call", transform=place, ha="center")
    waiting.legend(loc="upper right", frameon=False)
    threads.set_xlim(0, end * 1.03)
    _save(figure, threads, stem)


def draw_cluster(sides: Sequence[Side], load: ClusterLoad, title: str, stem: Path) -> None:
    """Write ``stem``.png and ``stem``.svg: latency, what waits here, and what is elsewhere."""
    figure = Figure(figsize=(11, 8), dpi=110, layout="constrained")
    latency, waiting, spilled = figure.subplots(3, 1, sharex=True)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, wrap=True)
    for side, color in zip(sides, (COLORS[0], COLORS[2]), strict=True):
        found = [(each.due, each.latency) for each in side.outcomes if each.kind == "heavy" and not each.problem]
        latency.plot(*zip(*found, strict=True), ".", color=color, markersize=5, label=side.name)
        times = [look.at for look in side.looks]
        waiting.step(times, [look.queued for look in side.looks], where="post", color=color, linewidth=1.6)
    looks = sides[-1].looks
    times = [look.at for look in looks]
    for name, color, label in (("spilled", "#009E73", "spilled so far"), ("returned", "#CC79A7", "came back so far")):
        counts = [getattr(look, name) for look in looks]
        spilled.step(times, counts, where="post", color=color, linewidth=2, label=label)
    spilled.fill_between(times, [look.away for look in looks], step="post", color="#56B4E9", label="away now")
    plain(latency, "heavy request: seconds until\nanswered, by when it was due")
    plain(waiting, "tasks that wait in the server")
    plain(spilled, "tasks of the\nspilling server")
    for axes in (latency, waiting, spilled):
        axes.axvspan(load.calm, load.calm + load.burst, color="#F6E3B4", alpha=0.6, zorder=0)
        axes.axvline(load.killed, color="#444444", linewidth=1.2, linestyle="--", zorder=1)
    place = latency.get_xaxis_transform()
    latency.text(load.killed, 1.02, "a worker is killed", transform=place, ha="center", fontsize=9)
    latency.legend(loc="upper left", frameon=False)
    spilled.legend(loc="upper left", frameon=False)
    _save(figure, spilled, stem)
