"""The cluster case's plot: how long requests took, how many threads worked, and what had spilled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from .plot import plain, save

if TYPE_CHECKING:
    from .cluster_case import Load, Side

COLORS = ("#D55E00", "#0072B2")
SENT, AWAY, BACK = "#009E73", "#56B4E9", "#CC79A7"


def draw(sides: Sequence[Side], load: Load, title: str, stem: Path) -> None:
    """Write ``stem``.png and ``stem``.svg: latency, what runs and waits here, and what is elsewhere.

    Args:
        sides: The server alone, and the one that spills.
        load: The load they were under.
        title: What was seen.
        stem: The files' path without suffix.
    """
    end = max(side.looks[-1].at for side in sides)
    figure = Figure(figsize=(11, 9.5), dpi=110, layout="constrained")
    latency, threads, waiting, spilled = figure.subplots(
        4, 1, sharex=True, gridspec_kw={"height_ratios": (2.0, 1.0, 1.0, 1.5)}
    )
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, wrap=True)
    for side, color in zip(sides, COLORS, strict=True):
        found = [(each.due, each.seconds) for each in side.answers if each.kind == "heavy" and not each.problem]
        latency.plot(*zip(*found, strict=True), ".", color=color, markersize=5, label=side.name)
        times = [look.at for look in side.looks]
        style = {"where": "post", "color": color, "linewidth": 1.6}
        threads.step(times, [look.running for look in side.looks], label=side.name, **style)
        waiting.step(times, [look.queued for look in side.looks], **style)
    plain(latency, "heavy request:\nseconds until answered,\nby when it was due")
    plain(threads, "threads of the\nserver's pool\nwith a task")
    plain(waiting, "tasks that wait\nin the server")
    latency.legend(loc="upper left", frameon=False)

    looks = sides[-1].looks
    times = [look.at for look in looks]
    for name, color, label in (("spilled", SENT, "spilled so far"), ("returned", BACK, "came back so far")):
        counts = [getattr(look, name) for look in looks]
        spilled.step(times, counts, where="post", color=color, linewidth=2, label=label)
    spilled.fill_between(times, [look.away for look in looks], step="post", color=AWAY, label="away now")
    plain(spilled, "tasks of the\nspilling server")
    spilled.legend(loc="upper left", frameon=False)

    killed = sides[-1].killed
    for axes in (latency, threads, waiting, spilled):
        axes.axvspan(load.calm, load.calm + load.burst, color="#F6E3B4", alpha=0.6, zorder=0)
        if killed is not None:
            axes.axvline(killed, color="#444444", linewidth=1.2, linestyle="--", zorder=1)
    place = latency.get_xaxis_transform()
    latency.text(load.calm + 0.05, 1.02, "burst", transform=place, ha="left", color="#7A5C00", fontsize=9)
    if killed is not None:
        latency.text(killed, 1.02, "a worker is killed", transform=place, ha="center", color="#444444", fontsize=9)
    spilled.set_xlabel("seconds since the start of the load")
    spilled.set_xlim(0, end)
    save(figure, stem)
