"""concurrent.futures.wait, as_completed and asyncio.wrap_future on our futures, mixed with the stdlib's."""

from __future__ import annotations

import asyncio
import concurrent.futures
import signal
import threading
import weakref
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION
from types import ModuleType
from typing import Any

import pytest
from support.common import A_MOMENT, TIMEOUT, Background, Boom, eventually, gone, no_collector


@pytest.fixture(params=["ours", "ours and the stdlib's", "the stdlib's and ours"])
def pair(request: pytest.FixtureRequest, core: ModuleType) -> tuple[Any, Any]:
    """Two pending futures, at least one of them ours."""
    if request.param == "ours":
        return core.Future(), core.Future()
    if request.param == "ours and the stdlib's":
        return core.Future(), concurrent.futures.Future()
    return concurrent.futures.Future(), core.Future()


def waited_for(futures: list[Any], **options: Any) -> Background:
    """Start concurrent.futures.wait in a thread, and return once its waiter hangs on every future."""
    background = Background(lambda: concurrent.futures.wait(futures, **options))
    eventually(lambda: all(len(future._waiters) == 1 for future in futures))
    return background


def no_waiters(*futures: Any) -> bool:
    return all(len(future._waiters) == 0 for future in futures)


def cancel(future: Any) -> None:
    """Cancel, and tell the waiters, as the executor does that owns the future."""
    assert future.cancel()
    assert not future.set_running_or_notify_cancel()


@pytest.mark.parametrize(
    ("return_when", "first_is_enough"),
    [(ALL_COMPLETED, False), (FIRST_EXCEPTION, False), (FIRST_EXCEPTION, True), (FIRST_COMPLETED, True)],
)
def test_wait(pair: tuple[Any, Any], return_when: str, first_is_enough: bool) -> None:
    """Whether ours are waited for alone or with others; all else is asked by CPython's own tests, which run on ours."""
    first, second = pair
    waiting = waited_for([first, second], timeout=TIMEOUT, return_when=return_when)
    if return_when == FIRST_EXCEPTION and first_is_enough:
        first.set_exception(Boom())
    else:
        first.set_result(1)
    if not first_is_enough:
        assert waiting.still_waits()
        cancel(second)
    assert waiting.join() == (({first}, {second}) if first_is_enough else ({first, second}, set()))
    assert no_waiters(first, second)


@pytest.mark.parametrize(
    ("return_when", "timeout"), [(ALL_COMPLETED, 0), (FIRST_EXCEPTION, -1), (FIRST_COMPLETED, 0.001)]
)
def test_wait_that_times_out_leaves_no_waiter(pair: tuple[Any, Any], return_when: str, timeout: float) -> None:
    first, second = pair
    done = concurrent.futures.wait([first, second], timeout=timeout, return_when=return_when)
    assert done == (set(), {first, second})
    assert no_waiters(first, second)
    first.set_result(1)
    second.set_exception(Boom())
    assert concurrent.futures.wait([first, second], timeout=0) == ({first, second}, set())


def test_a_future_that_finishes_while_its_condition_is_held_tells_the_waiter(core: ModuleType) -> None:
    """wait() looks at the state and adds its waiter under the condition: no end may slip in between."""
    for end in (lambda f: f.set_result(1), lambda f: f.set_exception(Boom()), cancel):
        future, told = core.Future(), []

        class Waiter:
            def add_result(self, done: object, told: list[object] = told) -> None:
                told.append(done)

            add_exception = add_cancelled = add_result

        with future._condition:
            assert future._state == "PENDING"
            ending = Background(lambda end=end, future=future: end(future))  # type: ignore[misc]
            ending.over.wait(A_MOMENT)
            future._waiters.append(Waiter())
        ending.join()
        assert told == [future]


def test_as_completed_yields_in_the_order_of_completion(pair: tuple[Any, Any]) -> None:
    first, second = pair
    third = type(second)()
    third.set_result(3)
    completed = concurrent.futures.as_completed([first, second, third, first], timeout=TIMEOUT)
    assert next(completed) is third
    second.set_exception(Boom())
    assert next(completed) is second
    cancel(first)
    assert next(completed) is first
    with pytest.raises(StopIteration):
        next(completed)
    assert no_waiters(first, second, third)


@pytest.mark.parametrize("timeout", [0, 0.001])
def test_as_completed_that_times_out_leaves_no_waiter(pair: tuple[Any, Any], timeout: float) -> None:
    first, second = pair
    first.set_result(1)
    completed = concurrent.futures.as_completed([first, second], timeout=timeout)
    assert next(completed) is first
    with pytest.raises(TimeoutError, match=r"1 \(of 2\) futures unfinished"):
        next(completed)
    assert no_waiters(first, second)


def test_as_completed_lets_go_of_what_it_yielded(core: ModuleType) -> None:
    with no_collector():
        futures = [core.Future() for _ in range(3)]
        for number in range(2):
            futures[number].set_result(None)
        completed = concurrent.futures.as_completed(futures, timeout=0)
        with pytest.raises(TimeoutError):
            for future in completed:
                futures.remove(future)
                reference = weakref.ref(future)
                del future
                gone(reference)
        assert [len(future._waiters) for future in futures] == [0]


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals sent to a thread")
def test_a_signal_interrupts_a_wait_for_the_result(core: ModuleType) -> None:
    future, main = core.Future(), threading.main_thread().ident
    assert main == threading.get_ident()

    about_to_wait, interrupted = threading.Event(), threading.Event()

    def interrupt(number: int, frame: object) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise Boom("signalled")

    def send() -> None:
        """Send it again and again: a signal that comes just before the wait does not cut it short."""
        assert about_to_wait.wait(TIMEOUT)
        while not interrupted.wait(0.01):
            signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        sender = Background(send)
        with pytest.raises(Boom, match="signalled"):
            about_to_wait.set()
            future.result(TIMEOUT)
        sender.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(future._waiters) == 0
    future.set_result("after")
    assert future.result(TIMEOUT) == "after"


def test_asyncio_does_not_take_it_for_its_own(core: ModuleType) -> None:
    assert not asyncio.isfuture(core.Future())


@pytest.mark.parametrize("early", [True, False])
def test_wrap_future_passes_the_result_on(core: ModuleType, early: bool) -> None:
    async def main() -> None:
        future = core.Future()
        if early:
            future.set_result("value")
        wrapped = asyncio.wrap_future(future)
        if not early:
            Background(lambda: future.set_result("value")).join()
        assert await asyncio.wait_for(wrapped, TIMEOUT) == "value"

    asyncio.run(main())


def test_wrap_future_passes_cancellation_on_both_ways(core: ModuleType) -> None:
    async def main() -> None:
        inner, outer = core.Future(), core.Future()
        wrapped = asyncio.wrap_future(inner)
        inner.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(wrapped, TIMEOUT)
        wrapped = asyncio.wrap_future(outer)
        wrapped.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wrapped
        await asyncio.sleep(0)
        assert outer.cancelled()

    asyncio.run(main())
