"""The whole demo: index, answers, three runs, report folder."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import platform
import signal
import sqlite3
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from . import corpus
from .answers import Answers
from .control import ROOT, ChildFailed
from .measure import Run, summarise
from .plan import FULL, QUERIES, QUICK, Plan, Scale, make_plan
from .report import headline, notes, problems, save_json
from .run import PHASES, POOLS, Site, run_pool
from .table import make_table, save_table

BUDGET = 118.0
"""Seconds after which the demo gives up."""


def prepare(site: Site, scale: Scale, bars: Progress) -> tuple[Plan, dict[str, Any]]:
    """Build the index, work out every answer without it, and decide the load.

    Raises:
        NoFullTextSearch: This interpreter's SQLite lacks FTS5.
    """
    paths = corpus.source_files(site.sources, scale.files)
    bar = bars.add_task("indexing the standard library", total=len(paths))
    corpus.build_index(site.index, site.sources, paths, partial(bars.advance, bar))
    bar = bars.add_task("working out every answer", total=len(paths))
    answers = Answers(site.sources, paths, QUERIES, partial(bars.advance, bar))
    plan = make_plan(scale, answers)
    plan.save(site.plan)
    size = sum((site.sources / path).stat().st_size for path in paths)
    return plan, {"files indexed": len(paths), "bytes indexed": size, "sqlite": sqlite3.sqlite_version}


def _tell(bars: Progress, bar: TaskID, name: str, phase: str) -> None:
    bars.update(bar, description=f"{name}: {phase}", completed=PHASES.index(phase))


async def measure_all(site: Site, plan: Plan, deadline: float, bars: Progress) -> tuple[list[Run], dict[str, Any]]:
    """Run the same plan on each pool in turn.

    Raises:
        ChildFailed: A server or load generator failed.
        TimeoutError: ``deadline``, on the monotonic clock, passed.
    """
    task = asyncio.current_task()
    assert task is not None
    # Event loops on Windows take no signal handlers; there nobody sends SIGTERM either.
    with contextlib.suppress(NotImplementedError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    runs: list[Run] = []
    facts: dict[str, Any] = {}
    ceiling = 0
    async with asyncio.timeout(deadline - time.monotonic()):
        for pool in POOLS:
            name = f"fixed pool of {ceiling}" if pool == "fixed" else f"{pool} pool"
            bar = bars.add_task(name, total=len(PHASES))
            run, seen = await run_pool(pool, ceiling, site, plan, partial(_tell, bars, bar, name))
            bars.update(bar, description=name, completed=len(PHASES))
            runs.append(run)
            facts[run.name] = seen
            if pool == "adaptive":
                ceiling = run.max_workers
    return runs, facts


def demo(scale: Scale, out: Path, console: Console) -> int:
    """Run everything, write the report folder; return the exit status: 0 only if all answers were right."""
    began = time.monotonic()
    bars = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=console, refresh_per_second=4,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="ebbpool-demo-") as folder:
        # matplotlib keeps its font cache there, and nothing in the user's home.
        os.environ.setdefault("MPLCONFIGDIR", folder)
        from .plot import draw

        with bars:
            site = Site(Path(folder), corpus.stdlib_root())
            plan, facts = prepare(site, scale, bars)
            runs, seen = asyncio.run(measure_all(site, plan, began + BUDGET, bars))
        summaries = [summarise(run, scale.burst_at, scale.watch) for run in runs]
        facts |= seen
        facts |= {"python": platform.python_version(), "platform": platform.platform()}
        facts |= {"processors": os.cpu_count()}
        out.mkdir(parents=True, exist_ok=True)
        draw(runs, scale, headline(runs, summaries), out / "threads")
    lines = notes(summaries, runs, facts, time.monotonic() - began)
    table = make_table(runs, summaries, scale)
    save_table(table, lines, out / "table.txt")
    save_json(out / "demo.json", runs, summaries, scale, facts)
    console.print(table)
    for line in [*lines, f"Table, plots and JSON are in {out}"]:
        console.print(line, highlight=False, markup=False)
    wrong = problems(runs)
    for line in wrong:
        console.print(line, style="bold red", highlight=False, markup=False)
    if not wrong:
        total = sum(summary.requests for summary in summaries)
        console.print(f"All {total:,} answers were right.", style="bold green", highlight=False)
    return 1 if wrong else 0


def main() -> int:
    """Read the command line, run the demo, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.demo", description="One load on an asyncio server with three thread pools."
    )
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "demo", help="the report folder")
    parser.add_argument("--quick", action="store_true", help="a tiny load, to see that everything works")
    options = parser.parse_args()
    console = Console()
    try:
        return demo(QUICK if options.quick else FULL, options.out, console)
    except (ChildFailed, corpus.NoFullTextSearch) as error:
        said, status = f"The demo failed: {error}", 1
    except TimeoutError:
        said, status = f"The demo gave up: it took longer than {BUDGET:g} s.", 1
    except KeyboardInterrupt:
        said, status = "Interrupted; nothing was written.", 130
    except asyncio.CancelledError:
        said, status = "Terminated; nothing was written.", 143
    console.print(said, style="bold red", highlight=False, markup=False)
    return status
