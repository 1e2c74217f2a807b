"""The last decisions of a pool's sizing."""

from __future__ import annotations

from collections.abc import Callable
from time import time
from typing import Final

KEPT: Final = 64  # decisions


class Decisions:
    """What the timekeeper's thread notes, and any thread reads."""

    def __init__(self) -> None:
        # The fields of each `Decision`, oldest first; replaced and never changed, so that other threads can read it at
        # any time.
        self.noted: tuple[tuple[float, int, int, str], ...] = ()

    def note(self, workers: int, grown: int, queued: int, why: Callable[[], str], new: bool = False) -> None:
        """Note a decision; one not to grow only after another, or if it is `new`: there may be a thousand a second."""
        last = self.noted[-1] if self.noted else None
        if grown == 0 and not new and last is not None and last[1:3] == (workers, 0):
            return
        what = f"grew by {grown}" if grown else f"stayed at {workers}"
        waiting = f"{queued} waiting, " if queued else ""
        decision = (time(), workers, grown, f"{what}: {waiting}{why()}")
        self.noted = (*self.noted[1 - KEPT :], decision)

    def last(self) -> str:
        """Return the reason of the last decision, or an empty string."""
        noted = self.noted
        return noted[-1][3] if noted else ""
