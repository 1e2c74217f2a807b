"""What a call is for: the function that is to be called, seen through what others have put around it."""

from __future__ import annotations

import functools
import sys
from contextlib import _GeneratorContextManager
from contextvars import Context
from types import CodeType, GeneratorType, ModuleType
from typing import Any, Final

OVER: Final = "<idle, or in callbacks>"  # the name of a task without a function: it is done, or a session between calls
CALLERS: Final = ("ebbpool.", "starlette.concurrency", "fastapi.telemetry")
"""How the names of modules begin whose functions call what they are given."""
GIVEN: Final = ("fn", "func", "function", "iterator")  # how their parameter for that is called
DEEPEST: Final = 32  # how many wrappers are seen through: one may refer to itself


def called_name(fn: Any, args: tuple[Any, ...] | None = None) -> str:
    """Return the module and name of what a call is for, seen through what wraps it."""
    try:
        inner, owner, _ = _unwrapped(fn, args or (), False)
        return _name(inner, owner)
    except Exception:
        # Its attributes are computed, and need something that is not there.
        return type(fn).__qualname__


def called_key(fn: Any, args: tuple[Any, ...]) -> Any:
    """Return what the calls of one function have in common, whatever object it is a method of: its code, if it has any.

    Of a context manager of `contextlib`'s that is the generator's code, and which of its methods is called.
    """
    try:
        inner, owner, method = _unwrapped(fn, args, True)
        if isinstance(inner, GeneratorType):
            return id(inner.gi_code), method
        code = getattr(inner, "__code__", None)
        if isinstance(code, CodeType):
            return code
        if isinstance(inner, type):
            return inner
        kind = type(inner if owner is None or isinstance(owner, ModuleType) else owner)
        name = getattr(inner, "__qualname__", None)
        return id(kind), name if type(name) is str else None
    except Exception:
        return type(fn)


def _unwrapped(fn: Any, args: tuple[Any, ...], wraps: bool) -> tuple[Any, Any, str]:
    """Return what is called in the end, the object of which that is a method, and the method of a context manager."""
    keywords: dict[str, Any] = {}
    owner: Any = None
    method = ""
    for _ in range(DEEPEST):
        owner = getattr(fn, "__self__", None)
        if isinstance(fn, functools.partial):
            fn, args, keywords = fn.func, (*fn.args, *args), fn.keywords | keywords
        elif _is_ours(fn):
            fn = fn.fn
        elif isinstance(owner, Context) and args:
            fn, args = args[0], args[1:]
        elif isinstance(owner, _GeneratorContextManager):
            method, fn = fn.__name__, owner.gen
        elif _is_ours(owner):
            fn = getattr(owner, "fn", None)
        elif type(owner).__module__ == "asgiref.sync":
            fn = getattr(owner, "func", None)
        elif (given := _given(fn, args, keywords)) is not None:
            fn, args = given
            keywords = {}
        elif wraps and (inner := getattr(fn, "__wrapped__", None)) is not None:
            fn = inner
        else:
            break
    return fn, owner, method


def _name(fn: Any, owner: Any) -> str:
    if fn is None:
        return OVER
    name = getattr(fn, "__qualname__", None)
    module = _module_of(fn) if isinstance(fn, GeneratorType) else getattr(fn, "__module__", None)
    if not isinstance(name, str):
        name, module = type(fn).__qualname__, type(fn).__module__
    if isinstance(owner, ModuleType) and not isinstance(module, str):
        module = owner.__name__
    return f"{module}.{name}" if isinstance(module, str) and module != "builtins" else name


def _is_ours(thing: Any) -> bool:
    """Return whether ebbpool itself runs this on behalf of a user's function: a wrapper, the turn of a map."""
    return str(type(thing).__module__).startswith("ebbpool.") and hasattr(thing, "fn")


def _given(fn: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, tuple[Any, ...]] | None:
    """Return what one of the `CALLERS` was given to call, and with which arguments; None where `fn` is none of them."""
    code = getattr(fn, "__code__", None)
    if code is None or not str(fn.__module__).startswith(CALLERS):
        return None
    names = code.co_varnames[: code.co_argcount]
    values = (fn.__self__, *args) if hasattr(fn, "__self__") else args
    for place, (name, value) in enumerate(zip(names, values, strict=False), 1):
        if name in GIVEN:
            return value, values[place] if names[place : place + 1] == ("args",) else values[place:]
    return next(((keywords[name], ()) for name in GIVEN if name in keywords), None)


def _module_of(generator: Any) -> str | None:
    """Return the module in whose file the function of a generator is; its frame, which says so, may run."""
    path = generator.gi_code.co_filename
    for name, module in list(sys.modules.items()):
        # A module of another type may be imported only now, by a look at its attributes.
        if type(module) is ModuleType and vars(module).get("__file__") == path:
            return name
    return None
