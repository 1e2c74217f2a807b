"""What replaces `ThreadPoolExecutor.submit` sees what is submitted to our pools, whenever it comes and goes."""

from __future__ import annotations

import inspect
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial, wraps
from textwrap import dedent
from typing import Any

import pytest
from support.common import LONG, TIMEOUT, Background, Boom, Gate, eventually, fail, no_thread, output_of
from support.manual_time import timed_pool
from support.seams import instrumented

from ebbpool import AdaptiveExecutor, QueueFull

STANDARD: Any = ThreadPoolExecutor.submit
local = threading.local()


def carried() -> Any:
    """Tell what the calling thread, or the submitter of the task in it, has set."""
    return getattr(local, "value", None)


def carrying(submit: Any) -> Any:
    """Wrap a `submit` so that its tasks see what their submitter has set."""

    def carrying_submit(self: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
        value = carried()

        def carrier(*args: Any, **kwargs: Any) -> Any:
            before, local.value = carried(), value
            try:
                return fn(*args, **kwargs)
            finally:
                local.value = before

        return submit(self, carrier, *args, **kwargs)

    return carrying_submit


def around(step: Callable[..., Any]) -> Callable[[Any], Any]:
    """Wrap a `submit` so that `step(go_on, pool, fn)` stands for it; `go_on()` submits the call."""
    return lambda submit: (
        lambda self, fn, /, *args, **kwargs: step(partial(submit, self, fn, *args, **kwargs), self, fn)
    )


@contextmanager
def replaced(wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Put `wrap(submit)` in the place of the standard `submit`, as most tools do."""
    ThreadPoolExecutor.submit = wrap(STANDARD)  # type: ignore[method-assign]
    try:
        yield
    finally:
        ThreadPoolExecutor.submit = STANDARD  # type: ignore[method-assign]


@contextmanager
def rewritten(wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Give the standard `submit` another code, as a tool does that rewrites bytecode."""
    code = STANDARD.__code__
    original = types.FunctionType(code, STANDARD.__globals__, "original", STANDARD.__defaults__)
    STANDARD.__globals__["_test_submit"] = wrap(original)

    def trampoline(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        return _test_submit(self, fn, *args, **kwargs)  # type: ignore[name-defined]  # noqa: F821  (a global there)

    STANDARD.__code__ = trampoline.__code__
    try:
        yield
    finally:
        STANDARD.__code__ = code
        del STANDARD.__globals__["_test_submit"]


def copied(wrap: Callable[[Any], Any]) -> Any:
    """Do what `replaced` does with a tool's own copy of the standard `submit`, which raises the same errors."""
    submit = wrap(STANDARD)

    def own_submit(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        if self._shutdown:
            raise RuntimeError("cannot schedule new futures after shutdown")
        return submit(self, fn, *args, **kwargs)

    return replaced(lambda _: own_submit)


@pytest.fixture(params=[replaced, rewritten])
def put(request: pytest.FixtureRequest) -> Any:
    """How a wrapper is put in the place of the standard `submit`."""
    return request.param


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    local.value = None
    yield
    del local.value
    assert ThreadPoolExecutor.submit is STANDARD
    assert not instrumented()


def collect(submit: Callable[..., Any], values: str = "abc") -> str:
    """Submit once for each of `values`, and return what the tasks saw."""
    futures = []
    for local.value in values:
        futures.append(submit(carried))
    local.value = None
    return "".join(future.result(TIMEOUT) or "-" for future in futures)


def test_a_wrapper_is_noticed_whenever_it_comes_and_goes(put: Any) -> None:
    with AdaptiveExecutor(1) as pool:
        for _ in range(2):
            assert collect(pool.submit) == "---"
            with put(carrying):
                assert instrumented()
                assert collect(pool.submit) == "abc"
            assert not instrumented()


@pytest.mark.parametrize("way", ["replaced", "rewritten", "copied"])
def test_a_wrapper_that_came_before_the_import_is_noticed_and_may_go(way: str) -> None:
    script = f"""
        with {way}(carrying):
            from ebbpool import AdaptiveExecutor
            with AdaptiveExecutor(1) as pool:
                local.value = "before"
                print(pool.submit(carried).result(20))
        with AdaptiveExecutor(1) as pool:
            print(pool.submit(carried).result(20), pool.submit(int, "7").result(20))
    """
    tool = "\n".join(map(inspect.getsource, (carried, carrying, replaced, rewritten, copied)))
    prelude = """
        from __future__ import annotations
        import threading, types
        from concurrent.futures import ThreadPoolExecutor
        from contextlib import contextmanager
        STANDARD, local = ThreadPoolExecutor.submit, threading.local()
        local.value = None
    """
    assert output_of(script, dedent(prelude) + tool) == ["before", "None 7"]


@pytest.mark.parametrize("propagate", [False, True])
def test_every_way_in(put: Any, propagate: bool) -> None:
    with AdaptiveExecutor(2, propagate_context=propagate) as pool, put(carrying):
        lane = pool.lane("lane", limit=1)
        assert collect(pool.submit_first) == "abc"
        assert collect(lane.submit) == "abc"
        with pool.session() as session:
            assert collect(session.submit) == "abc"
        assert collect(lambda fn: pool.submit_later(0.0, fn)) == "abc"
        local.value = "m"
        assert list(pool.map(lambda _: carried(), range(100))) == ["m"] * 100
        assert list(pool.map(lambda _: carried(), range(100), chunksize=7)) == ["m"] * 100
        assert set(pool.map_unordered(lambda _: carried(), range(100), buffersize=10)) == {"m"}
        assert list(lane.map(lambda _: carried(), range(10))) == ["m"] * 10
        local.value = "s"
        stream = pool.stream(lambda: (carried() for _ in range(3)))
        seen: list[str] = []
        task = pool.schedule(0.001, lambda: seen.append(carried()), first=0.0)
        local.value = "later"
        assert list(stream) == ["s"] * 3
        eventually(lambda: len(seen) >= 3)
        task.cancel()
        assert set(seen) == {"s"}


def test_arguments_results_and_errors_pass(put: Any) -> None:
    with AdaptiveExecutor(1) as pool, put(carrying):
        future = pool.submit(lambda *args, **kwargs: (args, kwargs), 1, 2, b=3)
        assert future.result(TIMEOUT) == ((1, 2), {"b": 3})
        assert isinstance(pool.submit(int, "x").exception(TIMEOUT), ValueError)
        ways: list[Any] = [pool.submit, partial(pool.submit_later, 0.0), pool.lane("lane", limit=1).submit]
        for submit in ways:
            with pytest.raises(TypeError, match="fn must be callable, not 1"):
                submit(1)


def test_bounds_hold_and_the_refusal_is_ours_and_a_kept_future_says_why(put: Any) -> None:
    def keeping(go_on: Any, *_: Any) -> Any:
        kept.append(go_on())
        return kept[-1]

    kept: list[Future[Any]] = []
    with put(around(keeping)):
        with AdaptiveExecutor(1, max_queue=1, when_full="reject") as pool, Gate() as gate:
            gate.hold(pool)
            pool.submit(int)
            with pytest.raises(QueueFull):
                pool.submit(int)
            assert isinstance(kept[2].exception(TIMEOUT), QueueFull)
        with pytest.raises(RuntimeError, match="after shutdown"):
            pool.submit(int)


def test_a_full_queue_blocks_nobody_else(put: Any) -> None:
    with AdaptiveExecutor(1, max_queue=1) as pool, put(carrying), Gate() as gate, ThreadPoolExecutor(1) as other:
        gate.hold(pool)
        pool.submit(carried)
        blocked = Background(lambda: pool.submit(carried))
        blocked.waits_for(pool)
        assert other.submit(int).result(TIMEOUT) == 0
        gate.open()
        assert blocked.join().result(TIMEOUT) is None


def test_a_future_that_an_instrumentation_keeps_ends_as_ours_does(put: Any) -> None:
    def tracking(go_on: Any, *_: Any) -> Any:
        kept.append(future := go_on())
        future.add_done_callback(told.append)
        return future

    kept: list[Future[Any]] = []
    told: list[Future[Any]] = []
    with AdaptiveExecutor(1) as pool, put(around(tracking)):
        with Gate() as gate:
            pool.submit(gate, 1)
            gate.await_begun()
            pool.submit(fail)
            pool.submit(int).cancel()
            last = pool.submit(int)
            assert kept[3].cancel()
            assert last.cancelled()
            later = pool.submit_later(LONG, int)
            assert kept[4].cancel()
            assert later.cancelled()
        assert wait(kept, TIMEOUT).not_done == set()
        assert kept[0].result() == 1
        assert isinstance(kept[1].exception(), Boom)
        assert kept[2].cancelled()
        eventually(lambda: set(told) == set(kept))
        pool.shutdown()
        with pytest.raises(RuntimeError, match="after shutdown"):
            pool.submit(int)


def test_a_callback_that_an_instrumentation_adds_is_called_though_it_keeps_no_future(put: Any) -> None:
    told: list[Any] = []

    def telling(go_on: Any, *_: Any) -> Any:
        future = go_on()
        future.add_done_callback(lambda done: told.append(done.exception() or done.result()))
        return future

    with put(around(telling)):
        with AdaptiveExecutor(1) as pool:
            pool.submit(int, "7")
            error = pool.submit(fail).exception(TIMEOUT)
            pool.submit_later(0.0, int, "8").result(TIMEOUT)
        assert told == [7, error, 8]


def test_what_submits_or_answers_by_itself_is_taken_at_its_word_and_what_it_raises_is_raised(put: Any) -> None:
    def reporting(go_on: Any, pool: Any, fn: Any) -> Any:
        reports.append(pool.submit(str, "report"))
        return go_on()

    reports: list[Future[str]] = []
    done: Future[int] = Future()
    done.set_result(3)
    with AdaptiveExecutor(1) as pool:
        with put(around(lambda *_: done)):
            assert pool.submit(int) is done
            assert pool.submit_later(0.0, int, "7").result(TIMEOUT) == 7
            assert pool.stats().submitted == 1
        with put(around(lambda *_: fail())), pytest.raises(Boom):
            pool.submit(int)
        with put(around(reporting)):
            assert pool.submit(int, "7").result(TIMEOUT) == 7
            assert [report.result(TIMEOUT) for report in reports] == ["report"]
        assert pool.submit(int).result(TIMEOUT) == 0


def test_a_subclass_with_a_submit_of_its_own_has_the_last_word(put: Any) -> None:
    class Mine(AdaptiveExecutor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            return super().submit(wraps(fn)(lambda: ("mine", fn(*args, **kwargs))))

    with Mine(1) as pool, put(carrying):
        local.value = "a"
        assert pool.submit(carried).result(TIMEOUT) == ("mine", "a")


def test_the_standard_submit_on_our_pool_says_what_to_call() -> None:
    with AdaptiveExecutor(1) as pool, pytest.raises(RuntimeError, match="call its own submit"):
        STANDARD(pool, int)


@pytest.mark.parametrize("call", ["submit_later", "schedule"])
def test_a_tool_is_not_shown_a_delayed_call_that_is_refused(call: str) -> None:
    """It would wait for its end."""
    shown: list[Any] = []

    def noting(go_on: Any, pool: Any, fn: Any) -> Any:
        shown.append(fn)
        return go_on()

    with timed_pool() as (pool, keeper), replaced(around(noting)):
        keeper.start = no_thread  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match="can't start new thread"):
            getattr(pool, call)(LONG, int)
        keeper.exiting = True
        with pytest.raises(RuntimeError, match="interpreter shutdown"):
            getattr(pool, call)(LONG, int)
    assert shown == []
