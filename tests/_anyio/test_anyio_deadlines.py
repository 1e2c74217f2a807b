"""What a call knows of the deadlines of anyio's scopes around it."""

from __future__ import annotations

import anyio
import pytest
from anyio import to_thread
from support.anyio import on_asyncio, way
from support.common import LONG, TIMEOUT

import ebbpool
import ebbpool.anyio
from ebbpool import AdaptiveExecutor

pytestmark = pytest.mark.anyio


@on_asyncio
async def test_a_call_knows_the_deadlines_of_the_scopes_around_it() -> None:
    with AdaptiveExecutor() as pool, ebbpool.anyio.install(pool):
        for abandon in (False, True):
            assert await to_thread.run_sync(ebbpool.time_left, abandon_on_cancel=abandon) is None
            with anyio.fail_after(2 * LONG), anyio.fail_after(LONG), anyio.fail_after(3 * LONG):
                left = await to_thread.run_sync(ebbpool.time_left, abandon_on_cancel=abandon)
                assert left is not None and LONG - TIMEOUT < left <= LONG
                with anyio.CancelScope(shield=True):
                    assert await to_thread.run_sync(ebbpool.time_left, abandon_on_cancel=abandon) is None


@on_asyncio
async def test_no_time_is_left_once_the_scope_is_cancelled() -> None:
    left: list[float | None] = []
    with way("installed") as installed:
        async with installed.busy(lambda gate: (gate(), left.append(ebbpool.time_left()))) as (_, group):
            group.cancel_scope.cancel()
    assert left == [0.0]
