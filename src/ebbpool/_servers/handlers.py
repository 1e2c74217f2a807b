"""The handlers of one server: the calls that it has handed to an executor and that are not done."""

from __future__ import annotations

import logging
import threading
from _thread import get_ident
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from ebbpool._clock import monotonic
from ebbpool._core.accel import retry_after
from ebbpool._errors import QueueFull
from ebbpool._frames import stacks
from ebbpool._servers.door import Complaint
from ebbpool.executor import AdaptiveExecutor
from ebbpool.lane import Lane


class _Handler:
    """One call, for the client at `address`, that is queued or runs."""

    __slots__ = ("address", "args", "fn", "owner", "since", "thread")

    def __init__(self, owner: Handlers, address: object, fn: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.owner = owner
        self.address = address
        # Gone with `args` once the call has begun, so that a future that is kept keeps neither.
        self.fn: Callable[..., object] | None = fn
        self.args = args
        self.thread = 0  # the ident of the thread that runs it, or ran it; 0 while it is queued
        self.since = 0.0  # monotonic seconds at which it began

    def __call__(self, _: Future[None]) -> None:
        """Note that the future of this call is done; no bound method, which would be one object more."""
        if self.fn is not None:
            self.owner.lose(self)


def run_handler(handler: _Handler) -> None:
    """Make the call of a handler, in a worker; a function, for each connection would pay for making a bound method."""
    handler.since = monotonic()
    handler.thread = get_ident()
    try:
        fn, args = handler.fn, handler.args
        handler.fn, handler.args = None, ()
        fn(*args)  # type: ignore[misc]  # it has not begun before
    finally:
        handler.owner.discard(handler)


class Handlers:
    """The handlers of one server that are queued or run.

    `submit` of `executor` must neither wait nor run calls itself. If it is `owned`, `close` shuts it down, and it is an
    `AdaptiveExecutor`; otherwise servers may share it. `lost` is a weak method, so as not to keep the server alive: it
    gets the arguments of a call that is cancelled, or cannot run, in the thread where that happens.
    """

    def __init__(
        self, executor: Executor, owned: bool, lost: Callable[[], Callable[..., object] | None] = lambda: None
    ) -> None:
        pool = executor.executor if isinstance(executor, Lane) else executor
        # The only place that reads private attributes of an executor: there is no other way to ask for its policy.
        if isinstance(pool, AdaptiveExecutor) and pool._when_full != "reject" and pool._settings.max_queue is not None:
            raise ValueError(
                'executor must have when_full="reject" or no max_queue, because a server cannot wait, '
                f"not when_full={pool._when_full!r} and max_queue={pool._settings.max_queue}"
            )
        self.executor: Executor = executor
        self.owned = owned
        self._lost = lost
        # A dictionary for its order: oldest first.
        self._live: dict[_Handler, None] = {}
        # Re-entrant: a signal handler may close the server whose loop it interrupts right here.
        self._ended = threading.Condition(threading.RLock())
        self._joining = 0  # how many threads wait
        self._refusals = Complaint(logging.ERROR, "the executor takes no tasks, so connections are refused: %s")

    def submit(self, address: object, fn: Callable[..., object], /, *args: Any) -> bool:
        """Have a worker call `fn(*args)`, which must not raise; any thread. Return False if the executor refuses.

        Why is logged once a second at most, unless the queue is full.
        """
        handler = _Handler(self, address, fn, args)
        self._live[handler] = None
        try:
            future = self.executor.submit(run_handler, handler)
        except BaseException as error:
            self.discard(handler)
            if not isinstance(error, RuntimeError):
                raise
            if not isinstance(error, QueueFull):
                self._refusals.make(error)
            return False
        if not handler.thread:
            # A future of ebbpool's says nothing of a call that returns, which costs less.
            getattr(future, "tell_unless_returned", future.add_done_callback)(handler)
        return True

    def discard(self, handler: _Handler) -> None:
        """Forget a handler that is done; tell those who wait for that."""
        # No lock is needed here: `join` adds itself first and then lists what is live. Either it lists before this
        # removal, and this sees that it joins; or the list lacks the handler.
        self._live.pop(handler, None)
        if self._joining:
            with self._ended:
                self._ended.notify_all()

    def lose(self, handler: _Handler) -> None:
        """Forget a handler that will never run, and say so."""
        self.discard(handler)
        lost = self._lost()
        if lost is not None:
            lost(*handler.args)

    def __len__(self) -> int:
        return len(self._live)

    def retry_after(self) -> float:
        """Return after how many seconds a refused client may come again; 0 if the executor does not say."""
        if isinstance(self.executor, Lane):
            return self.executor.stats().oldest_wait
        return retry_after(self.executor._pool) if isinstance(self.executor, AdaptiveExecutor) else 0.0

    def join(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds until no handler is queued or runs, the caller excepted; None waits for ever."""
        own = get_ident()
        with self._ended:
            self._joining += 1
            try:
                return self._ended.wait_for(lambda: all(handler.thread == own for handler in list(self._live)), timeout)
            finally:
                self._joining -= 1

    def _runs_here(self) -> bool:
        """Return whether this thread runs a handler."""
        return get_ident() in [handler.thread for handler in list(self._live)]

    def close(self, timeout: float | None, begun: float | None = None) -> None:
        """Wait for the handlers, then shut the executor down if it is owned, even if a `TimeoutError` is raised.

        The `timeout` counts from `begun`, or from now.
        """
        deadline = None if timeout is None else (monotonic() if begun is None else begun) + timeout
        over = not self.join(None if deadline is None else max(0.0, deadline - monotonic()))
        if self.owned:
            pool: Any = self.executor
            left = None if deadline is None else max(0.0, deadline - monotonic())
            try:
                pool.shutdown(wait=not over and not self._runs_here(), timeout=left)
            except TimeoutError:
                # It may have waited for threads without a handler.
                over = bool(self._live)
        if over:
            raise TimeoutError(f"after {timeout:g} s these handlers are still running:\n{self.report()}")

    def report(self) -> str:
        """Return a text on handlers that run (client, seconds and stack of each), and how many are queued."""
        now = monotonic()
        live = list(self._live)
        begun = [handler for handler in live if handler.thread]
        places = stacks((handler.thread for handler in begun), (run_handler.__code__,))
        lines = [
            f"{handler.address}: running for {now - handler.since:.1f} s\n{place}"
            for handler, place in zip(begun, places, strict=True)
        ]
        if len(live) > len(begun):
            lines.append(f"{len(live) - len(begun)} queued\n")
        return "".join(lines).rstrip("\n")
