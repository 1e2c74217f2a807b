"""What a pool's threads use of the processors, counted now and then."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import pytest
from support import TIMEOUT, Gate

from ebbpool import _census
from ebbpool._census import COST, INTERVAL, STALE, Census

needs_clocks = pytest.mark.skipif(sys.platform != "linux", reason="no clocks of other threads on this platform")


class Numbered:
    def __init__(self, native_id: int | None) -> None:
        self.native_id = native_id


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    clocks: dict[int, float] = {}
    monkeypatch.setattr(_census, "seconds_of", clocks.get)
    return clocks


def crew(*numbers: int | None) -> Any:
    return [Numbered(number) for number in numbers]


def test_the_first_count_says_nothing(used: dict[int, float]) -> None:
    used[1] = 5.0
    assert Census().take(1000.0, 7.0, crew(1)) is None


def test_shares_of_one_processor_since_the_last_count(used: dict[int, float]) -> None:
    census = Census()
    used |= {1: 5.0, 2: 0.0}
    census.take(1000.0, 7.0, crew(1, 2))
    used |= {1: 5.01, 2: 0.02, 3: 0.01}
    assert census.take(1000.05, 7.05, crew(1, 2, 3, None)) == pytest.approx((0.8, 1.0))


def test_one_long_task_is_not_what_many_share(used: dict[int, float]) -> None:
    census = Census()
    used |= {1: 0.0, 2: 0.0, 3: 0.0}
    census.take(1000.0, 0.0, crew(1, 2, 3))
    used |= {1: 0.07, 2: 0.01, 3: 0.01}
    assert census.take(1000.1, 0.1, crew(1, 2, 3)) == pytest.approx((0.0, 1.0))
    used |= {1: 0.13, 2: 0.06, 3: 0.01}
    assert census.take(1000.2, 0.2, crew(1, 2, 3)) == pytest.approx((1.1, 1.0))


def test_between_two_counts_the_last_one_stands(used: dict[int, float]) -> None:
    census = Census()
    used[1] = 1.0
    census.take(1000.0, 1.0, crew(1))
    used[1] = 1.01
    first = census.take(1000.02, 1.02, crew(1))
    used[1] = 9.0
    assert census.take(1000.02 + 0.9 * INTERVAL, 9.0, crew(1)) == first


def test_many_threads_are_counted_less_often(used: dict[int, float]) -> None:
    census = Census()
    many = range(1, 201)
    used |= dict.fromkeys(many, 1.0)
    census.take(1000.0, 1.0, crew(*many))
    assert census.take(1000.0 + 2 * INTERVAL, 2.0, crew(*many)) is None
    assert census.take(1000.1 + INTERVAL + 200 * COST, 2.0, crew(*many)) is not None


def test_an_old_count_says_nothing_about_now(used: dict[int, float]) -> None:
    census = Census()
    used[1] = 1.0
    census.take(1000.0, 1.0, crew(1))
    census.take(1000.01, 1.01, crew(1))
    assert census.take(1001.0 + STALE, 1.5, crew(1)) is None
    assert census.take(1001.05 + STALE, 1.6, crew(1)) is not None


def test_threads_that_have_ended_are_left_out(used: dict[int, float]) -> None:
    census = Census()
    used |= {1: 1.0, 2: 1.0, 3: 1.0}
    census.take(1000.0, 3.0, crew(1, 2, 3))
    del used[2]
    used |= {1: 1.02, 3: 1.03}
    assert census.take(1000.1, 3.1, crew(1, 2, 3)) == pytest.approx((0.5, 1.0))


def test_a_platform_that_cannot_tell(used: dict[int, float]) -> None:
    census = Census()
    assert [census.take(1000.0 + number, 1.0, crew(1)) for number in range(3)] == [None] * 3


@needs_clocks
def test_the_clock_of_a_thread() -> None:
    told: list[float] = []

    def work(gate: Gate) -> None:
        while time.thread_time() < 0.02:
            pass
        told.append(time.thread_time())
        gate()

    with Gate() as gate:
        thread = threading.Thread(target=work, args=(gate,))
        thread.start()
        gate.await_begun()
        assert thread.native_id is not None
        seconds = _census.seconds_of(thread.native_id)
        assert seconds is not None and told[0] <= seconds < told[0] + 1.0
        gate.open()
    thread.join(TIMEOUT)


@needs_clocks
def test_a_number_that_no_thread_has() -> None:
    # Above the most that Linux gives out.
    assert _census.seconds_of(2**22 + 1) is None
