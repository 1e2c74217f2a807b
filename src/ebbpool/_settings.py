"""The settings of a pool, checked."""

from __future__ import annotations

import math
import operator
import threading
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

DEFAULT_MAX_WORKERS: Final = 256

WhenFull = Literal["block", "reject", "caller_runs"]


class Unset:
    """The type of `UNSET`."""

    def __repr__(self) -> str:
        return "unset"


UNSET: Final = Unset()
"""Stands for an argument that was not given, where None means something."""


class Unmade:
    """Stands for the attributes of an object whose `__init__` was never called: to ask it for anything is an error."""

    def __init__(self, owner: str) -> None:
        self.__owner = owner

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"{self.__owner}.__init__() was never called")


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

    def __post_init__(self) -> None:
        for name, least in (("max_workers", 1), ("min_workers", 0), ("min_spare_workers", 0)):
            object.__setattr__(self, name, whole(name, getattr(self, name), least))
        object.__setattr__(self, "keep_alive", seconds("keep_alive", self.keep_alive))
        if self.max_queue is not None:
            object.__setattr__(self, "max_queue", whole("max_queue", self.max_queue, 0))
        for name in ("min_workers", "min_spare_workers"):
            if getattr(self, name) > self.max_workers:
                raise ValueError(
                    f"{name} must not exceed max_workers: {name}={getattr(self, name)}, max_workers={self.max_workers}"
                )

    @property
    def patience(self) -> float:
        """`keep_alive` as a lock takes it: -1 for ever."""
        return self.keep_alive if self.keep_alive <= threading.TIMEOUT_MAX else -1.0


def whole(name: str, value: Any, least: int) -> int:
    """Returns `value` as an int of at least `least`.

    Raises:
        TypeError: It is no integer, or a bool.
        ValueError: It is too small.
    """
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, not {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {value!r}") from None
    if number < least:
        bound = f"at least {least}" if least != 1 else "greater than 0"
        raise ValueError(f"{name} must be {bound}, not {value!r}")
    return number


def whole_or_none(name: str, value: Any) -> int | None:
    """Return `value` as an int of at least 1, or None for None; the messages begin as the standard library's do.

    Raises:
        TypeError: It is no integer, or a bool.
        ValueError: It is too small.
    """
    if value is None:
        return None
    try:
        return whole(name, value, 1)
    except TypeError:
        raise TypeError(f"{name} must be an integer or None, not {value!r}") from None
    except ValueError:
        raise ValueError(f"{name} must be None or > 0, not {value!r}") from None


def seconds(name: str, value: Any) -> float:
    """Returns `value` as a float of at least 0; infinity is allowed.

    Raises:
        TypeError: It is no number, or a bool.
        ValueError: It is negative or not a number.
    """
    number = _number(name, value)
    if number < 0:
        raise ValueError(f"{name} must be at least 0 seconds, not {value!r}")
    return number


def waiting_limit(name: str, value: Any) -> float | None:
    """Returns `value` as `seconds` does, or None for None and for what is longer than anybody can wait."""
    number = None if value is None else seconds(name, value)
    return None if number is None or number > threading.TIMEOUT_MAX else number


def time_limit(name: str, value: Any) -> float:
    """Returns `value` as a float; what is below 0 becomes 0, as waiting for locks and futures has it.

    Raises:
        TypeError: It is no number, or a bool.
        ValueError: It is not a number.
    """
    return max(0.0, _number(name, value))


def _number(name: str, value: Any) -> float:
    if isinstance(value, (bool, str, bytes)):
        raise TypeError(f"{name} must be a number of seconds, not {value!r}")
    try:
        number = float(value)
    except (TypeError, OverflowError):
        raise TypeError(f"{name} must be a number of seconds, not {value!r}") from None
    if math.isnan(number):
        raise ValueError(f"{name} must be a number of seconds, not {value!r}")
    return number


def optional_callable(name: str, value: Any) -> Any:
    """Returns `value` if it is callable or None.

    Raises:
        TypeError: It is neither.
    """
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be callable or None, not {value!r}")
    return value


def policy(value: Any) -> WhenFull:
    """Returns `value` if it names a policy for a full queue.

    Raises:
        ValueError: It does not.
    """
    if value not in get_args(WhenFull):
        raise ValueError(f"when_full must be one of {', '.join(map(repr, get_args(WhenFull)))}, not {value!r}")
    chosen: WhenFull = value
    return chosen
