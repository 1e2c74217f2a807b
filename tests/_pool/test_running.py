"""What runs, what it is called, and where it is."""

from __future__ import annotations

import dataclasses
import functools
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from support.common import COUNTS_REFERENCES, LONG, TIMEOUT, Boom, Gate, Thing, eventually, needs_stacks, wait_for_idle

from ebbpool import AdaptiveExecutor
from ebbpool._testing.seams import OVER, called_name

HERE = __name__


class Doer:
    """An object whose method and whose call is a task."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def do(self) -> None:
        self.gate()

    def __call__(self) -> None:
        self.gate()


def wait_at(gate: Gate, value: Any = None) -> Any:
    gate()
    return value


def test_what_runs_is_listed_the_longest_first() -> None:
    with AdaptiveExecutor(thread_name_prefix="web") as pool, Gate() as gate:
        assert pool.running() == []
        for task in (functools.partial(wait_at, gate), Doer(gate).do, Doer(gate)):
            pool.submit(task)
            gate.await_begun()
        listed = pool.running()
        assert [task.name for task in listed] == [f"{HERE}.wait_at", f"{HERE}.Doer.do", f"{HERE}.Doer"]
        assert sorted(listed, key=lambda task: -task.seconds) == listed
        assert {task.thread for task in listed} <= {thread.name for thread in pool._threads}
        numbers = {thread.native_id for thread in threading.enumerate()}
        assert all(task.native_id in numbers for task in listed)
        assert all(task.lane is None and task.stack is None and not task.blocked for task in listed)
        with pytest.raises(dataclasses.FrozenInstanceError):
            listed[0].name = "other"  # type: ignore[misc]  # that is what is tried


@needs_stacks
def test_a_stack_shows_the_task_and_nothing_of_the_pool() -> None:
    with AdaptiveExecutor() as pool, Gate() as gate:
        pool.submit(wait_at, gate)
        gate.await_begun()
        (task,) = pool.running(stacks=True)
        assert task.stack is not None and "in wait_at" in task.stack.splitlines()[0]
        assert "crew.py" not in task.stack and "_core" not in task.stack


def test_a_task_that_waited_in_its_lane_has_run_since_it_was_taken() -> None:
    with AdaptiveExecutor(keep_alive=LONG) as pool, Gate() as first, Gate() as second:
        lane = pool.lane("narrow", limit=1)
        lane.submit(first)
        lane.submit(second)
        first.await_begun()
        assert second.nobody_begins()
        opened = time.monotonic()
        first.open()
        second.await_begun()
        (task,) = pool.running()
        assert task.seconds <= time.monotonic() - opened


def test_a_task_that_waits_for_its_own_pool_is_blocked() -> None:
    with AdaptiveExecutor() as pool, Gate() as gate:
        inner = gate.hold(pool)
        pool.submit(inner.result)
        eventually(lambda: pool.stats().blocked == 1)
        # The one that runs longer holds the other up.
        assert [(task.name.rpartition(".")[2], task.blocked) for task in pool.running()] == [
            ("Gate", False),
            ("result", True),
        ]
        gate.open()
        eventually(lambda: not pool.running())


class Strange:
    """A callable that says nothing sensible of itself."""

    def __init__(self) -> None:
        self.__qualname__ = 3
        self.__module__ = "elsewhere"

    def __call__(self) -> None:
        pass


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (time.sleep, "time.sleep"),
        (abs, "abs"),
        (functools.partial(functools.partial(time.sleep, 1)), "time.sleep"),
        (dict.fromkeys, "dict.fromkeys"),
        ([].append, "list.append"),
        (Boom, f"{Boom.__module__}.Boom"),
        (Strange(), f"{HERE}.Strange"),
        (None, OVER),
    ],
)
def test_the_names_of_callables(fn: Any, name: str) -> None:
    assert called_name(fn) == name


@pytest.fixture
def quiet_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


class Last:
    """A callable whose end waits for its own pool."""

    def __init__(self, pool: AdaptiveExecutor, told: list[Any]) -> None:
        self.pool, self.told = pool, told

    def __call__(self) -> None:
        pass

    def __del__(self) -> None:
        self.told.append(self.pool.submit(int).result(TIMEOUT))


@pytest.mark.skipif(not COUNTS_REFERENCES, reason="references are not counted here")
@pytest.mark.parametrize("max_workers", [1, 8])
def test_the_end_of_what_was_called_may_wait_for_its_pool(max_workers: int) -> None:
    told: list[Any] = []
    with AdaptiveExecutor(max_workers) as pool:
        pool.submit(Last(pool, told))
        eventually(lambda: told == [0])
        wait_for_idle(pool)


@pytest.mark.skipif(not COUNTS_REFERENCES, reason="references are not counted here")
def test_a_look_at_stacks_keeps_nothing_of_any_thread(quiet_collector: None) -> None:
    def look(pool: AdaptiveExecutor) -> weakref.ref[Thing]:
        thing = Thing()
        assert len(pool.running(stacks=True)) == 1
        return weakref.ref(thing)

    with AdaptiveExecutor() as pool, Gate() as gate:
        gate.hold(pool)
        assert look(pool)() is None


class Proxy:
    """A callable whose attributes fail, as those of a proxy without its request do."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("outside of a request")

    def __call__(self, gate: Gate) -> None:
        gate()


def test_a_callable_whose_attributes_fail_is_named_after_its_class() -> None:
    with AdaptiveExecutor() as pool, Gate() as gate:
        pool.submit(Proxy(), gate)
        gate.await_begun()
        assert [task.name for task in pool.running()] == ["Proxy"]
