"""stats(), wait_idle() and resize() on a live pool."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest
from support.common import LONG, TIMEOUT, Background, Gate, all_end, eventually, wait_for_idle

from ebbpool import AdaptiveExecutor, PoolStats

FIELDS = [
    "name", "workers", "idle", "running", "blocked", "queued", "oldest_wait", "submitted", "completed", "failed",
    "cancelled", "rejected", "expired", "abandoned", "longest_abandoned", "started", "retired", "longest_running", "spilled", "spill_returned", "away",
    "delayed", "min_workers", "max_workers", "max_queue", "max_wait", "last_decision", "loop_lag",
]  # fmt: skip


def test_the_fields() -> None:
    assert [field.name for field in dataclasses.fields(PoolStats)] == FIELDS


def test_a_fresh_pool_counts_nothing() -> None:
    with AdaptiveExecutor() as pool:
        settings = {"name": pool.name, "max_workers": 256, "max_queue": None, "max_wait": None}
        settings |= {"last_decision": "", "loop_lag": ()}
        assert dataclasses.asdict(pool.stats()) == dict.fromkeys(FIELDS, 0) | settings


def test_the_figures_of_a_busy_pool() -> None:
    with AdaptiveExecutor(2, keep_alive=LONG) as pool, Gate() as gate:
        for _ in range(5):
            pool.submit(gate)
        gate.await_begun(2)
        stats = pool.stats()
        assert (stats.workers, stats.running, stats.idle, stats.blocked) == (2, 2, 0, 0)
        assert (stats.queued, stats.submitted, stats.started, stats.retired) == (3, 5, 2, 0)
        assert stats.oldest_wait > 0
        assert stats.longest_running > 0
        later = pool.stats()
        assert later.oldest_wait >= stats.oldest_wait
        assert later.longest_running >= stats.longest_running
        gate.open()
        wait_for_idle(pool)
        stats = pool.stats()
        assert (stats.running, stats.queued, stats.oldest_wait, stats.longest_running) == (0, 0, 0, 0)
        assert stats.completed == 5
        eventually(lambda: pool.stats().idle == 2)


def test_the_age_of_the_oldest_wait_leaves_cancelled_tasks_out() -> None:
    with AdaptiveExecutor(1) as pool, Gate() as gate:
        gate.hold(pool)
        queued = [pool.submit(int) for _ in range(3)]
        assert pool.stats().oldest_wait > 0
        for future in queued:
            future.cancel()
        stats = pool.stats()
        assert (stats.queued, stats.oldest_wait) == (0, 0)


def test_wait_idle() -> None:
    with AdaptiveExecutor(1) as pool, Gate() as gate:
        assert pool.wait_idle() is True
        assert pool.wait_idle(0) is True
        futures = [pool.submit(gate), pool.submit(gate)]
        gate.await_begun()
        for timeout in (0, -1, 0.001):
            assert pool.wait_idle(timeout) is False
        waiting = [Background(pool.wait_idle), Background(lambda: pool.wait_idle(TIMEOUT))]
        assert all(each.still_waits() for each in waiting)
        gate.open()
        assert [each.join() for each in waiting] == [True, True]
        assert all(future.done() for future in futures)
    assert pool.wait_idle(0) is True


def test_wait_idle_counts_callbacks_as_work() -> None:
    with AdaptiveExecutor(1) as pool, Gate() as gate, Gate() as callback:
        future = pool.submit(gate)
        future.add_done_callback(callback)
        gate.open()
        callback.await_begun()
        assert future.done()
        assert pool.wait_idle(0) is False
        callback.open()
        wait_for_idle(pool)


def test_wait_idle_ends_when_the_last_queued_task_is_cancelled() -> None:
    """The only worker is still being initialised: there is nothing else that could end the wait."""
    gate = Gate()
    with AdaptiveExecutor(1, initializer=gate) as pool, gate:
        future = pool.submit(int)
        gate.await_begun()
        waiting = Background(lambda: pool.wait_idle(TIMEOUT))
        assert waiting.still_waits()
        assert future.cancel()
        assert waiting.join() is True


def test_wait_idle_in_a_task_of_the_own_pool_is_an_error() -> None:
    with AdaptiveExecutor(1) as pool, AdaptiveExecutor(1) as other:
        with pytest.raises(RuntimeError, match="own pool"):
            pool.submit(pool.wait_idle, TIMEOUT).result(TIMEOUT)
        wait_for_idle(pool)
        assert other.submit(pool.wait_idle, TIMEOUT).result(TIMEOUT) is True


def test_lowering_max_workers_sends_idle_workers_away() -> None:
    with AdaptiveExecutor(4, keep_alive=LONG) as pool, Gate() as gate:
        gate.hold(pool, 4)
        gate.open()
        wait_for_idle(pool)
        pool.resize(max_workers=1)
        eventually(lambda: sum(thread.is_alive() for thread in gate.threads) == 1)
        eventually(lambda: pool.stats().workers == len(pool._threads) == 1)
        assert pool.submit(threading.current_thread).result(TIMEOUT) in gate.threads


@pytest.mark.parametrize(
    ("settings", "lowered"),
    [({"keep_alive": LONG}, {"keep_alive": 0.01}), ({"min_workers": 2, "keep_alive": 0.01}, {"min_workers": 0})],
)
def test_lowering_keep_alive_or_min_workers_reaches_parked_workers(settings: Any, lowered: Any) -> None:
    with AdaptiveExecutor(2, **settings) as pool, Gate() as gate:
        gate.hold(pool, 2)
        gate.open()
        eventually(lambda: pool.stats().idle == 2)
        pool.resize(**lowered)
        assert all_end(gate.threads)


def test_resize_after_shutdown_does_not_revive_the_pool() -> None:
    pool = AdaptiveExecutor(2)
    pool.submit(int)
    pool.shutdown()
    try:
        pool.resize(min_workers=2, max_workers=5)
    except RuntimeError as error:
        assert "shutdown" in str(error)
    assert pool.stats().workers == 0
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(int)


@pytest.mark.parametrize("how", ["constructor", "resize"])
def test_spare_workers_are_kept_ahead_of_demand(how: str) -> None:
    settings: dict[str, Any] = {"min_spare_workers": 2} if how == "constructor" else {}
    with AdaptiveExecutor(6, keep_alive=LONG, **settings) as pool, Gate() as gate:
        if how == "resize":
            pool.submit(int).result(TIMEOUT)
            pool.resize(min_spare_workers=2)
        gate.hold(pool)
        eventually(lambda: pool.stats().idle >= 2)
        gate.hold(pool, 2)
        eventually(lambda: pool.stats().idle >= 2)
        assert pool.stats().workers <= 6
