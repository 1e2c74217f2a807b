"""A stand-in for the `cython` module where Cython is not installed: the engine runs as plain Python there."""

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


def fence() -> None:
    """Order memory accesses of compiled code; an interpreter does that by itself."""


def hold_collector() -> bool:
    """Switch the garbage collector off where compiled code may run it by making an object; return whether it was on."""
    return False


def let_collector(collects: bool) -> None:
    """Switch the garbage collector on again if it was on."""


def context_value(variable: Any) -> Any:
    """Return the value of a context variable, or None."""
    return variable.get(None)


def breathe() -> None:
    """Pass the interpreter's eval breaker; interpreted code does that by itself."""


def enter(context: Any) -> None:
    """Enter a context in compiled code; an interpreter goes through `Context.run`."""
    raise NotImplementedError


def leave(context: Any) -> None:
    """Leave a context in compiled code."""
    raise NotImplementedError


def altered() -> bool:
    """Return, in compiled code, whether a type or a function's code has changed since `remember` was called."""
    raise NotImplementedError


def remember(kind: Any, tag: int, function: Any, code: Any) -> None:
    """Note a type's version and a function's code for `altered`."""
    raise NotImplementedError


def version(kind: Any) -> int:
    """Return the version of a type in compiled code; 0 if it has none."""
    raise NotImplementedError


def free_mutex(pool: Any) -> bool:
    """Free the mutex of a pool in a forked child, in compiled code."""
    raise NotImplementedError


def blank(base: Any, kind: Any, empty: tuple[()]) -> Any:
    """Return `base.__new__(kind)`, in compiled code."""
    raise NotImplementedError


def called(fn: Any, args: Any) -> Any:
    """Return `fn(*args)`, in compiled code."""
    raise NotImplementedError


def called_with(fn: Any, argument: Any) -> Any:
    """Return `fn(argument)`, in compiled code."""
    raise NotImplementedError


def slotted(kind: type, *arguments: Any) -> Any:
    """Return a class anew, with slots for the fields that `__init__` sets: interpreted code reads these quicker."""
    own = {name: thing for name, thing in vars(kind).items() if name not in ("__dict__", "__weakref__")}
    return type(kind)(kind.__name__, kind.__bases__, own | {"__slots__": tuple(vars(kind(*arguments)))})
