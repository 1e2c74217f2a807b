"""Calls as bytes: what is large goes by itself, so that it is sent once for all calls that have it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ebbpool._dask.remote import Ready, Slot, brief, dumps

LARGE: Final = 1 << 20
"""Bytes of a pickle from which on a function or an argument goes by itself."""


class Part:
    """A large function or argument, pickled. Those of the same content have the same `digest`."""

    __slots__ = ("digest", "name", "packed")

    def __init__(self, name: str, packed: bytes) -> None:
        self.name = name
        self.packed = packed
        self.digest = hashlib.blake2b(packed, digest_size=20, usedforsecurity=False).hexdigest()


@dataclass(frozen=True)
class Packed:
    """A call, pickled, and the large parts for which slots stand in it."""

    data: bytes
    parts: tuple[Part, ...] = ()


def packed_call(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], values: dict[str, Any]
) -> Packed:
    """Return a call, pickled.

    Raises:
        TypeError: Something cannot be pickled; the message says what.
    """
    try:
        data = dumps((fn, args, kwargs, values))
    except Exception as error:
        raise _culprit(_named(fn, args, kwargs, values), f"the call of {brief(fn)}", error) from error
    if len(data) <= LARGE:
        return Packed(data)
    parts: list[Part] = []
    slots: dict[int, Any] = {}

    def without(name: str, value: Any) -> Any:
        # The same object twice is the same object there, too.
        if id(value) not in slots:
            packed = dumps(value)
            slots[id(value)] = value
            if len(packed) > LARGE:
                slots[id(value)] = Slot(len(parts))
                parts.append(Part(f"{name} of {brief(fn)}", packed))
        return slots[id(value)]

    rest = (
        without("the function", fn),
        tuple(without(f"argument {index}", value) for index, value in enumerate(args)),
        {name: without(f"argument {name!r}", value) for name, value in kwargs.items()},
        values,
    )
    return Packed(dumps(rest), tuple(parts)) if parts else Packed(data)


class Mapped:
    """The function of a map, pickled once for all its items, with the values of context variables."""

    def __init__(self, fn: Callable[..., Any], values: dict[str, Any]) -> None:
        self._fn = fn
        self._values = values
        try:
            packed = dumps(fn)
        except Exception as error:
            raise TypeError(f"fn cannot be pickled: {brief(fn)}: {error}") from error
        self._parts: tuple[Part, ...] = ()
        self._there: Any = Ready(packed)
        if len(packed) > LARGE:
            self._parts = (Part(f"the function {brief(fn)}", packed),)
            self._there = Slot(0)

    def call(self, apply: Callable[..., Any], items: list[tuple[Any, ...]]) -> Packed:
        """Return the call of `apply` with the function and some items, pickled.

        Raises:
            TypeError: An item cannot be pickled; the message says which.
        """
        try:
            return Packed(dumps((apply, (self._there, items), {}, self._values)), self._parts)
        except Exception as error:
            named = [
                (f"an item for {brief(self._fn)}", item[0] if len(item) == 1 else item) for item in items
            ] + _of_variables(self._values)
            raise _culprit(named, f"a chunk of items for {brief(self._fn)}", error) from error


def _named(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], values: dict[str, Any]) -> list[tuple[str, Any]]:
    return [
        ("fn", fn),
        *((f"argument {index} of {brief(fn)}", value) for index, value in enumerate(args)),
        *((f"argument {name!r} of {brief(fn)}", value) for name, value in kwargs.items()),
        *_of_variables(values),
    ]


def _of_variables(values: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(f"context variable {name!r}", value) for name, value in values.items()]


def _culprit(named: list[tuple[str, Any]], whole: str, error: Exception) -> TypeError:
    for name, value in named:
        try:
            dumps(value)
        except Exception as reason:
            return TypeError(f"{name} cannot be pickled: {brief(value)}: {reason}")
    return TypeError(f"{whole} cannot be pickled: {error}")
