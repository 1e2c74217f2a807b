"""A lane whose tasks are interrupted: code that never checks ends once it is cancelled, and nothing else is hit."""

from __future__ import annotations

import ctypes
import functools
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any

import pytest
from support.cancelling import cancel
from support.common import LONG, TIMEOUT, Gate, needs_stacks, no_collector, tight_switching, wait_for_idle

import ebbpool
from ebbpool import AdaptiveExecutor

STEPS = 30
"""More than a canceller makes calls."""
COUNTED = sum(range(2000))
pytestmark = pytest.mark.skipif(not hasattr(ctypes, "pythonapi"), reason="only CPython interrupts threads")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """An error that arrives in a callback of the garbage collector, as hypothesis has one, is swallowed there."""
    with no_collector():
        yield


def spin(begun: threading.Event) -> None:
    """Compute, and never check."""
    begun.set()
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end:
        pass
    raise AssertionError("nobody has interrupted")


def count() -> int:
    """Go through many places at which a task may be interrupted."""
    total = 0
    for number in range(2000):
        total += number
    return total


def interrupted(future: Any) -> bool:
    return isinstance(future.exception(TIMEOUT), CancelledError) and not future.cancelled()


@pytest.mark.parametrize("way", ["future", "shutdown of the pool", "shutdown", "deadline", "run", "within", "loop"])
def test_code_that_never_checks_ends(way: str) -> None:
    with AdaptiveExecutor(1) as pool:
        future = cancel(way, pool.lane("lane", limit=1, interrupt=True), spin)
        assert future is None or interrupted(future)
        wait_for_idle(pool)
        if way != "shutdown of the pool":
            assert pool.submit(count).result(TIMEOUT) == COUNTED


def test_nothing_else_is_hit_at_whatever_moment_it_comes() -> None:
    """The task comes to its end between any two calls that its canceller makes."""

    def work() -> int:
        begun.set()
        while not over:
            pass
        return count()

    def step(*_: object) -> None:
        if next(steps) == 0:
            over.append(True)
        count()

    ends = []
    with AdaptiveExecutor(1, keep_alive=LONG) as pool, tight_switching():
        lane = pool.lane("lane", limit=1, interrupt=True)
        for before in list(range(STEPS)) * 4:
            begun, steps = threading.Event(), itertools.count(-before)
            over: list[bool] = []
            told: list[int] = []
            future = lane.submit(work)
            future.add_done_callback(lambda _, told=told: told.append(count()))  # type: ignore[misc]
            following = [pool.submit(count), lane.submit(count)]
            assert begun.wait(TIMEOUT)
            sys.setprofile(step)
            try:
                future.cancel()
            finally:
                sys.setprofile(None)
            over.append(True)
            assert [each.result(TIMEOUT) for each in following] == [COUNTED] * 2
            assert told == [COUNTED]
            ends.append(interrupted(future))
        assert any(ends)
        assert pool.stats().started == 1, "the worker was hit"


def test_a_task_that_cancels_itself_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    mine: list[Any] = []

    def work() -> tuple[bool, int]:
        gate()
        mine[0].cancel()
        return ebbpool.cancelled(), count()

    with AdaptiveExecutor(1) as pool, Gate() as gate:
        mine.append(pool.lane("lane", limit=1, interrupt=True).submit(work))
        gate.open()
        assert mine[0].result(TIMEOUT) == (True, COUNTED)
    assert not caplog.records


def test_each_call_of_a_map_is_interrupted_by_itself() -> None:
    begun = threading.Event()
    called: list[int] = []

    def call(item: int) -> None:
        called.append(item)
        spin(begun)

    with AdaptiveExecutor(1) as pool:
        lane = pool.lane("lane", limit=1, interrupt=True)
        assert list(lane.map(divmod, [9, 7], [4, 2])) == [(2, 1), (3, 1)]
        results = lane.map(call, [1, 2], chunksize=2)
        assert begun.wait(TIMEOUT)
        lane.shutdown(wait=False, cancel_futures=True)
        with pytest.raises(CancelledError):
            list(results)
        wait_for_idle(pool)
        assert called == [1], "the next call of the same turn was made"


@needs_stacks
@pytest.mark.parametrize("fn", [lambda fn: fn, functools.partial], ids=["plain", "partial"])
def test_a_task_is_called_by_its_own_name(fn: Callable[..., Any]) -> None:
    with AdaptiveExecutor() as pool, Gate() as gate:

        def wait_here() -> None:
            gate()

        pool.lane("lane", limit=1, interrupt=True).submit(fn(wait_here))
        gate.await_begun()
        (task,) = pool.running(stacks=True)
        assert task.name == f"{__name__}.{wait_here.__qualname__}"
        assert "_pool/cancelling.py" not in (task.stack or "")


def test_tracing_tools_see_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    plain = ThreadPoolExecutor.submit

    def submit(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        seen.append(fn.__qualname__)
        return plain(self, fn, *args, **kwargs)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit)
    with AdaptiveExecutor(1) as pool:
        assert pool.lane("lane", limit=1, interrupt=True).submit(count).result(TIMEOUT) == COUNTED
    assert seen == ["count"]
