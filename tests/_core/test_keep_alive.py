"""Parked workers: they leave by themselves, the last to park wakes first, and no task is lost in between."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Any

import pytest
from support import seams
from support.common import LONG, TIMEOUT, Gate, eventually, wait_for_idle

import ebbpool
from ebbpool import AdaptiveExecutor

SHORT = 0.05
"""A keep-alive, in seconds, that a test can wait for."""


def grown(pool: AdaptiveExecutor, count: int) -> set[threading.Thread]:
    """Make `pool` grow to `count` workers, and return them once their tasks are over."""
    with Gate() as gate:
        futures = [pool.submit(gate) for _ in range(count)]
        gate.await_begun(count)
    for future in futures:
        future.result(TIMEOUT)
    assert len(gate.threads) == count
    return gate.threads


@pytest.mark.parametrize(("keep_alive", "kept"), [(SHORT, 0), (0, 0), (SHORT, 2), (0, 2)])
def test_workers_leave_with_nobody_calling_but_min_workers_stay(keep_alive: float, kept: int) -> None:
    with AdaptiveExecutor(5, min_workers=kept, keep_alive=keep_alive) as pool:
        threads = grown(pool, 5)
        eventually(lambda: sum(thread.is_alive() for thread in threads) == kept)
        staying = [thread for thread in threads if thread.is_alive()]
        for thread in staying:
            thread.join(2 * SHORT)
            assert thread.is_alive()
        eventually(lambda: pool.stats().workers == kept)
        assert set(pool._threads) == set(staying)
        assert pool.stats().retired == 5 - kept
        assert not kept or pool.submit(threading.current_thread).result(TIMEOUT) in staying


def test_the_last_to_park_is_the_first_to_wake() -> None:
    with AdaptiveExecutor(3, keep_alive=LONG) as pool:
        gates = [Gate() for _ in range(3)]
        for gate in gates:
            pool.submit(gate)
        for gate in gates:
            gate.await_begun()
        parked: list[threading.Thread] = []
        for number in (1, 0, 2):
            parked += gates[number].threads
            gates[number].open()
            eventually(lambda: pool.stats().idle == len(parked))  # noqa: B023  (used at once)
        for _ in range(10):
            assert pool.submit(threading.current_thread).result(TIMEOUT) is parked[2]
            eventually(lambda: pool.stats().idle == 3)
        with Gate() as first, Gate() as second, Gate() as third:
            for gate in (first, second, third):
                gate.hold(pool)
            assert [gate.threads.pop() for gate in (first, second, third)] == parked[::-1]


@pytest.mark.parametrize(("keep_alive", "burst"), [(0, 1), (0.00005, 1), (0.0005, 1), (0.001, 8)])
def test_what_is_submitted_as_workers_leave_is_not_lost(keep_alive: float, burst: int) -> None:
    """The keep-alive is about as long as one round, so that workers leave again and again in mid-submit."""
    with AdaptiveExecutor(max_workers=4, keep_alive=keep_alive) as pool:
        for _ in range(300 if burst == 1 else 50):
            futures = [pool.submit(int, number) for number in range(burst)]
            assert [future.result(TIMEOUT) for future in futures] == list(range(burst))


class LyingLock:
    """A lock that says that it timed out although somebody had released it just before."""

    def __init__(self, lock: Any, before_the_lie: Callable[[], object]) -> None:
        self.lock = lock
        self.before_the_lie = before_the_lie
        self.lies = 0
        self.release, self.locked = lock.release, lock.locked

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if timeout >= 0 and not self.lies:
            self.lies += 1
            self.before_the_lie()
            return False
        return bool(self.lock.acquire(blocking, timeout))


@pytest.mark.skipif(ebbpool.COMPILED, reason="the locks of the compiled core cannot be replaced")
def test_a_worker_that_is_woken_just_as_its_keep_alive_ends_takes_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rare race, forced: the task comes after the lock has timed out and before the worker has said so."""
    futures: list[Any] = []
    locks: list[LyingLock] = []

    def lying() -> Any:
        lock = LyingLock(_thread.allocate_lock(), lambda: futures.append(pool.submit(threading.current_thread)))
        locks.append(lock)
        return lock

    with AdaptiveExecutor(1, keep_alive=LONG) as pool:
        with monkeypatch.context() as patch:
            patch.setattr(seams.running_part("staff"), "allocate_lock", lying)
            pool.submit(int)
            eventually(lambda: futures)
        worker = futures[0].result(TIMEOUT)
        assert [lock.lies for lock in locks] == [1]
        for _ in range(5):
            eventually(lambda: pool.stats().idle == 1)
            assert pool.submit(threading.current_thread).result(TIMEOUT) is worker
        assert locks[0].lock.locked(), "the wake-up was left for another time"
        assert pool.stats().idle <= 1


def test_a_pool_of_one_keeps_its_thread_unless_told_otherwise() -> None:
    def keeps(pool: AdaptiveExecutor) -> bool:
        kept = pool.submit(threading.current_thread).result(TIMEOUT)
        wait_for_idle(pool)
        return pool.submit(threading.current_thread).result(TIMEOUT) is kept

    with (
        seams.setting(keep_alive=0.0),
        AdaptiveExecutor(1) as one,
        AdaptiveExecutor(2) as two,
        AdaptiveExecutor(1, keep_alive=0) as told,
    ):
        assert [keeps(pool) for pool in (one, two, told)] == [True, False, False]
        one.resize(max_workers=2)
        eventually(lambda: one.stats().workers == 0)
        two.resize(max_workers=1)
        assert [keeps(pool) for pool in (one, two)] == [False, True]
        two.resize(keep_alive=0)
        eventually(lambda: two.stats().workers == 0)
