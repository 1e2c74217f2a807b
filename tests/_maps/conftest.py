"""The event loops for the tests of streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from support.loops import FACTORIES, why_lacking


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return the loops that there are here; pytest-asyncio skips the others."""
    return {kind: factory for kind, factory in FACTORIES.items() if not why_lacking(kind)}
