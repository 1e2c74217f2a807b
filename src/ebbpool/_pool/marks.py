"""The mark `spillable` of functions that may run elsewhere, and again; and how to find it in a queued call."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextvars import Context
from types import BuiltinMethodType, MethodType
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

from ebbpool._core.accel import Probe

P = ParamSpec("P")
T = TypeVar("T")

_PLACEHOLDER: Final = getattr(functools, "Placeholder", object())


class Spillable:
    """A function with the mark; see `spillable`.

    Attributes:
        fn: The function itself.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.fn = fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        bound = self.fn.__get__(instance, owner) if hasattr(self.fn, "__get__") else self.fn
        return self if bound is self.fn else Spillable(bound)

    def __repr__(self) -> str:
        return f"<spillable {self.fn!r}>"

    def _found_by_name(self) -> bool:
        thing: Any = sys.modules.get(getattr(self, "__module__", ""))
        for name in self._name.split("."):
            thing = getattr(thing, name, None)
        return thing is self

    @property
    def _name(self) -> str:
        return str(vars(self).get("__qualname__", ""))

    def __reduce__(self) -> str | tuple[Any, ...]:
        return self._name if self._found_by_name() else (Spillable, (self.fn,))

    @property
    def sent(self) -> Callable[..., Any]:
        """What another process is asked to call: the function, or this where its name stands for this (a decorator)."""
        return self if self._found_by_name() else self.fn


def spillable(fn: Callable[P, T], /) -> Callable[P, T]:
    """Mark a function whose calls may run elsewhere, and again, for `AdaptiveExecutor(spill=...)`.

    The mark is a promise: a call gives the same result in another process, and whether it is made once or twice. It
    needs nothing of this process (no locks, no connections, no globals that change), and its arguments and its result
    can be pickled where the other executor needs that. It may be used as a decorator, or where a call is submitted:
    ``pool.submit(spillable(render), page)``. In a pool without `spill`, and called directly, it changes nothing.

    Args:
        fn: The function.

    Raises:
        TypeError: `fn` is not callable.
    """
    if isinstance(fn, Spillable):
        return fn
    if not callable(fn):
        raise TypeError(f"fn must be callable, not {fn!r}")
    return Spillable(fn)


class MarkedCall(NamedTuple):
    """A call whose function is marked, without what it was wrapped in.

    Attributes:
        fn: The function with its mark.
        args: All its arguments.
        kwargs: All its keyword arguments.
        context: The context that it was to run in, if the call itself brings one.
    """

    fn: Spillable
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    context: Context | None

    def here(self) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any] | None]:
        """Return the call without its mark, for this process."""
        if self.context is None:
            return self.fn.fn, self.args, self.kwargs or None
        return self.context.run, (self.fn.fn, *self.args), self.kwargs or None


def marked_call(fn: Any, args: tuple[Any, ...] | None, kwargs: dict[str, Any] | None) -> MarkedCall | None:
    """See through partials, contexts and measuring to a marked function; return None where there is none.

    Runs no foreign code: an object may have a `__getattr__` of its own, and a proxy a `__class__`.
    """
    args = args or ()
    kwargs = kwargs or {}
    context: Context | None = None
    while type(fn) is not Spillable:
        owner = fn.__self__ if type(fn) in (BuiltinMethodType, MethodType) else None
        if type(fn) is functools.partial and _PLACEHOLDER not in map(_known, fn.args):
            fn, args, kwargs = fn.func, (*fn.args, *args), {**fn.keywords, **kwargs}
        elif type(fn) is Probe:
            fn = fn.fn
        elif type(owner) is Context and args:
            fn, *rest = args
            context, args = owner, tuple(rest)
        else:
            return None
    return MarkedCall(fn, args, kwargs, context)


def is_marked(fn: Any, args: tuple[Any, ...] | None, kwargs: dict[str, Any] | None) -> bool:
    """Return whether a call may run elsewhere; see `Pool.look_for`."""
    return marked_call(fn, args, kwargs) is not None


def _known(value: Any) -> Any:
    # Compared by identity: an argument may have an `__eq__` of its own.
    return _PLACEHOLDER if value is _PLACEHOLDER else None


def call_here(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call `fn`; a call of this is not taken for a marked one."""
    return fn(*args, **kwargs)
