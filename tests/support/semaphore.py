"""What the tests of semaphores share: both variants, and waiters that stand in the queue."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from ebbpool._testing import seams
from support.common import Background, eventually

NAMES = ("Semaphore", "BoundedSemaphore")


def variant(name: str) -> ModuleType:
    """Return the "plain" or the "compiled" semaphores; skip the test where they were not built."""
    module = seams.core(name, "semaphore")
    if module is None:
        pytest.skip("the extension is not built")
    return module


@pytest.fixture(name="semaphores", params=["plain", "compiled"])
def each_variant(request: pytest.FixtureRequest) -> ModuleType:
    """The semaphores as plain Python and, where they were built, as the extension."""
    return variant(request.param)


@pytest.fixture(name="kind", params=NAMES)
def each_kind(request: pytest.FixtureRequest, semaphores: ModuleType) -> Any:
    """Each class of each variant."""
    return getattr(semaphores, request.param)


def waiting(sem: Any) -> int:
    """Return how many wait for a permit."""
    return len(sem._waiters)


def queue_up(sem: Any, call: Callable[[], object] | None = None) -> Background:
    """Start a thread that waits for a permit, and return when it stands in the queue."""
    before = waiting(sem)
    thread = Background(call or sem.acquire)
    eventually(lambda: waiting(sem) == before + 1, "the thread waits for a permit")
    return thread
