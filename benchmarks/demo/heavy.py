"""The cluster case's heavy work: pure Python, which holds the GIL of the process that does it."""

from __future__ import annotations

STEPS = 400_000


def heavy(seed: int) -> int:
    """Return a number that takes some tens of milliseconds to find; the same for the same seed."""
    value = seed
    for _ in range(STEPS):
        value = (value * 1_103_515_245 + 12_345) % 2_147_483_648
    return value
