"""What the tests of ebbpool.anyio get: every kind of loop, the ways to have a call run, and a look at what is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from support.anyio import ASYNCIO, TRIO, Way, leave_soon, way
from support.common import forget_the_past
from support.loops import Reports, until


@pytest.fixture(params=[*ASYNCIO, *TRIO])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Have anyio's plugin run each test that is marked with `anyio` on every kind of loop."""
    return request.param


@pytest.fixture
async def watched_loop(anyio_backend_name: str) -> AsyncIterator[None]:
    """Fail a test that leaves a task behind, or whose asyncio loop is told of an error; trio sees to that itself."""
    if anyio_backend_name == "trio":
        yield
        return
    reports = Reports()
    asyncio.get_running_loop().set_exception_handler(reports)
    tasks = len(asyncio.all_tasks())
    yield
    await until(lambda: len(asyncio.all_tasks()) == tasks, "no task is left")
    left = await reports.taken()
    assert not left, left


@pytest.fixture(autouse=True)
def every_loop_is_watched(request: pytest.FixtureRequest) -> None:
    """Watch the loop of each test that anyio's plugin runs."""
    leave_soon()
    forget_the_past()
    if request.node.get_closest_marker("anyio"):
        request.getfixturevalue("watched_loop")


def fixture_of(*names: str, **settings: Any) -> Any:
    @pytest.fixture(params=names)
    def given(request: pytest.FixtureRequest) -> Iterator[Way]:
        with way(request.param, **settings) as one:
            yield one

    return given


any_way = fixture_of("direct", "installed", "stock")
our_way = fixture_of("direct", "installed")
narrow_way = fixture_of("direct", "installed", max_workers=1)
"""One worker, so that a second call is queued."""
