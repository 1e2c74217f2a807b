"""What add_done_callback promises, for the plain and the compiled core."""

from __future__ import annotations

import logging
import threading
import weakref
from types import ModuleType
from typing import Any

import pytest
from support.common import TIMEOUT, Background, Boom, Gate, Thing, fail, gone, no_collector

from ebbpool import AdaptiveExecutor


@pytest.fixture(params=["set_result", "set_exception", "cancel"])
def end(request: pytest.FixtureRequest) -> Any:
    """A call that ends a future, once for every way to end."""
    if request.param == "set_result":
        return lambda future: future.set_result(1)
    if request.param == "set_exception":
        return lambda future: future.set_exception(Boom())
    return lambda future: future.cancel()


def test_callbacks_run_in_order_with_the_future(core: ModuleType, end: Any) -> None:
    future, calls = core.Future(), []
    for number in range(5):
        assert future.add_done_callback(lambda done, number=number: calls.append((number, done))) is None
    assert calls == []
    end(future)
    assert calls == [(number, future) for number in range(5)]


def test_callbacks_see_a_finished_future(core: ModuleType, end: Any) -> None:
    future, seen = core.Future(), []
    future.add_done_callback(lambda done: seen.append((done.done(), done.running(), done.cancelled())))
    end(future)
    assert seen == [(True, False, future.cancelled())]


def test_callbacks_run_in_the_thread_that_ends_the_future(core: ModuleType, end: Any) -> None:
    future, seen = core.Future(), []
    future.add_done_callback(lambda _: seen.append(threading.get_ident()))
    background = Background(lambda: (end(future), threading.get_ident())[1])
    assert seen == [background.join()]


def test_a_callback_added_late_runs_at_once_in_the_caller(core: ModuleType, end: Any) -> None:
    future, seen = core.Future(), []
    Background(lambda: end(future)).join()
    future.add_done_callback(lambda done: seen.append((done, threading.get_ident())))
    assert seen == [(future, threading.get_ident())]


def test_one_callback_added_twice_runs_twice(core: ModuleType) -> None:
    future, calls = core.Future(), []
    future.add_done_callback(calls.append)
    future.add_done_callback(calls.append)
    future.set_result(1)
    assert calls == [future, future]


def test_no_callback_runs_again(core: ModuleType) -> None:
    future, calls = core.Future(), []
    future.add_done_callback(calls.append)
    future.cancel()
    future.cancel()
    future.set_running_or_notify_cancel()
    assert calls == [future]


def test_starting_runs_no_callback(core: ModuleType) -> None:
    future, calls = core.Future(), []
    future.add_done_callback(calls.append)
    future.set_running_or_notify_cancel()
    assert calls == []
    future.set_result(1)
    assert calls == [future]


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


def test_a_failing_late_callback_is_logged(core: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    future = core.Future()
    future.set_result(1)

    def fail(_: object) -> None:
        raise Boom("in the callback")

    with caplog.at_level(logging.ERROR, "concurrent.futures"):
        future.add_done_callback(fail)
    [record] = [record for record in caplog.records if record.name == "concurrent.futures"]
    assert record.getMessage() == f"exception calling callback for {future!r}"


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


def test_a_callback_may_end_another_future(core: ModuleType) -> None:
    first, second = core.Future(), core.Future()
    first.add_done_callback(lambda done: second.set_result(done.result()))
    first.set_result("passed on")
    assert second.result(timeout=0) == "passed on"


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


def test_a_callback_that_holds_its_own_future_makes_no_lasting_cycle(core: ModuleType, end: Any) -> None:
    with no_collector():
        future = core.Future()
        reference = weakref.ref(future)
        future.add_done_callback(lambda _, future=future: None)
        end(future)
        del future
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


class TestNotRun:
    """`tell_unless_returned`: hearing of a future only if its call is not made, or raises."""

    def test_one_that_ends_before_its_call_has_begun_is_told_of(self, core: ModuleType, end: Any) -> None:
        future, calls = core.Future(), []
        future.tell_unless_returned(lambda done: calls.append((done, done.done())))
        assert calls == []
        end(future)
        assert calls == [(future, True)]

    def test_one_that_began_is_not_told_of(self, core: ModuleType) -> None:
        future, calls = core.Future(), []
        future.tell_unless_returned(calls.append)
        future.set_running_or_notify_cancel()
        future.set_result(1)
        assert calls == []

    def test_one_that_raised_is_told_of(self, core: ModuleType) -> None:
        future, calls = core.Future(), []
        future.tell_unless_returned(calls.append)
        future.set_running_or_notify_cancel()
        future.set_exception(Boom())
        assert calls == [future]

    def test_a_task_that_raises_is_told_of_whenever_that_was_asked_for(self) -> None:
        calls: list[object] = []
        with AdaptiveExecutor(1) as pool, Gate() as gate:
            running = pool.submit(lambda: (gate(), fail()))
            gate.await_begun()
            queued = [pool.submit(fail), pool.submit(int)]
            for future in (running, *queued):
                future.tell_unless_returned(calls.append)  # type: ignore[attr-defined]  # the engine's own
            gate.open()
        assert calls == [running, queued[0]]

    def test_one_that_is_done_is_told_of_at_once(self, core: ModuleType, end: Any) -> None:
        future, calls = core.Future(), []
        end(future)
        future.tell_unless_returned(calls.append)
        assert calls == [future]

    def test_one_with_a_condition_is_told_of_as_well(self, core: ModuleType, end: Any) -> None:
        future, calls = core.Future(), []
        with future._condition:
            future.tell_unless_returned(calls.append)
        end(future)
        assert calls == [future]

    def test_it_is_told_after_the_callbacks_and_its_errors_are_logged(
        self, core: ModuleType, end: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        future, calls = core.Future(), []

        def fail(_: object) -> None:
            calls.append("not run")
            raise Boom

        future.tell_unless_returned(fail)
        future.add_done_callback(lambda _: calls.append("done"))
        with caplog.at_level(logging.ERROR, "concurrent.futures"):
            end(future)
        assert calls == ["done", "not run"] and len(caplog.records) == 1

    def test_one_that_races_with_the_end_is_told_of_exactly_once(self, core: ModuleType, end: Any) -> None:
        for _ in range(200):
            future, ready, calls = core.Future(), threading.Barrier(2), []

            def tell(future: Any = future, ready: threading.Barrier = ready, calls: list[object] = calls) -> None:
                ready.wait(TIMEOUT)
                future.tell_unless_returned(calls.append)

            telling = Background(tell)
            ready.wait(TIMEOUT)
            end(future)
            telling.join()
            assert calls == [future]

    @pytest.mark.parametrize("cancels", [True, False])
    def test_tasks_of_a_pool(self, cancels: bool) -> None:
        calls: list[object] = []
        with AdaptiveExecutor(1) as pool, Gate() as gate:
            futures = [pool.submit(gate)]
            gate.await_begun()
            futures += [pool.submit(int) for _ in range(2)]
            for future in futures:
                future.tell_unless_returned(calls.append)  # type: ignore[attr-defined]  # the engine's own
            pool.shutdown(wait=False, cancel_futures=cancels)
            gate.open()
        assert calls == (futures[1:] if cancels else [])

    def test_a_fork_leaves_behind_what_would_be_told(self, core: ModuleType) -> None:
        with no_collector():
            future, thing = core.Future(), Thing()
            reference = weakref.ref(thing)
            future.tell_unless_returned(thing.method)
            del thing
            future.disown(Boom())
            assert future.done()
            gone(reference)

    def test_what_was_told_is_dropped(self, core: ModuleType, end: Any) -> None:
        with no_collector():
            future, thing = core.Future(), Thing()
            reference = weakref.ref(thing)
            future.tell_unless_returned(thing.method)
            del thing
            end(future)
            gone(reference)
