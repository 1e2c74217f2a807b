"""A call gets its arguments as they were given, on every way; the core keeps a single one without its tuple."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

import pytest
from support.common import TIMEOUT, Gate, Thing, gone, no_collector

from ebbpool import AdaptiveExecutor

CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    ((1,), {}),
    ((None,), {}),
    ((True,), {}),
    (((),), {}),
    (((1, 2),), {}),
    (({"a": 1},), {}),
    ((1, 2), {}),
    ((1,), {"a": 2}),
    ((), {"a": 2}),
    ((1, 2), {"fn": 4, "args": 5}),
]
NAMES = {"self": 1, "fn": 2, "args": 3, "kwargs": 4, "lane": 5, "loop": 6, "callable": 7}
"""What our own arguments are called, or might be."""


def given(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


class Taker:
    def take(self, /, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return args, kwargs


def waits_its_turn(pool: AdaptiveExecutor, /, *args: Any, **kwargs: Any) -> Any:
    return pool.submit(*args, **kwargs).result(TIMEOUT)


def goes_first(pool: AdaptiveExecutor, /, *args: Any, **kwargs: Any) -> Any:
    return pool.submit_first(*args, **kwargs).result(TIMEOUT)


def is_delayed(pool: AdaptiveExecutor, /, *args: Any, **kwargs: Any) -> Any:
    return pool.submit_later(0.0, *args, **kwargs).result(TIMEOUT)


def is_in_a_lane(pool: AdaptiveExecutor, /, *args: Any, **kwargs: Any) -> Any:
    with pool.lane("one", limit=1) as lane:
        return lane.submit(*args, **kwargs).result(TIMEOUT)


def is_awaited(pool: AdaptiveExecutor, /, *args: Any, **kwargs: Any) -> Any:
    async def awaits() -> Any:
        return await pool.run(*args, **kwargs)

    return asyncio.run(awaits())


def has_a_context(pool: AdaptiveExecutor, /, *args: Any, **kwargs: Any) -> Any:
    return pool.submit(copy_context().run, *args, **kwargs).result(TIMEOUT)


WAYS = [waits_its_turn, goes_first, is_delayed, is_in_a_lane, is_awaited, has_a_context]


@pytest.mark.parametrize("contextual", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_call_gets_what_was_given(way: Callable[..., Any], contextual: bool) -> None:
    with AdaptiveExecutor(1, propagate_context=contextual) as pool:
        for fn in (given, Taker().take):
            for args, kwargs in CALLS:
                assert way(pool, fn, *args, **kwargs) == (args, kwargs)
            # With PyPy `Context.run` has parameters of such names.
            assert way is has_a_context or way(pool, fn, **NAMES) == ((), NAMES)


@pytest.mark.parametrize("contextual", [False, True])
def test_a_call_that_its_submitter_makes_gets_what_was_given(contextual: bool) -> None:
    with (
        AdaptiveExecutor(1, max_queue=0, when_full="caller_runs", propagate_context=contextual) as pool,
        Gate() as gate,
    ):
        gate.hold(pool)
        for args, kwargs in CALLS:
            assert pool.submit(given, *args, **kwargs).result(TIMEOUT) == (args, kwargs)


@pytest.mark.parametrize("given", [1, None, (), (1, 2)])
def test_an_error_names_the_arguments_as_they_were_given(given: object) -> None:
    """A tuple of two, taken apart, would be enough; an empty one, or nothing in place of None, would lack both."""

    def takes_two(first: object, second: object) -> None:
        raise AssertionError

    message = "missing 1 required positional argument: 'second'"
    with AdaptiveExecutor(1) as pool, pytest.raises(TypeError, match=message):
        pool.submit(takes_two, given).result(TIMEOUT)


def test_a_single_argument_is_free_when_its_call_ends_and_its_future_is_kept() -> None:
    with no_collector(), AdaptiveExecutor(1) as pool:
        argument = Thing()
        reference = weakref.ref(argument)
        future = pool.submit(bool, argument)
        del argument
        assert future.result(TIMEOUT) is True
        gone(reference)
        assert future.done()
