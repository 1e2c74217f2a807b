"""What the timers of a pool ask of its executor and its crew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ebbpool._core.accel import Pool, Timers


class HasTimers(Protocol):
    """The part of an executor that is needed here."""

    _pool: Pool

    @property
    def _crew(self) -> TimerOwner: ...

    def hold_back(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any: ...
    def release(self, future: Any) -> bool: ...
    def _forget_delayed(self, future: Any) -> None: ...


class TimerOwner(Protocol):
    """The part of a crew that is needed here."""

    prefix: str
    timers: Timers
