"""Tasks that wait for too long, in the queue, a lane or in line."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures.thread import BrokenThreadPool
from typing import Any

import pytest
from support import seams
from support.common import LONG, TIMEOUT, Background, Boom, Gate, eventually, no_thread, starting, wait_for_idle

from ebbpool import AdaptiveExecutor, QueueFull, QueueTimeout

SOON = 0.02
"""Seconds that a task may wait, and does not get a thread within."""


def is_late(future: Any, limit: str = "max_wait=0.02") -> None:
    error = future.exception(TIMEOUT)
    assert type(error) is QueueTimeout
    assert isinstance(error, QueueFull)
    assert limit in str(error) and " in pool 'ebbpool-" in str(error)
    assert error.waited == error.retry_after > SOON


@pytest.mark.parametrize("way", ["pool", "lane", "lane behind its limit", "call", "call in a lane"])
def test_a_late_task_fails_though_no_thread_comes(way: str) -> None:
    ran: list[int] = []
    with AdaptiveExecutor(1, max_wait=SOON if way == "pool" else None) as pool, Gate() as gate:
        submit: Callable[..., Any] = pool.submit
        if way.startswith("lane"):
            lane = pool.lane("lane", limit=1, max_wait=SOON)
            submit = lane.submit
        elif way == "call":
            submit = pool.within(SOON).submit
        elif way == "call in a lane":
            submit = pool.lane("lane", limit=5).within(SOON).submit
        held = (lane if way == "lane behind its limit" else pool).within(LONG).submit(gate)
        gate.await_begun()
        late = submit(ran.append, 1)
        counted: list[int] = []
        late.add_done_callback(lambda _: counted.append(pool.stats().expired))
        is_late(late)
        assert not late.cancelled()
        eventually(lambda: counted == [1])
        assert (pool.stats().failed, pool.stats().running) == (1, 1)
        gate.open()
        assert held.result(TIMEOUT) is None
        wait_for_idle(pool)
        # One that finds a thread in time runs, whatever came before it.
        assert pool.submit(int).exception(TIMEOUT) is None or way == "pool"
    assert ran == []
    stats = pool.stats()
    assert stats.submitted == stats.completed + stats.failed == 3


def test_a_worker_leaves_out_what_is_late() -> None:
    """Only a worker finds out that a task has waited for too long: the timekeeper does not look."""
    ran: list[int] = []
    with seams.watched_by(seams.Nobody()), AdaptiveExecutor(1) as pool, Gate() as gate:
        gate.hold(pool)
        lane = pool.lane("lane", limit=5)
        late = lane.within(SOON).submit(ran.append, 1)
        patient = lane.within(LONG).submit(ran.append, 2)
        eventually(lambda: lane.stats().oldest_wait > SOON)
        assert not late.done()
        gate.open()
        is_late(late)
        assert patient.result(TIMEOUT) is None
        wait_for_idle(pool)
        assert ran == [2]
        assert (lane.stats().expired, lane.stats().failed, lane.stats().completed) == (1, 1, 1)


def test_a_lane_says_for_itself_a_submitter_that_waits_for_room_gives_up_too_and_a_resize_holds_from_now_on() -> None:
    with AdaptiveExecutor(1, max_queue=3, max_wait=SOON) as pool, Gate() as gate:
        gate.hold(pool.within(LONG))
        patient = pool.lane("patient", limit=1, max_wait=math.inf).submit(int)
        also = pool.within(LONG).submit(int)
        is_late(pool.submit(int))
        is_late(pool.lane("like the pool", limit=1).submit(int))
        assert not patient.done()
        assert not also.done()
        pool.within(LONG).submit(int)
        with pytest.raises(QueueTimeout, match=f"no room in the queue of pool {pool.name!r} for "):
            pool.submit(int)
        assert pool.stats().rejected == 1
        pool.resize(max_queue=None, max_wait=None)
        assert pool.stats().max_wait is None
        unlimited = pool.submit(int)
        pool.resize(max_wait=SOON)
        is_late(pool.submit(int))
        gate.open()
        assert [each.result(TIMEOUT) for each in (patient, also, unlimited)] == [0, 0, 0]


@pytest.mark.parametrize("bound", [None, 0, 1])
@pytest.mark.parametrize("when_full", seams.POLICIES)
def test_a_task_that_only_its_lane_holds_back_fails_in_time_and_needs_no_thread(
    bound: int | None, when_full: Any
) -> None:
    with AdaptiveExecutor(4, max_queue=bound, when_full=when_full) as pool, Gate() as gate:
        lane = pool.lane("lane", limit=1, max_wait=SOON)
        held = gate.hold(lane.within(LONG))
        is_late(lane.submit(int))
        assert pool.stats().workers == 1
        gate.open()
        assert held.result(TIMEOUT) is None


@pytest.mark.parametrize("settings", [{"max_queue": 0}, {"min_spare_workers": 2}], ids=str)
def test_it_is_not_looked_at_while_nothing_waits(settings: Any) -> None:
    many = (os.cpu_count() or 1) + 8
    with AdaptiveExecutor(many, **settings) as pool, Gate() as gate:
        gate.hold(pool, many)
        eventually(lambda: seams.crew_of(pool) not in seams.timekeeper._watched)
        gate.open()


@pytest.mark.parametrize("ends", ["late", "no initializer"])
def test_a_callback_that_ends_threads_keeps_no_other_task_from_its_end(ends: str) -> None:
    def leave(_: object) -> None:
        raise SystemExit

    begun, opened = threading.Event(), threading.Event()

    def initialize() -> None:
        begun.set()
        assert opened.wait(TIMEOUT)
        if ends != "late":
            raise Boom

    with AdaptiveExecutor(1, initializer=initialize, max_wait=SOON if ends == "late" else None) as pool:
        futures = [pool.submit(int) for _ in range(4)]
        futures[0].add_done_callback(leave)
        assert begun.wait(TIMEOUT)
        if ends != "late":
            opened.set()
        expected = QueueTimeout if ends == "late" else BrokenThreadPool
        assert {type(future.exception(TIMEOUT)) for future in futures} == {expected}
        opened.set()


def test_beyond_the_ceiling_a_refused_thread_is_tried_again_in_time_and_not_at_each_look() -> None:
    tried: list[float] = []

    def refuse() -> None:
        tried.append(time.monotonic())
        no_thread()

    with AdaptiveExecutor(1) as pool, Gate() as gate, pool.session() as session:
        gate.hold(pool)
        with starting(r"ebbpool-\d+_\d+", refuse):
            future = session.submit(int)
            eventually(lambda: len(tried) >= 3)
        assert future.result(TIMEOUT) == 0
        gate.open()
    assert all(later - earlier >= 0.19 for earlier, later in itertools.pairwise(tried))


def test_the_caller_that_runs_a_call_is_interrupted_with_it() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with AdaptiveExecutor(1, max_queue=1, when_full="caller_runs") as pool, Gate() as gate:
        gate.hold(pool)
        queued = pool.submit(int)
        with pytest.raises(KeyboardInterrupt):
            pool.submit(interrupt)
        gate.open()
        assert queued.result(TIMEOUT) == 0


class Refusing(seams.Nobody):
    """A timekeeper that cannot be had at first, and hands over to the real one after that."""

    refuses = True

    def watch(self, watched: Any) -> None:
        if self.refuses:
            raise RuntimeError("can't start new thread")
        seams.timekeeper.watch(watched)


@pytest.mark.parametrize("way", ["pool", "lane", "lane behind its limit"])
def test_a_timekeeper_that_cannot_be_had_for_a_moment_is_asked_again(way: str) -> None:
    keeper = Refusing()
    with seams.watched_by(keeper), AdaptiveExecutor(1, max_wait=SOON) as pool, Gate() as gate:
        lane = pool.lane("lane", limit=1 if way == "lane behind its limit" else 9)
        executor = pool if way == "pool" else lane
        gate.hold(executor.within(LONG))
        refused = executor.submit(int)
        keeper.refuses = False
        is_late(executor.submit(int))
        is_late(refused)
        assert pool.stats().expired == 2
        gate.open()


@pytest.mark.parametrize("way", ["cancelled", "late", "unlimited"])
def test_nobody_looks_at_a_lane_in_which_nothing_can_be_late(way: str) -> None:
    with seams.watched_by(seams.Nobody()), AdaptiveExecutor(4) as pool, Gate() as gate:
        lane = pool.lane("lane", limit=1, max_wait=math.inf if way == "unlimited" else LONG)
        gate.hold(lane)
        now = time.monotonic()
        future = lane.submit(int)
        seams.begin_looks(pool, now)
        assert (seams.look_at(pool, now + 1.0) is None) == (way == "unlimited")
        if way == "cancelled":
            future.cancel()
        looks = [seams.look_at(pool, now + 2.0 * LONG), seams.look_at(pool, now + 3.0 * LONG)]
        assert looks[1] is None
        if way == "late":
            assert type(future.exception(0)) is QueueTimeout
        gate.open()


@pytest.mark.parametrize("way", ["pool", "lane like the pool", "lane"])
def test_a_deadline_leaves_the_limit_of_the_wait_as_it_is(way: str) -> None:
    with AdaptiveExecutor(1, max_wait=None if way == "lane" else SOON) as pool, Gate() as gate:
        gate.hold(pool.within(LONG))
        executor: Any = pool if way == "pool" else pool.lane("lane", limit=1, max_wait=SOON if way == "lane" else None)
        is_late(executor.within(deadline=LONG).submit(int))
        is_late(executor.within(LONG, deadline=SOON).submit(int), "deadline=0.02")
        patient = pool.lane("patient", limit=1, max_wait=math.inf).within(deadline=LONG).submit(int)
        also = executor.within(LONG, deadline=LONG).submit(int)
        is_late(executor.submit(int))
        assert not patient.done()
        assert not also.done()
        gate.open()
        assert (patient.result(TIMEOUT), also.result(TIMEOUT)) == (0, 0)


@pytest.mark.asyncio
async def test_calls_of_a_loop() -> None:
    async with AdaptiveExecutor(1, max_queue=1) as pool:
        with Gate() as gate:
            running = pool.run(gate)
            gate.await_begun()
            queued = pool.run(int)
            # The first waits in the queue, the second in line for room there.
            late = [pool.within(SOON).run(int), pool.within(SOON).run(int)]
            for each in late:
                with pytest.raises(QueueTimeout):
                    await asyncio.wait_for(each, TIMEOUT)
            gate.open()
            await running
            assert await queued == 0
        assert pool.stats().expired == 2


@pytest.mark.parametrize(
    ("looks", "max_wait", "own", "order"),
    [
        ([11.0, 11.05, 11.15], 100.0, None, "dcba"),
        # One that may wait for longer has its turn, however often the pool is looked at.
        ([101.0, 101.05, 101.15, 101.2, 101.25], 100.0, 1000.0, "adcb"),
        # It does not stand, or the pool has no limit.
        ([11.0], 100.0, None, "abcd"),
        ([11.0, 11.05], 100.0, None, "abcd"),
        ([11.0, 5.0, 11.15], 100.0, None, "abcd"),
        ([90.0, 90.2, 90.4], 1000.0, None, "abcd"),
        ([50.0, 50.2, 50.4], None, 100.0, "abcd"),
    ],
)
def test_the_newest_first_while_the_queue_stands(
    looks: list[float], max_wait: float | None, own: float | None, order: str
) -> None:
    with seams.watched_by(seams.Nobody()), AdaptiveExecutor(1, max_wait=max_wait) as pool:
        # It ends as soon as nothing waits for long.
        for after, expected in ((looks, order), ([0.0], "abcd")):
            ran: list[str] = []
            with Gate() as gate:
                gate.hold(pool)
                for name in "abcd":
                    (pool if own is None else pool.within(own)).submit(ran.append, name)
                now = time.monotonic()
                for seconds in after:
                    seams.look_at(pool, now + seconds)
            wait_for_idle(pool)
            seams.look_ahead(pool)
            assert "".join(ran) == expected


def test_a_full_queue_says_when_to_come_again() -> None:
    with AdaptiveExecutor(1, max_queue=1, when_full="reject") as pool, Gate() as gate:
        gate.hold(pool)
        queued = pool.submit(int)
        eventually(lambda: pool.stats().oldest_wait > SOON)
        with pytest.raises(QueueFull) as caught:
            pool.submit(int)
        assert type(caught.value) is QueueFull
        assert str(caught.value) == f"max_queue=1 tasks are waiting in pool {pool.name!r}, and every worker is busy"
        assert caught.value.retry_after > SOON
        # No call that comes now has to wait for longer.
        pool.resize(max_wait=SOON)
        with pytest.raises(QueueFull) as caught:
            pool.submit(int)
        assert caught.value.retry_after == SOON
        pool.resize(max_wait=None)
        begun = time.monotonic()
        seams.look_ahead(pool)
        assert queued.cancel() and pool.submit(int)
        with pytest.raises(QueueFull) as caught:
            pool.submit(int)
        assert caught.value.retry_after <= time.monotonic() - begun, "one that was cancelled does not wait"


def test_a_late_task_may_be_cancelled_first() -> None:
    with seams.watched_by(seams.Nobody()), AdaptiveExecutor(1) as pool, Gate() as gate:
        gate.hold(pool)
        future = pool.within(SOON).submit(int)
        waiter = Background(lambda: future.exception(TIMEOUT))
        eventually(lambda: pool.stats().oldest_wait > SOON)
        seams.look_at(pool, time.monotonic() + 1)
        assert type(waiter.join()) is QueueTimeout
        assert not future.cancel()
        again = pool.within(LONG).submit(int)
        assert again.cancel()
        assert pool.stats().expired == 1


@pytest.mark.parametrize("value", [0, -1.0, "1", True, math.nan, bytearray(b"1")])
def test_what_is_no_time_is_refused(value: Any) -> None:
    with AdaptiveExecutor(1, max_wait=1) as pool:
        for call in (
            lambda: AdaptiveExecutor(max_wait=value),
            lambda: pool.resize(max_wait=value),
            lambda: pool.lane("lane", limit=1, max_wait=value),
            lambda: pool.within(value),
        ):
            with pytest.raises((TypeError, ValueError), match="max_wait"):
                call()
        with pytest.raises((TypeError, ValueError), match="deadline"):
            pool.within(deadline=value)
        with pytest.raises(TypeError, match="max_wait"):
            pool.within()
        assert pool.stats().max_wait == 1
        assert pool.lanes() == []


def test_however_many_tasks_are_late_all_end_in_time() -> None:
    with AdaptiveExecutor(1, max_wait=0.05) as pool, Gate() as gate:
        gate.hold(pool)
        futures = [pool.submit(int) for _ in range(3_000)]
        for future in futures:
            assert isinstance(future.exception(TIMEOUT), QueueTimeout)
        assert pool.stats().expired == 3_000
