"""Plain Python in place of the `cython` module and the .pxd files: types, states and helpers of the core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    F = TypeVar("F", bound=Callable[..., Any])

compiled = False
bint = bool
double = float

PENDING = 0
RUNNING = 1
CANCELLED = 2
NOTIFIED = 3
FINISHED = 4


def locals(**types: Any) -> Callable[[F], F]:
    """Declare C types of local variables; nothing to a plain interpreter."""
    return lambda function: function


def nonecheck(on: bool) -> Callable[[F], F]:
    """Have compiled code raise an error for an attribute of None, as an interpreter does by itself."""
    return lambda function: function


def hold_collector() -> bool:
    """Switch the garbage collector off where compiled code may run it by making an object; return whether it was on."""
    return False


def let_collector(collects: bool) -> None:
    """Switch the garbage collector on again if it was on."""


identity = id


def code_identity(fn: Any) -> int:
    """Return the identity of a function's code."""
    return id(fn.__code__)


def _of_compiled_code(*arguments: Any) -> Any:
    """Stand for what compiled code alone calls; the .pxd files say what it is."""
    raise NotImplementedError


blank = breathe = called = called_with = enter = _of_compiled_code
fence = free_mutex = has_code = leave = _of_compiled_code


def slotted(kind: type, *arguments: Any) -> Any:
    """Return a class anew, with slots for the fields that `__init__` sets: interpreted code reads these quicker."""
    own = {name: thing for name, thing in vars(kind).items() if name not in ("__dict__", "__weakref__")}
    return type(kind)(kind.__name__, kind.__bases__, own | {"__slots__": tuple(vars(kind(*arguments)))})
