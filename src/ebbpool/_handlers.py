"""The handlers of one server: what it has handed to an executor and is not done yet."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from _thread import get_ident
from collections.abc import Callable
from concurrent.futures import Executor, Future
from time import monotonic
from types import FrameType
from typing import Any

from ebbpool.executor import QueueFull

LOGGER = logging.getLogger("ebbpool.socketserver")

MENTIONED = 10
"""How many queued handlers a report names by their addresses."""


class _Handler:
    """One call on its way.

    Attributes:
        address: Whom it serves.
        thread: The ident of the thread that runs it; 0 while it is queued.
        since: Monotonic seconds at which it began.
        future: What the executor gave for it; None until it has.
    """

    __slots__ = ("address", "future", "since", "thread")

    def __init__(self, address: object) -> None:
        self.address = address
        self.future: Future[None] | None = None
        self.thread = 0
        self.since = 0.0


class Handlers:
    """The handlers of one server that are queued or run.

    Args:
        executor: Any executor; servers may share one.
        owned: Whether `close` shuts it down.
    """

    def __init__(self, executor: Executor, owned: bool) -> None:
        self.executor = executor
        self.owned = owned
        # A dictionary for its order: oldest first.
        self._live: dict[_Handler, None] = {}
        # Re-entrant: a signal handler may close the server whose loop it interrupts right here.
        self._lock = threading.RLock()
        self._ended = threading.Condition(self._lock)
        self._waiters = 0
        self._refused = False

    def submit(self, address: object, fn: Callable[..., object], /, *args: Any) -> bool:
        """Has a worker call `fn(*args)`, which must not raise; any thread.

        Args:
            address: Whom the call serves; reports name it.
            fn: Called in a worker.
            args: Its arguments.

        Returns:
            False if the executor refused: its queue is full, it has been shut down, or it can have no thread. All
            but the first is logged, once until the executor takes a call again.
        """
        handler = _Handler(address)
        self._live[handler] = None
        try:
            future = self.executor.submit(self._run, handler, fn, args)
        except RuntimeError as error:
            self._discard(handler)
            if not isinstance(error, QueueFull) and not self._refused:
                self._refused = True
                LOGGER.error("the executor takes no handlers, connections are refused: %s", error)
            return False
        except BaseException:
            self._discard(handler)
            raise
        if self._refused:
            self._refused = False
        # Under the lock, so that either this or `join` sees what the other one has set.
        with self._lock:
            handler.future = future
            waited_for = self._waiters > 0
        if waited_for:
            self._attend(handler)
        return True

    def _run(self, handler: _Handler, fn: Callable[..., object], args: tuple[Any, ...]) -> None:
        handler.since = monotonic()
        handler.thread = get_ident()
        try:
            fn(*args)
        finally:
            self._discard(handler)

    def _discard(self, handler: _Handler) -> None:
        # The condition's own `with` is Python code, this one is not.
        with self._lock:
            self._live.pop(handler, None)
            if self._waiters:
                self._ended.notify_all()

    def _attend(self, handler: _Handler) -> None:
        # A call that its executor cancels, or cannot run, ends without ever having begun.
        if handler.future is not None:
            handler.future.add_done_callback(lambda _: self._discard(handler))

    def __len__(self) -> int:
        """How many handlers are queued or run."""
        return len(self._live)

    def join(self, timeout: float | None = None) -> bool:
        """Waits up to `timeout` seconds until no handler is queued or runs; None waits for ever.

        A handler that calls this is not waited for.

        Returns:
            False if the time is over.
        """
        own = get_ident()
        with self._ended:
            self._waiters += 1
            try:
                for handler in list(self._live):
                    self._attend(handler)
                return self._ended.wait_for(lambda: all(handler.thread == own for handler in list(self._live)), timeout)
            finally:
                self._waiters -= 1

    def close(self, timeout: float | None) -> None:
        """Waits for the handlers, then shuts the executor down if it is owned.

        Args:
            timeout: Seconds to wait at most; None for no limit.

        Raises:
            TimeoutError: The time is over; the message says which handlers still run, for how long, and where. An
                owned executor has been shut down all the same: what is queued still runs.
        """
        over = not self.join(timeout)
        if self.owned:
            own = get_ident()
            inside = any(handler.thread == own for handler in list(self._live))
            self.executor.shutdown(wait=not over and not inside)
        if over:
            raise TimeoutError(f"after {timeout:g} s these handlers still run:\n{self.report()}")

    def report(self) -> str:
        """Which handlers run, for whom, for how many seconds and where; and which are queued."""
        frames = sys._current_frames()
        now = monotonic()
        live = list(self._live)
        lines = []
        for handler in live:
            if handler.thread:
                lines.append(f"{handler.address}: running for {now - handler.since:.1f} s\n")
                lines += _stack(frames.get(handler.thread))
        queued = [str(handler.address) for handler in live if not handler.thread]
        if queued:
            more = ", ..." if len(queued) > MENTIONED else ""
            lines.append(f"{len(queued)} queued: {', '.join(queued[:MENTIONED])}{more}\n")
        return "".join(lines).rstrip("\n")


def _stack(frame: FrameType | None) -> list[str]:
    stack = [] if frame is None else traceback.extract_stack(frame)
    # What the executor and this module put below the handler says nothing.
    start = max((index for index, entry in enumerate(stack, 1) if entry.filename == __file__), default=0)
    return traceback.format_list(stack[start:]) or ["  (no Python frame)\n"]
