"""What came of it: a headline, a table and a plot, in one page."""

from __future__ import annotations

import html
import io
import math
import os
import platform
from bisect import bisect_right
from collections.abc import Callable, Sequence

from matplotlib.figure import Figure

import ebbpool
from benchmarks.demo.load import TOO_LATE, Load, Outcome, Run
from benchmarks.engine.model import percentile
from benchmarks.report.tables import aligned

# Okabe and Ito's colours: told apart with every kind of colour vision.
_COLORS = ("#D55E00", "#777777", "#0072B2")
_STEP = 0.02


def in_ms(seconds: float) -> str:
    """Return a time in milliseconds, with no more digits than it deserves; ``-`` if there is none."""
    if math.isnan(seconds):
        return "-"
    return f"{seconds * 1000:,.1f}" if seconds < 0.1 else f"{seconds * 1000:,.0f}"


def _spread(outcomes: Sequence[Outcome]) -> str:
    latencies = [outcome.latency for outcome in outcomes] or [math.nan]
    return f"{in_ms(percentile(latencies, 0.5))} / {in_ms(percentile(latencies, 0.99))}"


def table_rows(runs: Sequence[Run], load: Load) -> list[list[str]]:
    """Return the table's rows: a question, and each server's answer to it."""
    questions: list[tuple[str, Callable[[Run], str]]] = [
        (f"{load.burst_size} at once: last answer (ms)", lambda run: in_ms(run.burst_took())),
        ("  p50 / p99 (ms)", lambda run: _spread(run.of("burst"))),
        ("steady: health, p50 / p99 (ms)", lambda run: _spread(run.of("steady", "health"))),
        ("  what waits", lambda run: _spread(run.of("steady", "wait"))),
        (f"  health checks over {TOO_LATE:g} s", lambda run: f"{run.late_checks()}/{len(run.of('steady', 'health'))}"),
        ("peak threads", lambda run: str(run.peak())),
        (f"threads {load.watch:g} s later", lambda run: str(len(run.left))),
        ("CPU seconds", lambda run: f"{run.samples[-1].cpu - run.samples[0].cpu:.2f}"),
        ("peak memory (MiB)", lambda run: f"{run.memory / 1024:.0f}" if run.memory else "unknown"),
        ("right answers", lambda run: f"{sum(not one.problem for one in run.outcomes):,}/{len(run.outcomes):,}"),
    ]
    return [["", *(run.name for run in runs)], *([asked, *map(answer, runs)] for asked, answer in questions)]


def _headline(runs: Sequence[Run], load: Load) -> str:
    """Say what was seen, whoever came out ahead: above the table, and the plot's title."""

    def each(tell: Callable[[Run], object]) -> str:
        return ", ".join(f"{run.name}: {tell(run)}" for run in runs)

    threads = each(lambda run: f"{run.peak()} → {len(run.left)}")
    return (
        f"Most threads → threads {load.watch:g} s after the load. {threads}\n"
        f"Until {load.burst_size} requests at once were answered. {each(lambda run: f'{in_ms(run.burst_took())} ms')}\n"
        f"Health checks that took over {TOO_LATE:g} s. {each(Run.late_checks)}"
    )


def _draw(runs: Sequence[Run], load: Load, title: str) -> str:
    """Draw requests in flight and threads over one time axis."""
    end = max(run.samples[-1].at for run in runs)
    figure = Figure(figsize=(11, 7.5), layout="constrained")
    waiting, threads = figure.subplots(2, 1, sharex=True)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    times = [step * _STEP for step in range(int(end / _STEP) + 1)]
    for run, color in zip(runs, _COLORS, strict=True):
        due, done = sorted(one.due for one in run.outcomes), sorted(one.done for one in run.outcomes)
        in_flight = [bisect_right(due, at) - bisect_right(done, at) for at in times]
        waiting.plot(times, in_flight, color=color, linewidth=1.5, label=run.name)
        at, counts = zip(*((sample.at, sample.threads) for sample in run.samples), strict=True)
        threads.step(at, counts, where="post", color=color, linewidth=2)
        threads.annotate(f" {counts[-1]}", (at[-1], counts[-1]), color=color, fontweight="bold", annotation_clip=False)
    for axes, label in (
        (waiting, "unanswered requests"),
        (threads, "threads of the server\n(without the event loop's)"),
    ):
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", color="#E5E5E5", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.axvspan(*load.trouble, color="#F6E3B4", zorder=0)
    marked = {0.0: "burst", load.steady_at: "steady load", load.steady_at + load.steady: "steady load ends"}
    marked[load.trouble[0]] = "upstream slow: 1 s per call"
    for moment, label in marked.items():
        threads.axvline(moment, color="#BBBBBB", linewidth=0.8, linestyle=":", zorder=0)
        threads.text(moment, 1.01, label, transform=threads.get_xaxis_transform(), color="#777777", fontsize=8)
    waiting.legend(loc="upper right", frameon=False)
    threads.set_xlabel("seconds since the load began")
    threads.set_xlim(0, end * 1.03)
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg")
    return drawn.getvalue()[drawn.getvalue().index("<svg") :]


def told(runs: Sequence[Run], load: Load) -> tuple[str, str]:
    """Return what came of it: in words and a table, and as a plot in SVG."""
    said = _headline(runs, load)
    ours = f"ebbpool {ebbpool.__version__} ({'compiled' if ebbpool.COMPILED else 'plain'} core)"
    lines = [said, "", aligned(table_rows(runs, load)), ""]
    lines.append(f"CPython {platform.python_version()}, {os.cpu_count()} processors, {runs[0].loop}, {ours}.")
    lines.append("Latency counts from when a request was due. Threads do not include the event loop's own.")
    lines += [f"Left in {run.name}'s server: {', '.join(run.left)}." for run in runs if 0 < len(run.left) <= 3]
    return "\n".join(lines), _draw(runs, load, said)


def page(said: str, plot: str) -> str:
    """Return the page that shows it."""
    heading = html.escape(f"The same load with and without ebbpool {ebbpool.__version__}")
    style = "body { font: 16px sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em } pre { overflow-x: auto }"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{heading}</title>'
        f"<style>{style} svg {{ width: 100%; height: auto }}</style><h1>{heading}</h1>"
        f"{plot}<pre>{html.escape(said)}</pre></html>\n"
    )
