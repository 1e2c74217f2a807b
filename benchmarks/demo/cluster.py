"""The cluster case: a burst of heavy requests, with and without two processes to spill to, one of them killed."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from rich.progress import Progress

from benchmarks.demo.cluster_app import SPILL_AFTER, THREADS, heavy
from benchmarks.demo.load import Client, Outcome, judged
from benchmarks.demo.table import Report, wrong
from benchmarks.engine.model import percentile
from benchmarks.load.serving import Server, serving

_SAMPLED = 0.05
_PATIENCE = 60.0
_CALM_RATE = 5.0
_LIGHT_RATE = 20.0


class Load(NamedTuple):
    """What is asked: heavy requests at a slow rate, then a burst, and light ones all along."""

    calm: float = 2.0
    burst: float = 5.0
    after: float = 1.0
    share: float = 1.5
    """The burst's rate, as a multiple of what one process can do by itself."""

    @property
    def killed(self) -> float:
        """When one of the two workers is killed."""
        return self.calm + self.burst / 2


class Look(NamedTuple):
    """The server's pool at one moment."""

    at: float
    running: int
    queued: int
    away: int
    spilled: int
    returned: int


@dataclass
class Side:
    """One server, and what it did."""

    name: str
    looks: list[Look] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def over(self) -> float:
        """When the last heavy request was answered."""
        return max(each.done for each in self.outcomes if each.kind == "heavy")

    def latency(self, kind: str, begin: float, end: float, share: float) -> str:
        """Return how many ms requests of a kind took that were due within a span."""
        found = [each.latency for each in self.outcomes if each.kind == kind and begin <= each.due < end]
        return f"{1000 * percentile(found, share):,.0f}" if found else "-"


def cost() -> float:
    """Return how many seconds one heavy call takes: the least of a few, for the machine may do other things."""
    times = []
    for seed in range(9):
        began = time.perf_counter()
        heavy(seed)
        times.append(time.perf_counter() - began)
    return min(times)


def due_times(load: Load, each: float) -> list[tuple[float, str, int]]:
    """Return when which request is due: (seconds, kind, seed); a heavy call takes `each` seconds."""
    end, rate = load.calm + load.burst, load.share / each
    found = [(number / _LIGHT_RATE, "light", 0) for number in range(int((end + load.after) * _LIGHT_RATE))]
    found += [(number / _CALM_RATE, "heavy", 1 + number) for number in range(int(load.calm * _CALM_RATE))]
    found += [(load.calm + number / rate, "heavy", 1000 + number) for number in range(int(load.burst * rate))]
    return sorted(found)


async def _ask(port: int, kind: str, seed: int, start: float, due: float, right: str) -> Outcome:
    """Send one request when it is due; its time counts from then."""
    await asyncio.sleep(max(0.0, start + due - time.monotonic()))
    try:
        async with asyncio.timeout(_PATIENCE):
            client = await Client.connected(port)
            problem = await judged(client, f"/heavy?seed={seed}" if kind == "heavy" else "/light", right)
            client.close()
    except (OSError, TimeoutError) as error:
        problem = f"error: {error!r}"
    return Outcome("", kind, due, time.monotonic() - start, problem)


async def _look(client: Client, side: Side, start: float) -> None:
    """Look at the server's pool until this is cancelled."""
    while True:
        told = json.loads((await client.get("/facts"))[1])
        names = ("running", "queued", "away", "spilled", "spill_returned")
        side.looks.append(Look(time.monotonic() - start, *(told[name] for name in names)))
        await asyncio.sleep(_SAMPLED)


async def _play(
    side: Side, scheduler: str, load: Load, due: Sequence[tuple[float, str, int]], kill: Callable[[], None]
) -> None:
    """Put the load on a new server.

    Raises:
        RuntimeError: The server failed.
    """
    right = {seed: str(heavy(seed)) for _, kind, seed in due if kind == "heavy"}
    with ExitStack() as stack:
        arguments = ("--scheduler", scheduler) if scheduler else ()
        server: Server = await asyncio.to_thread(
            stack.enter_context, serving("benchmarks.demo.cluster_app", *arguments)
        )
        client, start = await Client.connected(server.port), time.monotonic() + 0.3
        watching = asyncio.create_task(_look(client, side, start))
        asked = [
            asyncio.create_task(_ask(server.port, kind, seed, start, at, right.get(seed, "0")))
            for at, kind, seed in due
        ]
        try:
            if scheduler:
                await asyncio.sleep(max(0.0, start + load.killed - time.monotonic()))
                await asyncio.to_thread(kill)
            side.outcomes = [await each for each in asked]
            await asyncio.sleep(0.5)
            if watching.done():
                raise RuntimeError(f"the server has gone away: {watching.exception()!r}")
        finally:
            for task in (watching, *asked):
                task.cancel()
            await asyncio.gather(watching, *asked, return_exceptions=True)
            client.close()


@asynccontextmanager
async def two_workers() -> AsyncIterator[tuple[str, Callable[[], None]]]:
    """Yield the address of a cluster of two worker processes, and what kills one of them."""
    from distributed import LocalCluster

    def begin() -> Any:
        return LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None)

    cluster = await asyncio.to_thread(begin)
    try:
        yield cluster.scheduler_address, lambda: os.kill(next(iter(cluster.workers.values())).pid, signal.SIGKILL)
    finally:
        await asyncio.to_thread(cluster.close)


def _rows(sides: Sequence[Side], load: Load) -> list[tuple[str, list[str]]]:
    end = load.calm + load.burst
    spans = [
        ("heavy, before the burst: median (ms)", "heavy", 0.0, load.calm, 0.5),
        ("heavy, in the burst: median (ms)", "heavy", load.calm, end, 0.5),
        ("heavy, in the burst: p99 (ms)", "heavy", load.calm, end, 0.99),
        ("light, in the burst: median (ms)", "light", load.calm, end, 0.5),
        ("light, in the burst: p99 (ms)", "light", load.calm, end, 0.99),
    ]
    return [
        *((text, [side.latency(kind, *span) for side in sides]) for text, kind, *span in spans),
        ("last answer, after the burst began (s)", [f"{side.over - load.calm:.1f}" for side in sides]),
        ("tasks spilled / came back", [f"{side.looks[-1].spilled} / {side.looks[-1].returned}" for side in sides]),
        ("threads of the pool at most", [str(max(look.running for look in side.looks)) for side in sides]),
        ("waiting at most", [str(max(look.queued for look in side.looks)) for side in sides]),
    ]


def draw(sides: Sequence[Side], load: Load, title: str, stem: Path) -> None:
    """Write ``stem``.png and ``stem``.svg: latency, what waits here, and what is elsewhere."""
    from matplotlib.figure import Figure

    from benchmarks.demo.plot import COLORS, plain, save

    figure = Figure(figsize=(11, 8), dpi=110, layout="constrained")
    latency, waiting, spilled = figure.subplots(3, 1, sharex=True)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, wrap=True)
    for side, color in zip(sides, (COLORS[0], COLORS[2]), strict=True):
        found = [(each.due, each.latency) for each in side.outcomes if each.kind == "heavy" and not each.problem]
        latency.plot(*zip(*found, strict=True), ".", color=color, markersize=5, label=side.name)
        times = [look.at for look in side.looks]
        waiting.step(times, [look.queued for look in side.looks], where="post", color=color, linewidth=1.6)
    looks = sides[-1].looks
    times = [look.at for look in looks]
    for name, color, label in (("spilled", "#009E73", "spilled so far"), ("returned", "#CC79A7", "came back so far")):
        counts = [getattr(look, name) for look in looks]
        spilled.step(times, counts, where="post", color=color, linewidth=2, label=label)
    spilled.fill_between(times, [look.away for look in looks], step="post", color="#56B4E9", label="away now")
    plain(latency, "heavy request: seconds until\nanswered, by when it was due")
    plain(waiting, "tasks that wait in the server")
    plain(spilled, "tasks of the\nspilling server")
    for axes in (latency, waiting, spilled):
        axes.axvspan(load.calm, load.calm + load.burst, color="#F6E3B4", alpha=0.6, zorder=0)
        axes.axvline(load.killed, color="#444444", linewidth=1.2, linestyle="--", zorder=1)
    place = latency.get_xaxis_transform()
    latency.text(load.killed, 1.02, "a worker is killed", transform=place, ha="center", fontsize=9)
    latency.legend(loc="upper left", frameon=False)
    spilled.legend(loc="upper left", frameon=False)
    save(figure, spilled, stem)


async def run(quick: bool, stem: Path, bars: Progress) -> Report:
    """Run the case, write its plot and JSON next to ``stem``, and return what there is to say.

    Raises:
        RuntimeError: A server failed.
    """
    load, each = Load(calm=0.5, burst=1.0, after=0.2) if quick else Load(), cost()
    due, processors = due_times(load, each), os.cpu_count()
    sides = [Side("alone"), Side("spilling to 2 processes")]
    bar = bars.add_task("starting two worker processes", total=3)
    async with two_workers() as (scheduler, kill):
        for side, address in zip(sides, ("", scheduler), strict=True):
            bars.update(bar, advance=1, description=f"burst, {side.name}" + (", one is killed" if address else ""))
            await _play(side, address, load, due, kill)
    bars.update(bar, advance=1)
    first, second = (side.over - load.calm for side in sides)
    headline = (
        f"A burst at {load.share:g} times what one process can do: the last answer came after {first:.1f} s alone, "
        f"{second:.1f} s with two processes to spill to, one of them killed halfway"
    )
    draw(sides, load, headline, stem)
    columns = {"looks": Look._fields, "requests": Outcome._fields}
    found = [{"name": side.name, "looks": side.looks, "requests": side.outcomes} for side in sides]
    text = json.dumps({"load": load._asdict(), "heavy call": each, "columns": columns, "sides": found})
    stem.with_suffix(".json").write_text(text + "\n", encoding="utf-8")
    system = f"CPython {platform.python_version()}, {processors} processors, distributed {version('distributed')}"
    gain = (
        f"A heavy call is pure Python of {1000 * each:.0f} ms. One process makes one at a time, whatever its threads: "
        "that is the limit that other processes lift. Work that leaves the GIL, and work that waits, would gain "
        f"nothing here. With {processors} processors the gain is at most {processors}x."
    )
    killed = (
        "A killed worker gives back what it had, and that runs in the server. The load comes from another process "
        "on the same processors, which also runs the scheduler. Latency counts from when a request was due."
    )
    return Report(
        headline=headline,
        title="A burst that outgrows the process",
        columns=[side.name for side in sides],
        rows=_rows(sides, load),
        notes=[f"{system}. The server: {THREADS} threads, spill_after={SPILL_AFTER:g} s.", gain, killed],
        problems=[text for side in sides for text in wrong(side.name, [one.problem for one in side.outcomes])],
        answers=sum(len(side.outcomes) for side in sides),
    )
