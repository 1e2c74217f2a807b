"""One pool under the load: two child processes, a sampler beside them, and what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import measure
from .control import child
from .measure import Outcome, Run, Sample
from .plan import Plan


@dataclass(frozen=True)
class Site:
    """Where the runs find and leave things."""

    folder: Path
    """Temporary; holds everything below but the sources."""
    sources: Path

    @property
    def index(self) -> Path:
        """The full-text index."""
        return self.folder / "index.sqlite"

    @property
    def plan(self) -> Path:
        """The load, as JSON."""
        return self.folder / "plan.json"


POOLS = ("default", "adaptive", "fixed")
PHASES = ("starting", "under load", "watching its threads")
Facts = dict[str, object]


def _played(out: Path, plan: Plan) -> tuple[list[Outcome], float]:
    """Return what the load generator wrote: the outcomes, and the processor seconds it used."""
    played = json.loads(out.read_text(encoding="utf-8"))
    outcomes = []
    for number, sent, done, late, problem in played["rows"]:
        request = plan.requests[number]
        outcomes.append(Outcome(request.phase, request.kind, request.at, sent, done, late, problem))
    return outcomes, played["cpu"]


async def run_pool(pool: str, ceiling: int, site: Site, plan: Plan, tell: Callable[[str], None]) -> tuple[Run, Facts]:
    """Serve the plan with one pool in fresh processes, then watch until that pool has had time to shrink.

    Args:
        pool: One of `POOLS`.
        ceiling: The size of the fixed pool.
        site: Holds the index and the plan.
        plan: The same plan as in ``site``.
        tell: Called with each of `PHASES` as it begins.

    Raises:
        ChildFailed: The server or the load generator failed.
    """
    scale = plan.scale
    out = site.folder / f"{pool}.json"
    tell(PHASES[0])
    async with child(
        "benchmarks.demo.load", "--plan", str(site.plan), "--out", str(out),
        log=site.folder / f"{pool}-load.log",
    ) as load:  # fmt: skip
        store = (await load.expect("its store's port", 30.0))["port"]
        async with child(
            "benchmarks.demo.app", "--pool", pool, "--ceiling", str(ceiling), "--index", str(site.index),
            "--root", str(site.sources), "--store", str(store), log=site.folder / f"{pool}-app.log",
        ) as server:  # fmt: skip
            facts = await server.expect("a running server", 30.0)
            look, how = measure.looker(server)
            seen: list[Sample] = []
            sampler = asyncio.ensure_future(measure.sample_for_ever(look, seen))
            try:
                await load.send(port=facts.pop("port"))
                await load.expect("open connections", 30.0)
                start = time.monotonic()
                tell(PHASES[1])
                await load.expect("the end of the load", scale.burst_at + scale.patience + 5.0)
                end = time.monotonic()
                tell(PHASES[2])
                while seen[-1].at <= end + scale.watch:
                    await asyncio.wait({sampler}, timeout=measure.EVERY)
                    if sampler.done():
                        sampler.result()
            finally:
                sampler.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await sampler
            await server.send(question="who is left")
            left = (await server.expect("the names of its threads", 10.0))["names"]
            memory = measure.peak_memory(server.pid)
            complaints = server.last_words() + load.last_words()
    outcomes, load_cpu = _played(out, plan)
    before = max((sample.at for sample in seen if sample.at <= start), default=seen[0].at)
    samples = [Sample(s.at - start, s.threads, s.cpu) for s in seen if s.at >= before]
    name = {
        "default": "ThreadPoolExecutor()",
        "adaptive": "AdaptiveExecutor()",
        "fixed": f"ThreadPoolExecutor({ceiling})",
    }[pool]
    max_workers = facts.pop("max_workers")
    assert isinstance(max_workers, int)
    run = Run(name, max_workers, outcomes, samples, load_cpu, memory)
    facts.pop("event")
    facts |= {"threads counted by": how, "threads left": left}
    if complaints:
        facts["printed"] = complaints
    return run, facts
