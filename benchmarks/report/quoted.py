"""The tables of figures that README and docs quote, each a `<!-- = table NAME -->`: what stands in them, row by row.

Each row has two figures, how many times better ebbpool is, and the 95% interval of that ratio. Whoever is ahead is in
bold, and the rows in which rivals are ahead come first. A row whose interval includes 1 is refused, and so is one whose
question was asked in one round only: nothing is known of its noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from benchmarks.engine.model import Variant, text_of
from benchmarks.engine.results import Run
from benchmarks.report.tables import markdown


class Row(NamedTuple):
    """One comparison.

    Attributes:
        what: What is measured, with its unit, as the table says it.
        ours: The name of one of ebbpool's ways, and `rival` that of the other side.
        name: What the table calls the rival.
    """

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
_HEALTH = ("health_beside", "p99", {"clients": 64}, "fastapi-installed")
_CALL = ("round_trip", "us", {"workers": 1}, "ebbpool")
_PINNED = "round-trip-pinned"
_COLD = ("cold_burst", "ms", {"workers": 200}, "ebbpool")
_LAG = ("loop_lag", "p99", {"loop": "asyncio", "workers": 4}, "run")

TABLES: dict[str, list[Row]] = {
    "readme": [
        Row("one call and its result, on all processors, µs", *_CALL, "gevent", "gevent's greenlets"),
        Row("one call and its result, on one processor, µs", *_CALL, "stdlib", "`ThreadPoolExecutor`", _PINNED),
        Row("200 calls that sleep 50 ms, from a cold start, ms", *_COLD, "gevent", "gevent's greenlets"),
        Row("an asyncio loop's p99 lag while 10,000 calls finish, ms", *_LAG, "anyio", "`anyio.to_thread`", digits=2),
        Row("200 FastAPI clients, an endpoint that sleeps 100 ms: ms until all are answered", *_BURST, digits=0),
        Row("5,000 calls gathered on asyncio, µs each", *_GATHERED, "stdlib", "`ThreadPoolExecutor`"),
        Row("20,000 tiny tasks submitted and collected, µs each", *_SUBMITTED, "fastthreadpool", "fastthreadpool",
            digits=2),
        Row("20,000 tiny tasks submitted and collected, µs each", *_SUBMITTED, "stdlib", "`ThreadPoolExecutor`",
            digits=2),
        Row("FastAPI `/health` beside 64 clients that compute, p99, ms", *_HEALTH, "fastapi-256", "anyio, 256 tokens",
            "health", 0),
        Row("FastAPI `/health` beside 64 clients that compute, p99, ms", *_HEALTH, "fastapi", "anyio's 40 threads",
            "health", 0),
    ],
    "front": [
        Row("one call and its result, on one processor, µs", *_CALL, "stdlib", "`ThreadPoolExecutor`", _PINNED),
        Row("a tiny task submitted and collected, µs", *_SUBMITTED, "stdlib", "`ThreadPoolExecutor`", digits=2),
        Row("a call gathered on asyncio, µs", *_GATHERED, "stdlib", "`ThreadPoolExecutor`"),
    ],
}  # fmt: skip


class NotQuotable(ValueError):
    """A row that the runs have no figures for, or none beyond the noise."""


def _row(row: Row, runs: Mapping[str, Run]) -> tuple[float, list[str]]:
    where = f"{row.run} {row.question} {text_of(row.where)}"
    if row.run not in runs or row.question not in runs[row.run].answers:
        raise NotQuotable(f"no run has {where}")
    answers = runs[row.run].answers[row.question]
    column = answers.column(row.metric)
    ours, rival = (answers.figure(peer, row.where, column) for peer in (row.ours, row.rival))
    if ours is None or rival is None:
        raise NotQuotable(f"{where} lacks {row.ours if ours is None else row.rival}")
    if not answers.noise(column).freedom:
        raise NotQuotable(f"{where} was asked in one round, and is not to be quoted")
    ratio, low, high = answers.times_better(ours, rival, column)
    times = f"{_brief(ratio)} ({_brief(low)} to {_brief(high)})"
    if low <= 1 <= high:
        raise NotQuotable(f"{where}, {row.ours} beside {row.rival}, is within the noise: {times}")
    shown = [f"{figure.value:,.{row.digits}f}" for figure in (rival, ours)]
    shown[low > 1] = f"**{shown[low > 1]}**"
    return ratio, [row.what, f"{shown[0]}, {row.name}", shown[1], times]


def _brief(ratio: float) -> str:
    return f"{ratio:.{2 if ratio < 1 else 1 if ratio < 10 else 0}f}"


def table(name: str, runs: Mapping[str, Run]) -> str:
    """Return a table in Markdown, the rows in which ebbpool does worst first.

    Raises:
        NotQuotable: There is no such table, or one of its rows cannot be quoted.
    """
    if name not in TABLES:
        raise NotQuotable(f"no table {name!r}: there are {', '.join(TABLES)}")
    rows = [cells for _, cells in sorted((_row(row, runs) for row in TABLES[name]), key=lambda row: row[0])]
    return markdown([["what", "rival", "ebbpool", "times better (95% interval)"], *rows])
