"""What runs on the cluster's workers: one call, or the items of a map, from bytes to bytes."""

from __future__ import annotations

import importlib
import pickle
import traceback
from collections.abc import Callable, Iterable
from contextvars import ContextVar, copy_context
from time import perf_counter
from typing import Any, Final

import cloudpickle

OK: Final = 0
RAISED: Final = 1
LOST: Final = 2

Outcome = tuple[int, Any, float]
"""Whether it was well, the pickled result or error (the worker's address for LOST), and the seconds it took."""


class RemoteTraceback(Exception):
    """The cause of an error that was raised on a worker: its text is the traceback there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


def dumps(value: Any) -> bytes:
    """Return the pickle of a value; functions that a worker could not import are written out whole."""
    try:
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception:
        data = b""
    if not data or b"__main__" in data:
        data = cloudpickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return data


loads = pickle.loads


def perform(call: bytes) -> Outcome:
    """Make the call that `call` is the pickle of; return its outcome. It never raises."""
    began = perf_counter()
    try:
        fn, args, kwargs, values = loads(call)
        # In a copy: what the call sets stays out of the worker's thread, where distributed has variables of its own.
        result = copy_context().run(_with, values, fn, args, kwargs)
        packed = _packed(result)
    except BaseException as error:
        # Also what is no Exception: it is the call's outcome, and must not end the worker's thread.
        return RAISED, _packed_error(error), perf_counter() - began
    return OK, packed, perf_counter() - began


def lost(worker: str) -> Outcome:
    """Stand in for a call that must not be made again."""
    return LOST, worker, 0.0


def variable(name: str) -> ContextVar[Any]:
    """Return the context variable that is named as ``module:variable``.

    Raises:
        ValueError: There is none.
    """
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"there is no context variable {name!r}, written as module:variable: {error}") from error
    if not isinstance(found, ContextVar):
        raise ValueError(f"{name!r} must name a context variable, not {found!r}")
    return found


def _with(values: dict[str, Any], fn: Callable[..., Any], args: Iterable[Any], kwargs: dict[str, Any]) -> Any:
    for name, value in values.items():
        variable(name).set(value)
    return fn(*args, **kwargs)


def _packed(result: Any) -> bytes:
    try:
        return dumps(result)
    except Exception as error:
        raise TypeError(f"the result cannot be pickled: {brief(result)}: {error}") from error


def _packed_error(error: BaseException) -> bytes:
    text = "".join(traceback.format_exception(error))
    # All this is in the text. As objects it may hold what cannot be pickled, and tblib would write it.
    error.__traceback__ = error.__cause__ = error.__context__ = None
    try:
        packed = dumps((error, text))
        # An error whose arguments are not those of its class can be written, but not read.
        loads(packed)
    except Exception as reason:
        packed = dumps((TypeError(f"the error cannot be pickled: {brief(error)}: {reason}"), text))
    return packed


def brief(value: Any) -> str:
    """Return the representation of a value, of an acceptable length."""
    try:
        text = repr(value)
    except Exception as error:
        text = f"{object.__repr__(value)} ({error!r} from its __repr__)"
    return text if len(text) <= 200 else f"{text[:200]}..."


class Failed:
    """The error of one item of a map, in the place of its result."""

    __slots__ = ("packed",)

    def __init__(self, packed: bytes) -> None:
        self.packed = packed

    def __reduce__(self) -> tuple[Any, ...]:
        return Failed, (self.packed,)


def apply(fn: Callable[..., Any], items: list[tuple[Any, ...]]) -> list[Any]:
    """Call `fn` with each item; return the results, with a `Failed` in the place of an error."""
    results: list[Any] = []
    for item in items:
        try:
            results.append(fn(*item))
        except BaseException as error:
            results.append(Failed(_packed_error(error)))
    try:
        dumps(results)
    except Exception:
        return [_if_packable(result) for result in results]
    return results


def _if_packable(result: Any) -> Any:
    try:
        _packed(result)
    except TypeError as error:
        return Failed(_packed_error(error))
    return result


def error_of(packed: bytes) -> BaseException:
    """Return an error that was raised on a worker, with its traceback there as its cause."""
    error, text = loads(packed)
    error.__cause__ = RemoteTraceback(text)
    found: BaseException = error
    return found
