"""Draw what overload does to pools, from a committed run: ``python docs/_plots/overload.py``.

The picture is written to docs/images/overload.svg, in colours that the page around it may set.
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
RUN = DOCS / "evidence" / "overload.json"
PICTURE = DOCS / "images" / "overload.svg"
PEERS = {
    "anyio": ("stock anyio", "#94a3b8"),
    "stdlib-default": ("ThreadPoolExecutor()", "#64748b"),
    "anyio-installed@before": ("ebbpool before", "#fcd9a5"),
    "anyio-installed": ("ebbpool", "#d97706"),
}
CLIENTS, OFFERED, LEAVE = (100, 300, 1000), (0.5, 1, 2, 3), 64
INK = "#64748b"


def found(metric: str, **variant: float) -> dict[str, float]:
    """Return a figure of each peer, the median over rounds."""
    cells: list[dict[str, Any]] = json.loads(RUN.read_text(encoding="utf-8"))["questions"]["overload"]["cells"]
    return {
        cell["peer"]: statistics.median([number for numbers in cell["samples"][metric].values() for number in numbers])
        for cell in cells
        if cell["variant"] == variant
    }


def main() -> None:
    """Read the run and draw it."""
    mpl.rcParams["svg.fonttype"] = "none"
    mpl.rcParams["svg.hashsalt"] = "ebbpool"
    figure, (gave_up, useful, burnt) = plt.subplots(1, 3, figsize=(9.6, 3.4), width_ratios=[1.2, 1, 0.8])
    for place, (peer, (name, colour)) in enumerate(PEERS.items()):
        shares = [100 * found("gave_up", clients=clients)[peer] / clients for clients in CLIENTS]
        at = [group + 0.2 * (place - 1.5) for group in range(len(CLIENTS))]
        gave_up.bar(at, shares, 0.18, color=colour, label=name)
        rates = [found("useful", offered=offered)[peer] for offered in OFFERED]
        useful.plot([160 * offered for offered in OFFERED], rates, color=colour, marker="o", markersize=4)
        seconds = found("burnt", leave=LEAVE)[peer]
        burnt.bar(place, seconds, 0.7, color=colour)
        burnt.text(place, seconds + 8, f"{seconds:,.0f}", ha="center", fontsize=8, color=INK)
    gave_up.set_xticks(range(len(CLIENTS)), [f"{clients:,}" for clients in CLIENTS])
    gave_up.set_xlabel("clients at once")
    gave_up.set_title("clients that gave up, %")
    useful.set_xlabel("calls asked for a second")
    useful.set_title("answers in time, a second")
    useful.set_ylim(0, 175)
    burnt.set_xticks([])
    burnt.set_xlabel(f"after {LEAVE} callers have left")
    burnt.set_title("seconds of thread spent")
    for axes in (gave_up, useful, burnt):
        axes.title.set(fontsize=9, color=INK)
        axes.xaxis.label.set(fontsize=8, color=INK)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(PEERS["anyio"][1])
        axes.tick_params(colors=INK, labelsize=8)
    figure.legend(frameon=False, loc="upper center", ncols=4, labelcolor=INK, fontsize=8)
    figure.tight_layout(rect=(0, 0, 1, 0.92))
    figure.savefig(PICTURE, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    main()
