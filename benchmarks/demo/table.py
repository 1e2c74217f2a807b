"""What a case has to say, on the terminal and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

Rows = list[tuple[str, list[str]]]
"""A question, and each contender's answer to it."""


@dataclass(frozen=True)
class Report:
    """One case's table, the words beside it, and whether its answers were right."""

    headline: str
    title: str
    columns: Sequence[str]
    rows: Rows
    notes: Sequence[str]
    problems: Sequence[str]
    """A text for each contender that answered wrongly or not at all."""
    answers: int
    """How many answers were asked for."""


def make_table(report: Report) -> Table:
    """Return the table: a row for each question, a column for each contender."""
    table = Table(title=report.title)
    table.add_column("")
    for name in report.columns:
        table.add_column(name, justify="right", no_wrap=True)
    for question, answers in report.rows:
        table.add_row(question, *answers)
    return table


def save_table(report: Report, path: Path) -> None:
    """Write the table and its notes as plain text."""
    with path.open("w", encoding="utf-8") as file:
        console = Console(file=file, width=110, color_system=None)
        console.print(report.headline, highlight=False, markup=False)
        console.print(make_table(report))
        for note in report.notes:
            console.print(note, highlight=False, markup=False)


def show(report: Report, console: Console) -> None:
    """Print the table, its notes, and whether all answers were right."""
    console.print(report.headline, style="bold", highlight=False, markup=False)
    console.print(make_table(report))
    for note in report.notes:
        console.print(note, highlight=False, markup=False)
    for problem in report.problems:
        console.print(problem, style="bold red", highlight=False, markup=False)
    if not report.problems:
        console.print(f"All {report.answers:,} answers were right.", style="bold green", highlight=False)


def wrong(name: str, said: Sequence[str]) -> list[str]:
    """Return a text that names the first few of the problems of a contender; "" stands for a right answer."""
    found = [problem for problem in said if problem]
    shown = "".join(f"\n  {problem}" for problem in found[:5])
    return [f"{name}: {len(found):,} of {len(said):,} answers were wrong or missing:{shown}"] if found else []
