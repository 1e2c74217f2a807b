"""Foreign code where nobody may wait: in the timekeeper's thread, and in the middle of the plain core's own work."""

from __future__ import annotations

import concurrent.futures
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from support.common import TIMEOUT, Background, Gate, Thing, eventually

from ebbpool import COMPILED, AdaptiveExecutor, QueueFull
from ebbpool._testing import seams

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
        with seams.mutex_of(pool):
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
    [
        ("block", 0, "submit"),
        ("block", 1, "submit_first"),
        ("caller_runs", 0, "submit_first"),
    ],
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


def test_what_waits_in_line_is_run_when_the_pool_is_closed(place: Place) -> None:
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
        with pytest.raises(RuntimeError, match=r"cannot wait for .* here: this"):
            place(pool, lambda: WAITS[way](pool, future))
        gate.open()
        assert future.result(TIMEOUT) == 3


def test_what_need_not_wait_is_no_error(place: Place) -> None:
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
