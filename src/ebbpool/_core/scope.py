"""What may end one call early: how long it may wait, its deadline with the timers for it, and a cancellation.

Most calls have no scope. Under a pool's mutex only its fields are used, so it need not be compiled.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from concurrent.futures._base import LOGGER
from math import inf
from typing import Any

from ebbpool._clock import monotonic
from ebbpool._errors import QueueTimeout


class Scope:
    """What may end one call early: after seconds of waiting, or seconds from now on."""

    __slots__ = (
        "__weakref__",
        "_callbacks",
        "abandoned",
        "asked",
        "cancelled",
        "deadline",
        "entry",
        "latest",
        "left",
        "max_wait",
    )

    def __init__(self, max_wait: float = inf, deadline: float = inf) -> None:
        self.asked: float = monotonic()
        self.max_wait: float = max_wait
        self.deadline: float = self.asked + deadline  # in monotonic seconds
        self.latest: float = min(self.asked + max_wait, self.deadline)  # when the call has to begin
        self.entry: list[Any] | None = None  # `latest`, as `Backlog.times` has it, while the call waits
        self.cancelled: bool = False  # whether somebody has cancelled the call, or its deadline has passed
        self.abandoned: float = 0.0  # since when nobody wants what the running call returns; 0 if somebody may
        self.left: bool = False  # whether nobody waits for the end of that, either
        self._callbacks: dict[object, Callable[[], object]] = {}

    def restrict(self, max_wait: float) -> None:
        """Limit the wait to `max_wait` seconds, unless it has a limit already."""
        if self.max_wait == inf:
            self.max_wait = max_wait
            self.latest = min(self.asked + max_wait, self.deadline)

    def refusal(self, crew: Any, why: str = "") -> QueueTimeout:
        """Return the error in place of a call that has waited for too long in a pool; its text ends with `why`."""
        where = "" if crew is None else f" in pool {crew.name!r}"
        waited = monotonic() - self.asked
        limit = f"max_wait={self.max_wait:g}"
        if self.deadline < self.asked + self.max_wait:
            limit = f"deadline={self.deadline - self.asked:g}"
        text = f"the task has waited for {waited:.3g} s{where}, and may not begin after {limit}{why}"
        return QueueTimeout(text, waited)

    def cancel(self, hand_over: Callable[[Callable[[], None]], object] | None = None) -> None:
        """Tell the call that it is cancelled, and call its callbacks: here, or where `hand_over` has them called."""
        self.cancelled = True
        if hand_over is None or not self._callbacks:
            self._call_back()
        else:
            hand_over(self._call_back)

    def add(self, key: object, callback: Callable[[], object]) -> None:
        """Have `callback()` called once the call is cancelled; at once if it is already."""
        self._callbacks[key] = callback
        if self.cancelled:
            self._call_back()

    def discard(self, key: object) -> None:
        """Take a callback back."""
        self._callbacks.pop(key, None)

    def _call_back(self) -> None:
        # Without a lock, so that a finaliser may cancel. `add` looks whether the call is cancelled when the callback is
        # there, and `cancel` looks for callbacks afterwards: one of them finds it, and `pop` gives it to one only.
        for key in list(self._callbacks):
            callback = self._callbacks.pop(key, None)
            try:
                if callback is not None:
                    callback()
            except BaseException:
                LOGGER.exception("exception calling %r, for a task that was cancelled", callback)


class Deadlines:
    """The timers of deadlines: entries of the timekeeper's, each a weak reference to a scope."""

    def watch(self, scope: Scope, keeper: Any) -> None:
        """Have `scope` cancelled at its deadline, in the timekeeper's thread, if its call has not been let go of."""

        def strike(_: object, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
            # While the interpreter is finalizing, names of this module may be gone.
            if not finalizing():
                keeper.void()

        keeper.call_at(scope.deadline, self, weakref.ref(scope, strike))

    def wants(self, thing: weakref.ref[Scope]) -> bool:
        """See `timers.Entry`."""
        return thing() is not None

    def fire(self, thing: weakref.ref[Scope]) -> None:
        """See `timers.Entry`."""
        scope = thing()
        if scope is not None:
            scope.cancel()


deadlines = Deadlines()
