"""The settings of a pool, checked."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Final, Literal

from ebbpool._checks import above_zero, seconds, whole

DEFAULT_MAX_WORKERS: Final = 256

WhenFull = Literal["block", "reject", "caller_runs"]


class Unset:
    """The type of `UNSET`."""

    def __repr__(self) -> str:
        return "unset"


UNSET: Final = Unset()
"""The value of an argument that was not given, where None has a meaning."""


class Unmade:
    """The attributes of an object whose `__init__` was never called: to read any of them is an error."""

    def __init__(self, owner: str) -> None:
        self.__owner = owner

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"{self.__owner}.__init__() was never called")


def longest_wait(value: float | None) -> float | None:
    """Check a `max_wait`; None and infinity are no limit."""
    return None if value is None else above_zero("max_wait", seconds("max_wait", value))


@dataclass(frozen=True)
class Settings:
    """What may be changed while a pool lives.

    Raises:
        TypeError: A value is of the wrong type; the message names it.
        ValueError: A value is out of range; the message names it.
    """

    max_workers: int
    min_workers: int
    min_spare_workers: int
    keep_alive: float
    max_queue: int | None
    max_wait: float | None

    def __post_init__(self) -> None:
        for name, least in (("max_workers", 1), ("min_workers", 0), ("min_spare_workers", 0)):
            object.__setattr__(self, name, whole(name, getattr(self, name), least))
        object.__setattr__(self, "keep_alive", seconds("keep_alive", self.keep_alive))
        if self.max_queue is not None:
            object.__setattr__(self, "max_queue", whole("max_queue", self.max_queue, 0))
        object.__setattr__(self, "max_wait", longest_wait(self.max_wait))
        for name in ("min_workers", "min_spare_workers"):
            if getattr(self, name) > self.max_workers:
                raise ValueError(
                    f"{name} must not exceed max_workers: {name}={getattr(self, name)}, max_workers={self.max_workers}"
                )

    @property
    def patience(self) -> float:
        """`keep_alive` as a lock takes it: -1 for ever."""
        return self.keep_alive if self.keep_alive <= threading.TIMEOUT_MAX else -1.0
