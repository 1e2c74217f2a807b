"""The Future protocol, on a future that belongs to no pool, for the plain and the compiled core."""

from __future__ import annotations

import concurrent.futures
import re
import threading
import weakref
from concurrent.futures import CancelledError
from types import ModuleType, TracebackType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.common import TIMEOUT, Background, Boom, gone, no_collector

from ebbpool._testing import seams


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


def test_can_be_subclassed(core: ModuleType) -> None:
    class Named(core.Future):  # type: ignore[misc, name-defined]
        name = "one"

    future = Named()
    future.label = "two"
    future.set_result(3)
    assert (future.name, future.label, future.result()) == ("one", "two", 3)
    assert repr(future).startswith("<Named at ")


ERRORS = (Boom("no"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), StopIteration(7))
CALLS = st.one_of(
    st.tuples(st.just("set_result"), st.sampled_from([None, 0, "value", ValueError("returned, not raised")])),
    st.tuples(st.just("set_exception"), st.sampled_from(ERRORS)),
    st.tuples(st.sampled_from(["result", "exception"]), st.sampled_from([0, -1, 0.00001])),
    st.tuples(st.just("cancel")),
    st.tuples(st.just("set_running_or_notify_cancel")),
    st.tuples(st.just("add_done_callback"), st.integers(0, 1)),
)
"""Each kind as often as any other: what matters is the order in which a future is begun, ended and cancelled."""


class Seen:
    """What a single thread sees of a future, with the addresses left out."""

    def __init__(self, future: Any) -> None:
        self.future = future
        self.called: list[tuple[object, bool]] = []

    def words(self, text: object) -> str:
        return re.sub("0x[0-9a-f]+", "...", str(text))

    def outcome(self, name: str, *args: Any) -> object:
        if name == "add_done_callback":
            args = (lambda future, mark=args[0]: self.called.append((mark, future is self.future)),)
        try:
            return getattr(self.future, name)(*args)
        except BaseException as error:
            return error if error in ERRORS else (type(error), self.words(error))

    def state(self) -> object:
        waiters = len(self.future._waiters)
        return states(self.future), self.future._state, waiters, self.words(repr(self.future)), self.called


@pytest.mark.parametrize("which", ["plain", "compiled"])
@given(history=st.lists(CALLS, max_size=12))
def test_a_single_thread_sees_what_a_standard_future_would_show_it(which: str, history: list[tuple[Any, ...]]) -> None:
    core = seams.core(which, "future")
    if core is None:
        pytest.skip("the extension is not built")
    ours, theirs = Seen(core.Future()), Seen(concurrent.futures.Future())
    assert ours.state() == theirs.state()
    for call in history:
        assert ours.outcome(*call) == theirs.outcome(*call), call
        assert ours.state() == theirs.state(), call


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
