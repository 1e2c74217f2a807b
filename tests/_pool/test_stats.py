"""What a pool shows: its figures, its name, the lists of pools and lanes, what runs; wait_idle() and resize()."""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
import weakref
from typing import Any

import pytest
from support import seams
from support.common import LONG, TIMEOUT, Background, Gate, Thing, eventually, needs_stacks, no_collector, together
from support.seams import OVER, called_name

import ebbpool
from ebbpool import AdaptiveExecutor, PoolStats


def test_a_fresh_pool_counts_nothing_and_tells_its_limits() -> None:
    with AdaptiveExecutor() as pool:
        fields = [field.name for field in dataclasses.fields(PoolStats)]
        settings = {"name": pool.name, "max_workers": 256, "max_queue": None, "max_wait": None}
        settings |= {"last_decision": "", "loop_lag": ()}
        assert dataclasses.asdict(pool.stats()) == dict.fromkeys(fields, 0) | settings
        pool.resize(min_workers=2, max_workers=9, max_queue=100)
        stats = pool.stats()
        assert (stats.min_workers, stats.max_workers, stats.max_queue) == (2, 9, 100)
        pool.resize(max_queue=None)
        assert pool.stats().max_queue is None


def test_the_figures_of_a_busy_pool() -> None:
    with AdaptiveExecutor(2, keep_alive=LONG) as pool, Gate() as gate:
        futures = [pool.submit(gate) for _ in range(5)]
        gate.await_begun(2)
        stats = pool.stats()
        assert (stats.workers, stats.running, stats.idle, stats.blocked) == (2, 2, 0, 0)
        assert (stats.queued, stats.submitted, stats.started, stats.retired) == (3, 5, 2, 0)
        assert stats.oldest_wait > 0
        assert stats.longest_running > 0
        later = pool.stats()
        assert later.oldest_wait >= stats.oldest_wait
        assert later.longest_running >= stats.longest_running
        for future in futures[2:]:
            future.cancel()
        assert (pool.stats().queued, pool.stats().oldest_wait) == (0, 0), "cancelled tasks do not wait"
        gate.open()
        assert pool.wait_idle(TIMEOUT)
        stats = pool.stats()
        assert (stats.running, stats.queued, stats.oldest_wait, stats.longest_running) == (0, 0, 0, 0)
        assert (stats.completed, stats.cancelled) == (2, 3)
        eventually(lambda: pool.stats().idle == 2)


def test_wait_idle() -> None:
    with AdaptiveExecutor(1) as pool, Gate() as gate, Gate() as callback:
        assert pool.wait_idle() is True
        assert pool.wait_idle(0) is True
        futures = [pool.submit(gate), pool.submit(gate)]
        futures[1].add_done_callback(callback)
        gate.await_begun()
        for timeout in (0, -1, 0.001):
            assert pool.wait_idle(timeout) is False
        waiting = [Background(pool.wait_idle), Background(lambda: pool.wait_idle(TIMEOUT))]
        waiting[1].waits_for(pool, threads=2)
        gate.open()
        callback.await_begun()
        assert all(future.done() for future in futures)
        assert pool.wait_idle(0) is False, "callbacks are work"
        callback.open()
        assert [each.join() for each in waiting] == [True, True]
    assert pool.wait_idle(0) is True


def test_wait_idle_ends_when_the_last_queued_task_is_cancelled() -> None:
    """The only worker is still being initialised: there is nothing else that could end the wait."""
    gate = Gate()
    with AdaptiveExecutor(1, initializer=gate) as pool, gate:
        future = pool.submit(int)
        gate.await_begun()
        waiting = Background(lambda: pool.wait_idle(TIMEOUT))
        waiting.waits_for(pool)
        assert future.cancel()
        assert waiting.join() is True


def test_wait_idle_in_a_task_of_the_own_pool_is_an_error() -> None:
    with AdaptiveExecutor(1) as pool, AdaptiveExecutor(1) as other:
        with pytest.raises(RuntimeError, match="own pool"):
            pool.submit(pool.wait_idle, TIMEOUT).result(TIMEOUT)
        assert pool.wait_idle(TIMEOUT)
        assert other.submit(pool.wait_idle, TIMEOUT).result(TIMEOUT) is True


@pytest.mark.parametrize(
    ("settings", "lowered", "left"),
    [
        ({"keep_alive": LONG}, {"max_workers": 1}, 1),
        ({"keep_alive": LONG}, {"keep_alive": 0.01}, 0),
        ({"keep_alive": 0.01, "min_workers": 4}, {"min_workers": 0}, 0),
    ],
)
def test_lowering_a_setting_reaches_parked_workers(settings: Any, lowered: Any, left: int) -> None:
    with AdaptiveExecutor(4, **settings) as pool, Gate() as gate:
        gate.hold(pool, 4)
        gate.open()
        eventually(lambda: pool.stats().idle == 4)
        pool.resize(**lowered)
        eventually(lambda: sum(thread.is_alive() for thread in gate.threads) == left)
        eventually(lambda: pool.stats().workers == len(pool._threads) == left)
        assert left == 0 or pool.submit(threading.current_thread).result(TIMEOUT) in gate.threads


def test_resize_after_shutdown_does_not_revive_the_pool() -> None:
    pool = AdaptiveExecutor(2)
    pool.submit(int)
    pool.shutdown()
    pool.resize(min_workers=2, max_workers=5)
    assert pool.stats().workers == 0
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(int)


@pytest.mark.parametrize("how", ["constructor", "resize"])
def test_spare_workers_are_kept_ahead_of_demand(how: str) -> None:
    settings: dict[str, Any] = {"min_spare_workers": 2} if how == "constructor" else {}
    with AdaptiveExecutor(6, keep_alive=LONG, **settings) as pool, Gate() as gate:
        seams.look_ahead(pool)
        assert pool.stats().started == 0, "nobody has used it"
        pool.submit(int).result(TIMEOUT)
        if how == "resize":
            pool.resize(min_spare_workers=2)
        eventually(lambda: pool.stats().idle >= 2)
        gate.hold(pool)
        eventually(lambda: pool.stats().idle >= 2)
        gate.hold(pool, 2)
        eventually(lambda: pool.stats().idle >= 2)
        assert pool.stats().workers <= 6


def test_a_pool_is_named_after_its_prefix_and_no_two_live_pools_share_a_name() -> None:
    with AdaptiveExecutor(thread_name_prefix="twin") as first, AdaptiveExecutor(thread_name_prefix="twin") as second:
        assert (first.name, second.name) == ("twin", "twin-2")
        assert second.stats().name == "twin-2" and "'twin-2'" in repr(second)
        with AdaptiveExecutor(thread_name_prefix="twin-2") as third:
            assert third.name == "twin-2-2"
    with AdaptiveExecutor(thread_name_prefix="twin") as pool:
        assert pool.name == "twin"
    made = together(lambda _: [AdaptiveExecutor(thread_name_prefix="many") for _ in range(50)])
    assert len({pool.name for pools in made for pool in pools}) == 200


def test_live_pools_and_open_lanes_are_listed_oldest_first() -> None:
    before = ebbpool.pools()
    with AdaptiveExecutor() as first, AdaptiveExecutor() as second:
        assert [pool for pool in ebbpool.pools() if pool not in before] == [first, second]
        assert first.lanes() == []
        lane, other = first.lane("b", limit=1), first.lane("a", limit=2)
        assert first.lanes() == [lane, other]
        assert [lane.stats().name for lane in first.lanes()] == ["b", "a"]
        lane.shutdown()
        assert first.lanes() == [other]
    assert first not in ebbpool.pools() and second not in ebbpool.pools()


# What runs, what it is called, and where it is.


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
        assert [task.name for task in listed] == [f"{__name__}.wait_at", f"{__name__}.Doer.do", f"{__name__}.Doer"]
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
        assert second.nobody_begins(pool)
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


class Proxy:
    """A callable whose attributes fail, as those of a proxy without its request do."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("outside of a request")


def test_the_names_of_callables() -> None:
    for fn, name in (
        (time.sleep, "time.sleep"),
        (abs, "abs"),
        (functools.partial(functools.partial(time.sleep, 1)), "time.sleep"),
        (dict.fromkeys, "dict.fromkeys"),
        ([].append, "list.append"),
        (Thing, "support.common.Thing"),
        (Strange(), f"{__name__}.Strange"),
        (Proxy(), "Proxy"),
        (None, OVER),
    ):
        assert called_name(fn) == name


class Last:
    """A callable whose end waits for its own pool."""

    def __init__(self, pool: AdaptiveExecutor, told: list[Any]) -> None:
        self.pool, self.told = pool, told

    def __call__(self) -> None:
        pass

    def __del__(self) -> None:
        self.told.append(self.pool.submit(int).result(TIMEOUT))


@pytest.mark.counts_references
@pytest.mark.parametrize("max_workers", [1, 8])
def test_the_end_of_what_was_called_may_wait_for_its_pool(max_workers: int) -> None:
    told: list[Any] = []
    with AdaptiveExecutor(max_workers) as pool:
        pool.submit(Last(pool, told))
        eventually(lambda: told == [0])
        assert pool.wait_idle(TIMEOUT)


@pytest.mark.counts_references
def test_a_look_at_stacks_keeps_nothing_of_any_thread() -> None:
    def look(pool: AdaptiveExecutor) -> weakref.ref[Thing]:
        thing = Thing()
        assert len(pool.running(stacks=True)) == 1
        return weakref.ref(thing)

    with no_collector(), AdaptiveExecutor() as pool, Gate() as gate:
        gate.hold(pool)
        assert look(pool)() is None
