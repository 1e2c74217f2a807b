"""The pictures of a run, one for each question, as SVG that reads on a light ground and on a dark one.

Text and axes are of a grey that stands out from white and from black; the ground is transparent; the colours are Okabe
and Ito's, told apart with every kind of colour vision.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

from benchmarks import beyond
from benchmarks.engine.model import Column, Variant
from benchmarks.load.sizing import LOADS
from benchmarks.peers.peer import Peer
from benchmarks.report import regret
from benchmarks.report.report import Answers, Figure, key

INK = "#767676"
_OURS, _PLAIN, _OTHERS, _FLOOR = "#0072b2", "#56b4e9", "#8c8c8c", "#e69f00"
_TIME, _THREADS = _OURS, "#d55e00"
_LINES = ("#009e73", "#d55e00", "#cc79a7", "#e69f00", "#8c8c8c", "#f0e442")
_LEAST = 0.01
_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "ebbpool",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
}


def color(peer: Peer) -> str:
    if peer.side == "ours":
        return _OURS if peer.core else _PLAIN
    return _FLOOR if peer.side == "floor" else _OTHERS


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure as Canvas

    return Canvas(figsize=(width, height), layout="constrained")


def _written(canvas: Any) -> str:
    text = io.StringIO()
    canvas.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    picture = "<svg" + text.getvalue().partition("<svg")[2]
    return re.sub(r"\s*<metadata>.*?</metadata>", "", picture, count=1, flags=re.DOTALL)


def drawn(answers: Answers) -> str:
    """Return the picture of a question as the text of an SVG element, "" if it has no figures."""
    import matplotlib as mpl

    with mpl.rc_context(_STYLE):
        if answers.question.name == "sizing":
            return _regret(regret.findings(answers)[1])
        if answers.question.name == "beyond":
            return _far(answers)
        return _curves(answers) if answers.question.axis else _bars(answers)


def _panels(answers: Answers, column: Column) -> dict[str, list[tuple[Peer, Figure]]]:
    found = {}
    for variant in answers.variants():
        shown = [
            (peer, figure)
            for peer in answers.peers.values()
            if (figure := answers.figure(peer.name, variant, column)) is not None
        ]
        if shown:
            found[key(variant)] = sorted(shown, key=lambda bar: bar[1].value, reverse=column.more)
    return found


def _bars(answers: Answers) -> str:
    column = answers.question.drawn
    panels = _panels(answers, column)
    if not panels:
        return ""
    heights = [len(shown) + 0.8 for shown in panels.values()]
    canvas = _figure(8, 0.7 + sum(heights) * 0.22 + len(heights) * 0.16)
    axes = canvas.subplots(len(panels), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})
    values = [figure.value for shown in panels.values() for _, figure in shown]
    ends = [max(figure.value, figure.high) for shown in panels.values() for _, figure in shown]
    wide = min(values) > 0 and max(values) / min(values) > 30
    for panel, (where, shown) in zip(axes[:, 0], panels.items(), strict=True):
        for place, (peer, figure) in enumerate(shown):
            if wide:
                # A bar has no beginning on a logarithmic axis.
                panel.plot(figure.value, place, color=color(peer), marker="o", markersize=6.5)
            else:
                panel.barh(place, figure.value, color=color(peer), height=0.72)
            if figure.low < figure.high:
                panel.plot([figure.low, figure.high], [place, place], color=INK, linewidth=1.2, solid_capstyle="butt")
            panel.annotate(
                f"{figure.value:,.{column.digits}f}", (max(figure.value, figure.high), place), xytext=(6, 0),
                textcoords="offset points", va="center", fontsize=8,
            )  # fmt: skip
        panel.set_yticks(range(len(shown)), [peer.label for peer, _ in shown], fontsize=8)
        panel.set_ylim(len(shown) - 0.4, -0.6)
        panel.set_title(where, loc="left", fontsize=8.5, fontweight="bold")
        panel.tick_params(axis="y", length=0)
        panel.margins(x=0.12)
        if wide:
            panel.set_xscale("log")
            panel.set_xlim(min(values) / 1.5, max(ends) * 2.2)
            panel.grid(axis="x")
            panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    better = "more is better" if column.more else "less is better"
    canvas.supxlabel(f"{column.label}: {better}{', logarithmic' if wide else ''}", fontsize=9)
    return _written(canvas)


def _curves(answers: Answers) -> str:
    """A line for each peer over `axis`, a panel for each combination of the other keys."""
    column, axis = answers.question.drawn, answers.question.axis
    groups: dict[str, list[Variant]] = {}
    for variant in answers.variants():
        rest = key({name: value for name, value in variant.items() if name != axis})
        groups.setdefault(rest, []).append(variant)
    canvas = _figure(8, 0.9 + 2.7 * len(groups))
    axes = canvas.subplots(len(groups), 1, sharex=True, squeeze=False)
    empty = True
    for panel, (where, variants) in zip(axes[:, 0], groups.items(), strict=True):
        others = iter(_LINES)
        for peer in answers.peers.values():
            points = [(variant[axis], answers.figure(peer.name, variant, column)) for variant in variants]
            known = [(place, figure.value) for place, figure in points if figure is not None]
            if known:
                empty = False
                ours = peer.side == "ours"
                panel.plot(
                    range(len(points)), [figure.value if figure else None for _, figure in points],
                    color=color(peer) if ours else next(others), label=peer.label, marker="o" if ours else "s",
                    markersize=4, linewidth=2 if ours and peer.core else 1.3,
                )  # fmt: skip
        panel.set_xticks(range(len(variants)), [f"{variant[axis]:,}" for variant in variants], rotation=30)
        panel.set_title(where, loc="left", fontsize=8.5, fontweight="bold")
        panel.set_ylabel(column.label)
        panel.grid(axis="y")
        panel.set_ylim(bottom=0)
    if empty:
        return ""
    axes[-1, 0].set_xlabel(f"{axis}; {'more' if column.more else 'less'} is better")
    axes[0, 0].legend(frameon=False, fontsize=8, ncols=2)
    return _written(canvas)


def _far(answers: Answers) -> str:
    """The threads a pool grows to, and the wait, by its ceiling: a column for each kind of service."""
    canvas = _figure(8.6, 5.2)
    axes = canvas.subplots(2, len(beyond.SERVICES), sharex=True, sharey="row")
    for place, kind in enumerate(beyond.SERVICES):
        top, bottom = axes[0, place], axes[1, place]
        for rate, shade in zip(beyond.RATES, ("#56b4e9", "#0072b2", "#e69f00", "#d55e00"), strict=True):
            variants = [
                variant
                for peer, variant in answers.plan.cells
                if peer.name == beyond.MODEL and variant["processors"] == beyond.MOST_PROCESSORS
                and (variant["rate"], variant["service"]) == (rate, kind)
            ]  # fmt: skip
            _line(answers, top, bottom, beyond.MODEL, variants, shade, "-", "o", f"{rate:,} tasks/s")
            measured = [
                variant
                for peer, variant in answers.plan.cells
                if peer.name == beyond.OURS and (variant["rate"], variant["service"]) == (rate, kind)
            ]
            _line(answers, top, bottom, beyond.OURS, measured, shade, "", "x", f"{rate:,}, measured here")
        top.axhline(beyond.SHARE, color=INK, linewidth=1, linestyle="--")
        top.set_title(kind, fontsize=9, fontweight="bold")
        bottom.set_xscale("log")
        bottom.set_yscale("symlog", linthresh=0.01)
        bottom.set_ylim(bottom=0)
        bottom.set_xticks(beyond.CEILINGS, [f"{count:,}" for count in beyond.CEILINGS])
        bottom.minorticks_off()
        for axis in (top, bottom):
            axis.grid(axis="y")
    axes[0, 0].set_ylabel("threads at most, share of the ceiling")
    axes[0, 0].set_ylim(0, 1.08)
    axes[1, 0].set_ylabel("p99 of the wait, ms")
    canvas.supxlabel("ceiling of the pool, threads; dashed: what the load needs on average; "
                     f"lines: the model, {beyond.MOST_PROCESSORS} processors", fontsize=9)  # fmt: skip
    handles, labels = axes[1, 0].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False, fontsize=8)
    return _written(canvas)


def _line(
    answers: Answers, top: Any, bottom: Any, peer: str, variants: Sequence[Variant],
    shade: str, style: str, marker: str, label: str,
) -> None:  # fmt: skip
    points = []
    for variant in sorted(variants, key=lambda variant: variant["threads"]):
        figures = [answers.figure(peer, variant, beyond.COLUMNS[at]) for at in (0, 2)]
        if figures[0] is not None and figures[1] is not None:
            points.append((variant["threads"], figures[0].value / variant["threads"], figures[1].value))
    if points:
        ceilings, threads, waits = zip(*points, strict=True)
        for axis, values in ((top, threads), (bottom, waits)):
            axis.plot(ceilings, values, color=shade, linestyle=style, marker=marker, markersize=5, label=label)


def ratios(rows: Sequence[Sequence[str]]) -> list[tuple[str, float, float, str]]:
    """Return load, times the best time, times its thread-seconds, and the best size, of our rows that have all."""
    at = [regret.HEADERS.index(name) for name in ("x time", "x thread-seconds", "best fixed")]
    found = []
    for row in sorted(rows, key=lambda row: list(LOADS).index(row[0])):
        if row[1].startswith("ebbpool") and len(row) == len(regret.HEADERS):
            time, threads, best = (row[index] for index in at)
            if "-" not in (time, threads):
                name = LOADS[row[0]].text + (", plain core" if "plain" in row[1] else "")
                found.append((name, float(time), float(threads), best))
    return found


def _regret(table: Sequence[Sequence[str]]) -> str:
    """A row for each load: how far the untuned pool is from the best fixed size."""
    from matplotlib.ticker import NullLocator

    rows = ratios(table)
    if not rows:
        return ""
    canvas = _figure(8, 1.5 + 0.28 * len(rows))
    axes = canvas.subplots()
    places = range(len(rows))
    times, threads = [max(_LEAST, row[1]) for row in rows], [max(_LEAST, row[2]) for row in rows]
    for place, time, spent in zip(places, times, threads, strict=True):
        axes.plot([time, spent], [place, place], color=INK, alpha=0.4, linewidth=2, zorder=1)
    axes.scatter(threads, places, marker="D", s=34, color=_THREADS, zorder=2, label="thread-seconds")
    axes.scatter(times, places, marker="o", s=42, color=_TIME, zorder=3, label="time")
    axes.axvline(1.0, color=INK, linewidth=1, zorder=0)
    axes.axvline(regret.TIMES_BEST, color=_TIME, linewidth=1.2, linestyle="--", zorder=0,
                 label=f"{regret.TIMES_BEST:g}: time to hold")  # fmt: skip
    axes.set_xscale("log")
    low, high = min([*times, *threads, 0.9]) / 1.15, max([*times, *threads, 1.3]) * 1.15
    axes.set_xlim(low, high)
    ticks = [tick for tick in _TICKS if low <= tick <= high]
    axes.set_xticks(ticks, [f"{tick:g}x" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_yticks(list(places), [row[0] for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="x")
    axes.set_axisbelow(True)

    def beside(place: float, texts: Sequence[str], bold: bool = False) -> None:
        for points, text in zip((44, 96, 138), texts, strict=True):
            axes.annotate(
                text, (1.0, place), xytext=(points, 0), xycoords=axes.get_yaxis_transform(),
                textcoords="offset points", ha="right", va="center", fontsize=8.5, annotation_clip=False,
                fontweight="bold" if bold and points == 44 else "normal",
            )  # fmt: skip

    beside(-1.1, ("time", "thread-\nseconds", "best\nsize"))
    for place, (_, time, spent, best) in enumerate(rows):
        beside(place, (f"{time:.2f}", f"{spent:.2f}", best), bold=time > regret.TIMES_BEST)
    axes.set_xlabel("times the best fixed size's: less is better")
    canvas.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8.5)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return _written(canvas)
