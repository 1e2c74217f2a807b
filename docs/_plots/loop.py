"""Draw how long event loops wait beside threads, from the committed runs: ``python docs/_plots/loop.py``.

The picture is written to docs/images/loop.svg, in colours that the page around it may set.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")

import matplotlib.pyplot as plt

DOCS = Path(__file__).parent.parent
EVIDENCE = DOCS / "evidence"
PICTURE = DOCS / "images" / "loop.svg"
HANDLERS = (
    "20 ms of Python",
    "5 ms of Python",
    "2.5 ms of Python, 2.5 asleep",
    "1 ms of Python",
    "0.5 and 0.5",
    "zlib",
)
LABELS = {"0.5 and 0.5": "0.5 ms of Python, 0.5 asleep", "zlib": "zlib, 5 ms"}
HEALTH = "FastAPI: /health beside 5 ms of Python"
COLOURS = {"stock": "#94a3b8", "ebbpool": "#d97706"}
INK = "#64748b"


def cells(run: str, question: str) -> list[dict[str, Any]]:
    """Return what a committed run found."""
    document = json.loads((EVIDENCE / f"{run}.json").read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = document["questions"][question]["cells"]
    return found


def lag(cells: list[dict[str, Any]], peer: str, handler: str = "") -> float:
    """Return the 99th percentile of the lag in milliseconds, the median over rounds, with threads as by default."""
    found = [
        statistics.median([number for numbers in cell["samples"]["p99"].values() for number in numbers])
        for cell in cells
        if cell["peer"] == peer and cell["variant"].get("handler", "") == handler
        if cell["variant"].get("workers") != 2
    ]
    return min(found)


def main() -> None:
    """Read the runs and draw them."""
    beside, health = cells("loop", "loop_beside"), cells("health", "health_beside")
    rows = [(HEALTH, lag(health, "fastapi"), lag(health, "fastapi-installed"))]
    rows += [(LABELS.get(name, name), lag(beside, "stdlib", name), lag(beside, "run", name)) for name in HANDLERS]
    rows.reverse()
    mpl.rcParams["svg.fonttype"] = "none"
    mpl.rcParams["svg.hashsalt"] = "ebbpool"
    figure, axes = plt.subplots(figsize=(7.6, 3.8))
    for place, (_, stock, ours) in enumerate(rows):
        axes.barh(
            place + 0.2,
            stock,
            0.36,
            color=COLOURS["stock"],
            label="ThreadPoolExecutor, stock anyio" if not place else None,
        )
        axes.barh(place - 0.2, ours, 0.36, color=COLOURS["ebbpool"], label="ebbpool" if not place else None)
        axes.text(stock * 1.06, place + 0.2, f"{stock:,.0f}", va="center", fontsize=8, color=INK)
        axes.text(ours * 1.06, place - 0.2, f"{ours:,.0f}", va="center", fontsize=8, color=INK)
    axes.set_xscale("log")
    axes.set_xlim(1, 4000)
    axes.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axes.set_xlabel("ms that the event loop waits, 99 times in 100 at most", color=INK)
    axes.legend(frameon=False, loc="lower right", labelcolor=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(COLOURS["stock"])
    axes.tick_params(colors=INK)
    figure.tight_layout()
    figure.savefig(PICTURE, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    main()
