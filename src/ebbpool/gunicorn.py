"""gunicorn: a worker with threads that come and go.

Start it with ``gunicorn --worker-class ebbpool.gunicorn.AdaptiveThreadWorker app:app``.
"""

from __future__ import annotations

import math
import ssl
from functools import partial
from http import HTTPStatus
from selectors import EVENT_READ
from typing import Any, ClassVar, Final

from gunicorn.workers.gthread import TConn, ThreadWorker

from ebbpool._clock import monotonic
from ebbpool._errors import QueueFull
from ebbpool._http.framing import response
from ebbpool._servers.door import turn_away
from ebbpool.executor import AdaptiveExecutor

__all__ = ["AdaptiveThreadWorker"]


SILENCE: Final = 5.0
"""Seconds, beside those of ``--keep-alive``, after which a connection that says nothing is closed, as gthread does."""


class AdaptiveThreadWorker(ThreadWorker):
    """gunicorn's gthread worker on a pool; ``--threads`` is its ceiling, if it is not 1, gunicorn's default.

    A request that the pool refuses, or that waits for longer than its `max_wait`, is answered with 503 and
    ``Retry-After``. A TLS connection whose handshake has not been made is closed. A new connection takes a thread once
    its client has sent something; gthread has one wait for that for five seconds.

    Attributes:
        settings: Further arguments for the `AdaptiveExecutor`; a subclass may have others.
    """

    settings: ClassVar[dict[str, Any]] = {}
    nr_conns: int

    def get_thread_pool(self) -> AdaptiveExecutor:
        """Return the pool; called by gunicorn in each worker process."""
        ceiling: Any = None if self.cfg.threads == 1 else self.cfg.threads
        pool = AdaptiveExecutor(**{"max_workers": ceiling, "thread_name_prefix": "gunicorn"} | self.settings)
        self.log.info("Pool %r: at most %d threads", pool.name, pool.stats().max_workers)
        return pool

    def enqueue_req(self, conn: TConn) -> None:
        """Have a request run, or refuse it, or wait for its beginning; called by gunicorn, in its loop."""
        if not (conn.initialized or getattr(conn, "data_ready", True)):
            conn.sock.setblocking(False)
            conn.timeout = monotonic() + SILENCE + self.cfg.keepalive
            self.pending_conns.append(conn)
            self.poller.register(conn.sock, EVENT_READ, partial(self.on_pending_socket_readable, conn))
            return
        try:
            super().enqueue_req(conn)
        except QueueFull as error:
            self._refuse(conn, error)
            self.nr_conns -= 1
            conn.close()

    def finish_request(self, *given: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Go on with a connection, whose request has run or never will; called by gunicorn, in its loop."""
        # The connection comes first, or in older versions with the future.
        future = given[-1]
        error = None if future.cancelled() else future.exception()
        # It is the pool's: what the application raises has been answered in its thread.
        if isinstance(error, QueueFull):
            self._refuse(given[0] if len(given) > 1 else future.conn, error)
        super().finish_request(*given)

    def _cap_keepalive(self, deadline: float) -> None:
        super()._cap_keepalive(deadline)  # pyright: ignore[reportAttributeAccessIssue]  # not in its stubs
        for conn in self.pending_conns:
            conn.timeout = min(deadline, conn.timeout or deadline)

    def _refuse(self, conn: TConn, error: QueueFull) -> None:
        """Answer a request that is not run, without waiting for the client. gunicorn closes the connection then."""
        self.log.warning("Refused a request of %s: %s", conn.client, error)
        encrypted = conn.cfg.is_ssl and not isinstance(conn.sock, ssl.SSLSocket)
        answer = response(HTTPStatus.SERVICE_UNAVAILABLE, max(1, math.ceil(error.retry_after)))
        turn_away(conn.sock, b"" if encrypted else answer)
