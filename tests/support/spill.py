"""An executor that a pool spills to, whose calls a test ends by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import contextmanager
from contextvars import Context, copy_context
from typing import Any

from ebbpool import AdaptiveExecutor
from support.common import LONG, TIMEOUT, Gate, eventually


class Elsewhere(Executor):
    """Keeps each call until the test says what becomes of it, and the context in which it came."""

    def __init__(self, width: int = 100) -> None:
        self._max_workers = width
        self.calls: list[tuple[Future[Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []
        self.contexts: list[Context] = []
        self.sent = 0
        self.refuses: BaseException | None = None
        self._came = threading.Semaphore(0)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.refuses is not None:
            raise self.refuses
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        add = future.add_done_callback

        def add_and_tell(fn: Callable[[Future[Any]], object]) -> None:
            add(fn)
            self._came.release()

        # The submitter asks to hear of its end: the test may end it from then on.
        future.add_done_callback = add_and_tell  # type: ignore[method-assign]  # of this one future
        self.calls.append((future, fn, args, kwargs))
        self.contexts.append(copy_context())
        self.sent += 1
        return future

    def await_sent(self, count: int = 1) -> None:
        for number in range(count):
            assert self._came.acquire(timeout=TIMEOUT), f"only {number} of {count} calls came"

    def take(self, submit: Callable[..., Any], *call: Any) -> Any:
        """Submit a call that is sent here, wait until it has come, and return its future."""
        future = submit(*call)
        self.await_sent()
        return future

    def make(self, place: int = 0) -> None:
        """Make a call, in this thread."""
        future, fn, args, kwargs = self.calls.pop(place)
        try:
            result = fn(*args, **kwargs)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    def lose(self) -> None:
        """Fail to make the oldest call."""
        future, *_ = self.calls.pop(0)
        future.set_exception(BrokenExecutor("the worker is gone"))

    def cancel(self) -> None:
        """Cancel the oldest call, as `shutdown(cancel_futures=True)` does with those that wait."""
        future, *_ = self.calls.pop(0)
        future._state = "PENDING"
        assert future.cancel()

    def end(self, lost: bool) -> None:
        (self.lose if lost else self.make)()


@contextmanager
def spilling(width: int = 100, **settings: Any) -> Iterator[tuple[AdaptiveExecutor, Elsewhere, Gate]]:
    """A pool whose one worker is held by a gate, and the executor that its marked tasks go to at the next look."""
    settings = {"spill": Elsewhere(width), "spill_after": 0, "keep_alive": LONG} | settings
    there = settings["spill"]
    with AdaptiveExecutor(1, **settings) as pool, Gate() as gate:
        gate.hold(pool)
        try:
            yield pool, there, gate
        finally:
            gate.open()
            eventually(lambda: not there.calls or there.make(), "all that was sent is made")
