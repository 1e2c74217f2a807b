"""What may end a call early: how long it may wait, its deadline, and that somebody has cancelled it.

Most calls have no scope. Never used under a pool's mutex, so it need not be compiled.
"""

from __future__ import annotations

import weakref
from _thread import allocate_lock
from collections.abc import Callable
from concurrent.futures._base import LOGGER
from functools import partial
from math import inf
from time import monotonic
from typing import Any

from ebbpool._errors import QueueTimeout


class Scope:
    """What may end one call early.

    Attributes:
        asked: When the call was submitted (monotonic seconds, as `deadline`).
        max_wait: For how many seconds it may wait.
        deadline: When it is to be over.
        cancelled: Whether somebody has cancelled it, or its deadline has passed.
    """

    __slots__ = ("__weakref__", "_callbacks", "_lock", "asked", "cancelled", "deadline", "max_wait")

    def __init__(self, max_wait: float = inf, deadline: float = inf) -> None:
        self.asked = monotonic()
        self.max_wait = max_wait
        self.deadline = self.asked + deadline
        self.cancelled = False
        self._lock = allocate_lock()
        self._callbacks: dict[object, Callable[[], object]] = {}

    def latest(self) -> float:
        """Return when the call has to begin at the latest (monotonic seconds)."""
        return min(self.asked + self.max_wait, self.deadline)

    def refusal(self) -> QueueTimeout:
        """Return the error in place of a call that has waited for too long."""
        waited = monotonic() - self.asked
        limit = f"max_wait={self.max_wait:g}"
        if self.deadline < self.asked + self.max_wait:
            limit = f"deadline={self.deadline - self.asked:g}"
        return QueueTimeout(f"the task has waited for {waited:.3g} s, and may not begin after {limit}", waited)

    def cancel(self, hand_over: Callable[[Callable[[], None]], object] | None = None) -> None:
        """Tell the call that it is cancelled, and call its callbacks: here, or where `hand_over` has them called."""
        with self._lock:
            self.cancelled = True
            callbacks, self._callbacks = self._callbacks, {}
        if callbacks and hand_over is not None:
            hand_over(partial(_call_all, callbacks))
        else:
            _call_all(callbacks)

    def add(self, key: object, callback: Callable[[], object]) -> bool:
        """Have `callback()` called once the call is cancelled; return False if it is already."""
        with self._lock:
            if not self.cancelled:
                self._callbacks[key] = callback
            return not self.cancelled

    def discard(self, key: object) -> None:
        """Take a callback back."""
        with self._lock:
            self._callbacks.pop(key, None)


def _call_all(callbacks: dict[object, Callable[[], object]]) -> None:
    for callback in callbacks.values():
        try:
            callback()
        except Exception:
            LOGGER.exception("exception calling %r, for a task that was cancelled", callback)


class Deadlines:
    """The timers of deadlines: entries of the timekeeper's, each a weak reference to a scope."""

    def watch(self, scope: Scope, keeper: Any) -> None:
        """Have `scope` cancelled at its deadline, in the timekeeper's thread, if its call has not been let go of."""

        def strike(_: object) -> None:
            keeper.void()

        keeper.call_at(scope.deadline, self, weakref.ref(scope, strike))

    def wants(self, thing: weakref.ref[Scope]) -> bool:
        """See `Book.wants`."""
        return thing() is not None

    def fire(self, thing: weakref.ref[Scope]) -> None:
        """See `Book.fire`."""
        scope = thing()
        if scope is not None:
            scope.cancel()


deadlines = Deadlines()
