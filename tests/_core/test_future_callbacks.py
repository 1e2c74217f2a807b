"""What add_done_callback promises, for the plain and the compiled core."""

from __future__ import annotations

import logging
import threading
import weakref
from types import ModuleType
from typing import Any

import pytest
from support.common import TIMEOUT, Background, Boom, Thing, gone, no_collector

from ebbpool import AdaptiveExecutor


@pytest.fixture(params=["set_result", "set_exception", "cancel"])
def end(request: pytest.FixtureRequest) -> Any:
    """A call that ends a future, once for every way to end."""
    if request.param == "set_result":
        return lambda future: future.set_result(1)
    if request.param == "set_exception":
        return lambda future: future.set_exception(Boom())
    return lambda future: future.cancel()


def test_a_callback_added_late_runs_at_once_in_the_caller(core: ModuleType, end: Any) -> None:
    future, seen = core.Future(), []
    Background(lambda: end(future)).join()
    future.add_done_callback(lambda done: seen.append((done, threading.get_ident())))
    assert seen == [(future, threading.get_ident())]


def test_a_failing_callback_is_logged_and_the_others_run(
    core: ModuleType, end: Any, caplog: pytest.LogCaptureFixture
) -> None:
    future, calls = core.Future(), []

    def fail(_: object) -> None:
        raise Boom("in the callback")

    future.add_done_callback(lambda _: calls.append("before"))
    future.add_done_callback(fail)
    future.add_done_callback(lambda _: calls.append("after"))
    with caplog.at_level(logging.ERROR, "concurrent.futures"):
        end(future)
    assert calls == ["before", "after"]
    [record] = [record for record in caplog.records if record.name == "concurrent.futures"]
    assert record.levelno == logging.ERROR
    assert record.getMessage() == f"exception calling callback for {future!r}"
    assert record.exc_info is not None and record.exc_info[0] is Boom


def test_a_callback_may_use_its_future(core: ModuleType) -> None:
    future, seen = core.Future(), []

    def use(done: Any) -> None:
        seen.append(done.result(timeout=0))
        seen.append(done.cancel())
        seen.append(repr(done).endswith("returned int>"))
        done.add_done_callback(lambda _: seen.append("nested"))

    future.add_done_callback(use)
    future.add_done_callback(lambda _: seen.append("next"))
    future.set_result(7)
    assert seen == [7, False, True, "nested", "next"]


def test_a_callback_that_races_with_the_end_runs_exactly_once(core: ModuleType, end: Any) -> None:
    for _ in range(200):
        future, ready, calls = core.Future(), threading.Barrier(3), []

        def add(future: Any = future, ready: threading.Barrier = ready, calls: list[object] = calls) -> None:
            ready.wait(TIMEOUT)
            future.add_done_callback(calls.append)

        adders = [Background(add), Background(add)]
        ready.wait(TIMEOUT)
        end(future)
        for adder in adders:
            adder.join()
        assert calls == [future, future]


def test_only_one_of_many_cancellers_runs_the_callbacks(core: ModuleType) -> None:
    for _ in range(100):
        future, ready, calls = core.Future(), threading.Barrier(4), []
        future.add_done_callback(calls.append)

        def cancel(future: Any = future, ready: threading.Barrier = ready) -> bool:
            ready.wait(TIMEOUT)
            return bool(future.cancel())

        cancellers = [Background(cancel) for _ in range(3)]
        ready.wait(TIMEOUT)
        assert [canceller.join() for canceller in cancellers] == [True] * 3
        assert calls == [future]


def test_cancel_and_start_exclude_each_other(core: ModuleType) -> None:
    for _ in range(200):
        future, ready = core.Future(), threading.Barrier(2)

        def cancel(future: Any = future, ready: threading.Barrier = ready) -> bool:
            ready.wait(TIMEOUT)
            return bool(future.cancel())

        canceller = Background(cancel)
        ready.wait(TIMEOUT)
        started = future.set_running_or_notify_cancel()
        assert started is not canceller.join()
        assert future.running() is started
        assert future.cancelled() is not started


def test_only_one_outcome_wins(core: ModuleType) -> None:
    for _ in range(100):
        future, ready, calls = core.Future(), threading.Barrier(4), []
        future.add_done_callback(calls.append)

        def finish(value: int, future: Any = future, ready: threading.Barrier = ready) -> int | None:
            ready.wait(TIMEOUT)
            try:
                future.set_result(value)
            except Exception:
                return None
            return value

        finishers = [Background(lambda value=value: finish(value)) for value in range(3)]  # type: ignore[misc]
        ready.wait(TIMEOUT)
        winners = [value for finisher in finishers if (value := finisher.join()) is not None]
        assert winners == [future.result(timeout=0)]
        assert calls == [future]


def test_callbacks_are_dropped_once_they_have_run(core: ModuleType, end: Any) -> None:
    with no_collector():
        future, thing = core.Future(), Thing()
        reference = weakref.ref(thing)
        future.add_done_callback(thing.method)
        del thing
        assert reference() is not None
        end(future)
        gone(reference)


def test_a_logged_callback_error_holds_nothing(core: ModuleType) -> None:
    logger = logging.getLogger("concurrent.futures")
    logger.addFilter(drop := lambda record: False)
    try:
        with no_collector():
            future, thing = core.Future(), Thing()
            reference, future_reference = weakref.ref(thing), weakref.ref(future)

            def fail(_: object, thing: Thing = thing) -> None:
                raise Boom

            future.add_done_callback(fail)
            del fail, thing
            future.set_result(1)
            gone(reference)
            del future
            gone(future_reference)
    finally:
        logger.removeFilter(drop)


def test_a_callback_that_claims_to_equal_everything_is_still_called() -> None:
    """A wait that times out takes back its own place and no other; it asks no callback whether it is equal."""

    class Equal:
        def __eq__(self, other: object) -> bool:
            asked.append(other)
            return True

        def __hash__(self) -> int:
            return 0

        def __call__(self, future: object) -> None:
            called.append(future)

    asked: list[object] = []
    called: list[object] = []
    gate = threading.Event()
    with AdaptiveExecutor(1) as pool:
        future = pool.submit(gate.wait, 20)
        future.add_done_callback(Equal())
        with pytest.raises(TimeoutError):
            future.result(0.001)
        gate.set()
        assert future.result(20) is True
    assert called == [future]
    assert asked == []


def test_delayed_calls_tell_only_their_own_listeners() -> None:
    """Until somebody listens they share one empty list."""
    with AdaptiveExecutor(1) as pool:
        told: list[Any] = []
        silent, first, second = (pool.submit_later(3600.0, int) for _ in range(3))
        first.add_done_callback(told.append)
        second.add_done_callback(told.append)
        second.add_done_callback(told.append)
        assert silent.cancel() and told == []
        assert second.cancel() and told == [second, second]
        assert first.cancel() and told == [second, second, first]
