"""For both of anyio's backends: the token for `anyio.from_thread`, and a call that hides StopIteration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import anyio.lowlevel

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import ContextVar

LIBRARY: ContextVar[str | None] | None
"""sniffio's variable for the async library of the caller, if sniffio is installed. In a worker there is none."""
try:
    from sniffio import current_async_library_cvar as LIBRARY
except ImportError:
    LIBRARY = None

BACKEND_IS_APART: Final = not hasattr(anyio.lowlevel, "EventLoopToken")
"""Whether a worker gets the backend in a variable of its own, as before anyio 4.11."""

CANCELLED: Final = "the pool cancelled the call before it began"


def token_for(backend: Any, native: Any) -> Any:
    """Return the token that ``anyio.from_thread`` uses for `native`, a loop or a trio token, of `backend`."""
    return native if BACKEND_IS_APART else anyio.lowlevel.EventLoopToken(backend, native)


def call(func: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Call `func`; turn StopIteration into an error that a coroutine can raise."""
    try:
        return func(*args)
    except StopIteration as error:
        raise RuntimeError("coroutine raised StopIteration") from error
