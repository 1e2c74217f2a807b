"""For both of anyio's backends: a call in a worker, with what it has of `anyio.from_thread`."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

import anyio.lowlevel
from anyio._core._eventloop import threadlocals

LIBRARY: ContextVar[str | None] | None
"""sniffio's variable for the async library of the caller, if sniffio is installed. In a worker there is none."""
try:
    from sniffio import current_async_library_cvar as LIBRARY
except ImportError:
    LIBRARY = None

CANCELLED: Final = "the pool cancelled the call before it began"


def way_back(backend: Any, native: Any) -> dict[str, Any]:
    """Return the attributes of a worker through which ``anyio.from_thread`` finds a loop, or a trio token."""
    return {"current_token": anyio.lowlevel.EventLoopToken(backend, native)}


def call(func: Callable[..., Any], args: tuple[Any, ...], attributes: dict[str, Any] | None, scope: Any = None) -> Any:
    """Call `func`, in a worker with its way back, if that is given; raise no StopIteration, which no coroutine can."""
    if LIBRARY is not None and LIBRARY.get() is not None:
        LIBRARY.set(None)
    # The thread's own dictionary: each look-up through a `threading.local` would search for it anew.
    own = threadlocals.__dict__
    if attributes is not None:
        own.update(attributes)
        own["current_cancel_scope"] = scope
    try:
        return func(*args)
    except StopIteration as error:
        raise RuntimeError("coroutine raised StopIteration") from error
    finally:
        if attributes is not None:
            own.clear()
