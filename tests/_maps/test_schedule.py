"""schedule: the beat, what is missed, what an error does, what ends it, and what it keeps alive."""

from __future__ import annotations

import contextvars
import gc
import logging
import math
import threading
import weakref
from math import inf
from typing import Any

import pytest
from support.common import (
    LONG,
    TIMEOUT,
    Boom,
    Gate,
    Thing,
    all_end,
    collected,
    eventually,
    gone,
    wait_for_idle,
)
from support.manual_time import break_down, pass_time, timed_pool

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


@pytest.mark.parametrize("interval", [5e-324, 1e-12, 1e-9])
def test_an_interval_below_the_clocks_resolution(interval: float) -> None:
    with timed_pool() as (pool, keeper):
        task = pool.schedule(interval, int)
        for _ in range(3):
            pass_time(pool, keeper, 1.0)
        assert task.runs >= 3
        assert task.missed > 1e9
        assert task.interval == interval


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

    def run(*args: int, **names: int) -> None:
        assert (args, names) == ((1,), {"self": 2, "callable": 3})
        seen.append(variable.get())
        variable.set("changed by a run")

    with timed_pool(propagate_context=True) as (pool, keeper):
        token = variable.set("caller's")
        pool.schedule(1, run, 1, self=2, callable=3)
        variable.reset(token)
        for _ in range(3):
            pass_time(pool, keeper, 1.0)
    assert seen == ["caller's"] * 3


seconds = "must be a number of seconds, not "
BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    *(({name: value}, TypeError, f"^{name} {seconds}") for name in ("interval", "first") for value in (True, "1", 1j)),
    *(
        ({name: value}, ValueError, f"^{name} must be .* seconds, not {value!r}$")
        for name in ("interval", "first")
        for value in (-1, math.inf, math.nan)
    ),
    *(({"interval": value}, ValueError, "interval must be greater than 0 seconds, not ") for value in (0, -0.0)),
    *(({"interval": value}, TypeError, f"interval {seconds}") for value in (None, 10**400)),
    *(({"on_error": value}, ValueError, "on_error must be one of 'log', 'stop', not ") for value in ("raise", None)),
    ({"fn": 3}, TypeError, "fn must be callable, not 3"),
]


@pytest.mark.parametrize(("given", "error", "text"), BAD)
@pytest.mark.parametrize("propagate", [False, True])
def test_bad_arguments(given: dict[str, Any], error: type[Exception], text: str, propagate: bool) -> None:
    others = {name: value for name, value in given.items() if name not in ("interval", "fn")}
    delay, fn = given.get("interval", 1), given.get("fn", print)
    with AdaptiveExecutor(propagate_context=propagate) as pool:
        with pytest.raises(error, match=text):
            pool.schedule(delay, fn, **others)
        if not others and delay != 0:
            with pytest.raises(error, match=text.replace("interval", "delay")):
                pool.submit_later(delay, fn)
        assert pool.stats().delayed == 0


def test_how_it_shows_itself() -> None:
    with timed_pool() as (pool, keeper):
        task = pool.schedule(2.5, print)
        assert repr(task) == "<ScheduledTask of print every 2.5 s: goes on, runs=0, missed=0>"
        pass_time(pool, keeper, 9.0)
        task.cancel()
        assert repr(task) == "<ScheduledTask of print every 2.5 s: ended, runs=1, missed=2>"


def test_cancelled_before_its_first_run() -> None:
    with timed_pool() as (pool, keeper):
        thing = Thing()
        reference = weakref.ref(thing)
        task = pool.schedule(1, thing.method)
        del thing
        assert task.cancel()
        assert not task.cancel()
        gone(reference)
        assert (task.active, task.next_run, task.runs) == (False, None, 0)
        assert keeper.advance(5.0) == inf


def test_cancelled_while_a_run_waits_for_a_thread() -> None:
    with timed_pool(1) as (pool, keeper), Gate() as gate:
        gate.hold(pool)
        ran: list[int] = []
        task = pool.schedule(1, ran.append, 1)
        keeper.advance(1.0)
        assert pool.stats().queued == 1
        assert task.cancel()
        assert pool.stats().queued == 0
        gate.open()
        pass_time(pool, keeper, 5.0)
        assert (ran, task.runs) == ([], 0)


def test_cancelled_while_it_runs() -> None:
    with timed_pool() as (pool, keeper), Gate() as gate:
        task = pool.schedule(1, gate)
        keeper.advance(1.0)
        gate.await_begun()
        assert task.cancel()
        assert (task.active, task.next_run) == (False, None)
        gate.open()
        pass_time(pool, keeper, 5.0)
        assert task.runs == 1
        assert gate.nobody_begins()


def test_cancelled_by_itself() -> None:
    with timed_pool() as (pool, keeper):
        tasks: list[ScheduledTask] = []
        tasks.append(pool.schedule(1, lambda: tasks[0].cancel()))
        for _ in range(3):
            pass_time(pool, keeper, 1.0)
        assert tasks[0].runs == 1
        assert not tasks[0].active


def test_cancelled_between_two_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last run has ended, and the next is not yet where cancel() would find it."""
    with timed_pool() as (pool, keeper):
        task = pool.schedule(1, int)
        hold_back = pool.hold_back

        def slow(*call: Any) -> Any:
            future = hold_back(*call)
            assert task.cancel()
            return future

        monkeypatch.setattr(pool, "hold_back", slow)
        pass_time(pool, keeper, 1.0)
        assert pool.stats().delayed == 0
        assert keeper.advance(5.0) == inf
        assert (task.runs, task.active) == (1, False)


def test_no_run_begins_after_cancel_has_returned() -> None:
    """Cancelled at any moment of its beat, by another thread."""
    with AdaptiveExecutor(4) as pool:
        for round_number in range(100):
            cancelled = threading.Event()
            late: list[bool] = []

            def run(late: list[bool] = late, cancelled: threading.Event = cancelled) -> None:
                late.append(cancelled.is_set())

            task = pool.schedule(0.0001, run, first=0)
            eventually(lambda: len(late) > round_number % 5)  # noqa: B023  (used at once)
            task.cancel()
            assert pool.wait_idle(TIMEOUT)
            cancelled.set()
            count = len(late)
            assert pool.submit_later(0.001, len, late).result(TIMEOUT) == count
            assert task.runs <= count


def test_shutdown_lets_the_run_under_way_finish() -> None:
    with timed_pool() as (pool, keeper), Gate() as gate:
        task = pool.schedule(1, gate)
        keeper.advance(1.0)
        gate.await_begun()
        pool.shutdown(wait=False)
        assert not task.active
        gate.open()
        pool.shutdown(timeout=TIMEOUT)
        assert (task.runs, task.last_error) == (1, None)
        assert keeper.advance(5.0) == inf


def test_a_schedule_keeps_its_pool_and_its_call_alive_until_it_is_cancelled() -> None:
    pool, thing, threads = AdaptiveExecutor(keep_alive=LONG), Thing(), set()
    ran = threading.Semaphore(0)

    def run(_: Any) -> None:
        threads.add(threading.current_thread())
        ran.release()

    task = pool.schedule(0.001, run, thing)
    references = weakref.ref(pool), weakref.ref(thing)
    del pool, thing
    for _ in range(3):
        gc.collect()
        assert ran.acquire(timeout=TIMEOUT)
    task.cancel()
    for reference in references:
        collected(reference)
    assert all_end(threads)
