"""What the asyncio case's report says, in figures and words; `table.py` and `plot.py` draw it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from .measure import Common, Outcome, Run, Sample, Summary
from .plan import Scale
from .table import Rows

AnyCommon = TypeVar("AnyCommon", bound=Common)
FEW = 3
"""Threads left over are named if there are no more than this."""


def in_ms(seconds: float) -> str:
    """Return a time in milliseconds, with no more digits than it deserves; ``-`` if there is none."""
    if math.isnan(seconds):
        return "-"
    return f"{seconds * 1000:,.1f}" if seconds < 0.1 else f"{seconds * 1000:,.0f}"


def pair(seconds: tuple[float, float]) -> str:
    """Return two times in milliseconds."""
    return f"{in_ms(seconds[0])} / {in_ms(seconds[1])}"


def answered_by(summaries: Sequence[AnyCommon], questions: Sequence[tuple[str, Callable[[AnyCommon], str]]]) -> Rows:
    """Return rows of the table: a question, and each contender's answer to it."""
    return [(question, [answer(summary) for summary in summaries]) for question, answer in questions]


def common_rows(summaries: Sequence[Common], scale: Scale) -> Rows:
    """Return the rows in which the tables of both cases end."""
    questions: list[tuple[str, Callable[[Common], str]]] = [
        ("peak threads", lambda s: str(s.peak_threads)),
        (f"threads {scale.watch:g} s after", lambda s: str(s.threads_after)),
        ("CPU seconds", lambda s: f"{s.cpu:.2f}"),
        ("peak memory (MiB)", lambda s: "unknown" if s.peak_memory is None else f"{s.peak_memory / 2**20:.0f}"),
        ("right answers", lambda s: f"{s.requests - s.problems:,}/{s.requests:,}"),
    ]
    return answered_by(summaries, questions)


def rows(summaries: Sequence[Summary], scale: Scale) -> Rows:
    """Return the table's rows: a question, and each pool's answer to it."""
    questions: list[tuple[str, Callable[[Summary], str]]] = [
        ("requests/s under load", lambda s: f"{s.rate:.0f}"),
        ("p50 (ms)", lambda s: in_ms(s.p50)),
        ("p99 (ms)", lambda s: in_ms(s.p99)),
        ("search, p50 / p99 (ms)", lambda s: pair(s.kinds["search"])),
        ("digest, p50 / p99 (ms)", lambda s: pair(s.kinds["digest"])),
        ("verify, p50 / p99 (ms)", lambda s: pair(s.kinds["verify"])),
        ("burst: search, p50 / p99", lambda s: pair(s.burst_search)),
        ("burst answered in (ms)", lambda s: in_ms(s.burst)),
    ]
    return [*answered_by(summaries, questions), *common_rows(summaries, scale)]


def without_nan(value: Any) -> Any:
    """Return a copy of nested dicts and tuples with None in the place of what is not a number."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def everything(run: Run, summary: Any) -> dict[str, Any]:
    """Return a contender's summary, samples and outcome of every planned request, fit for strict JSON."""
    return {
        "name": run.name,
        "max_workers": run.max_workers,
        "summary": without_nan(asdict(summary)),
        "load_generator_cpu": run.load_cpu,
        "samples": {"columns": Sample._fields, "rows": run.samples},
        "requests": {"columns": Outcome._fields, "rows": run.outcomes},
    }


def save_json(path: Path, contenders: Sequence[dict[str, Any]], scale: Scale, facts: dict[str, Any]) -> None:
    """Write everything: facts, scale, and what `everything` gave for each contender."""
    content = {"facts": facts, "scale": asdict(scale), "units": "seconds, bytes", "contenders": contenders}
    path.write_text(json.dumps(content, allow_nan=False) + "\n", encoding="utf-8")


def wrong(name: str, found: Sequence[str], asked: int, at_most: int = 5) -> list[str]:
    """Return a text that names the first few of ``found`` problems among ``asked`` answers; none if there are none."""
    if not found:
        return []
    shown = "".join(f"\n  {problem}" for problem in found[:at_most])
    return [f"{name}: {len(found):,} of {asked:,} answers were wrong or missing:{shown}"]


def wrong_outcomes(run: Run) -> list[str]:
    """Return what was wrong, and with which request."""
    return [f"{one.kind}, due at {one.due:.2f} s: {one.problem}" for one in run.outcomes if one.problem]


def problems(runs: Sequence[Run]) -> list[str]:
    """Return a text for each pool whose answers were not all right, with its first few problems."""
    return [text for run in runs for text in wrong(run.name, wrong_outcomes(run), len(run.outcomes))]


def about_system(runs: Sequence[Run], facts: dict[str, Any]) -> list[str]:
    """Return what was measured on, and what was missing there."""
    server = facts[runs[0].name]
    core = "compiled" if server["compiled"] else "plain Python"
    system = f"CPython {facts['python']}, {facts['processors']} processors, {server['loop']}, {server['parser']}"
    lines = [f"{system}, ebbpool {server['ebbpool']} ({core} core)."]
    if server["loop"] != "uvloop":
        lines.append("uvloop is not installed here: the app ran on asyncio's own loop.")
    if server["parser"] != "httptools":
        lines.append("httptools is not installed here: uvicorn parsed with h11.")
    return lines


def about_load(lates: Sequence[float], runs: Sequence[Run], facts: dict[str, Any]) -> list[str]:
    """Return what a reader of a planned load's latencies and thread counts has to know."""
    counted = "counted in /proc" if facts[runs[0].name]["threads counted by"] == "/proc" else "counted by Python"
    used = ", ".join(f"{run.load_cpu:.1f}" for run in runs)
    late = ", ".join(in_ms(seconds) for seconds in lates)
    return [
        f"Latency counts from when a request was due. Threads: all beside the event loop's own ({counted}).",
        f"The load generator used {used} CPU seconds and was at most {late} ms late to send what was due.",
    ]


def about_servers(runs: Sequence[Run], facts: dict[str, Any]) -> list[str]:
    """Return which threads were left in each server, if they were few, and what its processes printed."""
    lines = []
    for run in runs:
        if 0 < len(left := facts[run.name]["threads left"]) <= FEW:
            lines.append(f"Left in {run.name}'s server at the end: {', '.join(left)}.")
        if "printed" in facts[run.name]:
            lines.append(f"{run.name}: a process of this run had something to say{facts[run.name]['printed']}")
    return lines


def notes(summaries: Sequence[Summary], runs: Sequence[Run], facts: dict[str, Any], seconds: float) -> list[str]:
    """Return what a reader of the table has to know beside it."""
    return [
        *about_system(runs, facts),
        f"{facts['files indexed']:,} files indexed, {seconds:.0f} s in all.",
        "Rows without 'burst' that name a kind of request are of the steady phase.",
        *about_load([summary.late for summary in summaries], runs, facts),
        *about_servers(runs, facts),
    ]


def headline(runs: Sequence[Run], summaries: Sequence[Summary]) -> str:
    """Say what was seen, whoever came out ahead: above the table, and the plot's title."""
    pairs = list(zip(runs, summaries, strict=True))
    threads = ", ".join(f"{run.name} {s.peak_threads} \N{RIGHTWARDS ARROW} {s.threads_after}" for run, s in pairs)
    bursts = ", ".join(in_ms(summary.burst) for summary in summaries)
    tails = ", ".join(in_ms(summary.kinds["search"][1]) for summary in summaries)
    return (
        f"Peak threads \N{RIGHTWARDS ARROW} threads {summaries[0].watched:.3g} s after the load: {threads}\n"
        f"Burst answered in {bursts} ms; p99 of a quick search in the steady phase {tails} ms (same order)"
    )
