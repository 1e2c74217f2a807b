"""The asyncio case: an app that hands its blocking work to the loop's executor, with three pools."""

from __future__ import annotations

import sqlite3
import time
from functools import partial
from pathlib import Path
from typing import Any

from rich.progress import Progress

from ebbpool import AdaptiveExecutor

from . import corpus
from .answers import Answers
from .measure import summarise
from .plan import FULL, QUERIES, QUICK, Plan, Scale, make_plan
from .progress import Teller
from .report import everything, headline, notes, problems, rows, save_json
from .run import Contender, Site, run_all
from .table import Report


def contenders(site: Site) -> list[Contender]:
    """Return the pools; the last is fixed, of the adaptive one's ceiling."""
    with AdaptiveExecutor() as pool:
        ceiling = pool._max_workers
    names = {
        "default": "ThreadPoolExecutor()",
        "adaptive": "AdaptiveExecutor()",
        "fixed": f"ThreadPoolExecutor({ceiling})",
    }
    common = ("--ceiling", str(ceiling), "--index", str(site.index), "--root", str(site.sources))
    return [Contender(key, name, "benchmarks.demo.app", ("--pool", key, *common)) for key, name in names.items()]


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


async def measure_case(site: Site, quick: bool, stem: Path, facts: dict[str, Any], bars: Progress) -> Report:
    """Run the case, write its plots and JSON next to ``stem``, and return what there is to say.

    Raises:
        ChildFailed: A server or a load generator failed.
        NoFullTextSearch: This interpreter's SQLite lacks FTS5.
    """
    from .plot import draw

    began = time.monotonic()
    scale = QUICK if quick else FULL
    plan, indexed = prepare(site, scale, bars)
    runs, seen = await run_all(contenders(site), site, plan, Teller(bars))
    summaries = [summarise(run, scale.burst_at, scale.watch) for run in runs]
    facts = {**facts, **indexed, **seen}
    said = headline(runs, summaries)
    draw(runs, scale, said, stem)
    pools = [everything(run, summary) for run, summary in zip(runs, summaries, strict=True)]
    save_json(stem.with_suffix(".json"), pools, scale, facts)
    return Report(
        headline=said,
        title=f"asyncio: the same {summaries[0].requests:,} requests from {scale.clients} clients",
        columns=[run.name.replace("Executor", "\nExecutor") for run in runs],
        rows=rows(summaries, scale),
        notes=notes(summaries, runs, facts, time.monotonic() - began),
        problems=problems(runs),
        answers=sum(summary.requests for summary in summaries),
    )
