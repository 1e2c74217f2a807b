"""Plain Python in place of the `cython` module and the .pxd files: types, states and helpers of the core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    F = TypeVar("F", bound=Callable[..., Any])

compiled = False
bint = bool
double = float
Py_ssize_t = int

PENDING = 0
RUNNING = 1
CANCELLED = 2
NOTIFIED = 3
FINISHED = 4

# What a worker does. The last four do not count towards the ceiling, see `Staff`.
STARTING = 0
COMING = 1  # on its way to the queue
PARKED = 2
WORKING = 3
AHEAD = 4  # with a short call in hand
SHORT = 5  # the same, and there was a place for it only as a short one
LENT = 6  # with a task that has a thread beyond the ceiling
LONG = 7  # with a call that had a place only as a short one, and has turned out long
LEFT = 8  # with a call that nobody waits for
BLOCKED = 9  # it waits for this very pool
GONE = 10
STATES = 11

# What is to be done once the mutex is free, see `Pool._balance`.
START = 1  # threads for which there are places
LOOK = 2  # by the timekeeper


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
