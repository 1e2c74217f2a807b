"""Draw the threads of two pools over time, under the same load: ``python docs/_plots/breathing.py``.

The load is real: for some seconds each, so many calls are kept in flight, which wait (as for a database) or compute. It
takes 40 seconds. The picture is written to docs/images/breathing.svg, in colours that the page around it may set.
"""

from __future__ import annotations

import platform
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

from ebbpool import AdaptiveExecutor

PICTURE = Path(__file__).parent.parent / "images" / "breathing.svg"
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


def wait() -> None:
    """Wait, as for a database."""
    time.sleep(0.05)


def compute() -> None:
    """Compute for some milliseconds."""
    sum(number * number for number in range(60_000))


def threads_of(pool: ThreadPoolExecutor) -> list[tuple[float, int]]:
    """Put the load on a pool; return its number of threads at each moment."""
    flying = threading.Semaphore(0)
    in_flight = 0
    seen: list[tuple[float, int]] = []
    began = time.perf_counter()
    end = 0.0
    prefix = pool._thread_name_prefix if not isinstance(pool, AdaptiveExecutor) else ""

    def count() -> int:
        if isinstance(pool, AdaptiveExecutor):
            return pool.stats().workers
        return sum(thread.name.startswith(prefix) for thread in threading.enumerate())

    for seconds, wanted, _, computes in PHASES:
        end += seconds
        while time.perf_counter() - began < end:
            while flying.acquire(blocking=False):
                in_flight -= 1
            for _ in range(wanted - in_flight):
                pool.submit(compute if computes else wait).add_done_callback(lambda _: flying.release())
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


def main() -> None:
    """Measure both pools, one after the other, and draw."""
    with AdaptiveExecutor(keep_alive=KEEP_ALIVE) as pool:
        ours = threads_of(pool)
    with ThreadPoolExecutor(256, "stock") as stock_pool:
        stock = threads_of(stock_pool)
    PICTURE.write_text(picture(ours, stock), encoding="utf-8")
    most = [max(count for _, count in one) for one in (ours, stock)]
    print(f"{PICTURE}: CPython {platform.python_version()}, at most {most[0]} and {most[1]} threads")


if __name__ == "__main__":
    main()
