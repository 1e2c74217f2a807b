"""Stands in for the `cython` module where Cython is not installed: `_core` runs as plain Python there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    F = TypeVar("F", bound=Callable[..., Any])

compiled = False
bint = bool


def locals(**types: Any) -> Callable[[F], F]:
    """Declares C types of local variables; nothing to a plain interpreter."""
    return lambda function: function


def fence() -> None:
    """Orders memory accesses of compiled code; an interpreter does that by itself."""


def breathe() -> None:
    """Lets another thread have the GIL; an interpreter does that by itself."""


def enter(context: Any) -> None:
    """Enters a context in compiled code; an interpreter goes through `Context.run`."""
    raise NotImplementedError


def leave(context: Any) -> None:
    """Leaves a context in compiled code."""
    raise NotImplementedError
