"""What tests of the asyncio side get: every kind of loop, a time limit, and a look at what they leave on the loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from support.common import TIMEOUT, forget_the_past
from support.loops import Reports, each_loop, each_loop_class, pytest_asyncio_loop_factories  # noqa: F401  (fixtures, a hook)

LIMIT = 3 * TIMEOUT
"""Seconds that a test may take."""


@pytest_asyncio.fixture(name="reports")
async def watched_loop() -> AsyncIterator[Reports]:
    """Fail a test that takes too long, that leaves a task behind, or whose loop is told of an unexpected error."""
    loop = asyncio.get_running_loop()
    reports = Reports()
    loop.set_exception_handler(reports)

    def end() -> None:
        loop.call_exception_handler({"message": f"the test took longer than {LIMIT:g} s"})
        for task in asyncio.all_tasks(loop):
            task.cancel()

    limit = loop.call_later(LIMIT, end)
    yield reports
    limit.cancel()
    left = await reports.all()
    assert not left, left


@pytest.fixture(autouse=True)
def nothing_old_to_collect() -> None:
    """Spare the collections of a test a look at what pytest keeps of the tests before it."""
    forget_the_past()


@pytest.fixture(autouse=True)
def every_loop_is_watched(request: pytest.FixtureRequest, nothing_old_to_collect: None) -> None:
    """Watch the loop of each test that pytest-asyncio runs; the others watch theirs themselves."""
    if request.node.get_closest_marker("asyncio"):
        request.getfixturevalue("reports")
