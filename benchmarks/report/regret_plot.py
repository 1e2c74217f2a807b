"""The picture of `sizing`: a row for each load, how far the untuned pool is from the best fixed size.

Of several runs, each with some of the loads:
`python -m benchmarks.report.regret_plot PICTURE reports/bench/NAME.json ...`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.load.sizing import LOADS
from benchmarks.report.regret import HEADERS, TIMES_BEST

# Okabe and Ito's colours: told apart with every kind of colour vision.
_TIME, _THREADS, _LINE = "#0072B2", "#D55E00", "#777777"
_LEAST = 0.01
_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)


def ratios(table: dict[str, Any]) -> list[tuple[str, float, float, str]]:
    """Returns load, times the best time, times its thread-seconds, and the best size, of our rows that have all."""
    at = [HEADERS.index(name) for name in ("x time", "x thread-seconds", "best fixed")]
    found = []
    for row in sorted(table["rows"], key=lambda row: list(LOADS).index(row[0])):
        if row[1].startswith("ebbpool") and len(row) == len(HEADERS):
            time, threads, best = (row[index] for index in at)
            if "-" not in (time, threads):
                name = LOADS[row[0]].text + (", plain core" if "plain" in row[1] else "")
                found.append((name, float(time), float(threads), best))
    return found


def together(runs: Sequence[Path]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns one table of the rows of several runs, and what is known of the machine of the last."""
    rows: list[list[str]] = []
    facts: dict[str, Any] = {}
    for run in runs:
        found = json.loads(run.read_text(encoding="utf-8"))
        rows += found["questions"]["sizing"]["table"]["rows"]
        facts = found["machine"]
    return {"headers": HEADERS, "rows": rows}, facts


def draw(table: dict[str, Any], facts: dict[str, Any], path: Path) -> bool:
    """Writes the picture; False if the table has nothing to show."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    rows = ratios(table)
    if not rows:
        return False
    figure = Figure(figsize=(10, 1.9 + 0.3 * len(rows)), dpi=110, layout="constrained")
    figure.set_facecolor("white")
    axes = figure.subplots()
    figure.suptitle(
        "The pool without arguments beside the best fixed size of the same pool: 1 is as good, less is better",
        x=0.01, ha="left", fontsize=11,
    )  # fmt: skip
    places = range(len(rows))
    times, threads = [max(_LEAST, row[1]) for row in rows], [max(_LEAST, row[2]) for row in rows]
    for place, time, spent in zip(places, times, threads, strict=True):
        axes.plot([time, spent], [place, place], color="#DDDDDD", linewidth=2, zorder=1)
    axes.scatter(threads, places, marker="D", s=38, facecolors="white", edgecolors=_THREADS, linewidths=1.6, zorder=2,
                 label="thread-seconds")  # fmt: skip
    axes.scatter(times, places, marker="o", s=46, color=_TIME, zorder=3, label="time")
    axes.axvline(1.0, color=_LINE, linewidth=1, zorder=0)
    axes.axvline(
        TIMES_BEST, color=_TIME, linewidth=1.2, linestyle="--", zorder=0, label=f"{TIMES_BEST:g}: time to hold"
    )
    axes.set_xscale("log")
    low, high = min([*times, *threads, 0.9]) / 1.15, max([*times, *threads, 1.3]) * 1.15
    axes.set_xlim(low, high)
    axes.set_xticks([tick for tick in _TICKS if low <= tick <= high])
    axes.set_xticklabels([f"{tick:g}x" for tick in _TICKS if low <= tick <= high])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_yticks(list(places), [row[0] for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="x", color="#EEEEEE", linewidth=0.8)
    axes.set_axisbelow(True)

    def beside(place: float, texts: Sequence[str], bold: bool = False) -> None:
        for points, text in zip((48, 104, 148), texts, strict=True):
            axes.annotate(
                text, (1.0, place), xytext=(points, 0), xycoords=axes.get_yaxis_transform(),
                textcoords="offset points", ha="right", va="center", fontsize=9, annotation_clip=False,
                fontweight="bold" if bold and points == 48 else "normal",
            )  # fmt: skip

    beside(-1.0, ("time", "thread-\nseconds", "best\nsize"))
    for place, (_, time, spent, best) in enumerate(rows):
        beside(place, (f"{time:.2f}", f"{spent:.2f}", best), bold=time > TIMES_BEST)
    axes.set_xlabel(f"times the best fixed size's (Python {facts['python'].split()[0]}, "
                    f"{len(facts['processors'])} processors)", fontsize=9)  # fmt: skip
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.09), ncols=3, frameon=False, fontsize=9)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.savefig(path)
    return True


if __name__ == "__main__":
    picture, *named = map(Path, sys.argv[1:])
    draw(*together(named), picture)
