"""Lanes: a limited view of a pool, fair to the rest, with a life of its own."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from support.common import LONG, TIMEOUT, Background, Boom, Gate, Thing, eventually, fail, gone, wait_for_idle

from ebbpool import AdaptiveExecutor, QueueFull
from ebbpool.lane import Lane


@pytest.fixture
def pool() -> Iterator[AdaptiveExecutor]:
    with AdaptiveExecutor(4) as made:
        yield made


@pytest.fixture
def lane(pool: AdaptiveExecutor) -> Lane:
    return pool.lane("one", limit=1)


@pytest.fixture
def gate() -> Iterator[Gate]:
    with Gate() as made:
        yield made


@pytest.fixture
def held(gate: Gate) -> Iterator[AdaptiveExecutor]:
    """A pool whose one worker is at the gate."""
    with AdaptiveExecutor(1) as made:
        gate.hold(made)
        yield made
        gate.open()


@pytest.mark.parametrize("way", ["submit", "map", "run"])
def test_a_lane_runs_at_most_so_many_tasks_at_once(pool: AdaptiveExecutor, gate: Gate, way: str) -> None:
    lane = pool.lane("slow", limit=3)

    async def run() -> list[Any]:
        return await asyncio.gather(*(lane.run(gate, number) for number in range(10)))

    def call() -> list[Any]:
        if way == "run":
            return asyncio.run(run())
        return list(lane.map(gate, range(10))) if way == "map" else [each.result(TIMEOUT) for each in futures]

    futures = [lane.submit(gate, number) for number in range(10 if way == "submit" else 0)]
    calling = Background(call)
    gate.await_begun(3)
    assert gate.nobody_begins(pool)
    if way != "map":
        eventually(lambda: (lane.stats().running, lane.stats().queued) == (3, 7))
    assert pool.submit(abs, -1).result(TIMEOUT) == 1, "the pool is left to others"
    assert pool.stats().queued == 0, "what waits in a lane must not stand in the pool's queue"
    gate.open()
    assert calling.join() == list(range(10))
    assert gate.peak == 3


def test_two_lanes_take_turns(held: AdaptiveExecutor, gate: Gate) -> None:
    order: list[str] = []
    lanes = {name: held.lane(name, limit=1) for name in "ab"}
    for name in "aaabbb":
        lanes[name].submit(order.append, name)
    gate.open()
    wait_for_idle(held)
    assert "".join(order) == "ababab"


@pytest.mark.usefixtures("no_turns")
def test_submit_first_goes_to_the_head_even_of_a_first_lane(held: AdaptiveExecutor, gate: Gate) -> None:
    order: list[Any] = []
    held.submit(order.append, "ordinary")
    held.lane("look-ups", limit=2, first=True).submit(order.append, "lane")
    held.submit_first(order.append, "second")
    held.submit_first(order.append, "first")
    gate.open()
    wait_for_idle(held)
    assert order == ["first", "second", "lane", "ordinary"]


@pytest.mark.parametrize("lane_first", [False, True])
def test_cancelling_while_queued_lets_the_next_in(lane_first: bool, held: AdaptiveExecutor, gate: Gate) -> None:
    lane = held.lane("slow", limit=1, first=lane_first)
    ran: list[int] = []
    futures = [lane.submit(ran.append, number) for number in range(5)]
    # The head of the lane stands in the pool's queue, the others wait in the lane.
    assert futures[0].cancel()
    assert futures[2].cancel()
    stats = lane.stats()
    assert (stats.queued, stats.cancelled, stats.running) == (3, 2, 0)
    gate.open()
    wait_for_idle(held)
    assert ran == [1, 3, 4]
    assert held.stats().cancelled == 2


def test_cancelled_tasks_do_not_pile_up_in_a_lane(lane: Lane, gate: Gate) -> None:
    gate.hold(lane)
    things = []
    for _ in range(1000):
        thing = Thing()
        things.append(weakref.ref(thing))
        lane.submit(thing.method).cancel()
        del thing
    gc.collect()
    assert lane.stats().queued == 0
    assert sum(thing() is not None for thing in things) == 0
    assert len(lane.core.pool.waiting(lane.core)) == 0
    assert lane.core.backlog.dead < 200


def test_a_failing_task_gives_its_turn_to_the_next(lane: Lane) -> None:
    failing = [lane.submit(fail) for _ in range(5)]
    assert lane.submit(abs, -1).result(TIMEOUT) == 1
    assert all(isinstance(future.exception(TIMEOUT), Boom) for future in failing)
    lane.shutdown()
    stats = lane.stats()
    assert (stats.submitted, stats.completed, stats.failed) == (6, 1, 5)


def test_a_callback_belongs_to_its_task(lane: Lane, gate: Gate) -> None:
    calling_back = Gate()
    first = lane.submit(gate)
    first.add_done_callback(calling_back)
    second = lane.submit(abs, -1)
    gate.open()
    calling_back.await_begun()
    assert first.done()
    assert not second.done(), "the next task must wait for the callbacks of the one before"
    calling_back.open()
    assert second.result(TIMEOUT) == 1


def test_shutdown_of_a_lane_leaves_the_pool_alone(pool: AdaptiveExecutor) -> None:
    lane = pool.lane("slow", limit=2)
    futures = [lane.submit(abs, -number) for number in range(20)]
    lane.shutdown()
    assert all(future.done() for future in futures)
    with pytest.raises(RuntimeError, match="after shutdown"):
        lane.submit(abs, 1)
    assert pool.submit(abs, -2).result(TIMEOUT) == 2
    lane = pool.lane("slow", limit=1)
    assert lane.submit(abs, -3).result(TIMEOUT) == 3, "the name is free again"
    with pytest.raises(RuntimeError, match="cannot wait for a lane of its own pool"):
        pool.submit(lane.shutdown).result(TIMEOUT)


def test_shutdown_does_not_wait_for_other_work(held: AdaptiveExecutor, gate: Gate) -> None:
    lane = held.lane("one", limit=1)
    lane.submit(abs, -1)
    with Gate() as later:
        held.submit(later)
        ending = Background(lane.shutdown)
        ending.waits_for(held)
        gate.open()
        later.await_begun()
        ending.join()


def test_shutdown_says_what_is_left_and_can_cancel_it(pool: AdaptiveExecutor, lane: Lane, gate: Gate) -> None:
    futures = [lane.submit(gate) for _ in range(5)]
    gate.await_begun()
    other = pool.lane("other", limit=1)
    spared = [other.submit(gate) for _ in range(2)]
    with pytest.raises(TimeoutError, match=r"lane 'one': after 0 s 1 tasks are still running, 4 waiting"):
        lane.shutdown(timeout=0)
    lane.shutdown(wait=False, cancel_futures=True)
    assert [future.cancelled() for future in futures] == [False, True, True, True, True]
    assert not any(future.cancelled() for future in spared)
    gate.open()
    lane.shutdown()


def test_what_was_cancelled_in_a_lane_is_not_dropped_under_the_mutex(held: AdaptiveExecutor, gate: Gate) -> None:
    seen = []
    lane = held.lane("one", limit=1)
    lane.submit(abs, 1)
    future = lane.submit(abs, 2)
    # This takes the mutex; the compiled core would wait for itself.
    weakref.finalize(future, lambda: seen.append(held.stats().queued))
    assert future.cancel()
    del future
    last = lane.submit(abs, 3)
    gate.open()
    assert last.result(TIMEOUT) == 3
    eventually(lambda: seen)


@pytest.mark.parametrize("when_full", ["block", "reject"])
def test_a_full_queue_refuses_nobody_in_a_lane_but_a_shutdown_does(when_full: Any) -> None:
    with AdaptiveExecutor(max_workers=1, max_queue=1, when_full=when_full) as pool, Gate() as gate:
        gate.hold(pool)
        lane, closed = pool.lane("slow", limit=2), pool.lane("closed", limit=1)
        futures = [lane.submit(abs, -number) for number in range(10)]
        assert pool.stats().queued == 2
        closed.shutdown()
        with pytest.raises(RuntimeError, match="after shutdown"):
            closed.submit(abs, 1)
        gate.open()
        assert [future.result(TIMEOUT) for future in futures] == list(range(10))


def test_a_call_of_a_loop_is_cancelled_in_its_lane(lane: Lane, gate: Gate) -> None:
    async def main() -> None:
        calls = [lane.run(gate, number) for number in range(3)]
        assert calls[2].cancel()
        assert lane.stats().cancelled == 1
        gate.open()
        assert await asyncio.gather(*calls[:2]) == [0, 1]

    asyncio.run(main())


def test_a_future_of_a_lane_keeps_neither_lane_nor_executor() -> None:
    pool = AdaptiveExecutor(max_workers=1, keep_alive=LONG)
    lane = pool.lane("one", limit=1)
    future = lane.submit(abs, -1)
    assert future.result(TIMEOUT) == 1
    wait_for_idle(pool)
    references = weakref.ref(pool), weakref.ref(lane)
    threads = set(pool._threads)
    del pool, lane
    gone(*references)
    assert future.result() == 1
    for thread in threads:
        thread.join(TIMEOUT)


def test_a_name_in_use_is_refused(pool: AdaptiveExecutor, gate: Gate) -> None:
    lane = pool.lane("slow", limit=1)
    with pytest.raises(ValueError, match="name='slow' is already in use"):
        pool.lane("slow", limit=2)
    gate.hold(lane)
    del lane
    gc.collect()
    with pytest.raises(ValueError, match="name='slow' is already in use"):
        pool.lane("slow", limit=2)
    gate.open()
    wait_for_idle(pool)
    assert isinstance(pool.lane("slow", limit=2), Lane)


def test_a_closed_lane_does_not_lift_the_ceiling() -> None:
    """A task that it refuses leaves behind no claim to a worker, which the next task would cash."""
    with AdaptiveExecutor(2, max_queue=0, when_full="reject") as pool, Gate() as gate:
        lane = pool.lane("closed", limit=1)
        lane.shutdown()
        gate.hold(pool)
        with pytest.raises(RuntimeError, match="after shutdown"):
            lane.submit(print)
        gate.hold(pool)
        with pytest.raises(QueueFull):
            pool.submit(gate)
        assert pool.stats().workers == 2
