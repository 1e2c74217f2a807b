"""Packs a call for the cluster, with `remote.dumps`; what is large is apart, so that calls can share it."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, Final, Self

from ebbpool._clock import monotonic
from ebbpool._dask.remote import Outcome, Slot, brief, dumps

LARGE: Final = 1 << 20
"""Bytes of a pickle from which on a function or an argument goes by itself."""


@dataclass(frozen=True)
class Part:
    """A large function or argument, pickled. Those of the same content have the same key on the cluster."""

    key: str
    packed: bytes

    @classmethod
    def of(cls, packed: bytes) -> Self:
        digest = hashlib.blake2b(packed, digest_size=20, usedforsecurity=False).hexdigest()
        return cls(f"ebbpool-part-{digest}", packed)


@dataclass(frozen=True)
class Packed:
    """A call, pickled, and the large parts for which slots stand in it."""

    data: bytes
    parts: tuple[Part, ...] = ()


def packed_call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Packed:
    """Return a call, pickled; raise a TypeError that says what cannot be."""
    try:
        data = dumps((fn, args, kwargs))
    except Exception as error:
        given = [(f"argument {place!r} of {brief(fn)}", value) for place, value in (*enumerate(args), *kwargs.items())]
        raise culprit([("fn", fn), *given], f"the call of {brief(fn)}", error) from error
    if len(data) <= LARGE:
        return Packed(data)
    parts: list[Part] = []
    slots: dict[int, Any] = {}

    def without(value: Any) -> Any:
        # An object that is passed twice must arrive as one object.
        if id(value) not in slots:
            packed = dumps(value)
            slots[id(value)] = value
            if len(packed) > LARGE:
                slots[id(value)] = Slot(len(parts))
                parts.append(Part.of(packed))
        return slots[id(value)]

    rest = (
        without(fn),
        tuple(map(without, args)),
        {name: without(value) for name, value in kwargs.items()},
    )
    return Packed(dumps(rest), tuple(parts)) if parts else Packed(data)


def out_of_context(
    fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return a call without its context, if it is one of ``context.run(fn)``, which `asyncio.to_thread` submits."""
    if isinstance(fn, functools.partial) and isinstance(getattr(fn.func, "__self__", None), Context):
        fn, args, kwargs = fn.func, (*fn.args, *args), {**fn.keywords, **kwargs}
    if isinstance(getattr(fn, "__self__", None), Context) and getattr(fn, "__name__", "") == "run" and args:
        return args[0], args[1:], kwargs
    return fn, args, kwargs


def culprit(named: list[tuple[str, Any]], whole: str, error: Exception) -> TypeError:
    """Return an error that says which of the named things cannot be pickled."""
    for name, value in named:
        try:
            dumps(value)
        except Exception as reason:
            return TypeError(f"{name} cannot be pickled: {brief(value)}: {reason}")
    return TypeError(f"{whole} cannot be pickled: {error}")


@dataclass(slots=True, eq=False)
class Parcel:
    """A call that is on its way to the cluster, and the thread here that waits for its outcome."""

    name: str
    packed: Packed
    since: float = field(default_factory=monotonic)
    outcome: Future[Outcome] = field(default_factory=Future)
