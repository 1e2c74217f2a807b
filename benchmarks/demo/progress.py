"""How far a run is: a bar for each contender."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from .run import PHASES, Contender


def make_bars(console: Console) -> Progress:
    """Return the bars, to be entered."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=console, refresh_per_second=4,
    )  # fmt: skip


class Teller:
    """Shows on a bar for each contender which of `PHASES` it is in."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._shown: dict[str, TaskID] = {}

    def __call__(self, contender: Contender, phase: str) -> None:
        """Show that ``contender`` begins ``phase``; the last one means that it is through."""
        if contender.key not in self._shown:
            self._shown[contender.key] = self._bars.add_task(contender.name, total=len(PHASES) - 1)
        done = PHASES.index(phase)
        description = contender.name if done == len(PHASES) - 1 else f"{contender.name}: {phase}"
        self._bars.update(self._shown[contender.key], description=description, completed=done)
