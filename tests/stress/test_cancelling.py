"""Cancelling many calls at once takes no longer for each of them."""

from __future__ import annotations

import asyncio
import time

from support.common import Gate

from ebbpool import AdaptiveExecutor


def test_cancelling_many_that_wait_for_room_takes_no_longer_for_each() -> None:
    """Sixteen times as many take sixteen times as long: if each was looked for, they would take 256 times as long."""

    async def spent(many: int) -> float:
        async with AdaptiveExecutor(1, max_queue=1) as pool:
            with Gate() as gate:
                first = pool.run(gate)
                await asyncio.to_thread(gate.await_begun)
                calls = [pool.run(int) for _ in range(many)]
                since = time.thread_time()
                for call in reversed(calls):
                    call.cancel()
                took = time.thread_time() - since
            await first
        return took

    few = min(asyncio.run(spent(500)) for _ in range(3))
    assert min(asyncio.run(spent(8000)) for _ in range(2)) < 60 * few
