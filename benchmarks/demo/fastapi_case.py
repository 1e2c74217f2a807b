"""The FastAPI case: plain ``def`` endpoints, stock, with more tokens, and with ``ebbpool.anyio.install()``."""

from __future__ import annotations

import hashlib
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.progress import Progress

from ebbpool import AdaptiveExecutor

from . import fastapi_report
from .corpus import source_files
from .drills import DRILLS, DRILLS_QUICK, side_by_side
from .fastapi_report import summarise
from .hammer import Mark
from .progress import Teller
from .report import everything, save_json
from .run import Contender, Site, run_all
from .table import Report
from .trouble import STEADY, STEADY_QUICK, make_trouble


def contenders(site: Site) -> list[Contender]:
    """Return the sides; the second gets as many tokens as the pool of the third has threads at most."""
    with AdaptiveExecutor() as pool:
        ceiling = pool._max_workers
    names = {"stock": "stock", "raised": f"{ceiling} tokens", "installed": "ebbpool.anyio.install()"}
    common = ("--ceiling", str(ceiling), "--root", str(site.sources))
    return [
        Contender(key, name, "benchmarks.demo.fastapi_app", ("--side", key, *common)) for key, name in names.items()
    ]


async def measure_case(site: Site, quick: bool, stem: Path, facts: dict[str, Any], bars: Progress) -> Report:
    """Run the case, write its plots and JSON next to ``stem``, and return what there is to say.

    Raises:
        ChildFailed: A server or a load generator failed.
    """
    from .fastapi_plot import draw

    began = time.monotonic()
    scale, drills = (STEADY_QUICK, DRILLS_QUICK) if quick else (STEADY, DRILLS)
    paths = source_files(site.sources, 300 if scale.files is None else scale.files)
    digests = {path: hashlib.sha256((site.sources / path).read_bytes()).hexdigest() for path in paths}
    plan = make_trouble(scale, digests)
    plan.save(site.plan)
    sides = contenders(site)
    bar = bars.add_task("FastAPI, round after round", total=len(sides) * sum(drill.times for drill in drills))
    rounds = await side_by_side(sides, drills, site, lambda: bars.advance(bar))
    runs, seen = await run_all(sides, site, plan, Teller(bars))
    seen_in_rounds = [rounds[side.key] for side in sides]
    summaries = [summarise(side, run, scale) for side, run in zip(seen_in_rounds, runs, strict=True)]
    facts = {**facts, **seen, "fastapi": version("fastapi"), "anyio": version("anyio")}
    headline = fastapi_report.headline(summaries)
    draw(seen_in_rounds, runs, summaries, scale, headline, stem)
    known = [
        everything(run, summary) | {"rounds": {"columns": Mark._fields, "rows": side.rounds}}
        for side, run, summary in zip(seen_in_rounds, runs, summaries, strict=True)
    ]
    save_json(stem.with_suffix(".json"), known, scale, facts)
    return Report(
        headline=headline,
        title="FastAPI: plain def endpoints, before and after one line",
        columns=[run.name.replace(".install", "\n.install") for run in runs],
        rows=fastapi_report.rows(summaries, scale),
        notes=fastapi_report.notes(summaries, runs, facts, time.monotonic() - began),
        problems=fastapi_report.problems(seen_in_rounds, runs),
        answers=sum(summary.requests for summary in summaries),
    )
