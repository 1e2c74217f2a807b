"""Draw the pictures in docs/images: ``python docs/_plots.py admission``, ``breathing`` or ``loop``.

The first two put real load on pools, for 8 and for 40 seconds; the last is drawn from the committed runs.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")

import matplotlib.pyplot as plt

from ebbpool import AdaptiveExecutor

DOCS = Path(__file__).parent
INK, STOCK, OURS = "#64748b", "#94a3b8", "#d97706"


def picture_named(name: str) -> Path:
    """Return where a picture is."""
    return DOCS / "images" / f"{name}.svg"


def cells(run: str, question: str) -> list[dict[str, Any]]:
    """Return what one of the other committed runs found."""
    runs = json.loads((DOCS / "evidence" / "others.json").read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = runs[run]["questions"][question]["cells"]
    return found


def median(cell: dict[str, Any], metric: str) -> float:
    """Return the median of a metric over rounds."""
    return float(statistics.median([number for numbers in cell["samples"][metric].values() for number in numbers]))


def save(figure: Any, name: str, axes: Any) -> None:
    """Write a figure, its axes in quiet colours."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(STOCK)
    axes.tick_params(colors=INK)
    for part in (axes.title, axes.xaxis.label, axes.yaxis.label):
        part.set_color(INK)
    figure.tight_layout()
    figure.savefig(picture_named(name), transparent=True, metadata={"Date": None})


def compute() -> None:
    """Compute for some milliseconds."""
    sum(number * number for number in range(60_000))


IN_FLIGHT = 24
SECONDS = 2.0


def both() -> None:
    """Compute, and wait as long."""
    compute()
    time.sleep(0.005)


def admission() -> None:
    """Draw who runs, sleeps and is parked in a pool over time, as the looks of its timekeeper see it."""
    phases = (
        ("wait 20 ms", lambda: time.sleep(0.02)),
        ("compute 5 ms of Python", compute),
        ("compute 5 ms, wait 5 ms", both),
    )
    colours = {"run": OURS, "sleep": "#2563eb", "parked": STOCK}
    seen: list[tuple[float, int, int, int]] = []
    with AdaptiveExecutor(64) as pool:
        admission: Any = pool._crew._admission
        began = time.perf_counter()

        class Noted(type(admission)):  # type: ignore[misc]  # the class is private, and not known to mypy here
            __slots__ = ()

            def decide(self, count: Any) -> int:
                workers = count()
                running = workers.running + workers.long
                seen.append((time.perf_counter() - began, running, workers.asleep, pool.stats().idle))
                return int(super().decide(count))

        pool._crew._admission = Noted(pool._crew._load)
        flying = threading.Semaphore(IN_FLIGHT)
        starts = []
        for name, call in phases:
            starts.append((time.perf_counter() - began, name))
            end = time.perf_counter() + SECONDS
            while time.perf_counter() < end:
                flying.acquire()
                pool.submit(call).add_done_callback(lambda _: flying.release())
        last = time.perf_counter() - began
    step = last / 250
    means = [[one for one in seen if k * step <= one[0] < (k + 1) * step] for k in range(250)]
    times = [k * step for k, ones in enumerate(means) if ones]
    stacks = [[sum(one[n] for one in ones) / len(ones) for ones in means if ones] for n in (1, 2, 3)]
    figure, axes = plt.subplots(figsize=(7.6, 2.9))
    axes.stackplot(times, *stacks, labels=list(colours), colors=list(colours.values()), linewidth=0)
    for start, name in starts:
        axes.axvline(start, color=INK, linewidth=0.8, linestyle=":")
        axes.text(start + 0.04, IN_FLIGHT + 3.4, name, color=INK, fontsize=9)
    axes.set(xlim=(0, last), ylim=(0, IN_FLIGHT + 6), xlabel="seconds", ylabel="workers")
    axes.legend(loc="upper right", frameon=False, ncols=3, bbox_to_anchor=(1.0, 1.17), labelcolor=INK)
    save(figure, "admission", axes)
    print(f"admission: {len(seen)} looks")


PHASES = [
    (1.0, 0, "", False),
    (3.0, 40, "40 wait", False),
    (3.0, 160, "160 wait", False),
    (3.0, 20, "20 wait", False),
    (3.0, 0, "", False),
    (3.0, 160, "160 compute", True),
    (3.0, 0, "", False),
]
"""How long, how many calls are in flight, what the picture says, and whether the calls compute."""
STEP = 0.02
KEEP_ALIVE = 1.0
WIDTH, HEIGHT = 760, 320
LEFT, RIGHT, TOP, BOTTOM = 48, 14, 48, 48
MOST = 180


def threads_of(pool: ThreadPoolExecutor) -> list[tuple[float, int]]:
    """Put the load on a pool; return its number of threads at each moment."""
    flying = threading.Semaphore(0)
    in_flight = 0
    seen: list[tuple[float, int]] = []
    began = time.perf_counter()
    end = 0.0

    def count() -> int:
        if isinstance(pool, AdaptiveExecutor):
            return pool.stats().workers
        return sum(thread.name.startswith("stock") for thread in threading.enumerate())

    for seconds, wanted, _, computes in PHASES:
        end += seconds
        while time.perf_counter() - began < end:
            while flying.acquire(blocking=False):
                in_flight -= 1
            for _ in range(wanted - in_flight):
                pool.submit(*((compute,) if computes else (time.sleep, 0.05))).add_done_callback(
                    lambda _: flying.release()
                )
            in_flight = max(wanted, in_flight)
            seen.append((time.perf_counter() - began, count()))
            time.sleep(STEP)
    return seen


def x(seconds: float) -> float:
    """Return where a moment is in the picture."""
    whole = sum(phase[0] for phase in PHASES)
    return LEFT + seconds / whole * (WIDTH - LEFT - RIGHT)


def y(threads: float) -> float:
    """Return where a number of threads is in the picture."""
    return HEIGHT - BOTTOM - threads / MOST * (HEIGHT - TOP - BOTTOM)


def path(points: list[tuple[float, int]]) -> str:
    """Return a line through points, as steps; points that change nothing are left out."""
    steps = [f"M{x(points[0][0]):.1f} {y(points[0][1]):.1f}"]
    for (_, before), (when, now) in pairwise(points):
        if now != before:
            steps.append(f"H{x(when):.1f}V{y(now):.1f}")
    return "".join([*steps, f"H{x(points[-1][0]):.1f}"])


def picture(ours: list[tuple[float, int]], stock: list[tuple[float, int]]) -> str:
    """Return the picture."""
    muted = "var(--color-foreground-muted, #777)"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" class="ebb-plot"',
        'aria-labelledby="breathing-title breathing-desc" font-family="system-ui, sans-serif" font-size="12">',
        '<title id="breathing-title">Threads of two pools over time, under the same load</title>',
        '<desc id="breathing-desc">AdaptiveExecutor has about as many threads as calls wait, at most',
        f"{max(count for _, count in ours)}, few while calls compute, and none when there is nothing to do.",
        f"ThreadPoolExecutor grows to {max(count for _, count in stock)} threads and keeps them.</desc>",
    ]
    for threads in range(0, MOST, 40):
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(threads):.1f}" y2="{y(threads):.1f}" stroke="{muted}" '
            f'stroke-opacity="{0.9 if threads == 0 else 0.25}"/>'
            f'<text x="{LEFT - 6}" y="{y(threads) + 4:.1f}" text-anchor="end" fill="{muted}">{threads}</text>'
        )
    begin = 0.0
    for seconds, wanted, told, _ in PHASES:
        if wanted:
            parts.append(
                f'<rect x="{x(begin):.1f}" y="{y(wanted):.1f}" width="{x(seconds) - x(0):.1f}" '
                f'height="{y(0) - y(wanted):.1f}" fill="var(--ebb-load, #c77f1a)" fill-opacity="0.18"/>'
            )
        if told:
            middle = x(begin + seconds / 2)
            parts.append(f'<text x="{middle:.1f}" y="{TOP - 4}" text-anchor="middle" fill="{muted}">{told}</text>')
        begin += seconds
    line = "var(--ebb-line, #3b8ec2)"
    end = f'x="{WIDTH - RIGHT}" text-anchor="end"'
    below_stock, above_ours = y(stock[-1][1]) + 22, y(0) - 34
    parts += [
        f'<path d="{path(stock)}" fill="none" stroke="{muted}" stroke-width="1.8" stroke-dasharray="5 4"/>',
        f'<path d="{path(ours)}" fill="none" stroke="{line}" stroke-width="2.4"/>',
        f'<text {end} y="{below_stock:.1f}" fill="{muted}">ThreadPoolExecutor(256)</text>',
        f'<text {end} y="{above_ours:.1f}" fill="{line}" font-weight="600">AdaptiveExecutor</text>',
        f'<text x="{LEFT}" y="18" fill="{muted}">threads (shaded: calls in flight)</text>',
    ]
    for seconds in range(0, round(begin) + 1, 3):
        place = f'x="{x(seconds):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle"'
        parts.append(f'<text {place} fill="{muted}">{seconds}</text>')
    parts.append(f'<text {end} y="{HEIGHT - 6}" fill="{muted}">seconds</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def breathing() -> None:
    """Draw the threads of two pools over time, under the same load: calls that wait, as for a database, or compute."""
    with AdaptiveExecutor(keep_alive=KEEP_ALIVE) as pool:
        ours = threads_of(pool)
    with ThreadPoolExecutor(256, "stock") as stock_pool:
        stock = threads_of(stock_pool)
    picture_named("breathing").write_text(picture(ours, stock), encoding="utf-8")
    most = [max(count for _, count in one) for one in (ours, stock)]
    print(f"breathing: CPython {platform.python_version()}, at most {most[0]} and {most[1]} threads")


HANDLERS = (
    "20 ms of Python",
    "5 ms of Python",
    "2.5 ms of Python, 2.5 asleep",
    "1 ms of Python",
    "0.5 and 0.5",
    "zlib",
)
LABELS = {
    "2.5 ms of Python, 2.5 asleep": "2.5 ms, 2.5 asleep",
    "0.5 and 0.5": "0.5 ms, 0.5 asleep",
    "zlib": "zlib, 5 ms",
}
HEALTH = "FastAPI, 5 ms"


def lag(cells: list[dict[str, Any]], peer: str, handler: str = "") -> float:
    """Return the 99th percentile of the lag in milliseconds, with threads as by default."""
    return min(
        median(cell, "p99")
        for cell in cells
        if cell["peer"] == peer and cell["variant"].get("handler", "") == handler
        if cell["variant"].get("workers") != 2 and cell["variant"].get("clients", 64) == 64
    )


def loop() -> None:
    """Draw how long event loops wait beside threads."""
    beside, health = cells("loop", "loop_beside"), cells("health", "health_beside")
    rows = [(HEALTH, lag(health, "fastapi"), lag(health, "fastapi-installed"))]
    rows += [(LABELS.get(name, name), lag(beside, "stdlib", name), lag(beside, "run", name)) for name in HANDLERS]
    rows.reverse()
    figure, axes = plt.subplots(figsize=(5.2, 4.2))
    for place, (_, stock, ours) in enumerate(rows):
        axes.barh(
            place + 0.2,
            stock,
            0.36,
            color=STOCK,
            label="ThreadPoolExecutor, stock anyio" if not place else None,
        )
        axes.barh(place - 0.2, ours, 0.36, color=OURS, label="ebbpool" if not place else None)
        axes.text(stock * 1.06, place + 0.2, f"{stock:,.0f}", va="center", fontsize=8, color=INK)
        axes.text(ours * 1.06, place - 0.2, f"{ours:,.0f}", va="center", fontsize=8, color=INK)
    axes.set_xscale("log")
    axes.set_xlim(1, 4000)
    axes.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axes.set_xlabel("99th percentile of the loop's lag, ms")
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.4, 1.12), ncols=2, labelcolor=INK)
    save(figure, "loop", axes)


PICTURES: dict[str, Callable[[], None]] = {
    "admission": admission,
    "breathing": breathing,
    "loop": loop,
}

if __name__ == "__main__":
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "ebbpool"})
    for asked in sys.argv[1:]:
        PICTURES[asked]()
