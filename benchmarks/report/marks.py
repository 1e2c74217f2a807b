"""Figures in Markdown that come from the committed runs: `python -m benchmarks figures --check` or `--write`.

What stands between two comments is looked up, and the comments show nowhere:

    `run` costs <!-- = offload run gathered loop=asyncio workers=4 -->3.1<!-- / --> µs

An expression is one of

- `QUESTION PEER METRIC[:DIGITS] [KEY=VALUE ...]`: the figure of the one variant that has these values;
- `QUESTION PEER/OTHER METRIC[:DIGITS] [KEY=VALUE ...]`: how many times the other's figure it is;
- `rows QUESTION`: who is ahead under some variants, by the first column, as a table;
- `table NAME`: one of the `TABLES` here: whoever is ahead is in bold, the rows in which rivals are come first; a row
  within the noise, or of a question that was asked in one round only, is refused;
- any of these after `@RUN`, of another run than `bench`: `docs/evidence/RUN.json`.

Words with spaces are quoted as in a shell. What is inside a fence of code is left alone. A line of text must not begin
with a mark, since Markdown would show that line as it is written.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks import ROOT
from benchmarks.engine.model import Column, Variant, text_of
from benchmarks.engine.results import Answers, Figure, Run
from benchmarks.report import pages, tables

_MARK = re.compile(r"(<!--\s*=\s*(?P<asked>.*?)\s*-->)(?P<text>.*?)(<!--\s*/\s*-->)", re.DOTALL)
_FENCE = re.compile(r"^(?P<fence>```+|~~~+).*?^(?P=fence)\s*$", re.DOTALL | re.MULTILINE)
_OPENED = re.compile(r"<!--\s*=")
_BEGINS = re.compile(r"^[ \t]*(?:(?:[-*+>]|[0-9]+[.)])[ \t]+)*<!--[^\n]*-->[^\n]*\S", re.MULTILINE)


class Unknown(ValueError):
    """What the runs have no answer to, or none beyond the noise."""


class Row(NamedTuple):
    """A comparison of one of ours with a rival; `what` is measured and the rival's `name` are the table's words."""

    what: str
    question: str
    metric: str
    where: Variant
    ours: str
    rival: str
    name: str
    run: str = "bench"
    digits: int = 1


_SUBMITTED = ("submit_collect", "us", {"workers": 4}, "ebbpool")
_GATHERED = ("offload", "gathered", {"loop": "asyncio", "workers": 4}, "run")
_BURST = ("fastapi_burst", "first", {"clients": 200}, "fastapi-installed", "fastapi", "anyio's 40 threads")
_COMPUTING = "FastAPI `/health` beside 64 clients that compute, p99, ms"
_HEALTH = (_COMPUTING, "health_beside", "p99", {"clients": 64}, "fastapi-installed")
_CALL = ("round_trip", "us", {"workers": 1}, "ebbpool")
_PINNED = "round-trip-pinned"
_COLD = ("cold_burst", "ms", {"workers": 200}, "ebbpool")
_LAG = ("loop_lag", "p99", {"loop": "asyncio", "workers": 4}, "run")

TABLES: dict[str, list[Row]] = {
    "readme": [
        Row("one call and its result, on all CPUs, µs", *_CALL, "gevent", "gevent's greenlets"),
        Row("one call and its result, on one CPU, µs", *_CALL, "stdlib", "`ThreadPoolExecutor`", _PINNED),
        Row("200 calls that sleep 50 ms, from a cold start, ms", *_COLD, "gevent", "gevent's greenlets"),
        Row("an asyncio loop's p99 lag while 10,000 calls finish, ms", *_LAG, "anyio", "`anyio.to_thread`", digits=2),
        Row("200 FastAPI clients, an endpoint that sleeps 100 ms: ms until all are answered", *_BURST, digits=0),
        Row("5,000 calls gathered on asyncio, µs each", *_GATHERED, "stdlib", "`ThreadPoolExecutor`"),
        Row(
            "5,000 tiny tasks submitted and collected, µs each", *_SUBMITTED, "stdlib", "`ThreadPoolExecutor`", digits=2
        ),
        Row(*_HEALTH, "fastapi-256", "anyio, 256 tokens", "health", 0),
        Row(*_HEALTH, "fastapi", "anyio's 40 threads", "health", 0),
    ],
    "front": [
        Row("one call and its result, on one CPU, µs", *_CALL, "stdlib", "`ThreadPoolExecutor`", _PINNED),
        Row("a tiny task submitted and collected, µs", *_SUBMITTED, "stdlib", "`ThreadPoolExecutor`", digits=2),
        Row("a call gathered on asyncio, µs", *_GATHERED, "stdlib", "`ThreadPoolExecutor`"),
    ],
}


def _row(row: Row, runs: Mapping[str, Run]) -> tuple[float, list[str]]:
    where = f"{row.run} {row.question} {text_of(row.where)}"
    if row.run not in runs or row.question not in runs[row.run].answers:
        raise Unknown(f"no run has {where}")
    answers = runs[row.run].answers[row.question]
    column = answers.column(row.metric)
    ours, rival = (answers.figure(peer, row.where, column) for peer in (row.ours, row.rival))
    if ours is None or rival is None:
        raise Unknown(f"{where} lacks {row.ours if ours is None else row.rival}")
    if not answers.noise(column).freedom:
        raise Unknown(f"{where} was asked in one round, and is not to be quoted")
    ratio, low, high = answers.times_better(ours, rival, column)
    brief = [f"{each:.{2 if each < 1 else 1 if each < 10 else 0}f}" for each in (ratio, low, high)]
    times = f"{brief[0]} ({brief[1]} to {brief[2]})"
    if low <= 1 <= high:
        raise Unknown(f"{where}, {row.ours} beside {row.rival}, is within the noise: {times}")
    shown = [f"{figure.value:,.{row.digits}f}" for figure in (rival, ours)]
    shown[low > 1] = f"**{shown[low > 1]}**"
    return ratio, [row.what, f"{shown[0]}, {row.name}", shown[1], times]


def table(name: str, runs: Mapping[str, Run]) -> str:
    """Return a table in Markdown, the rows in which ebbpool does worst first."""
    if name not in TABLES:
        raise Unknown(f"no table {name!r}: there are {', '.join(TABLES)}")
    rows = [cells for _, cells in sorted((_row(row, runs) for row in TABLES[name]), key=lambda row: row[0])]
    return tables.markdown([["what", "rival", "ebbpool", "ratio: above 1, ebbpool is better (95% interval)"], *rows])


def found(asked: str, runs: Mapping[str, Run]) -> str:
    """Return what an expression stands for; an error if the runs do not have it, or it is not one figure."""
    words = shlex.split(asked)
    name = words.pop(0)[1:] if words and words[0].startswith("@") else pages.MAIN
    if name not in runs:
        raise Unknown(f"no run {name!r}: there are {', '.join(runs) or 'none'}")
    run = runs[name]
    match words:
        case ["table", name]:
            return "\n\n" + table(name, runs) + "\n\n"
        case ["rows", question]:
            return "\n\n" + pages.rows(_asked(run, question)) + "\n\n"
        case [question, peer, metric, *where]:
            return _value(_asked(run, question), peer, metric, where)
    raise Unknown(f"neither a figure nor one of rows, table: {asked!r}")


def _asked(run: Run, question: str) -> Answers:
    if question not in run.answers:
        raise Unknown(f"run {run.name} has no question {question!r}")
    return run.answers[question]


def _value(answers: Answers, peers: str, metric: str, where: list[str]) -> str:
    metric, _, digits = metric.partition(":")
    column = next((column for column in answers.question.columns if column.metric == metric), None)
    if column is None:
        raise Unknown(f"no metric {metric!r}: {', '.join(column.metric for column in answers.question.columns)}")
    values = [_figure(answers, peer, column, where).value for peer in peers.split("/")]
    if len(values) == 1:
        return f"{values[0]:,.{int(digits) if digits else column.digits}f}"
    if len(values) > 2 or values[1] <= 0:
        raise Unknown(f"cannot divide {peers!r}: {' / '.join(f'{value:g}' for value in values)}")
    return f"{values[0] / values[1]:.{int(digits) if digits else 2}f}"


def _figure(answers: Answers, peer: str, column: Column, where: list[str]) -> Figure:
    variants = [
        variant
        for asked, variant, _ in answers.cells
        if asked.name == peer and all(f"{name}={variant.get(name)}" in where for name in _keys(where))
    ]
    if len(variants) != 1:
        raise Unknown(f"{len(variants)} variants of {peer!r} have {' '.join(where) or 'no key'}; it must be one")
    figure = answers.figure(peer, variants[0], column)
    if figure is None:
        raise Unknown(f"{peer!r} has no {column.metric!r} there")
    return figure


def _keys(where: list[str]) -> list[str]:
    return [each.partition("=")[0] for each in where]


def _outside_fences(text: str, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
    fences = [match.span() for match in _FENCE.finditer(text)]
    for match in pattern.finditer(text):
        if not any(start <= match.start() < end for start, end in fences):
            yield match


def put_in(text: str, runs: Mapping[str, Run]) -> tuple[str, list[str], list[str]]:
    """Return the text with every figure as the runs have it, what was different, and what cannot be told, by line."""
    parts, different, unknown, end = [], [], [], 0
    matches = list(_outside_fences(text, _MARK))
    for match in matches:
        line = text.count("\n", 0, match.start()) + 1
        parts.append(text[end : match.start("text")])
        value = match["text"]
        try:
            value = found(match["asked"], runs)
        except ValueError as error:
            unknown.append(f"{line}: {error}")
        if value != match["text"]:
            different.append(f"{line}: {match['text'].strip()[:60]!r} is {value.strip()[:60]!r} in the run")
        parts.append(value)
        end = match.end("text")
    parts.append(text[end:])
    starts = {match.start() for match in matches}
    for opened in _outside_fences(text, _OPENED):
        if opened.start() not in starts:
            unknown.append(f"{text.count(chr(10), 0, opened.start()) + 1}: a mark without its end")
    after = "".join(parts)
    for begins in _outside_fences(after, _BEGINS):
        if _OPENED.search(begins[0]):
            unknown.append(f"{after.count(chr(10), 0, begins.start()) + 1}: a line of text that begins with a mark")
    return after, different, unknown


def pages_with_figures() -> list[Path]:
    """Return README and the pages that may hold marks."""
    docs = ROOT / "docs"
    kept = [path for path in sorted(docs.rglob("*.md")) if "_build" not in path.parts and path != pages.PERFORMANCE]
    return [ROOT / "README.md", *kept]


def check(write: bool) -> list[str]:
    """Return what differs from the runs in README and docs; with `write` correct it, and return what cannot be."""
    runs = pages.committed()
    complaints = []
    for path in pages_with_figures():
        before = path.read_text(encoding="utf-8")
        after, different, unknown = put_in(before, runs)
        complaints += [f"{path.relative_to(ROOT)}:{each}" for each in ([] if write else different) + unknown]
        if write and after != before:
            path.write_text(after, encoding="utf-8")
    if runs:
        complaints += pages.check(runs, write)
    return complaints
