"""One server under a planned load: two child processes, a sampler beside them, and what came of it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.load.serving import Server

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


@dataclass(frozen=True)
class Contender:
    """One server of those that are compared."""

    key: str
    """What files are called after it."""
    name: str
    """What the reader knows it by."""
    module: str
    """The server's module."""
    arguments: tuple[str, ...]
    """The server's arguments beside ``--control`` and ``--store``."""


PHASES = ("starting", "under load", "watching its threads", "done")
Facts = dict[str, object]


def _played(out: Path, plan: Plan) -> tuple[list[Outcome], float]:
    """Return what the load generator wrote: the outcomes, and the processor seconds it used."""
    played = json.loads(out.read_text(encoding="utf-8"))
    outcomes = []
    for number, sent, done, late, problem in played["rows"]:
        request = plan.requests[number]
        outcomes.append(Outcome(request.phase, request.kind, request.at, sent, done, late, problem))
    return outcomes, played["cpu"]


async def run_one(
    contender: Contender, site: Site, plan: Plan, tell: Callable[[str], None], loaded: asyncio.Event
) -> tuple[Run, Facts]:
    """Serve the plan in fresh processes, then watch until the server's threads have had time to leave.

    Args:
        contender: The server.
        site: Holds the plan, and takes files.
        plan: The same plan as in ``site``.
        tell: Called with each of `PHASES` as it begins.
        loaded: Set when the last answer is in and only threads are left to be watched.

    Raises:
        ChildFailed: The server or the load generator failed.
    """
    scale = plan.scale
    out = site.folder / f"{contender.key}.json"
    tell(PHASES[0])
    async with child(
        "benchmarks.demo.load", "--plan", str(site.plan), "--out", str(out),
        log=site.folder / f"{contender.key}-load.log",
    ) as load:  # fmt: skip
        store = (await load.expect("its store's port", 30.0))["port"]
        async with child(
            contender.module, "--store", str(store), *contender.arguments,
            log=site.folder / f"{contender.key}-app.log",
        ) as server:  # fmt: skip
            facts = await server.expect("a running server", 30.0)
            async with measure.watch(server) as watch:
                await load.send(port=facts.pop("port"))
                await load.expect("open connections", 30.0)
                start = time.monotonic()
                tell(PHASES[1])
                await load.expect("the end of the load", scale.burst_at + scale.patience + 5.0)
                end = time.monotonic()
                tell(PHASES[2])
                loaded.set()
                await watch.until(end + scale.watch)
            await server.send(question="who is left")
            left = (await server.expect("the names of its threads", 10.0))["names"]
            memory = Server(0, server.pid).peak_memory() or None
            complaints = server.last_words() + load.last_words()
    outcomes, load_cpu = _played(out, plan)
    seen = watch.samples
    before = max((sample.at for sample in seen if sample.at <= start), default=seen[0].at)
    samples = [Sample(s.at - start, s.threads, s.cpu) for s in seen if s.at >= before]
    max_workers = facts.pop("max_workers")
    assert isinstance(max_workers, int)
    tell(PHASES[3])
    run = Run(contender.name, max_workers, outcomes, samples, load_cpu, memory)
    facts.pop("event")
    facts |= {"threads counted by": watch.how, "threads left": left}
    if complaints:
        facts["printed"] = complaints
    return run, facts


async def run_all(
    contenders: Sequence[Contender], site: Site, plan: Plan, tell: Callable[[Contender, str], None]
) -> tuple[list[Run], dict[str, Facts]]:
    """Run the same plan on each server in turn; return the runs and, by name, what else is known of each.

    A server starts as soon as the one before it is out of work and has only its idle threads to be watched.

    Raises:
        ChildFailed: A server or a load generator failed.
    """
    tasks: list[asyncio.Task[tuple[Run, Facts]]] = []
    try:
        async with asyncio.TaskGroup() as group:
            for contender in contenders:
                loaded = asyncio.Event()
                said = partial(tell, contender)
                tasks.append(group.create_task(run_one(contender, site, plan, said, loaded)))
                await loaded.wait()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    ran = [task.result() for task in tasks]
    return [run for run, _ in ran], {run.name: facts for run, facts in ran}
