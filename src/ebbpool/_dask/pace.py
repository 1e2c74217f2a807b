"""How long calls take on the workers, and so how many may share a task of the cluster's or be under way."""

from __future__ import annotations

from typing import Final

SHORT: Final = 0.005
"""Seconds up to which calls share a task of the cluster's."""
TARGET: Final = 0.05
"""Seconds that such a task, or a chunk of a map, should take: so long that what a task costs does not matter."""
FORGET: Final = 0.2
"""How much of the difference a shorter time than expected takes off the expected one. A longer one counts at once."""
SHARING: Final = 16
"""How many short calls there may be at a time for each place of the window."""
SHARERS: Final = 128
"""How many short calls there may be at a time in all, if the window has not more places."""
CAUTION: Final = 1.0
"""Seconds for which a call that is not known to be short keeps others from sharing."""
KNOWN: Final = 1000
"""How many functions are remembered."""


class Pace:
    """The times that the functions of an executor have taken of late."""

    def __init__(self) -> None:
        self._times: dict[str, float] = {}
        self._unsure: dict[str, float] = {}
        """When a function was called last, or ended last, that is not known to be short."""
        self.short = False

    def expect(self, name: str, now: float) -> None:
        if self.time(name) is None:
            if len(self._unsure) >= KNOWN:
                self._unsure.clear()
            self._unsure[name] = now

    def note(self, name: str, seconds: float, now: float) -> None:
        before = self._times.pop(name, seconds)
        # At the end of the dictionary: the first is the one that was not called for longest.
        self._times[name] = seconds if seconds > before else before + (seconds - before) * FORGET
        if len(self._times) > KNOWN:
            del self._times[next(iter(self._times))]
        self._unsure.pop(name, None)
        self.short = self.time(name) is not None
        self.expect(name, now)

    def time(self, name: str) -> float | None:
        """Return how long a call of this function will take if it is known to be short, else None."""
        time = self._times.get(name)
        return None if time is None or time > SHORT else time

    def calls(self, width: int, now: float) -> int:
        """Return how many calls there may be at a time, with `width` places for tasks in the window."""
        if not self.short or any(now - since < CAUTION for since in list(self._unsure.values())):
            return width
        return max(width, min(SHARING * width, SHARERS))
