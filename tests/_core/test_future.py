"""The Future protocol, its callbacks, and what waits for futures, for the plain and the compiled core."""

from __future__ import annotations

import concurrent.futures
import logging
import re
import signal
import threading
import traceback
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError, InvalidStateError
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import seams
from support.common import TIMEOUT, Background, Boom, Thing, ToldLock, eventually, gone, no_collector, together

from ebbpool import AdaptiveExecutor


def states(future: Any) -> tuple[bool, bool, bool]:
    return future.running(), future.cancelled(), future.done()


def test_is_a_standard_future_and_can_be_subclassed(core: ModuleType) -> None:
    class Named(core.Future):  # type: ignore[misc, name-defined]
        name = "one"

    future = Named()
    assert issubclass(core.Future, concurrent.futures.Future)
    assert isinstance(future, concurrent.futures.Future)
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
    future = core.Future()
    future.set_exception(error)
    assert future.exception() is error
    with pytest.raises(Empty):
        future.result()
    assert "raised Empty" in repr(future)


@pytest.mark.parametrize("how", ["set_result", "set_exception", "cancel"])
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
    given, told = {
        "set_result": (["value"], ["value", None]),
        "set_exception": ([error], [Boom, error]),
        "cancel": ([], [CancelledError, CancelledError]),
    }[how]
    getattr(future, how)(*given)
    assert [each.join() for each in waiting] == told * 3
    assert len(future._waiters) == 0


def test_a_waiter_sees_the_result_whenever_it_sees_done(core: ModuleType) -> None:
    for number in range(200):
        future = core.Future()

        def turn(place: int, future: Any = future, number: int = number) -> object:
            if place == 0:
                return future.set_result(number)
            while not future.done():
                pass
            return future.result(timeout=0)

        assert together(turn, 2)[1] == number


def test_the_origin_of_an_exception_survives_being_raised_again(core: ModuleType) -> None:
    def fail() -> None:
        raise Boom("deep")

    try:
        fail()
    except Boom as caught:
        error = caught
    future = core.Future()
    future.set_exception(error)
    for _ in range(3):
        with pytest.raises(Boom) as again:
            future.result()
        assert again.value is error
        assert [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)][-1] is fail.__code__
        assert (error.__cause__, error.__context__) == (None, None)


ENDS: dict[str, Callable[[Any], object]] = {
    "set_result": lambda future: future.set_result(1),
    "set_exception": lambda future: future.set_exception(Boom()),
    "cancel": lambda future: future.cancel(),
}


@pytest.fixture(params=ENDS)
def end(request: pytest.FixtureRequest) -> Any:
    """A call that ends a future, once for every way to end."""
    return ENDS[request.param]


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


def test_libraries_may_look_at_its_callbacks(core: ModuleType, end: Any) -> None:
    future = core.Future()
    assert future._done_callbacks == ()
    first: list[Any] = []
    second: list[Any] = []
    future.add_done_callback(first.append)
    future.add_done_callback(second.append)
    assert future._done_callbacks == (first.append, second.append)
    end(future)
    assert future._done_callbacks == ()
    assert first == second == [future]


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
        future, calls = core.Future(), []

        def turn(place: int, future: Any = future, calls: list[object] = calls) -> None:
            if place == 0:
                end(future)
            else:
                future.add_done_callback(calls.append)

        together(turn, 3)
        assert calls == [future, future]


@pytest.mark.parametrize("way", ["cancel", "set_result"])
def test_of_many_that_end_it_one_runs_the_callbacks(core: ModuleType, way: str) -> None:
    for _ in range(100):
        future, calls = core.Future(), []
        future.add_done_callback(calls.append)

        def end(value: int, future: Any = future) -> bool:
            try:
                return bool(future.cancel()) if way == "cancel" else future.set_result(value) is None
            except InvalidStateError:
                return False

        told = together(end, 3)
        assert told == [True] * 3 if way == "cancel" else future.result(timeout=0) == told.index(True)
        assert way == "cancel" or sum(told) == 1
        assert calls == [future]


def test_cancel_and_start_exclude_each_other(core: ModuleType) -> None:
    for _ in range(200):
        future = core.Future()
        calls = future.set_running_or_notify_cancel, future.cancel
        started, is_cancelled = together(lambda place, calls=calls: calls[place](), 2)  # type: ignore[misc]
        assert started is not is_cancelled
        assert states(future) == (started, is_cancelled, is_cancelled)


def test_callbacks_are_dropped_once_they_have_run(core: ModuleType, end: Any) -> None:
    logger = logging.getLogger("concurrent.futures")
    logger.addFilter(drop := lambda record: False)
    try:
        with no_collector():
            future, thing = core.Future(), Thing()
            of_thing, of_future = weakref.ref(thing), weakref.ref(future)

            def fail(_: object, thing: Thing = thing) -> None:
                raise Boom

            future.add_done_callback(thing.method)
            future.add_done_callback(fail)
            del fail, thing
            assert of_thing() is not None
            end(future)
            gone(of_thing)
            del future
            gone(of_future)
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


def cancel(future: Any) -> None:
    """Cancel, and tell the waiters, as the executor does that owns the future."""
    assert future.cancel()
    assert not future.set_running_or_notify_cancel()


def test_a_future_that_finishes_while_its_condition_is_held_tells_the_waiter(core: ModuleType) -> None:
    """wait() looks at the state and adds its waiter under the condition: no end may slip in between."""
    for end in (lambda f: f.set_result(1), lambda f: f.set_exception(Boom()), cancel):
        future, told = core.Future(), []

        class Waiter:
            def add_result(self, done: object, told: list[object] = told) -> None:
                told.append(done)

            add_exception = add_cancelled = add_result

        condition = future._condition
        with condition:
            assert future._state == "PENDING"
            condition._lock = lock = ToldLock(condition._lock)
            ending = Background(lambda end=end, future=future: end(future))  # type: ignore[misc]
            lock.await_all(1)
            future._waiters.append(Waiter())
        ending.join()
        assert told == [future]


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals sent to a thread")
def test_a_signal_interrupts_a_wait_for_the_result(
    core: ModuleType, one_interrupt: Callable[[BaseException], None]
) -> None:
    future = core.Future()

    def waits() -> bool:
        # Free once it waits: in the steps just before that, an error would leave the condition unusable.
        with future._condition:
            return bool(future._condition._waiters)

    def interrupt() -> None:
        eventually(waits)
        one_interrupt(Boom())

    sender = Background(interrupt)
    with pytest.raises(Boom):
        future.result(TIMEOUT)
    sender.join()
    assert len(future._waiters) == 0
    future.set_result("after")
    assert future.result(TIMEOUT) == "after"
