"""A call gets its arguments as they were given, on every way; the core keeps a single one without its tuple."""

from __future__ import annotations

import asyncio
import itertools
from contextvars import copy_context
from typing import Any

import pytest
from support import seams
from support.common import TIMEOUT, Gate, wait_for_idle

from ebbpool import AdaptiveExecutor

ALONE: list[tuple[Any, ...]] = [(), (1,), (None,), (True,), ((),), ((1, 2),), ({"a": 1},), (1, 2)]
CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [(args, {}) for args in ALONE]
CALLS += [((1,), {"a": 2}), ((), {"a": 2}), ((1, 2), {"fn": 4, "args": 5})]
NAMES = {"self": 1, "fn": 2, "args": 3, "kwargs": 4, "lane": 5, "loop": 6, "callable": 7}
"""What our own arguments are called, or might be."""


def given(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


class Taker:
    def take(self, /, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return args, kwargs


async def awaited(pool: AdaptiveExecutor, /, *args: Any, **kwargs: Any) -> Any:
    return await pool.run(*args, **kwargs)


LANES = map(str, itertools.count())
"""Their names: one that is left may keep its own until the collector comes by."""
WAYS: dict[str, Any] = {
    "submit": lambda pool, /, *args, **kwargs: pool.submit(*args, **kwargs).result(TIMEOUT),
    "submit_first": lambda pool, /, *args, **kwargs: pool.submit_first(*args, **kwargs).result(TIMEOUT),
    "submit_later": lambda pool, /, *args, **kwargs: pool.submit_later(0.0, *args, **kwargs).result(TIMEOUT),
    "lane": lambda pool, /, *args, **kwargs: pool.lane(next(LANES), limit=1).submit(*args, **kwargs).result(TIMEOUT),
    "run": lambda pool, /, *args, **kwargs: asyncio.run(awaited(pool, *args, **kwargs)),
    "context": lambda pool, /, *args, **kwargs: pool.submit(copy_context().run, *args, **kwargs).result(TIMEOUT),
}


@pytest.mark.parametrize("contextual", [False, True])
@pytest.mark.parametrize("measured", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_call_gets_what_was_given(way: str, measured: bool, contextual: bool) -> None:
    records: list[tuple[float, float]] = []
    with AdaptiveExecutor(1, propagate_context=contextual) as pool:
        if measured:
            seams.engine_of(pool).observe(1, lambda waited, ran: records.append((waited, ran)))
        for fn in (given, Taker().take):
            for args, kwargs in CALLS:
                assert WAYS[way](pool, fn, *args, **kwargs) == (args, kwargs)
            # With PyPy `Context.run` has parameters of such names.
            assert way == "context" or WAYS[way](pool, fn, **NAMES) == ((), NAMES)
        wait_for_idle(pool)
    assert len(records) == measured * 2 * (len(CALLS) + (way != "context"))
    assert all(0 <= waited < TIMEOUT and 0 <= ran < TIMEOUT for waited, ran in records)


@pytest.mark.parametrize("contextual", [False, True])
def test_a_call_that_its_submitter_makes_gets_what_was_given(contextual: bool) -> None:
    with (
        AdaptiveExecutor(1, max_queue=0, when_full="caller_runs", propagate_context=contextual) as pool,
        Gate() as gate,
    ):
        gate.hold(pool)
        for args, kwargs in CALLS:
            assert pool.submit(given, *args, **kwargs).result(TIMEOUT) == (args, kwargs)
