"""Checks of arguments: each returns the value as it is used from then on.

Else it raises `TypeError` for a value of the wrong type, a bool among numbers included, or `ValueError` for one that is
out of range; the message names the argument and the value.
"""

from __future__ import annotations

import math
import operator
import sys
import threading
from collections.abc import Collection
from typing import Any, NoReturn


def whole(name: str, value: Any, least: int) -> int:
    """Return `value` as an int of at least `least`, and at most `sys.maxsize`."""
    number = _number_of(name, value, "an integer")
    if number < least:
        bound = f"at least {least}" if least != 1 else "greater than 0"
        raise ValueError(f"{name} must be {bound}, not {value!r}")
    return number


def whole_or_none(name: str, value: Any) -> int | None:
    """Return `value` as an int of at least 1, or None for None; the messages begin as the standard library's do."""
    if value is None:
        return None
    number = _number_of(name, value, "an integer or None")
    if number < 1:
        raise ValueError(f"{name} must be None or > 0, not {value!r}")
    return number


def _number_of(name: str, value: Any, kind: str) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{name} must be {kind}, not {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be {kind}, not {value!r}") from None
    # Compiled code counts in machine words.
    if number > sys.maxsize:
        raise ValueError(f"{name} must be at most {sys.maxsize}, not {value!r}")
    return number


def seconds(name: str, value: Any) -> float:
    """Return `value` as a float of at least 0; infinity is allowed, NaN is not."""
    number = _seconds(name, value)
    if number < 0:
        raise ValueError(f"{name} must be at least 0 seconds, not {value!r}")
    return number


def waiting_limit(name: str, value: Any) -> float | None:
    """Return `value` as `seconds` does, or None for None and for more than `threading.TIMEOUT_MAX`."""
    number = None if value is None else seconds(name, value)
    return None if number is None or number > threading.TIMEOUT_MAX else number


def time_limit(name: str, value: Any) -> float:
    """Return `value` as a float; a negative value becomes 0, as in waiting for futures. NaN is not allowed."""
    return max(0.0, _seconds(name, value))


def finite_seconds(name: str, value: Any) -> float:
    """Return `value` as a float of at least 0 that is not infinite."""
    number = seconds(name, value)
    if number == math.inf:
        raise ValueError(f"{name} must be a finite number of seconds, not {value!r}")
    return number


def above_zero(name: str, value: Any) -> float:
    """Return `value` as a float above 0; infinity is allowed."""
    number = seconds(name, value)
    if number == 0:
        raise ValueError(f"{name} must be greater than 0 seconds, not {value!r}")
    return number


def _seconds(name: str, value: Any) -> float:
    if isinstance(value, (bool, str, bytes)):
        raise TypeError(f"{name} must be a number of seconds, not {value!r}")
    try:
        # `float` would take a buffer of bytes as text; to `isnan` that is a TypeError. A signaling NaN is a ValueError.
        if not math.isnan(value):
            return float(value)
    except (TypeError, OverflowError):
        raise TypeError(f"{name} must be a number of seconds, not {value!r}") from None
    except ValueError:
        pass
    raise ValueError(f"{name} must be a number of seconds, not {value!r}")


def optional_callable(name: str, value: Any) -> Any:
    """Return `value` if it is callable or None."""
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be callable or None, not {value!r}")
    return value


def one_of(name: str, value: Any, allowed: Collection[Any]) -> Any:
    """Return `value` if it is among the allowed ones."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")
    return value


class NoCopy:
    """What holds threads, or state that no second object may share."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled."""
        raise TypeError(f"cannot pickle {type(self).__name__!r} object")
