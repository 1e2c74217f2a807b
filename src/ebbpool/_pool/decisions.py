"""The last decisions of a pool's sizing, and the reasons for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import time
from typing import Final, NamedTuple

KEPT: Final = 64
"""How many decisions are kept."""


@dataclass(frozen=True)
class Decision:
    """A decision of the sizing: that a pool grew, or that it did not although tasks waited.

    Attributes:
        at: When it was made (seconds since the epoch).
        workers: How many threads the pool had.
        grown: How many were to be started.
        reason: The decision and what it rests on, in words.
    """

    __module__ = "ebbpool"

    at: float
    workers: int
    grown: int
    reason: str


class _Note(NamedTuple):
    at: float
    workers: int
    grown: int
    queued: int
    why: str


class Decisions:
    """What the timekeeper's thread notes, and any thread reads."""

    def __init__(self) -> None:
        # Replaced and never changed, so that other threads can read it at any time.
        self._notes: tuple[_Note, ...] = ()

    def note(self, workers: int, grown: int, queued: int, why: Callable[[], str], new: bool = False) -> None:
        """Note a decision; one not to grow only if the one before was another, for there may be a thousand a second.

        Args:
            workers: How many threads there are.
            grown: How many are to be started.
            queued: How many tasks wait.
            why: Says in words why.
            new: Whether the decision is another than the one before in any case.
        """
        last = self._notes[-1] if self._notes else None
        if grown == 0 and not new and last is not None and (last.workers, last.grown) == (workers, 0):
            return
        self._notes = (*self._notes[1 - KEPT :], _Note(time(), workers, grown, queued, why()))

    def last(self) -> str:
        """Return the reason of the last decision, or an empty string."""
        notes = self._notes
        return _reason(notes[-1]) if notes else ""

    def listed(self) -> list[Decision]:
        """Return the decisions, oldest first."""
        return [Decision(note.at, note.workers, note.grown, _reason(note)) for note in self._notes]


def _reason(note: _Note) -> str:
    what = f"grew by {note.grown}" if note.grown else f"stayed at {note.workers}"
    return f"{what}: {note.queued} waiting, {note.why}" if note.queued else f"{what}: {note.why}"
