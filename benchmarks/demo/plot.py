"""The asyncio case's plot: what was asked, what waited, and how many threads each pool had."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .measure import Run, arrivals, in_flight
from .plan import Scale

# Okabe and Ito's colours: told apart with every kind of colour vision.
STYLES: tuple[tuple[str, str], ...] = (("#D55E00", "-"), ("#0072B2", "-"), ("#777777", "--"))
SLOT = 0.25
STEP = 0.02


def plain(axes: Axes, label: str) -> None:
    """Label the vertical axis, from 0 up, and leave out what is no data."""
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color="#E5E5E5", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def threads_over_time(axes: Axes, run: Run, **style: Any) -> None:
    """Draw how many threads a server had, and write how many were left."""
    times, counts = [sample.at for sample in run.samples], [sample.threads for sample in run.samples]
    axes.step(times, counts, where="post", **style)
    axes.annotate(
        str(counts[-1]), (times[-1], counts[-1]), xytext=(5, 1), textcoords="offset points",
        va="bottom", color=style["color"], fontweight="bold", annotation_clip=False,
    )  # fmt: skip


def moments(end: float) -> list[float]:
    """Return the moments up to ``end`` at which is drawn what was in flight."""
    return [step * STEP for step in range(int(end / STEP) + 1)]


def save(figure: Figure, stem: Path) -> None:
    """Write ``stem``.png and ``stem``.svg."""
    for suffix in ("png", "svg"):
        figure.savefig(stem.with_suffix(f".{suffix}"))


def _phases(axes: Axes, scale: Scale, end: float) -> None:
    bounds = (
        ("steady", 0.0, scale.steady),
        ("quiet", scale.steady, scale.burst_at),
        ("burst, then nothing more", scale.burst_at, end),
    )
    for name, left, right in bounds:
        middle = (left + right) / 2
        axes.text(middle, 1.02, name, transform=axes.get_xaxis_transform(), ha="center", color="#555555")


def draw(runs: Sequence[Run], scale: Scale, title: str, stem: Path) -> None:
    """Write ``stem``.png and ``stem``.svg: three panels over one time axis.

    Args:
        runs: The pools, in the order of `STYLES`.
        scale: The load they were under.
        title: What was seen.
        stem: The files' path without suffix.
    """
    end = max(run.samples[-1].at for run in runs)
    figure = Figure(figsize=(11, 8.5), dpi=110, layout="constrained")
    offered, waiting, threads = figure.subplots(3, 1, sharex=True, gridspec_kw={"height_ratios": (1.0, 1.5, 2.2)})
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)

    edges, rates = arrivals(runs[0].outcomes, end, SLOT)
    offered.stairs(rates, edges, fill=True, color="#F0C75E")
    plain(offered, f"offered load\n(requests/s, over\n{SLOT:g} s each)")
    _phases(offered, scale, end)

    times = moments(end)
    for run, (color, style) in zip(runs, STYLES, strict=True):
        waiting.plot(times, in_flight(run.outcomes, times), style, color=color, linewidth=1.5, label=run.name)
        name = f"{run.name}, at most {run.max_workers}"
        threads_over_time(threads, run, linestyle=style, color=color, linewidth=2, label=name)
    plain(waiting, "in flight\n(requests due and\nnot yet answered)")
    plain(threads, "threads of the server\nbesides its event loop's own")
    for axes in (offered, waiting, threads):
        for at in (scale.steady, scale.burst_at):
            axes.axvline(at, color="#BBBBBB", linewidth=0.8, linestyle=":", zorder=0)
    threads.legend(loc="upper left", frameon=False)
    threads.set_xlabel("seconds since the start of the load")
    threads.set_xlim(0, end * 1.03)
    save(figure, stem)
