"""Handlers: what a server has handed to its executor, how it is waited for, and what is said about it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any

import pytest
from support.common import TIMEOUT, Background, Gate, Thing, collected, eventually, needs_stacks
from support.server import handling

from ebbpool import AdaptiveExecutor

CLIENT = ("192.0.2.1", 4711)


@contextmanager
def made(**settings: Any) -> Iterator[handling.Handlers]:
    """Handlers with a pool of their own."""
    handlers = handling.Handlers(AdaptiveExecutor(when_full="reject", **settings), owned=True)
    try:
        yield handlers
    finally:
        handlers.close(10)


class Refusing(Executor):
    """An executor that takes a call only while `error` is None, and never runs it."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error
        self.futures: list[Future[Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.error is not None:
            raise self.error
        self.futures.append(Future())
        return self.futures[-1]


def test_what_submit_raises_otherwise_is_raised_and_nothing_is_kept() -> None:
    handlers = handling.Handlers(Refusing(KeyboardInterrupt()), owned=False)
    with pytest.raises(KeyboardInterrupt):
        handlers.submit(CLIENT, print)
    assert len(handlers) == 0


def test_a_handler_that_is_submitted_while_somebody_joins_and_is_cancelled_is_not_waited_for() -> None:
    executor = Refusing(None)
    handlers = handling.Handlers(executor, owned=False)
    handlers.submit(CLIENT, print)
    joining = Background(lambda: handlers.join(10))
    eventually(lambda: handlers._joining)
    handlers.submit(CLIENT, print)
    for future in executor.futures:
        future.cancel()
    assert joining.join() is True


@needs_stacks
def test_close_says_which_handlers_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(handling, "monotonic", lambda: now[0])
    handlers = handling.Handlers(AdaptiveExecutor(max_workers=1), owned=True)

    def stuck_here(gate: Gate) -> None:
        gate()

    with Gate() as gate:
        handlers.submit(CLIENT, stuck_here, gate)
        gate.await_begun()
        handlers.submit("the next", gate)
        now[0] += 12.5
        with pytest.raises(TimeoutError) as caught:
            handlers.close(0.001)
        # It has been shut down all the same, and what is queued still runs.
        assert not handlers.submit(CLIENT, gate)
        gate.open()
        handlers.close(10)
    first, *lines = str(caught.value).split("\n")
    assert first == "after 0.001 s these handlers are still running:"
    assert lines[0] == "('192.0.2.1', 4711): running for 12.5 s"
    assert "in stuck_here" in lines[1] and __file__ in lines[1]
    assert lines[-1] == "1 queued"
    assert not any(handling.__file__ in line or "crew.py" in line for line in lines)


def test_joins_that_race_with_the_last_handlers_all_end() -> None:
    with made(max_workers=8) as handlers:
        for _ in range(30):
            joins = [Background(lambda: handlers.join(10)) for _ in range(4)]
            for number in range(40):
                handlers.submit(number, int)
            assert handlers.join(10)
            assert [join.join() for join in joins] == [True] * 4
    assert len(handlers) == 0


def test_a_handler_that_joins_waits_for_the_others() -> None:
    with made(max_workers=2) as handlers, Gate() as gate:
        outcomes: list[bool] = []
        handlers.submit(CLIENT, gate)
        gate.await_begun()
        handlers.submit(CLIENT, lambda: outcomes.extend(handlers.join(timeout) for timeout in (0, 10)))
        eventually(lambda: outcomes == [False] and handlers._joining)
        gate.open()
        assert handlers.join(10)
    assert outcomes == [False, True]


def test_close_waits_no_longer_than_it_may_for_threads_without_a_handler() -> None:
    with Gate() as gate:
        handlers = handling.Handlers(AdaptiveExecutor(finalizer=gate), owned=True)
        handlers.submit(CLIENT, int)
        assert handlers.join(10)
        handlers.close(0.01)
        gate.open()
        handlers.close(10)


def test_close_waits_no_longer_than_it_may_for_handlers_that_come_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = handling.Handlers(AdaptiveExecutor(), owned=True)
    with Gate() as gate:

        def join(_: float) -> bool:
            assert handlers.submit(CLIENT, gate)
            gate.await_begun()
            return True

        monkeypatch.setattr(handlers, "join", join)
        with pytest.raises(TimeoutError, match=r"after 0.01 s these handlers are still running:\n.*running for"):
            handlers.close(0.01)
        monkeypatch.undo()
        gate.open()
        handlers.close(10)


def test_a_future_that_is_kept_does_not_keep_what_its_handler_had() -> None:
    kept: list[Any] = []

    class Keeping(AdaptiveExecutor):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
            kept.append(super().submit(fn, *args, **kwargs))
            return kept[-1]

    with Keeping(1, when_full="reject") as executor:
        handlers = handling.Handlers(executor, owned=False)
        thing = Thing()
        reference = weakref.ref(thing)
        assert handlers.submit(CLIENT, thing.method)
        assert handlers.join(TIMEOUT)
        del thing
        collected(reference)
        assert len(kept) == 1


def test_a_handler_whose_future_ends_in_any_way_before_it_began_is_lost() -> None:
    """An executor may put another call in the place of the one that it is given."""
    executor = Refusing(None)
    lost: list[Any] = []
    handlers = handling.Handlers(executor, owned=False, lost=lambda: lambda *args: lost.append(args))
    for number in range(3):
        assert handlers.submit(CLIENT, print, number)
    returned, failed, cancelled = executor.futures
    returned.set_result(None)
    failed.set_exception(RuntimeError())
    cancelled.cancel()
    assert lost == [(0,), (1,), (2,)] and len(handlers) == 0
