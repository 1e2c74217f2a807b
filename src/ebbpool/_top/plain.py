"""Text that comes from another process."""

from __future__ import annotations


def printable(text: object) -> str:
    """Return `text` without characters that would steer a terminal."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in str(text))
