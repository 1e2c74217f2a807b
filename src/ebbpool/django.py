"""Django under ASGI: `asgi(application)` runs a request's thread-sensitive code in one leased thread of a pool.

Put it around the application, in ``asgi.py``: ``application = ebbpool.django.asgi(get_asgi_application())``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import ThreadSensitiveContext
from django.db import close_old_connections, connections

from ebbpool.executor import AdaptiveExecutor, must_be_executor

__all__ = ["asgi"]


def asgi(
    application: Callable[..., Awaitable[Any]], executor: AdaptiveExecutor | None = None
) -> Callable[..., Awaitable[None]]:
    """Return an ASGI application that gives each request a `Session` of the pool for its sync code.

    Django by itself starts a thread for each request, and ends it afterwards. At the end of a session
    `close_old_connections` is called in its thread; connections that may live longer (`CONN_MAX_AGE`) stay with it for
    the next request.

    Args:
        application: What ``get_asgi_application()`` returned, or another one that is built on asgiref.
        executor: The pool; None for a new one, whose threads close their connections when they leave. One of your own
            should have ``finalizer=connections.close_all``.

    Raises:
        TypeError: `executor` is not an `AdaptiveExecutor`.
    """
    if executor is None:
        executor = AdaptiveExecutor(thread_name_prefix="django", finalizer=connections.close_all)
    else:
        must_be_executor(executor)
    pool = executor

    async def in_session(scope: Any, receive: Any, send: Any) -> None:
        session = pool.session(finalizer=close_old_connections)
        try:
            async with ThreadSensitiveContext(executor=session):
                await application(scope, receive, send)
        finally:
            session.shutdown(wait=False)

    return in_session
