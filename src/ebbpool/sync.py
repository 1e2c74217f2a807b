"""Semaphores that behave as threading's do, cost less, and serve waiters in order of arrival."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbpool._interpreter import PURE

if TYPE_CHECKING or PURE:
    from ebbpool._core import semaphore as core
else:
    try:
        from ebbpool._core import semaphore_c as core
    except ImportError:
        from ebbpool._core import semaphore as core

__all__ = ["BoundedSemaphore", "Semaphore"]

COMPILED = core.COMPILED
"""Whether the compiled semaphores run."""

Semaphore = core.Semaphore
BoundedSemaphore = core.BoundedSemaphore
