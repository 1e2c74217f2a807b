"""Foreign code where nobody may wait: in the timekeeper's thread, in the plain core's own work, and in a collection."""

from __future__ import annotations

import concurrent.futures
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from support import seams
from support.common import TIMEOUT, Background, Gate, Thing, eventually, needs_fork, output_of

from ebbpool import COMPILED, AdaptiveExecutor, QueueFull

Place = Callable[[AdaptiveExecutor, Callable[[], Any]], Any]


def in_the_timekeeper(pool: AdaptiveExecutor, call: Callable[[], Any]) -> Any:
    """Make `call()` where a finaliser may make it: in the timekeeper's thread; return its outcome."""
    outcome: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def report() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    seams.in_timekeeper(report)
    return outcome.result(TIMEOUT)


def in_between(pool: AdaptiveExecutor, call: Callable[[], Any]) -> Any:
    """Make `call()` where a signal handler may make it: while its own thread holds the pool's mutex."""

    def interrupted() -> Any:
        with seams.engine_of(pool).mutex:
            return call()

    return Background(interrupted).join()


@pytest.fixture(
    params=[
        in_the_timekeeper,
        pytest.param(
            in_between, marks=pytest.mark.skipif(COMPILED, reason="nothing comes between the steps of compiled code")
        ),
    ]
)
def place(request: pytest.FixtureRequest) -> Place:
    chosen: Place = request.param
    return chosen


@pytest.mark.parametrize(
    ("when_full", "max_queue", "way"),
    [("block", 0, "submit"), ("block", 1, "submit_first"), ("caller_runs", 0, "submit_first")],
)
def test_a_submit_to_a_full_pool_neither_waits_nor_runs_the_call(
    place: Place, when_full: Any, max_queue: int, way: str
) -> None:
    with AdaptiveExecutor(1, max_queue=max_queue, when_full=when_full) as pool, Gate() as gate:
        gate.hold(pool)
        queued = [pool.submit(threading.current_thread) for _ in range(max_queue)]
        late = place(pool, lambda: [getattr(pool, way)(threading.current_thread) for _ in range(3)])
        assert not any(future.done() for future in late)
        assert pool.stats().queued == max_queue
        assert late[1].cancel()
        gate.open()
        assert {future.result(TIMEOUT) for future in [*queued, late[0], late[2]]} == gate.threads


def test_a_full_pool_that_rejects_does_so_everywhere(place: Place) -> None:
    with AdaptiveExecutor(1, max_queue=0, when_full="reject") as pool, Gate() as gate:
        gate.hold(pool)
        with pytest.raises(QueueFull):
            place(pool, lambda: pool.submit(int))


def test_a_task_that_waits_in_line_is_run_when_the_pool_is_closed(place: Place) -> None:
    with Gate() as gate:
        with AdaptiveExecutor(1, max_queue=0) as pool:
            gate.hold(pool)
            late = place(pool, lambda: [pool.submit(int) for _ in range(3)])
            pool.shutdown(wait=False)
            gate.open()
        assert [future.result(timeout=0) for future in late] == [0, 0, 0]


WAITS: dict[str, Callable[[AdaptiveExecutor, Any], object]] = {
    "result": lambda pool, future: future.result(),
    "result in time": lambda pool, future: future.result(TIMEOUT),
    "exception": lambda pool, future: future.exception(),
    "wait": lambda pool, future: concurrent.futures.wait([future]),
    "as_completed": lambda pool, future: list(concurrent.futures.as_completed([future])),
    "wait_idle": lambda pool, future: pool.wait_idle(),
    "wait_idle in time": lambda pool, future: pool.wait_idle(TIMEOUT),
    "shutdown": lambda pool, future: pool.shutdown(),
    "lane": lambda pool, future: pool._lanes["lane"].shutdown(),
}


@pytest.mark.parametrize("way", WAITS)
def test_to_wait_is_an_error(place: Place, way: str) -> None:
    with AdaptiveExecutor(1) as pool, Gate() as gate:
        lane = pool.lane("lane", limit=1)
        future = lane.submit(gate, 3)
        gate.await_begun()
        with pytest.raises(RuntimeError, match=r"cannot wait for .* here: (this|ebbpool)"):
            place(pool, lambda: WAITS[way](pool, future))
        gate.open()
        assert future.result(TIMEOUT) == 3


def test_a_call_that_need_not_wait_is_no_error(place: Place) -> None:
    with AdaptiveExecutor(1) as pool, Gate() as gate:
        future = pool.submit(gate, 3)
        gate.await_begun()
        for wait in (lambda: future.result(0), lambda: future.exception(timeout=0)):
            with pytest.raises(TimeoutError):
                place(pool, wait)
        assert place(pool, lambda: pool.wait_idle(0)) is False
        assert place(pool, lambda: concurrent.futures.wait([future], 0).not_done) == {future}
        gate.open()
        assert concurrent.futures.wait([future], TIMEOUT).done == {future}
        assert place(pool, future.result) == 3
        eventually(lambda: pool.wait_idle(0))
        assert place(pool, pool.wait_idle) is True
        assert place(pool, lambda: concurrent.futures.wait([future]).done) == {future}


def test_other_pools_go_on_while_a_finaliser_submits_to_a_full_one() -> None:
    """The finaliser runs because the timekeeper's thread drops the last reference."""
    with AdaptiveExecutor(1, max_queue=0) as full, AdaptiveExecutor(2) as other, Gate() as gate:
        gate.hold(full)
        late: list[Any] = []

        def make_and_drop() -> None:
            # Without a GIL an object is finalised in the thread that made it, on PyPy in that which collects.
            weakref.finalize(Thing(), lambda: late.append(full.submit(int)))
            gc.collect()

        seams.in_timekeeper(make_and_drop)
        barrier = threading.Barrier(2)
        # Both run at the same time only if the timekeeper lets the pool grow.
        met = [other.submit(barrier.wait, TIMEOUT) for _ in range(2)]
        assert sorted(future.result(TIMEOUT) for future in met) == [0, 1]
        eventually(lambda: late, "the finaliser has submitted")
        gate.open()
        assert late[0].result(TIMEOUT) == 0


collected_at_will = pytest.mark.skipif(
    not hasattr(gc, "set_threshold"), reason="the collector cannot be told how often to come by here"
)

# Small tuples, lists and dicts are kept to be used again, and taking one of those does not call the collector.
HOARD = """
import gc
import os
from concurrent.futures import wait
from threading import Event
from ebbpool import AdaptiveExecutor, monitor

def hoard():
    small = [tuple([None] * size) for size in range(1, 21) for _ in range(2100)]
    return small + [[] for _ in range(200)] + [{} for _ in range(200)]
"""
CALLS = """
def visited(call):
    kept = hoard()
    usual = gc.get_threshold()
    gc.callbacks.append(lambda phase, facts: pool.stats())
    gc.set_threshold(1)
    try:
        call()
    finally:
        gc.set_threshold(*usual)
        gc.callbacks.clear()

gate = Event()
with AdaptiveExecutor(1) as pool:
    pool.submit(gate.wait)
    lane = pool.lane("narrow", limit=1)
    in_lane = [lane.submit(int) for _ in range(300)]
    queued = [pool.submit(int) for _ in range(300)]
    delayed = [pool.submit_later(3600.0, int) for _ in range(300)]

    def expire(future):
        try:
            future.result(0.001)
        except TimeoutError:
            pass

    try:
        for call in (
            lambda: pool.submit(int, 1, 2), lambda: pool.submit_first(int), lambda: pool.submit_later(3600.0, int),
            lambda: lane.submit(int), lambda: pool.map(int, range(10)), lambda: expire(queued[0]),
            lambda: wait(queued, 0),
            lambda: [future.add_done_callback(id) for future in queued], lambda: queued[1]._condition,
            lambda: repr(pool),
            lambda: [future.add_done_callback(id) for future in delayed], lambda: pool.running(stacks=True),
            pool.stats, lane.stats, pool.decisions, lambda: pool.wait_idle(0.0), monitor.snapshot,
            lambda: [future.cancel() for future in queued[2:]], lambda: [future.cancel() for future in in_lane],
            lambda: [future.cancel() for future in delayed], lambda: lane.shutdown(wait=False, cancel_futures=True),
            lambda: pool.resize(max_workers=2), lambda: pool.shutdown(wait=False, cancel_futures=True),
        ):
            visited(call)
    finally:
        gate.set()
print("through")
"""


@collected_at_will
def test_no_call_is_stuck_where_the_collector_comes_by() -> None:
    """In an interpreter of its own, because one that is stuck cannot be saved."""
    assert output_of(CALLS, HOARD) == ["through"]


@needs_fork
@collected_at_will
def test_a_forked_child_is_not_stuck_either() -> None:
    script = """
    pool, gate = AdaptiveExecutor(2), Event()
    lane = pool.lane("narrow", limit=1)
    for executor in (pool, lane):
        for _ in range(20):
            executor.submit(gate.wait)
    delayed = [pool.submit_later(3600.0, int) for _ in range(50)]
    kept = hoard()
    gc.callbacks.append(lambda phase, facts: pool.stats())
    usual = gc.get_threshold()
    gc.set_threshold(1)
    child = os.fork()
    gc.set_threshold(*usual)
    gc.callbacks.clear()
    if child == 0:
        print("through", flush=True)
        os._exit(0)
    print(os.waitpid(child, 0)[1])
    gate.set()
    pool.shutdown(cancel_futures=True)
    """
    assert output_of(script, HOARD) == ["through", "0"]
