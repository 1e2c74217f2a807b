"""Tasks that wait for tasks of their own pool: counted as blocked, replaced meanwhile, and no surplus."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any

import pytest
from support import seams
from support.common import LONG, TIMEOUT, Gate, eventually, wait_for_idle

from ebbpool import AdaptiveExecutor

WAYS: dict[str, Callable[[Any], Any]] = {
    "result": lambda future: future.result(TIMEOUT),
    "result for ever": lambda future: future.result(),
    "exception": lambda future: (future.exception(TIMEOUT), future.result(0))[1],
    "wait": lambda future: concurrent.futures.wait([future], TIMEOUT).done.pop().result(0),
    "wait for ever": lambda future: concurrent.futures.wait([future]).done.pop().result(0),
    "as_completed": lambda future: next(concurrent.futures.as_completed([future], TIMEOUT)).result(0),
    "as_completed for ever": lambda future: next(concurrent.futures.as_completed([future])).result(0),
}


@pytest.fixture(params=WAYS)
def collect(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    """A way to wait for one future, and its result."""
    return WAYS[request.param]


def test_tasks_that_wait_for_tasks_may_be_nested_three_deep(collect: Callable[[Any], Any]) -> None:
    with AdaptiveExecutor(1) as pool:

        def nested(depth: int) -> int:
            return 1 if depth == 0 else 1 + int(collect(pool.submit(nested, depth - 1)))

        outermost = [pool.submit(nested, 3) for _ in range(4)]
        assert [future.result(TIMEOUT) for future in outermost] == [4] * 4


def test_a_waiting_worker_counts_as_blocked_and_another_takes_its_place(collect: Callable[[Any], Any]) -> None:
    with AdaptiveExecutor(2, keep_alive=LONG) as pool, Gate() as inner, Gate() as outer:

        def parent() -> Any:
            child = pool.submit(inner, "from the child")
            try:
                return collect(child)
            finally:
                outer()

        parents = [pool.submit(parent), pool.submit(parent)]
        inner.await_begun(2)
        eventually(lambda: pool.stats().blocked == 2)
        assert pool.stats().workers == len(pool._threads) == 4
        assert outer.nobody_begins(pool)
        inner.open()
        outer.await_begun(2)
        eventually(lambda: pool.stats().blocked == 0)
        outer.open()
        assert [future.result(TIMEOUT) for future in parents] == ["from the child"] * 2
        eventually(lambda: pool.stats().workers == len(pool._threads) <= 2, "the surplus went")
        assert pool.submit(int).result(TIMEOUT) == 0


def test_many_parents_never_run_more_tasks_at_once_than_the_ceiling() -> None:
    leaves = Gate()
    leaves.open()
    with AdaptiveExecutor(2) as pool:
        parents = [pool.submit(lambda n=number: pool.submit(leaves, n).result(TIMEOUT)) for number in range(50)]
        assert [parent.result(TIMEOUT) for parent in parents] == list(range(50))
        wait_for_idle(pool)
        eventually(lambda: pool.stats().workers <= 2)
        assert pool.stats().blocked == 0
    assert leaves.peak <= 2


@pytest.mark.parametrize("timeout", [0, -1, 0.001])
def test_a_wait_that_times_out_is_blocked_no_longer(timeout: float) -> None:
    with AdaptiveExecutor(1, keep_alive=LONG) as pool, Gate() as gate, Gate() as after:

        def parent() -> str:
            child = pool.submit(gate)
            for wait in (child.result, child.exception):
                with pytest.raises(TimeoutError):
                    wait(timeout)
            assert concurrent.futures.wait([child], timeout).not_done == {child}
            with pytest.raises(TimeoutError):
                next(concurrent.futures.as_completed([child], max(timeout, 0)))
            assert len(child._waiters) == 0
            after()
            return "timed out"

        future = pool.submit(parent)
        after.await_begun()
        assert pool.stats().blocked == 0
        gate.open()
        after.open()
        assert future.result(TIMEOUT) == "timed out"


@pytest.mark.parametrize("of_another_pool", [False, True])
def test_a_worker_that_waits_for_something_else_is_not_blocked(of_another_pool: bool) -> None:
    """Only futures of the own pool make a worker count as blocked: here the ceiling holds."""
    foreign: Any = concurrent.futures.Future()
    with AdaptiveExecutor(1) as pool, AdaptiveExecutor(1) as other:
        with Gate() as gate:
            future = other.submit(gate, 1) if of_another_pool else foreign
            begun = threading.Event()
            waiting = pool.submit(lambda: (begun.set(), future.result(TIMEOUT))[1])
            assert begun.wait(TIMEOUT)
            queued = pool.submit(int)
            eventually(lambda: "max_workers reached" in str(pool.stats().last_decision))
            assert (pool.stats().blocked, pool.stats().queued) == (0, 1)
        foreign.set_result(1)
        assert (waiting.result(TIMEOUT), queued.result(TIMEOUT), pool.stats().started) == (1, 0, 1)


def test_a_finished_future_blocks_nobody(collect: Callable[[Any], Any]) -> None:
    with AdaptiveExecutor(1, keep_alive=LONG) as pool:
        child = pool.submit(pow, 2, 3)
        assert child.result(TIMEOUT) == 8
        assert pool.submit(collect, child).result(TIMEOUT) == 8
        wait_for_idle(pool)
        stats = pool.stats()
        assert (stats.started, stats.workers, stats.blocked) == (1, 1, 0)


def test_shutdown_grows_for_a_nested_task_that_is_queued() -> None:
    """The only worker waits for a task that is queued when the pool is shut down."""
    pool = AdaptiveExecutor(1)
    with Gate() as gate:

        def parent() -> Any:
            child = pool.submit(int, 7)
            gate()
            return child.result(TIMEOUT)

        future = pool.submit(parent)
        gate.await_begun()
        pool.shutdown(wait=False)
        gate.open()
        assert future.result(TIMEOUT) == 7
    pool.shutdown()


def test_a_wait_within_a_wait_is_one() -> None:
    with AdaptiveExecutor(1) as pool, Gate() as gate:

        def waits() -> None:
            engine = seams.engine_of(pool)
            engine.wait_counted(engine.wait_counted, pool.submit(gate).result, TIMEOUT)

        parent = pool.submit(waits)
        gate.await_begun()
        assert pool.stats().blocked == 1
        others = [pool.submit(gate) for _ in range(2)]
        assert gate.nobody_begins(pool)
        gate.open()
        parent.result(TIMEOUT)
        for other in others:
            other.result(TIMEOUT)
        assert pool.stats().blocked == 0
