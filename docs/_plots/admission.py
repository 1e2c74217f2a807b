"""Draw who runs, sleeps and is parked in a pool over time: ``python docs/_plots/admission.py``.

The load is real: calls that wait, compute, and do both by turns. It takes eight seconds. What is drawn is what the
looks of the timekeeper see. The picture is written to docs/images/admission.svg, in colours that the page around it
may set.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")

import matplotlib.pyplot as plt

from ebbpool import AdaptiveExecutor

PICTURE = Path(__file__).parent.parent / "images" / "admission.svg"
IN_FLIGHT = 24
SECONDS = 2.0


def wait() -> None:
    """Wait, as for a database."""
    time.sleep(0.02)


def compute() -> None:
    """Compute for some milliseconds."""
    sum(number * number for number in range(60_000))


def both() -> None:
    """Compute, and wait as long."""
    compute()
    time.sleep(0.005)


PHASES = (("wait 20 ms", wait), ("compute 5 ms of Python", compute), ("compute 5 ms, wait 5 ms", both))
COLOURS = {"run": "#d97706", "sleep": "#2563eb", "parked": "#94a3b8"}


def main() -> None:
    """Put the load on a pool, look along with its timekeeper, and draw what was seen."""
    seen: list[tuple[float, int, int, int]] = []
    with AdaptiveExecutor(64) as pool:
        admission: Any = pool._crew._admission
        began = time.perf_counter()

        class Noted(type(admission)):  # type: ignore[misc]  # the class is private, and not known to mypy here
            __slots__ = ()

            def decide(self, look: Any) -> int:
                workers = look.workers()
                running = workers.running + workers.long
                seen.append((time.perf_counter() - began, running, workers.asleep, pool.stats().idle))
                return int(super().decide(look))

        pool._crew._admission = Noted()
        flying = threading.Semaphore(IN_FLIGHT)
        starts = []
        for name, call in PHASES:
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
    axes.stackplot(times, *stacks, labels=list(COLOURS), colors=list(COLOURS.values()), linewidth=0)
    for start, name in starts:
        axes.axvline(start, color="#64748b", linewidth=0.8, linestyle=":")
        axes.text(start + 0.04, IN_FLIGHT + 3.4, name, color="#64748b", fontsize=9)
    axes.set(xlim=(0, last), ylim=(0, IN_FLIGHT + 6), xlabel="seconds", ylabel="workers")
    axes.legend(loc="upper right", frameon=False, ncols=3, bbox_to_anchor=(1.0, 1.17), labelcolor="#64748b")
    for part in (axes.xaxis, axes.yaxis):
        part.label.set_color("#64748b")
    axes.tick_params(colors="#64748b")
    for spine in axes.spines.values():
        spine.set_color("#94a3b8")
    figure.tight_layout()
    figure.savefig(PICTURE, transparent=True, metadata={"Date": None})
    print(f"{PICTURE}: {len(seen)} looks")


if __name__ == "__main__":
    main()
