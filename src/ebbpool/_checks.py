"""Checks of arguments: each returns the value as it is used from then on, or raises an error that names it."""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Collection
from typing import Any


def whole(name: str, value: Any, least: int) -> int:
    """Return `value` as an int of at least `least`.

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
    """Return `value` as a float of at least 0; infinity is allowed.

    Raises:
        TypeError: It is no number, or a bool.
        ValueError: It is negative or not a number.
    """
    number = _number(name, value)
    if number < 0:
        raise ValueError(f"{name} must be at least 0 seconds, not {value!r}")
    return number


def waiting_limit(name: str, value: Any) -> float | None:
    """Return `value` as `seconds` does, or None for None and for more than `threading.TIMEOUT_MAX`."""
    number = None if value is None else seconds(name, value)
    return None if number is None or number > threading.TIMEOUT_MAX else number


def time_limit(name: str, value: Any) -> float:
    """Return `value` as a float; a negative value becomes 0, as in waiting for futures.

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
    """Return `value` if it is callable or None.

    Raises:
        TypeError: It is neither.
    """
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be callable or None, not {value!r}")
    return value


def finite_seconds(name: str, value: Any) -> float:
    """Return `value` as a float of at least 0 that is not infinite.

    Raises:
        TypeError: It is no number, or a bool.
        ValueError: It is negative, infinite or not a number.
    """
    number = seconds(name, value)
    if number == math.inf:
        raise ValueError(f"{name} must be a finite number of seconds, not {value!r}")
    return number


def above_zero(name: str, value: Any) -> float:
    """Return `value` as a float above 0; infinity is allowed.

    Raises:
        TypeError: It is no number, or a bool.
        ValueError: It is 0, negative or not a number.
    """
    number = seconds(name, value)
    if number == 0:
        raise ValueError(f"{name} must be greater than 0 seconds, not {value!r}")
    return number


def text_file(name: str, value: Any) -> Any:
    """Return `value` if it can be written to.

    Raises:
        TypeError: It has no `write`.
    """
    if not callable(getattr(value, "write", None)):
        raise TypeError(f"{name} must be an open text file or None, not {value!r}")
    return value


def one_of(name: str, value: Any, allowed: Collection[Any]) -> Any:
    """Return `value` if it is among the allowed ones.

    Raises:
        ValueError: It is not.
    """
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")
    return value
