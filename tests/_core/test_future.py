"""The Future protocol, on a future that belongs to no pool, for the plain and the compiled core."""

from __future__ import annotations

import concurrent.futures
import logging
import re
import threading
import weakref
from concurrent.futures import CancelledError, InvalidStateError
from types import ModuleType, TracebackType
from typing import Any

import pytest
from support.common import TIMEOUT, Background, Boom, gone, no_collector


def running(core: ModuleType) -> Any:
    future = core.Future()
    assert future.set_running_or_notify_cancel() is True
    return future


def finished(core: ModuleType, value: object = 42) -> Any:
    future = core.Future()
    future.set_result(value)
    return future


def failed(core: ModuleType, error: BaseException) -> Any:
    future = core.Future()
    future.set_exception(error)
    return future


def cancelled(core: ModuleType) -> Any:
    future = core.Future()
    assert future.cancel() is True
    return future


def states(future: Any) -> tuple[bool, bool, bool]:
    return future.running(), future.cancelled(), future.done()


def test_is_a_standard_future(core: ModuleType) -> None:
    assert issubclass(core.Future, concurrent.futures.Future)
    assert isinstance(core.Future(), concurrent.futures.Future)


def test_is_hashed_and_compared_by_identity_and_takes_weak_references(core: ModuleType) -> None:
    one, other = core.Future(), core.Future()
    assert one == one and one != other
    assert len({one, other, one}) == 2
    assert weakref.ref(one)() is one


def test_is_generic(core: ModuleType) -> None:
    assert core.Future[int].__origin__ is core.Future


def test_can_be_subclassed(core: ModuleType) -> None:
    class Named(core.Future):  # type: ignore[misc, name-defined]
        name = "one"

    future = Named()
    future.label = "two"
    future.set_result(3)
    assert (future.name, future.label, future.result()) == ("one", "two", 3)
    assert repr(future).startswith("<Named at ")


def test_life_of_a_result(core: ModuleType) -> None:
    future = core.Future()
    assert states(future) == (False, False, False)
    assert future._state == "PENDING"
    assert future.set_running_or_notify_cancel() is True
    assert states(future) == (True, False, False)
    assert future._state == "RUNNING"
    assert future.set_result("value") is None
    assert states(future) == (False, False, True)
    assert future._state == "FINISHED"
    assert future.result() == "value"
    assert future.result(timeout=0) == "value"
    assert future.exception() is None


def test_life_of_an_exception(core: ModuleType) -> None:
    future, error = running(core), Boom("no")
    assert future.set_exception(error) is None
    assert states(future) == (False, False, True)
    assert future.exception() is error
    with pytest.raises(Boom) as caught:
        future.result()
    assert caught.value is error


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), StopIteration(7)])
def test_any_base_exception_can_be_the_outcome(core: ModuleType, error: BaseException) -> None:
    future = failed(core, error)
    assert future.exception() is error
    with pytest.raises(type(error)) as caught:
        future.result()
    assert caught.value is error


def test_an_exception_that_is_false_is_still_raised(core: ModuleType) -> None:
    class Empty(Exception):
        def __len__(self) -> int:
            return 0

    error = Empty()
    future = failed(core, error)
    assert future.exception() is error
    with pytest.raises(Empty):
        future.result()
    assert "raised Empty" in repr(future)


@pytest.mark.parametrize("value", [None, 0, False, ValueError("returned, not raised")])
def test_any_value_can_be_the_result(core: ModuleType, value: object) -> None:
    future = finished(core, value)
    assert future.result() is value
    assert future.exception() is None


def test_cancel_pending(core: ModuleType) -> None:
    future = core.Future()
    assert future.cancel() is True
    assert states(future) == (False, True, True)
    assert future.cancel() is True
    with pytest.raises(CancelledError):
        future.result()
    with pytest.raises(CancelledError):
        future.exception()
    assert future.set_running_or_notify_cancel() is False
    assert future._state == "CANCELLED_AND_NOTIFIED"
    assert states(future) == (False, True, True)
    assert future.cancel() is True


def test_cancel_is_refused_once_running(core: ModuleType) -> None:
    future = running(core)
    assert future.cancel() is False
    assert states(future) == (True, False, False)
    future.set_result(1)
    assert future.cancel() is False
    assert states(future) == (False, False, True)
    assert future.result() == 1


@pytest.mark.parametrize("outcome", ["result", "exception"])
def test_a_cancelled_future_takes_no_outcome(core: ModuleType, outcome: str) -> None:
    future = cancelled(core)
    with pytest.raises(InvalidStateError, match="CANCELLED"):
        getattr(future, f"set_{outcome}")(Boom())
    assert future.cancelled()


@pytest.mark.parametrize("outcome", ["result", "exception"])
def test_an_outcome_is_final(core: ModuleType, outcome: str) -> None:
    future = finished(core, "first")
    with pytest.raises(InvalidStateError, match=r"FINISHED: <Future at .* state=finished returned str>"):
        getattr(future, f"set_{outcome}")(Boom())
    assert future.result() == "first"
    error = Boom()
    future = failed(core, error)
    with pytest.raises(InvalidStateError, match=r"FINISHED: <Future at .* state=finished raised Boom>"):
        getattr(future, f"set_{outcome}")(Boom())
    assert future.exception() is error


def test_cannot_start_twice(core: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    for future in (running(core), finished(core), failed(core, Boom())):
        before = future._state
        with (
            caplog.at_level(logging.CRITICAL, "concurrent.futures"),
            pytest.raises(RuntimeError, match="unexpected state"),
        ):
            future.set_running_or_notify_cancel()
        assert future._state == before


@pytest.mark.parametrize(("method", "timeout"), [("result", 0), ("exception", -1), ("result", 0.001)])
def test_an_unfinished_future_times_out(core: ModuleType, method: str, timeout: float) -> None:
    for future in (core.Future(), running(core)):
        before = states(future)
        with pytest.raises(TimeoutError):
            getattr(future, method)(timeout)
        with pytest.raises(concurrent.futures.TimeoutError):
            getattr(future, method)(timeout=timeout)
        assert states(future) == before
        assert len(future._waiters) == 0
        future.set_result("later")
        assert future.result(TIMEOUT) == "later"


@pytest.mark.parametrize("timeout", [0, -1])
def test_a_finished_future_never_times_out(core: ModuleType, timeout: float) -> None:
    assert finished(core, 5).result(timeout) == 5
    assert finished(core, 5).exception(timeout) is None
    with pytest.raises(CancelledError):
        cancelled(core).result(timeout)


@pytest.mark.parametrize("how", ["result", "exception", "cancel"])
def test_every_waiting_thread_is_told(core: ModuleType, how: str) -> None:
    future, error = core.Future(), Boom()
    ready = threading.Barrier(7)

    def wait_for(method: str) -> object:
        ready.wait(TIMEOUT)
        try:
            return getattr(future, method)(TIMEOUT)
        except (Boom, CancelledError) as caught:
            return type(caught)

    waiting = [Background(lambda m=method: wait_for(m)) for method in ("result", "exception") * 3]  # type: ignore[misc]
    ready.wait(TIMEOUT)
    if how == "result":
        future.set_result("value")
        expected: list[object] = ["value", None] * 3
    elif how == "exception":
        future.set_exception(error)
        expected = [Boom, error] * 3
    else:
        future.cancel()
        expected = [CancelledError, CancelledError] * 3
    assert [each.join() for each in waiting] == expected
    assert len(future._waiters) == 0


def test_a_waiter_sees_the_result_whenever_it_sees_done(core: ModuleType) -> None:
    for number in range(200):
        future, ready = core.Future(), threading.Barrier(2)

        def watch(future: Any = future, ready: threading.Barrier = ready) -> object:
            ready.wait(TIMEOUT)
            while not future.done():
                pass
            return future.result(timeout=0)

        background = Background(watch)
        ready.wait(TIMEOUT)
        future.set_result(number)
        assert background.join() == number


def test_repr_of_every_state(core: ModuleType) -> None:
    address = r"<Future at 0x[0-9a-f]+ state="
    for future, tail in [
        (core.Future(), "pending>"),
        (running(core), "running>"),
        (cancelled(core), "cancelled>"),
        (finished(core, 5), "finished returned int>"),
        (failed(core, Boom()), "finished raised Boom>"),
    ]:
        assert re.fullmatch(address + tail, repr(future)), repr(future)
        assert f"{id(future):#x}" in repr(future)


def test_snapshot(core: ModuleType) -> None:
    error = Boom()
    assert core.Future()._get_snapshot() == (False, False, None, None)
    assert running(core)._get_snapshot() == (False, False, None, None)
    assert cancelled(core)._get_snapshot() == (True, True, None, None)
    assert finished(core, 5)._get_snapshot() == (True, False, 5, None)
    assert failed(core, error)._get_snapshot() == (True, False, None, error)


def test_the_condition_is_one_object(core: ModuleType) -> None:
    for future in (core.Future(), running(core), finished(core), cancelled(core)):
        condition = future._condition
        assert future._condition is condition
        with condition, future._condition:
            assert isinstance(states(future), tuple)


def innermost(error: BaseException) -> TracebackType:
    traceback = error.__traceback__
    assert traceback is not None
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback


def test_the_origin_of_an_exception_survives_being_raised_again(core: ModuleType) -> None:
    def fail() -> None:
        raise Boom("deep")

    try:
        fail()
    except Boom as caught:
        error = caught
    future = failed(core, error)
    for _ in range(3):
        with pytest.raises(Boom) as again:
            future.result()
        assert again.value is error
        assert innermost(error).tb_frame.f_code is fail.__code__
        assert (error.__cause__, error.__context__) == (None, None)


def catch_from(future: Any) -> None:
    try:
        future.result(TIMEOUT)
    except Boom:
        pass
    finally:
        del future


def test_raising_the_exception_makes_no_cycle(core: ModuleType) -> None:
    with no_collector():
        future, error = core.Future(), Boom()
        reference, error_reference = weakref.ref(future), weakref.ref(error)
        future.set_exception(error)
        del error
        for _ in range(2):
            catch_from(future)
        del future
        gone(reference, error_reference)
