"""The queue: its bound, and what happens when it is full; tasks that go first, and how the others get their turn."""

from __future__ import annotations

import math
import queue
import threading
import weakref
from typing import Any

import pytest
from support import seams
from support.common import (
    LONG,
    TIMEOUT,
    Background,
    Gate,
    Thing,
    eventually,
    gone,
    no_collector,
    no_thread,
    starting,
    wait_for_idle,
)
from support.seams import POLICIES, BlockedSubmitter

from ebbpool import AdaptiveExecutor, QueueFull


def fill(pool: AdaptiveExecutor, gate: Gate, *, workers: int, queued: int) -> list[Any]:
    """Keep every worker at the gate and fill the queue; return all the futures."""
    futures = [pool.submit(gate, number) for number in range(workers)]
    gate.await_begun(workers)
    futures += [pool.submit(gate, number) for number in range(workers, workers + queued)]
    assert pool._work_queue.qsize() == pool.stats().queued == queued
    return futures


@pytest.mark.parametrize("when_full", POLICIES)
def test_an_idle_worker_takes_a_task_though_nothing_may_wait(when_full: Any) -> None:
    with AdaptiveExecutor(1, max_queue=0, when_full=when_full, keep_alive=LONG) as pool:
        worker = pool.submit(threading.current_thread).result(TIMEOUT)
        for _ in range(50):
            wait_for_idle(pool)
            # A worker that is just told to read its settings counts as idle all the same.
            pool.resize(keep_alive=LONG)
            assert pool.submit(threading.current_thread).result(TIMEOUT) is worker


@pytest.mark.parametrize("max_queue", [0, 3])
def test_reject_holds_the_bound_in_a_burst(max_queue: int) -> None:
    """Below the ceiling a worker is started for each task too many; nobody waits until it has arrived."""
    with AdaptiveExecutor(4, max_queue=max_queue, when_full="reject") as pool, Gate() as gate:
        accepted = []
        for number in range(1000):
            try:
                accepted.append(pool.submit(gate, number))
            except QueueFull:
                continue
        assert len(accepted) == 4 + max_queue
        gate.await_begun(4)
        gate.open()
        for future in accepted:
            future.result(TIMEOUT)


@pytest.mark.parametrize(("when_full", "max_queue"), [*zip(POLICIES, [0, 2, 0], strict=True)])
def test_a_worker_on_its_way_makes_room_for_one_task(when_full: Any, max_queue: int) -> None:
    gate = Gate()
    with AdaptiveExecutor(1, initializer=gate, max_queue=max_queue, when_full=when_full) as pool, gate:
        futures = [pool.submit(threading.current_thread) for _ in range(1 + max_queue)]
        gate.await_begun()
        one_too_many = Background(lambda: pool.submit(threading.current_thread))
        if when_full == "block":
            one_too_many.waits_for(pool)
        elif when_full == "reject":
            with pytest.raises(QueueFull):
                one_too_many.join()
        else:
            assert one_too_many.join().result(timeout=0) is one_too_many.thread
        gate.open()
        assert {future.result(TIMEOUT) for future in futures} == gate.threads
        if when_full == "block":
            assert one_too_many.join().result(TIMEOUT) in gate.threads


def test_many_blocked_submitters_all_get_through_and_the_bound_holds() -> None:
    lengths: list[int] = []
    with AdaptiveExecutor(2, max_queue=3) as pool:

        def submit_many() -> list[Any]:
            return [pool.submit(lambda: lengths.append(pool._work_queue.qsize())) for _ in range(100)]

        submitters = [Background(submit_many) for _ in range(6)]
        futures = [future for submitter in submitters for future in submitter.join()]
        assert all(future.result(TIMEOUT) is None for future in futures)
    assert len(lengths) == 600
    # One of the two workers looks; a task that the other one is about to take does not count as waiting.
    assert max(lengths) <= 3 + 1


@pytest.mark.parametrize("waits", [True, False])
def test_a_place_goes_to_the_submitter_that_has_waited_longest_and_has_not_given_up(waits: bool) -> None:
    order: list[str] = []
    with AdaptiveExecutor(max_workers=1, max_queue=1) as pool, Gate() as gate:
        queued = fill(pool, gate, workers=1, queued=1)[1]
        first = BlockedSubmitter(pool, order.append, "first")
        second = BlockedSubmitter(pool, order.append, "second")
        if not waits:
            first.give_up()
        assert queued.cancel()
        assert first.let_in(0) == waits
        assert second.let_in(0) == (not waits)
        assert pool.stats().queued == 1
        gate.open()
        assert second.let_in(TIMEOUT if waits else 0) == waits
        second.future.result(TIMEOUT)
    assert order == ["first", "second"][not waits :]


@pytest.mark.parametrize("max_queue", [0, 1, 2])
def test_a_worker_runs_what_does_not_fit_into_its_own_queue(max_queue: int) -> None:
    with AdaptiveExecutor(1, max_queue=max_queue) as pool:

        def parent() -> tuple[threading.Thread, list[Any]]:
            return threading.current_thread(), [pool.submit(threading.current_thread) for _ in range(5)]

        worker, children = pool.submit(parent).result(TIMEOUT)
        ran_in = [child.result(TIMEOUT) for child in children]
        assert ran_in == [worker] * 5


def test_a_worker_of_another_pool_waits_for_room_like_anybody() -> None:
    with AdaptiveExecutor(1, max_queue=1) as pool, AdaptiveExecutor(1) as other, Gate() as gate:
        fill(pool, gate, workers=1, queued=1)
        outer = other.submit(lambda: pool.submit(threading.current_thread))
        Background(outer.result).waits_for(pool)
        assert not outer.done()
        gate.open()
        assert outer.result(TIMEOUT).result(TIMEOUT) in gate.threads


def test_caller_runs_is_counted_and_keeps_no_reference() -> None:
    with AdaptiveExecutor(1, max_queue=0, when_full="caller_runs") as pool, Gate() as gate, no_collector():
        fill(pool, gate, workers=1, queued=0)
        thing = Thing()
        reference = weakref.ref(thing)
        future = pool.submit(thing.method, thing)
        del thing
        gone(reference)
        assert future.result(timeout=0) == 1
        gate.open()
        wait_for_idle(pool)
        stats = pool.stats()
        assert (stats.submitted, stats.completed, stats.rejected) == (2, 2, 0)


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
@pytest.mark.parametrize("allowed", [0.0, 0.02, math.inf])
def test_turns_are_taken_once_the_oldest_of_the_others_has_waited_too_long(
    way: str, letters: str, allowed: float
) -> None:
    order: list[Any] = []
    with seams.setting(overtaken=allowed), AdaptiveExecutor(1, keep_alive=LONG) as pool:
        gate = queue_up(pool, order, way)
        if allowed == 0.02:
            eventually(lambda: pool.stats().oldest_wait > allowed)
            # What the timekeeper would do within a tick: the pool's clock goes on.
            seams.look_ahead(pool)
        gate.open()
        wait_for_idle(pool)
    first, second, third, fourth = letters
    if allowed == math.inf:
        assert order == [*letters, 0, 1, 2]
    else:
        assert order == [first, 0, second, 1, third, 2, fourth]


def test_a_cancelled_task_takes_no_turn() -> None:
    order: list[Any] = []
    with seams.setting(overtaken=0.0), AdaptiveExecutor(1, keep_alive=LONG) as pool, Gate() as gate:
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


def test_calls_with_a_limit_of_their_own_wait_for_nobody() -> None:
    """They go before all others, also where these are overdue, and keep their own order. Here no thread comes."""
    order: list[Any] = []
    with seams.watched_by(seams.Nobody()), seams.setting(overtaken=0.0), AdaptiveExecutor(1) as pool, Gate() as gate:
        gate.hold(pool)
        with starting(r"ebbpool-\d+_\d+", no_thread):
            pool.submit(order.append, "ordinary")
            pool.submit_first(order.append, "one")
            lent = [seams.lift(pool, order.append, name) for name in ("a", "cancelled", "b")]
            pool.submit_first(order.append, "two")
        assert lent[1].cancel()
        gate.open()
        wait_for_idle(pool)
    assert order == ["a", "b", "ordinary", "two", "one"]


WAYS: dict[str, Any] = {
    "pool": lambda pool: pool,
    "lane": lambda pool: pool.lane("lane", limit=1),
    "session": lambda pool: pool.session(),
}


@pytest.mark.parametrize("propagate_context", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_what_waits_may_be_taken_back(way: str, propagate_context: bool) -> None:
    ran: list[Any] = []
    with AdaptiveExecutor(1, propagate_context=propagate_context) as pool:
        executor = WAYS[way](pool)
        with Gate() as gate:
            gate.hold(executor)
            other = pool.submit(ran.append, "another's")
            futures = [executor.submit(ran.append, 1), executor.submit(ran.append, 2), executor.submit(pow, 2, 10)]
            view = executor._work_queue
            assert (view.qsize(), view.empty()) == (4 if way == "pool" else 3, False)
            futures[1].cancel()
            if way == "pool":
                assert view.get_nowait().future is other
            items = [view.get_nowait() for _ in range(2 if way != "session" else 3)]
            if way == "session":
                # As the standard library's queue, it holds what is cancelled.
                assert items.pop(1).future is futures[1]
            assert [item.future for item in items] == futures[::2]
            assert [item[1:] for item in items] == [(ran.append, (1,), {}), (pow, (2, 10), {})]
            assert [item.task for item in items] == [item[1:] for item in items]
            assert (view.qsize(), view.empty()) == (0, True)
            with pytest.raises(queue.Empty):
                view.get_nowait()
            with pytest.raises(queue.Empty):
                view.get(block=False)
            with pytest.raises(queue.Empty):
                view.get(timeout=0)
            with pytest.raises(RuntimeError, match=r"use get\(block=False\)"):
                view.get()
            # They are the taker's, who ends them as he likes; the pool has counted them.
            assert not any(future.done() for future in futures[::2])
            before, counted = pool.stats(), way != "session"
            futures[2].set_result("elsewhere")
            assert futures[2].result(0) == "elsewhere"
            assert futures[0].cancel()
            assert not futures[0].set_running_or_notify_cancel()
            given = executor.submit(dict, (), a=1)
            taken = view.get_nowait()
            assert taken.future is given
            assert taken.fn(*taken.args, **taken.kwargs) == {"a": 1}
            given.cancel()
            after = pool.stats()
            assert (after.submitted - before.submitted, after.cancelled - before.cancelled) == (counted, counted)
        if way == "session":
            executor.shutdown()
        wait_for_idle(pool)
        assert ran == ([] if way == "pool" else ["another's"])


def test_taking_back_lets_others_in() -> None:
    with AdaptiveExecutor(1, max_queue=1) as pool, Gate() as gate:
        gate.hold(pool)
        first = pool.submit(int)
        blocked = BlockedSubmitter(pool, int)
        assert pool._work_queue.get_nowait().future is first
        assert blocked.let_in(TIMEOUT)
        assert pool._work_queue.get_nowait().future is blocked.future


def test_a_task_that_a_worker_is_about_to_take_does_not_count() -> None:
    coming = Gate()
    with AdaptiveExecutor(2, initializer=coming) as pool, coming, Gate() as gate:
        futures = [pool.submit(gate)]
        coming.await_begun()
        lane = pool.lane("lane", limit=1)
        assert (pool.stats().queued, pool._work_queue.qsize(), lane._work_queue.qsize()) == (1, 0, 0)
        futures += [pool.submit(gate), pool.submit(gate)]
        # The timekeeper has the second worker come by and by.
        eventually(lambda: pool._work_queue.qsize() == 1)
        coming.open()
        gate.await_begun(2)
        assert (pool.stats().queued, pool._work_queue.qsize()) == (1, 1)
