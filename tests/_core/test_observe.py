"""Measuring some of the tasks: which, and what is told; test_arguments.py has that it changes nothing for them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from support import seams
from support.common import LONG, TIMEOUT, Gate, eventually, fail, wait_for_idle

from ebbpool import AdaptiveExecutor

Records = list[tuple[float, float]]
"""For how long the tasks that were measured waited, and ran."""


def observe(pool: AdaptiveExecutor, records: Records, one_in: int = 1) -> None:
    seams.engine_of(pool).observe(one_in, lambda waited, ran: records.append((waited, ran)))


@pytest.fixture
def records() -> Records:
    return []


@pytest.fixture(params=[False, True], ids=["plain", "in context"])
def pool(request: pytest.FixtureRequest) -> Iterator[AdaptiveExecutor]:
    with AdaptiveExecutor(1, keep_alive=LONG, propagate_context=request.param) as pool:
        yield pool


def take_longer_than(since: float) -> float:
    """Return a time since when more has passed than had then since another."""
    now = time.monotonic()
    eventually(lambda: time.monotonic() - now > now - since)
    return now


def test_waiting_and_running_are_told_apart(pool: AdaptiveExecutor, records: Records) -> None:
    observe(pool, records)
    begun = time.monotonic()
    with Gate() as gate:
        first = gate.hold(pool)
        second = pool.submit(int)
        # The first has waited for less than this, and the second waits for all of it.
        since = take_longer_than(begun)
        held = time.monotonic() - since
        gate.open()
        first.result(TIMEOUT)
        second.result(TIMEOUT)
    wait_for_idle(pool)
    (short, longest), (waited, ran) = records
    assert short < held <= min(longest, waited) and ran >= 0


def test_one_in_many_is_measured(records: Records) -> None:
    with AdaptiveExecutor(2) as pool:
        observe(pool, records, 8)
        for future in [pool.submit(int) for _ in range(8000)]:
            future.result(TIMEOUT)
        wait_for_idle(pool)
    # The gaps are drawn by chance, of 8 on average: 1000 on average, with a deviation of about 18.
    assert 850 < len(records) < 1150


def test_an_error_of_the_record_is_logged_and_measuring_ends(
    pool: AdaptiveExecutor, records: Records, caplog: pytest.LogCaptureFixture
) -> None:
    seams.engine_of(pool).observe(1, lambda waited, ran: fail())
    assert pool.submit(int).result(TIMEOUT) == 0
    wait_for_idle(pool)
    assert "Boom" in caplog.text
    observe(pool, records)
    pool.submit(int).result(TIMEOUT)
    seams.engine_of(pool).observe(0, None)
    pool.submit(int).result(TIMEOUT)
    wait_for_idle(pool)
    assert len(records) == 1


def test_a_task_that_runs_inside_another_has_waited_for_itself_alone(records: Records) -> None:
    """With `when_full` "caller_runs" it runs in its submitter's thread, which may be a worker."""
    took: list[float] = []
    with AdaptiveExecutor(1, max_queue=0, when_full="caller_runs") as pool, Gate() as gate:

        def outer() -> None:
            gate()
            observe(pool, records)
            begun = time.monotonic()
            pool.submit(int).result(TIMEOUT)
            took.append(time.monotonic() - begun)

        submitted = time.monotonic()
        future = pool.submit(outer)
        gate.await_begun()
        take_longer_than(submitted)
        gate.open()
        future.result(TIMEOUT)
    ((waited, _),) = records
    assert waited <= took[0]
