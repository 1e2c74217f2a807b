"""Work that computes for a known time."""

from __future__ import annotations

import time


def compute(turns: int) -> int:
    value = 1
    for _ in range(turns):
        value = value * 1103515245 + 12345 & 0x7FFFFFFF
    return value


def turns_in(seconds: float) -> int:
    """Return how many turns take so long in this process."""
    turns, best = 20_000, float("inf")
    for _ in range(25):
        start = time.perf_counter()
        compute(turns)
        best = min(best, time.perf_counter() - start)
    return round(turns * seconds / best)
