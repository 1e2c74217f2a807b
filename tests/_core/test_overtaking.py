"""Tasks that go first, and the others: they take turns once one has waited too long."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from support.common import LONG, TIMEOUT, Gate, eventually, wait_for_idle

from ebbpool import AdaptiveExecutor
from ebbpool._testing import seams


@pytest.fixture
def overtaken() -> Iterator[Callable[[float], None]]:
    """Sets for how many seconds a task lets others go first."""
    with ExitStack() as stack:
        yield lambda seconds: stack.enter_context(seams.setting(overtaken=seconds))


def queue_up(pool: AdaptiveExecutor, order: list[Any], way: str) -> Gate:
    """Occupy the one worker; queue 0 to 2 behind it, and four letters that go first."""
    gate = Gate()
    gate.hold(pool)
    lane = pool.lane("look-ups", limit=2, first=True)
    for number in range(3):
        pool.submit(order.append, number)
    for letter in "abcd":
        (lane.submit if way == "lane" else pool.submit_first)(order.append, letter)
    return gate


@pytest.mark.parametrize(("way", "letters"), [("lane", "abcd"), ("submit_first", "dcba")])
@pytest.mark.parametrize("allowed", [0.0, math.inf])
def test_turns_are_taken_once_the_others_have_waited_too_long(
    way: str, letters: str, allowed: float, overtaken: Callable[[float], None]
) -> None:
    overtaken(allowed)
    order: list[Any] = []
    with AdaptiveExecutor(1, keep_alive=LONG) as pool:
        queue_up(pool, order, way).open()
        wait_for_idle(pool)
    first, second, third, fourth = letters
    if allowed:
        assert order == [*letters, 0, 1, 2]
    else:
        assert order == [first, 0, second, 1, third, 2, fourth]


def test_it_is_the_wait_of_the_oldest_ordinary_task_that_counts(overtaken: Callable[[float], None]) -> None:
    overtaken(0.02)
    order: list[Any] = []
    with AdaptiveExecutor(1, keep_alive=LONG) as pool:
        gate = queue_up(pool, order, "lane")
        eventually(lambda: pool.stats().oldest_wait > 0.02)
        # What the timekeeper would do within a tick: the pool's clock goes on.
        seams.look_at(pool)
        gate.open()
        wait_for_idle(pool)
    assert order == ["a", 0, "b", 1, "c", 2, "d"]


def test_a_cancelled_task_takes_no_turn(overtaken: Callable[[float], None]) -> None:
    overtaken(0.0)
    order: list[Any] = []
    with AdaptiveExecutor(1, keep_alive=LONG) as pool, Gate() as gate:
        gate.hold(pool)
        dropped = [pool.submit(order.append, "dropped") for _ in range(3)]
        for number in range(2):
            pool.submit(order.append, number)
        for letter in "ba":
            pool.submit_first(order.append, letter)
        assert all(future.cancel() for future in dropped)
        gate.open()
        wait_for_idle(pool)
    assert order == ["a", 0, "b", 1]


def test_calls_with_a_limit_of_their_own_wait_for_nobody(overtaken: Callable[[float], None]) -> None:
    overtaken(0.0)
    order: list[Any] = []
    with AdaptiveExecutor(1, keep_alive=LONG) as pool, Gate() as gate, Gate() as held:
        gate.hold(pool)
        # Its place is that of a second worker, which comes and takes the first of them.
        seams.lift(pool, held)
        held.await_begun()
        pool.submit(order.append, "ordinary")
        for name in ("one", "two"):
            pool.submit_first(order.append, name)
        gate.open()
        eventually(lambda: len(order) == 3)
        held.open()
    assert order == ["two", "one", "ordinary"]


@pytest.mark.parametrize("way", ["lane", "submit_first"])
def test_a_flood_without_end_shuts_nobody_out(way: str, overtaken: Callable[[float], None]) -> None:
    overtaken(0.0)
    over = threading.Event()
    with AdaptiveExecutor(2, keep_alive=LONG) as pool:
        submit: Callable[..., Any] = pool.submit_first
        if way == "lane":
            submit = pool.lane("flood", limit=8, first=True).submit

        def flood() -> None:
            if not over.is_set():
                submit(flood)

        try:
            for _ in range(20):
                submit(flood)
            futures = [pool.submit(abs, -number) for number in range(100)]
            assert [future.result(TIMEOUT) for future in futures] == list(range(100))
        finally:
            over.set()
