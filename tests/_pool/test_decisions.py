"""Why a pool grew, or did not."""

from __future__ import annotations

import re

from support.common import LONG, Gate, eventually, wait_for_idle

from ebbpool import AdaptiveExecutor


def test_a_pool_that_grows_says_why() -> None:
    with AdaptiveExecutor(keep_alive=LONG) as pool, Gate() as gate:
        assert pool.decisions() == [] and pool.stats().last_decision == ""
        for _ in range(20):
            pool.submit(gate)
        gate.await_begun(20)
        grown = [decision for decision in pool.decisions() if decision.grown]
        assert sum(decision.grown for decision in grown) >= 10
        for decision in grown:
            assert re.match(rf"grew by {decision.grown}: \d+ waiting, processors \d+% used", decision.reason)
        assert pool.stats().last_decision == pool.decisions()[-1].reason


def test_a_pool_at_its_limit_says_so_once() -> None:
    with AdaptiveExecutor(1) as pool, Gate() as gate:
        gate.hold(pool)
        pool.submit(int)
        eventually(pool.decisions)
        (decision,) = pool.decisions()
        assert (decision.workers, decision.grown) == (1, 0)
        assert decision.reason == "stayed at 1: 1 waiting, max_workers reached"
        gate.open()
        wait_for_idle(pool)
