"""schedule: the beat, what does not overlap, what is missed, what an error does, and bad arguments."""

from __future__ import annotations

import contextvars
import logging
import math
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.common import Boom, Gate, wait_for_idle
from support.manual_time import ManualTimekeeper, break_down, pass_time, timed_pool

from ebbpool import AdaptiveExecutor, ScheduledTask


def test_the_beat() -> None:
    with timed_pool() as (pool, keeper):
        ran: list[float] = []
        task = pool.schedule(10, lambda: ran.append(keeper.now))
        assert isinstance(task, ScheduledTask)
        assert (task.interval, task.runs, task.missed, task.last_error, task.next_run) == (10, 0, 0, None, 1010.0)
        for _ in range(35):
            pass_time(pool, keeper, 1.0)
        assert ran == [1010.0, 1020.0, 1030.0]
        assert (task.runs, task.missed, task.next_run, task.active) == (3, 0, 1040.0, True)


@pytest.mark.parametrize(("first", "expected"), [(None, 1010.0), (0, 1000.0), (0.5, 1000.5), (25, 1025.0)])
def test_the_first_run(first: float | None, expected: float) -> None:
    with timed_pool() as (pool, keeper):
        ran: list[float] = []
        task = pool.schedule(10, lambda: ran.append(keeper.now), first=first)
        assert task.next_run == expected
        pass_time(pool, keeper, expected - 1000.0)
        assert ran == [expected]
        assert task.next_run == expected + 10


def test_arguments_go_to_the_call_every_time() -> None:
    calls: list[Any] = []

    def call(*args: Any, **kwargs: Any) -> None:
        calls.append((args, dict(kwargs)))
        kwargs.clear()

    with timed_pool() as (pool, keeper):
        pool.schedule(1, call, 1, 2, interval=3, fn=4)
        for _ in range(2):
            pass_time(pool, keeper, 1.0)
    assert calls == [((1, 2), {"interval": 3, "fn": 4})] * 2


def test_late_runs_do_not_shift_the_beat() -> None:
    with timed_pool() as (pool, keeper):
        ran: list[float] = []
        task = pool.schedule(10, lambda: ran.append(keeper.now))
        for pause in (10.3, 9.9, 10.1, 9.7):
            pass_time(pool, keeper, pause)
        assert ran == pytest.approx([1010.3, 1020.2, 1030.3, 1040.0])
        assert (task.runs, task.missed, task.next_run) == (4, 0, 1050.0)


def test_a_million_beats_do_not_drift() -> None:
    with timed_pool() as (pool, keeper):
        task = pool.schedule(0.1, int)
        pass_time(pool, keeper, 0.1 * 1_000_000)
        assert task.runs == 1
        assert task.runs + task.missed == pytest.approx(1_000_000, abs=1)
        assert task.next_run == 1000.1 + 0.1 * (task.runs + task.missed)


def test_a_run_that_takes_too_long_is_not_overlapped_and_its_beats_are_dropped() -> None:
    with timed_pool() as (pool, keeper), Gate() as gate:
        task = pool.schedule(10, gate)
        keeper.advance(10.0)
        gate.await_begun()
        assert task.next_run == 1020.0
        for _ in range(3):
            keeper.advance(10.0)
        keeper.advance(5.0)
        assert gate.nobody_begins()
        assert (task.runs, task.missed) == (0, 0)
        gate.open()
        wait_for_idle(pool)
        assert (task.runs, task.missed, task.next_run) == (1, 3, 1050.0)
        pass_time(pool, keeper, 5.0)
        gate.await_begun()
        assert (task.runs, task.missed, gate.peak) == (2, 3, 1)


def test_a_run_that_ends_on_a_beat_does_not_miss_it() -> None:
    with timed_pool() as (pool, keeper), Gate() as gate:
        task = pool.schedule(10, gate)
        keeper.advance(10.0)
        gate.await_begun()
        keeper.now += 10.0
        gate.open()
        wait_for_idle(pool)
        assert (task.missed, task.next_run) == (0, 1020.0)
        keeper.settle()
        gate.await_begun()


def test_a_run_that_waits_for_a_thread_is_not_joined_by_another() -> None:
    with timed_pool(1) as (pool, keeper), Gate() as gate:
        gate.hold(pool)
        task = pool.schedule(10, int)
        for _ in range(4):
            keeper.advance(10.0)
        assert pool.stats().queued == 1
        assert task.next_run == 1020.0
        gate.open()
        wait_for_idle(pool)
        assert (task.runs, task.missed, task.next_run) == (1, 2, 1040.0)


def test_after_a_suspension_one_run_comes_at_once_and_no_burst() -> None:
    with timed_pool() as (pool, keeper):
        ran: list[float] = []
        task = pool.schedule(60, lambda: ran.append(keeper.now))
        pass_time(pool, keeper, 60.0)
        pass_time(pool, keeper, 8 * 3600.0 + 30.0)
        assert ran == [1060.0, 1060.0 + 8 * 3600 + 30]
        assert (task.runs, task.missed) == (2, 8 * 60 - 1)
        assert task.next_run == 1060.0 + 8 * 3600 + 60
        assert keeper.settle() == 30.0


@given(
    begin=st.floats(0, 1e9),
    step=st.floats(1e-9, 1e9),
    beat=st.integers(0, 10**6),
    late=st.floats(0, 1e6),
)
def test_the_next_beat_is_the_first_that_has_not_passed(begin: float, step: float, beat: int, late: float) -> None:
    keeper = ManualTimekeeper()
    armed: list[int] = []

    class Timers:
        def __init__(self) -> None:
            self.keeper = keeper
            self.schedules: dict[Any, None] = {}

    task = ScheduledTask(Timers(), step, begin, print, (), {}, "log", None)  # type: ignore[arg-type]
    task.arm = lambda _, following: armed.append(following)  # type: ignore[method-assign, assignment]
    task._armed = (beat, None)
    keeper.now = task._time_of(beat) + late * step
    task._go_on(None)  # type: ignore[arg-type]
    (following,) = armed
    assert following > beat
    assert task.missed == following - beat - 1
    # Numbers this large are as far apart as that; a beat that is so little overdue runs at once.
    grain = 4 * math.ulp(keeper.now)
    assert task._time_of(following) >= keeper.now - grain
    assert following == beat + 1 or task._time_of(following - 1) < keeper.now + grain


@pytest.mark.parametrize("interval", [5e-324, 1e-12, 1e-9])
def test_an_interval_below_the_clocks_resolution(interval: float) -> None:
    with timed_pool() as (pool, keeper):
        task = pool.schedule(interval, int)
        for _ in range(3):
            pass_time(pool, keeper, 1.0)
        assert task.runs >= 3
        assert task.missed > 1e9
        assert task.interval == interval


def test_an_interval_without_end_in_sight() -> None:
    with timed_pool() as (pool, keeper):
        task = pool.schedule(1e308, int, first=0)
        pass_time(pool, keeper, 0.0)
        assert (task.runs, task.missed, task.next_run) == (1, 0, 1e308)


def test_an_error_is_logged_and_the_schedule_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    outcomes = [None, Boom("one"), SystemExit("two"), None]

    def act() -> None:
        error = outcomes.pop(0)
        if error is not None:
            raise error

    with timed_pool() as (pool, keeper), caplog.at_level(logging.DEBUG, "concurrent.futures"):
        task = pool.schedule(1, act)
        pass_time(pool, keeper, 1.0)
        assert task.last_error is None
        pass_time(pool, keeper, 1.0)
        assert isinstance(task.last_error, Boom)
        pass_time(pool, keeper, 1.0)
        pass_time(pool, keeper, 1.0)
        assert isinstance(task.last_error, SystemExit)
        assert (task.runs, task.missed, task.next_run) == (4, 0, 1005.0)
        assert pool.stats().failed == 2
        messages = [(record.levelname, record.getMessage()) for record in caplog.records]
    name = f"{test_an_error_is_logged_and_the_schedule_goes_on.__name__}.<locals>.act"
    assert messages == [("ERROR", f"Exception in the scheduled call of {name}:")] * 2
    assert caplog.records[0].exc_info is not None and isinstance(caplog.records[0].exc_info[1], Boom)


def test_an_error_stops_the_schedule_that_asks_for_it(caplog: pytest.LogCaptureFixture) -> None:
    with timed_pool() as (pool, keeper):
        task = pool.schedule(1, break_down, on_error="stop")
        pass_time(pool, keeper, 1.0)
        assert (task.runs, task.active, task.next_run) == (1, False, None)
        assert isinstance(task.last_error, Boom)
        assert "broken down" in caplog.text
        assert keeper.advance(10.0) == inf
        assert task.runs == 1
        assert not task.cancel()


@pytest.mark.parametrize("on_error", ["log", "stop"])
def test_a_log_that_fails_changes_nothing(on_error: Any) -> None:
    class Breaks(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "scheduled" in record.getMessage():
                raise OSError("disk full")

    logger, handler = logging.getLogger("concurrent.futures"), Breaks()
    logger.addHandler(handler)
    try:
        with timed_pool() as (pool, keeper):
            task = pool.schedule(1, break_down, on_error=on_error)
            pass_time(pool, keeper, 1.0)
            assert (task.runs, task.active) == (1, on_error == "log")
    finally:
        logger.removeHandler(handler)


def test_the_context_of_each_run_is_a_copy_of_the_callers() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")
    seen: list[str] = []

    def run() -> None:
        seen.append(variable.get())
        variable.set("changed by a run")

    with timed_pool(propagate_context=True) as (pool, keeper):
        token = variable.set("caller's")
        pool.schedule(1, run)
        variable.reset(token)
        for _ in range(3):
            pass_time(pool, keeper, 1.0)
    assert seen == ["caller's"] * 3


def test_arguments_of_any_name_arrive_in_a_context() -> None:
    seen: list[object] = []
    with timed_pool(propagate_context=True) as (pool, keeper):
        pool.schedule(1, lambda *args, **names: seen.append((args, names)), 1, self=2, callable=3)
        for _ in range(2):
            pass_time(pool, keeper, 1.0)
    assert seen == [((1,), {"self": 2, "callable": 3})] * 2


@pytest.mark.parametrize("name", ["interval", "first"])
@pytest.mark.parametrize("value", [True, "1", b"1", 1j, [1]])
def test_what_is_no_number_of_seconds(name: str, value: Any) -> None:
    with AdaptiveExecutor() as pool, pytest.raises(TypeError, match=rf"^{name} must be a number of seconds, not "):
        pool.schedule(
            *([value, print] if name == "interval" else [1, print]), **({} if name == "interval" else {name: value})
        )


@pytest.mark.parametrize("name", ["interval", "first"])
@pytest.mark.parametrize("value", [-1, -math.inf, math.inf, math.nan])
def test_seconds_out_of_range(name: str, value: float) -> None:
    with AdaptiveExecutor() as pool, pytest.raises(ValueError, match=rf"^{name} must be .* seconds, not {value!r}$"):
        pool.schedule(
            *([value, print] if name == "interval" else [1, print]), **({} if name == "interval" else {name: value})
        )


@pytest.mark.parametrize("interval", [0, 0.0, -0.0])
def test_an_interval_of_nothing(interval: float) -> None:
    with AdaptiveExecutor() as pool, pytest.raises(ValueError, match="interval must be greater than 0 seconds, not "):
        pool.schedule(interval, print)


def test_an_interval_that_is_missing() -> None:
    with AdaptiveExecutor() as pool, pytest.raises(TypeError, match="interval must be a number of seconds, not None"):
        pool.schedule(None, print)  # type: ignore[arg-type]


@pytest.mark.parametrize("on_error", ["raise", "", None, 1, ["log"]])
def test_a_policy_that_there_is_not(on_error: Any) -> None:
    with AdaptiveExecutor() as pool, pytest.raises(ValueError, match="on_error must be one of 'log', 'stop', not "):
        pool.schedule(1, print, on_error=on_error)


@pytest.mark.parametrize("propagate", [False, True])
def test_a_call_that_cannot_be_called(propagate: bool) -> None:
    with AdaptiveExecutor(propagate_context=propagate) as pool:
        with pytest.raises(TypeError, match="fn must be callable, not 3"):
            pool.schedule(1, 3)  # type: ignore[arg-type]
        assert not pool._crew.timers.schedules and not pool._crew.timers.waiting


def test_how_it_shows_itself() -> None:
    with timed_pool() as (pool, keeper):
        task = pool.schedule(2.5, print)
        assert repr(task) == "<ScheduledTask of print every 2.5 s: goes on, runs=0, missed=0>"
        pass_time(pool, keeper, 9.0)
        task.cancel()
        assert repr(task) == "<ScheduledTask of print every 2.5 s: ended, runs=1, missed=2>"
