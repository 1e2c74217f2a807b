"""A run in words and tables: on a terminal, and in Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from benchmarks.engine.model import Column, text_of
from benchmarks.engine.results import Answers, Contest, Figure, Run

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
    parts = [run.told(), "How each was measured: docs/performance/questions.md"]
    for answers in run.answers.values():
        title = answers.question.title
        parts.append(f"{title}\n{'=' * len(title)}\n{aligned(figures(answers))}")
        parts += [aligned(contest_rows(answers))] if answers.contests() else []
    parts += [broken for answers in run.answers.values() for broken in answers.broken()]
    return "\n\n".join(parts)


def _behind(contest: Contest) -> str:
    where = ", ".join(filter(None, (text_of(contest.variant), contest.column.label)))
    if contest.column.more:
        how = f"ebbpool reaches {contest.ratio:.2f} of it"
    else:
        how = f"ebbpool takes {1 / contest.ratio:.2f} times as much"
    return f"Furthest ahead is **{contest.rival.label}** ({where}): {how}"


def lead(answers: Answers) -> str:
    """Return who is ahead, in a sentence or two."""
    contests = sorted(answers.contests(), key=lambda contest: contest.ratio)
    judged = [contest for contest in contests if contest.judged]
    if not contests:
        return "There is no rival to compare with."
    if not judged:
        text = "It was measured in one round only, so the noise is unknown and nobody is called ahead."
        worse = sum(contest.ratio < 1 for contest in contests)
        if not worse:
            return text
        text += f" A rival has the better figure in {worse} of {len(contests)} comparisons."
        return f"{text} {_behind(contests[0])}."
    ahead = sum(contest.winner == contest.ours.label for contest in judged)
    behind = [contest for contest in judged if contest.winner == contest.rival.label]
    level = len(judged) - ahead - len(behind)
    if ahead == len(judged):
        return "**ebbpool** is ahead throughout."
    if level == len(judged):
        return "All of it is within the noise."
    text = f"**ebbpool** is ahead in {ahead} of {len(judged)} comparisons; "
    if behind:
        text = f"A rival is ahead in {len(behind)} of {len(judged)} comparisons, ebbpool in {ahead}; "
    text += f"{level or 'none'} {'is' if level == 1 else 'are'} within the noise."
    return f"{text} {_behind(behind[0])}." if behind else text


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


def short_rows(contests: Sequence[Contest]) -> list[list[str]]:
    """Return a row for each contest with what a narrow page has room for: whoever is ahead is in bold."""
    rows = [["variant", "ebbpool", "best rival", "times better"]]
    for contest in contests:
        cells = []
        for side in (contest.ours, contest.rival):
            value = f"{side.figure.value:,.{contest.column.digits}f}"
            value = f"**{value}**" if contest.winner == side.label else value
            label = _breakable(side.label)
            cells.append(value if label == "ebbpool" else f"{value}, {label}")
        rows.append([text_of(contest.variant) or "-", *cells, times_better(contest)])
    return rows


def _breakable(label: str) -> str:
    """Let a long name go on in the next line before its arguments, and leave out what the column says."""
    return re.sub(r"(?<=\w)\(", "\u200b(", re.sub(r" \((compiled|floor)\)", "", label))


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return rows, the first of which has the headers, as a table in Markdown."""
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
