"""The cluster case: a burst of heavy requests, with and without two processes to spill to, one of them killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from rich.progress import Progress

from .cluster_app import SPILL_AFTER, THREADS
from .control import Child, child
from .heavy import heavy
from .run import Site
from .table import Report

SAMPLED = 0.05
"""Seconds between two looks at the server's pool."""
PATIENCE = 60.0
"""Seconds within which each request must be answered."""


class Load(NamedTuple):
    """What is asked: heavy requests at a slow rate, then a burst, and light ones all along."""

    calm: float = 2.0
    burst: float = 5.0
    after: float = 1.0
    calm_rate: float = 5.0
    burst_share: float = 1.5
    """The burst's rate, as a multiple of what one process can do by itself."""
    light_rate: float = 20.0

    @property
    def killed(self) -> float:
        """When one of the two workers is killed."""
        return self.calm + self.burst / 2


QUICK = Load(calm=0.5, burst=1.0, after=0.2)


class Look(NamedTuple):
    """The server's pool at one moment."""

    at: float
    running: int
    queued: int
    away: int
    spilled: int
    returned: int


class Answer(NamedTuple):
    """One request, and how it ended: `problem` is empty if the answer was right."""

    kind: str
    due: float
    seconds: float
    problem: str


@dataclass
class Side:
    """One server, and what it did."""

    name: str
    looks: list[Look] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    killed: float | None = None

    def seconds(self, kind: str, begin: float, end: float) -> list[float]:
        """Return how long requests of a kind took that were due within a span."""
        return sorted(each.seconds for each in self.answers if each.kind == kind and begin <= each.due < end)

    @property
    def over(self) -> float:
        """When the last heavy request was answered."""
        return max(each.due + each.seconds for each in self.answers if each.kind == "heavy")


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
    end = load.calm + load.burst
    found = [(number / load.light_rate, "light", 0) for number in range(int((end + load.after) * load.light_rate))]
    found += [(number / load.calm_rate, "heavy", 1 + number) for number in range(int(load.calm * load.calm_rate))]
    rate = load.burst_share / each
    found += [(load.calm + number / rate, "heavy", 1000 + number) for number in range(int(load.burst * rate))]
    return sorted(found)


async def ask(port: int, kind: str, seed: int, start: float, due: float, right: str) -> Answer:
    """Send one request when it is due; its time counts from then."""
    await asyncio.sleep(max(0.0, start + due - time.monotonic()))
    try:
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                path = "/light" if kind == "light" else f"/heavy?seed={seed}"
                writer.write(f"GET {path} HTTP/1.1\r\nHost: demo\r\nConnection: close\r\n\r\n".encode())
                told = await reader.read()
            finally:
                writer.close()
        status, _, body = told.partition(b"\r\n\r\n")
        problem = "" if b" 200 " in status and body.decode() == right else f"{status[:30]!r} {body[:30]!r}"
    except (OSError, TimeoutError) as error:
        problem = repr(error)
    return Answer(kind, due, time.monotonic() - start - due, problem)


async def look(server: Child, side: Side, start: float) -> None:
    """Look at the server's pool until this is cancelled."""
    while True:
        await server.send(question="what do you do")
        told = await server.expect("its figures", 10.0)
        names = ("running", "queued", "away", "spilled", "spill_returned")
        side.looks.append(Look(time.monotonic() - start, *(told[name] for name in names)))
        await asyncio.sleep(SAMPLED)


async def play(side: Side, site: Site, scheduler: str, load: Load, due: list[Any], kill: Callable[[], None]) -> None:
    """Put the load on a new server.

    Raises:
        ChildFailed: The server failed.
    """
    right = {seed: str(heavy(seed)) for _, kind, seed in due if kind == "heavy"}
    log = site.folder / f"cluster-{bool(scheduler)}.log"
    arguments = ("--store", "0", "--scheduler", scheduler)
    async with child("benchmarks.demo.cluster_app", *arguments, log=log) as server:
        side.facts = await server.expect("a running server", 30.0)
        start = time.monotonic() + 0.3
        watching = asyncio.create_task(look(server, side, start))
        asked = [
            asyncio.create_task(ask(side.facts["port"], kind, seed, start, at, right.get(seed, "0")))
            for at, kind, seed in due
        ]
        try:
            if scheduler:
                await asyncio.sleep(max(0.0, start + load.killed - time.monotonic()))
                side.killed = time.monotonic() - start
                await asyncio.to_thread(kill)
            side.answers = [await each for each in asked]
            await asyncio.sleep(0.5)
        finally:
            for task in (watching, *asked):
                task.cancel()
            await asyncio.gather(watching, *asked, return_exceptions=True)
        if watching.done() and not watching.cancelled() and (error := watching.exception()) is not None:
            raise error


@asynccontextmanager
async def two_workers() -> AsyncIterator[tuple[str, Callable[[], None]]]:
    """Yield the address of a cluster of two worker processes, and what kills one of them."""
    from distributed import LocalCluster

    def begin() -> Any:
        return LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None)

    cluster = await asyncio.to_thread(begin)
    try:

        def kill() -> None:
            nanny = next(iter(cluster.workers.values()))
            os.kill(nanny.pid, signal.SIGKILL)

        yield cluster.scheduler_address, kill
    finally:
        await asyncio.to_thread(cluster.close)


def _ms(values: list[float], share: float) -> str:
    return f"{1000 * values[min(len(values) - 1, int(share * len(values)))]:,.0f}" if values else "-"


def rows(sides: list[Side], load: Load) -> list[tuple[str, list[str]]]:
    """Return the table's rows."""
    end = load.calm + load.burst
    last = [side.looks[-1] for side in sides]
    return [
        ("heavy, before the burst: median (ms)", [_ms(side.seconds("heavy", 0, load.calm), 0.5) for side in sides]),
        ("heavy, in the burst: median (ms)", [_ms(side.seconds("heavy", load.calm, end), 0.5) for side in sides]),
        ("heavy, in the burst: p99 (ms)", [_ms(side.seconds("heavy", load.calm, end), 0.99) for side in sides]),
        ("light, in the burst: median (ms)", [_ms(side.seconds("light", load.calm, end), 0.5) for side in sides]),
        ("light, in the burst: p99 (ms)", [_ms(side.seconds("light", load.calm, end), 0.99) for side in sides]),
        ("last answer, after the burst began (s)", [f"{side.over - load.calm:.1f}" for side in sides]),
        ("tasks spilled / came back", [f"{each.spilled} / {each.returned}" for each in last]),
        ("threads of the pool at most", [str(max(each.running for each in side.looks)) for side in sides]),
        ("waiting at most", [str(max(each.queued for each in side.looks)) for side in sides]),
    ]


def notes(server: dict[str, Any], facts: dict[str, Any]) -> list[str]:
    """Return what a reader of the table has to know beside it."""
    core = "compiled" if server["compiled"] else "plain Python"
    processors, each = facts["processors"], 1000 * facts["seconds of a heavy call"]
    about = f"CPython {facts['python']}, {processors} processors, ebbpool {server['ebbpool']} ({core} core), "
    gain = (
        f"A heavy call is pure Python of {each:.0f} ms. One process makes one at a time, whatever its threads: that is "
        f"the limit that other processes lift. With {processors} processors the gain is at most {processors}x. Work "
        "that leaves the GIL, and work that waits, would gain nothing here."
    )
    load = (
        f"The server: {THREADS} threads, spill_after={SPILL_AFTER:g} s. The load comes from a third process on "
        "the same processors, which also runs the scheduler. Latency counts from when a request was due."
    )
    killed = (
        "A killed worker gives back what it had, and that runs in the server. Its successor starts meanwhile, which "
        "takes processor time. On a machine that is busy with other things, what comes out says more about these."
    )
    return [f"{about}distributed {facts['distributed']}.", gain, load, killed]


async def measure_case(site: Site, quick: bool, stem: Path, facts: dict[str, Any], bars: Progress) -> Report:
    """Run the case, write its plot and JSON next to ``stem``, and return what there is to say.

    Raises:
        ChildFailed: A server failed.
    """
    from .cluster_plot import draw

    load = QUICK if quick else Load()
    each = cost()
    due = due_times(load, each)
    sides = [Side("alone"), Side("spilling to 2 processes")]
    steps = bars.add_task("cluster", total=4)

    def tell(what: str) -> None:
        bars.update(steps, description=f"cluster: {what}")

    tell("starting two worker processes")
    async with two_workers() as (scheduler, kill):
        bars.advance(steps)
        for side, address in zip(sides, ("", scheduler), strict=True):
            tell(f"burst, {side.name}" + (", one is killed" if address else ""))
            await play(side, site, address, load, due, kill)
            bars.advance(steps)
    tell("drawing")
    first, second = sides
    headline = (
        f"A burst at {load.burst_share:g} times what one process can do: the last answer came after "
        f"{first.over - load.calm:.1f} s alone, {second.over - load.calm:.1f} s with two processes to spill to, "
        "one of them killed halfway"
    )
    draw(sides, load, headline, stem)
    content = {
        "facts": facts | {"distributed": version("distributed"), "seconds of a heavy call": each},
        "load": load._asdict(),
        "sides": [
            {
                "name": side.name,
                "killed": side.killed,
                "looks": {"columns": Look._fields, "rows": side.looks},
                "answers": {"columns": Answer._fields, "rows": side.answers},
            }
            for side in sides
        ],
    }
    stem.with_suffix(".json").write_text(json.dumps(content) + "\n", encoding="utf-8")
    bars.advance(steps)
    tell("done")
    wrong = [
        f"{side.name}: {len(found)} of {len(side.answers)} answers were wrong or missing:\n  "
        + "\n  ".join(f"{each.kind}, due at {each.due:.2f} s: {each.problem}" for each in found[:5])
        for side in sides
        if (found := [each for each in side.answers if each.problem])
    ]
    return Report(
        headline=headline,
        title="A burst that outgrows the process",
        columns=[side.name for side in sides],
        rows=rows(sides, load),
        notes=notes(first.facts, content["facts"]),
        problems=wrong,
        answers=sum(len(side.answers) for side in sides),
    )
