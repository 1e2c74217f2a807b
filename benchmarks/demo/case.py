"""One case: the same load on three servers, one after the other; a table, a plot and all samples."""

from __future__ import annotations

import asyncio
import io
import json
import math
import os
import platform
import sysconfig
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.demo.app import CEILING, sha256_of
from benchmarks.demo.load import Load, Outcome, Request, Run, Sample, plan, play, serve_store
from benchmarks.engine.model import percentile
from benchmarks.load.http import Connection, request
from benchmarks.load.serving import Server, serving

_FILES = 300
_EVERY = 0.05
_TOO_LATE = 1.0
"""Seconds after which a health check counts as failed: the default of Kubernetes' probes."""

LOADS = {
    "fastapi": Load(
        clients=300, rate=150.0, steady_at=3.0, steady=8.0, mix={"health": 0.2, "digest": 0.2, "verify": 0.6},
        burst_at=0.0, burst={"wait": 1.0}, burst_size=200, trouble=(5.0, 8.0),
    ),
    "asyncio": Load(
        clients=300, rate=200.0, steady_at=0.0, steady=8.0, mix={"health": 0.79, "digest": 0.06, "verify": 0.15},
        burst_at=11.0, burst={"health": 0.45, "digest": 0.05, "verify": 0.5}, burst_size=300,
    ),
}  # fmt: skip
SIDES = {
    "fastapi": {"stock": "stock", "raised": f"{CEILING} tokens", "installed": "ebbpool.anyio.install()"},
    "asyncio": {
        "default": "ThreadPoolExecutor()",
        "fixed": f"ThreadPoolExecutor({CEILING})",
        "adaptive": "AdaptiveExecutor()",
    },
}


def quickened(load: Load) -> Load:
    """Return a tiny load, to see that everything works."""
    return replace(
        load, clients=60, rate=30.0, steady_at=min(load.steady_at, 0.5), steady=1.0, burst_at=min(load.burst_at, 1.5),
        burst_size=30, trouble=(load.trouble[0] / 6, load.trouble[1] / 6), watch=0.5,
    )  # fmt: skip


async def _facts(client: Connection) -> Any:
    """Ask a server how it is."""
    return json.loads((await client.get(request("/facts")))[1])


async def _watch(client: Connection, samples: list[Sample]) -> None:
    """Ask the server how it is, again and again, on the loop's clock."""
    loop = asyncio.get_running_loop()
    while True:
        facts = await _facts(client)
        samples.append(Sample(loop.time(), len(facts["threads"]), facts["cpu"]))
        await asyncio.sleep(_EVERY)


async def run_one(
    side: str, name: str, load: Load, requests: Sequence[Request], arguments: Sequence[str], loaded: asyncio.Event,
    tell: Callable[[str], None],
) -> Run:  # fmt: skip
    """Serve the load in a fresh process, then watch until the server's threads have had time to leave.

    Raises:
        RuntimeError: The server failed.
    """
    with ExitStack() as stack:
        try:
            tell("starting")
            server: Server = await asyncio.to_thread(
                stack.enter_context, serving(f"benchmarks.demo.app {side}", *arguments)
            )
            client, samples = await Connection.open(server.port), list[Sample]()
            watching = asyncio.create_task(_watch(client, samples))
            stack.callback(client.close)
            stack.callback(watching.cancel)
            tell("under load")
            start, outcomes = await play(server.port, list(requests), load.patience)
        finally:
            loaded.set()
        tell("watching its threads")
        await asyncio.wait({watching}, timeout=load.watch)
        if watching.done():
            raise RuntimeError(f"the server of {name} has gone away: {watching.exception()!r}")
        watching.cancel()
        await asyncio.wait({watching})
        asking = await Connection.open(server.port)
        facts = await _facts(asking)
        asking.close()
        tell("done")
        seen = [Sample(each.at - start, each.threads, each.cpu) for each in samples]
        return Run(name, outcomes, seen, facts, facts["threads"], server.peak_memory())


def in_ms(seconds: float) -> str:
    """Return a time in milliseconds, with no more digits than it deserves; ``-`` if there is none."""
    if math.isnan(seconds):
        return "-"
    return f"{seconds * 1000:,.1f}" if seconds < 0.1 else f"{seconds * 1000:,.0f}"


def spread(outcomes: Sequence[Outcome]) -> str:
    """Return the median and the 99th percentile of the latencies, in milliseconds."""
    latencies = [outcome.latency for outcome in outcomes] or [math.nan]
    return f"{in_ms(percentile(latencies, 0.5))} / {in_ms(percentile(latencies, 0.99))}"


def burst_took(run: Run, load: Load) -> float:
    """Return the seconds from the burst to its last answer."""
    return max(outcome.done for outcome in run.outcomes if outcome.phase == "burst") - load.burst_at


def late_checks(run: Run) -> list[Outcome]:
    """Return the health checks of the steady phase that took longer than a prober waits."""
    return [one for one in run.outcomes if one.kind == "health" and one.phase == "steady" and one.latency > _TOO_LATE]


def table_rows(runs: Sequence[Run], load: Load) -> list[tuple[str, list[str]]]:
    """Return the table's rows: a question, and each server's answer to it."""

    def of(run: Run, phase: str, *kinds: str) -> list[Outcome]:
        return [one for one in run.outcomes if one.phase == phase and (not kinds or one.kind in kinds)]

    first = runs[0].outcomes
    checks = sum(one.kind == "health" and one.phase == "steady" for one in first)
    questions: list[tuple[str, Callable[[Run], str]]] = [
        (f"{load.burst_size} at once: last answer (ms)", lambda run: in_ms(burst_took(run, load))),
        ("  p50 / p99 (ms)", lambda run: spread(of(run, "burst"))),
        ("steady: health, p50 / p99 (ms)", lambda run: spread(of(run, "steady", "health"))),
        ("  digest", lambda run: spread(of(run, "steady", "digest"))),
        ("  verify", lambda run: spread(of(run, "steady", "verify"))),
        (f"  health checks over {_TOO_LATE:g} s", lambda run: f"{len(late_checks(run))}/{checks}"),
        ("peak threads", lambda run: str(max(sample.threads for sample in run.samples))),
        (f"threads {load.watch:g} s later", lambda run: str(len(run.left))),
        ("CPU seconds", lambda run: f"{run.samples[-1].cpu - run.samples[0].cpu:.2f}"),
        ("peak memory (MiB)", lambda run: f"{run.memory / 2**20:.0f}" if run.memory else "unknown"),
        ("right answers", lambda run: f"{sum(not one.problem for one in run.outcomes):,}/{len(run.outcomes):,}"),
    ]
    return [(question, [answer(run) for run in runs]) for question, answer in questions]


def headline(runs: Sequence[Run], load: Load) -> str:
    """Say what was seen, whoever came out ahead: above the table, and the plot's title."""

    def each(tell: Callable[[Run], object]) -> str:
        return ", ".join(f"{run.name}: {tell(run)}" for run in runs)

    peaks = each(lambda run: f"{max(sample.threads for sample in run.samples)} → {len(run.left)}")
    bursts = each(lambda run: f"{in_ms(burst_took(run, load))} ms")
    return (
        f"Most threads → threads {load.watch:g} s after the load. {peaks}\n"
        f"Until {load.burst_size} requests at once were answered. {bursts}\n"
        f"Health checks that took over {_TOO_LATE:g} s. {each(lambda run: len(late_checks(run)))}"
    )


def notes(runs: Sequence[Run], seconds: float) -> list[str]:
    """Return what a reader of the table has to know beside it."""
    facts = runs[0].facts
    system = f"CPython {platform.python_version()}, {os.cpu_count()} processors, {facts['loop']}, {facts['parser']}"
    lines = [
        f"{system}, ebbpool {facts['ebbpool']} ({facts['core']} core). {seconds:.0f} s in all.",
        "Latency counts from when a request was due. Threads do not include the event loop's own.",
    ]
    return lines + [f"Left in {run.name}'s server: {', '.join(run.left)}." for run in runs if 0 < len(run.left) <= 3]


def _digests(root: Path) -> dict[str, str]:
    """Return what the upstream holds: the SHA-256 of some files of the standard library."""
    return {path.name: sha256_of(path) for path in sorted(root.glob("*.py"))[:_FILES]}


def wrong(name: str, said: Sequence[str]) -> list[str]:
    """Return a text that names the first few of the problems of a contender; "" stands for a right answer."""
    found = [problem for problem in said if problem]
    shown = "".join(f"\n  {problem}" for problem in found[:5])
    return [f"{name}: {len(found):,} of {len(said):,} answers were wrong or missing:{shown}"] if found else []


def table(title: str, runs: Sequence[Run], load: Load) -> Table:
    """Return the table: a row for each question, a column for each contender."""
    made = Table("", title=title)
    for run in runs:
        label = run.name.replace("Executor", "\nExecutor").replace(".install", "\n.install")
        made.add_column(label, justify="right", no_wrap=True)
    for question, answers in table_rows(runs, load):
        made.add_row(question, *answers)
    return made


async def run(name: str, quick: bool, stem: Path, bars: Progress, console: Console) -> bool:
    """Run a case, write its table, plot and JSON next to ``stem``, and say what came of it.

    A server starts as soon as the one before it is out of work and has only its idle threads to be watched.

    Returns:
        Whether all answers were right.

    Raises:
        RuntimeError: A server failed.
    """
    from benchmarks.demo.plot import draw

    began, load = time.monotonic(), quickened(LOADS[name]) if quick else LOADS[name]
    root = Path(sysconfig.get_path("stdlib"))
    digests = _digests(root)
    requests = plan(load, digests)
    store = await serve_store(digests)
    arguments = ("--store", str(store.sockets[0].getsockname()[1]), "--root", str(root))
    tasks: list[asyncio.Task[Run]] = []
    try:
        async with asyncio.TaskGroup() as group:
            for side, label in SIDES[name].items():
                bar, loaded = bars.add_task(label, total=3), asyncio.Event()

                def tell(phase: str, bar: Any = bar, label: str = label) -> None:
                    bars.update(bar, description=f"{label}: {phase}", advance=phase != "starting")

                work = run_one(f"{name}-{side}", label, load, requests, arguments, loaded, tell)
                tasks.append(group.create_task(work))
                await loaded.wait()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    finally:
        store.close()
    runs = [task.result() for task in tasks]
    said = headline(runs, load)
    draw(runs, load, said, stem)
    contenders = [
        {"name": one.name, "facts": one.facts, "samples": one.samples, "requests": one.outcomes} for one in runs
    ]
    columns = {"samples": Sample._fields, "requests": Outcome._fields}
    document = {"load": asdict(load), "columns": columns, "units": "seconds", "contenders": contenders}
    stem.with_suffix(".json").write_text(json.dumps(document) + "\n", encoding="utf-8")
    text = Console(file=io.StringIO(), width=110, record=True)
    text.print(said, highlight=False, markup=False)
    text.print(table(f"{name}: the same {len(requests):,} requests", runs, load))
    text.print(*notes(runs, time.monotonic() - began), sep="\n", highlight=False, markup=False)
    told = text.export_text()
    stem.with_suffix(".txt").write_text(told, encoding="utf-8")
    console.print(told, highlight=False, markup=False)
    problems = [text for one in runs for text in wrong(one.name, [out.problem for out in one.outcomes])]
    for problem in problems:
        console.print(problem, style="bold red", highlight=False, markup=False)
    if not problems:
        answers = sum(len(one.outcomes) for one in runs)
        console.print(f"All {answers:,} answers were right.", style="bold green", highlight=False)
    return not problems
