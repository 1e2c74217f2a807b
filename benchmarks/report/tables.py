"""A run in words and tables: on a terminal, and in Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from benchmarks.engine.model import Column, Variant, text_of
from benchmarks.engine.results import Answers, Contest, Figure, Run

_UNITS = (("µs", "ms", "s"), ("kB", "MB"))
_UNIT = re.compile(r"(?:^|, )(µs|ms|s|kB|MB)(?: |$)")
_NOUNS = {"size": "bytes", "bytes": "bytes a reply"}
_QUALIFIED = {"stack", "placement"}
_HEADERS = ["variant", "figure", "ebbpool", "best rival", "times better", "ahead", "floor"]


def shown(figure: Figure | None, column: Column) -> str:
    """Return the figure as text, with the least and the most of its rounds."""
    if figure is None:
        return "-"
    text, low, high = (f"{value:,.{column.digits}f}" for value in (figure.value, figure.low, figure.high))
    return text if text == low == high else f"{text} ({low} to {high})"


def figures(answers: Answers) -> list[list[str]]:
    """Return a row for each cell, after one of headers; what has no figures says why."""
    columns = answers.question.columns
    rows = [["variant", "peer", *(column.label for column in columns)]]
    for peer, variant, cell in sorted(answers.cells, key=lambda each: list(map(str, each[1].values()))):
        row = [text_of(variant), peer.label]
        if cell.get("samples"):
            row += [shown(answers.figure(peer.name, variant, column), column) for column in columns]
        elif cell.get("without"):
            _, status, reason = cell["without"][0]
            row.append(f"{status}: {reason.splitlines()[0]}")
        rows.append(row)
    return rows


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as aligned text; what is alone in a short row may run on."""
    full = [row for row in rows if len(row) == len(rows[0])]
    widths = [max(len(row[at]) for row in full) for at in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip() for row in rows
    )


def show(run: Run) -> str:
    """Return all tables of a run, and what failed."""
    parts = [run.told(), "How each was measured: docs/performance/benchmarks.md"]
    for answers in run.answers.values():
        title = answers.question.title
        parts.append(f"{title}\n{'=' * len(title)}\n{aligned(figures(answers))}")
        parts += [aligned(contest_rows(answers))] if answers.contests() else []
    parts += [broken for answers in run.answers.values() for broken in answers.broken()]
    return "\n\n".join(parts)


def contest_rows(answers: Answers, contests: Sequence[Contest] | None = None) -> list[list[str]]:
    """Return a row for each contest, after one of headers; no column for floors where there are none."""
    rows = []
    for contest in answers.contests() if contests is None else contests:
        ours, rival, floor = (
            f"{side.figure.value:,.{contest.column.digits}f}, {_breakable(side.label)}" if side else "-"
            for side in (contest.ours, contest.rival, contest.floor)
        )
        winner = "ebbpool" if contest.winner == contest.ours.label else _breakable(contest.winner)
        ahead = f"**{winner}**" if winner else "within the noise" if contest.judged else "one round"
        rows.append([text_of(contest.variant), contest.column.label, ours, rival, times_better(contest), ahead, floor])
    without = all(row[-1] == "-" for row in rows)
    return [row[:-1] if without else row for row in [_HEADERS, *rows]]


def times_better(contest: Contest) -> str:
    """Return the ratio of a contest with its interval, in one line: with spaces that do not break."""
    spread = f" ({contest.low:.2f}\u00a0to\u00a0{contest.high:.2f})" if contest.judged else ""
    return f"{contest.ratio:.2f}{spread}"


def in_words(variant: Variant) -> str:
    """Return a variant as one would say it: `4 workers, asyncio`."""
    words = []
    for name, value in variant.items():
        if isinstance(value, (int, float)):
            words.append(f"{value:,} {name.removesuffix('s') if value == 1 else _NOUNS.get(name, name)}")
        else:
            words.append(f"{value} {name}" if name in _QUALIFIED else value)
    return ", ".join(words)


def measured(column: Column) -> str:
    """Return what a column measures, without its unit."""
    return _UNIT.sub(" ", column.label).strip()


def quantity(value: float, column: Column) -> str:
    """Return a figure in three digits, in the unit that suits it: `6.4 s`, not `6,379.605 ms`."""
    found = _UNIT.search(column.label)
    unit = found[1] if found else ""
    units = next((units for units in _UNITS if unit in units), (unit,))
    at = units.index(unit)
    while value >= 1000 and at < len(units) - 1:
        value, at = value / 1000, at + 1
    return f"{float(f'{value:.3g}'):,g}\u00a0{units[at]}".rstrip()


def short_rows(contests: Sequence[Contest]) -> list[list[str]]:
    """Return a row for each contest with what a narrow page has room for: whoever is ahead is in bold."""
    rows = [["case", "ebbpool", "best rival", "times better"]]
    for contest in contests:
        cells = []
        for side in (contest.ours, contest.rival):
            value = quantity(side.figure.value, contest.column)
            value = f"**{value}**" if contest.winner == side.label else value
            label = _breakable(side.label)
            cells.append(value if label == "ebbpool" else f"{value}, {label}")
        rows.append([in_words(contest.variant) or "-", *cells, times_better(contest)])
    return rows


def _breakable(label: str) -> str:
    """Let a long name go on in the next line, and leave out what the column says."""
    label = re.sub(r" \((compiled|floor)\)", "", label)
    return re.sub(r"(?<=\w)\(|(?<=\w\.)(?=[a-z])", lambda found: f"\u200b{found[0]}", label)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return rows, the first of which has the headers, as a table in Markdown."""
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
