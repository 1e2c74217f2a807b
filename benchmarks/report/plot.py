"""Bar charts of a run: `python -m benchmarks.report.plot reports/bench/NAME.json [question ...]`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import regret_plot

_OURS, _OTHERS, _FLOOR = "#0072B2", "#BBBBBB", "#E69F00"


def bars(table: dict[str, Any], variant: str) -> list[tuple[str, float]]:
    """Returns peer and first figure of each row of a table (of the JSON) that has one, the least first."""
    found = []
    for name, peer, *figures in table["rows"]:
        if name == variant and 2 + len(figures) == len(table["headers"]):
            text = figures[0].split(" ")[0]
            if text.replace(".", "", 1).isdigit():
                found.append((peer, float(text)))
    return sorted(found, key=lambda bar: bar[1])


def _color(peer: str) -> str:
    return _OURS if "ebbpool" in peer else _FLOOR if "(floor)" in peer else _OTHERS


def draw(found: dict[str, Any], question: str, path: Path) -> bool:
    """Writes a bar chart of the question's first column, one panel for each variant; False if it has no figures.

    sizing has a picture of its own.
    """
    from matplotlib.figure import Figure

    table = found["questions"][question]["table"]
    if question == "sizing":
        return regret_plot.draw(table, found["machine"], path)
    panels = {variant: bars(table, variant) for variant in dict.fromkeys(row[0] for row in table["rows"])}
    panels = {variant: shown for variant, shown in panels.items() if shown}
    if not panels:
        return False
    heights = [len(shown) for shown in panels.values()]
    figure = Figure(figsize=(9, 1.2 + sum(heights) * 0.26 + len(heights) * 0.5), dpi=110, layout="constrained")
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})
    figure.suptitle(f"{table['title']}: {table['headers'][2]}", x=0.01, ha="left", fontsize=11)
    for panel, (variant, shown) in zip(axes[:, 0], panels.items(), strict=True):
        drawn = panel.barh(
            [peer for peer, _ in shown], [value for _, value in shown], color=[_color(peer) for peer, _ in shown]
        )
        panel.bar_label(drawn, labels=[f"{value:g}" for _, value in shown], padding=3, fontsize=8)
        panel.invert_yaxis()
        panel.margins(x=0.1, y=0.02)
        panel.set_title(variant, loc="left", fontsize=9)
        panel.tick_params(labelsize=8)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    figure.savefig(path)
    return True


def draw_all(path: Path, questions: Sequence[str] = (), target: Path | None = None) -> list[Path]:
    """Draws questions of a run; returns what was written.

    Args:
        path: the JSON of the run.
        questions: all if none is named.
        target: where to, if there is only one; None: beside the JSON.
    """
    found = json.loads(path.read_text(encoding="utf-8"))
    names = questions or list(found["questions"])
    kinds = dict.fromkeys(names, "png") | {"sizing": "svg"}
    wanted = {name: target or path.with_name(f"{path.stem}-{name}.{kinds[name]}") for name in names}
    return [picture for name, picture in wanted.items() if draw(found, name, picture)]


if __name__ == "__main__":
    for written in draw_all(Path(sys.argv[1]), sys.argv[2:]):
        print(written)
