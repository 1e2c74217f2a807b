"""The one table, on the terminal and as text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from .measure import Run, Summary
from .plan import Scale
from .report import rows


def make_table(runs: Sequence[Run], summaries: Sequence[Summary], scale: Scale) -> Table:
    """Return the table: a row for each question, a column for each pool."""
    table = Table(title=f"The same {summaries[0].requests:,} requests from {scale.clients} clients")
    table.add_column("")
    for run in runs:
        table.add_column(run.name.replace("Executor", "\nExecutor"), justify="right", no_wrap=True)
    for question, answers in rows(summaries, scale):
        table.add_row(question, *answers)
    return table


def save_table(table: Table, notes: Sequence[str], path: Path) -> None:
    """Write the table and its notes as plain text."""
    with path.open("w", encoding="utf-8") as file:
        console = Console(file=file, width=110, color_system=None)
        console.print(table)
        for note in notes:
            console.print(note, highlight=False, markup=False)
