"""`socketserver`'s servers on an adaptive pool: ready-made classes, and the mix-in for one's own.

Put the mix-in in front of any server class, or take a ready-made one::

    from socketserver import StreamRequestHandler

    from ebbpool.socketserver import AdaptivePoolTCPServer


    class Echo(StreamRequestHandler):
        def handle(self):
            for line in self.rfile:
                self.wfile.write(line)


    class Server(AdaptivePoolTCPServer):
        max_workers = 200
        max_queue = 1000


    with Server(("127.0.0.1", 7000), Echo) as server:
        server.serve_forever()

The settings are class attributes; see `AdaptivePoolMixIn`.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import math
import os
import socket
import socketserver
from email.message import Message
from http import HTTPStatus
from typing import Any

from ebbpool._checks import seconds, whole
from ebbpool._http.connection import Connection
from ebbpool._http.framing import RequestLimits, response
from ebbpool._http.frontdoor import FrontDoor
from ebbpool._servers.door import LOGGER, Door
from ebbpool._servers.mixin import AdaptivePoolMixIn

__all__ = ["AdaptivePoolHTTPServer", "AdaptivePoolMixIn", "AdaptivePoolTCPServer", "AdaptivePoolUDPServer"]


class AdaptivePoolTCPServer(AdaptivePoolMixIn, socketserver.TCPServer):
    """A TCP server on an adaptive pool."""

    request_queue_size = 1024
    # Only on POSIX: on Windows the option would let another process take the port.
    allow_reuse_address: bool = os.name == "posix"


class AdaptivePoolUDPServer(AdaptivePoolMixIn, socketserver.UDPServer):
    """A UDP server on an adaptive pool."""


if hasattr(socket, "AF_UNIX"):
    __all__ += ["AdaptivePoolUnixDatagramServer", "AdaptivePoolUnixStreamServer"]

    class AdaptivePoolUnixStreamServer(AdaptivePoolMixIn, socketserver.UnixStreamServer):
        """A stream server at a path, on an adaptive pool."""

        request_queue_size = 1024

    class AdaptivePoolUnixDatagramServer(AdaptivePoolMixIn, socketserver.UnixDatagramServer):
        """A datagram server at a path, on an adaptive pool."""


class AdaptivePoolHTTPServer(AdaptivePoolTCPServer, http.server.HTTPServer):
    """`http.server.HTTPServer` on an adaptive pool; takes a worker only once a request is there.

    `serve_forever` accepts, reads heads and short bodies, and keeps connections between requests, all in its own
    thread. A worker gets a whole request, and gives the connection back. Any handler class may be used; its instance
    lives as long as one request.

    Some requests are read by their worker, with a timeout for each operation: those with a larger body, with one in
    chunks, or with one that waits for ``100 Continue``, and those that change the protocol (``Upgrade``, ``CONNECT``).
    A connection of a TLS listener, or one that `handle_request` accepts, has a worker until it ends.

    A response is as long as its ``Content-Length``: what a handler sends beyond that is dropped, and after one that
    falls short, or does not say how long it is, the connection is closed. Clients whose requests the server refuses
    itself are logged by the handler class's `log_error` and `log_request`, in the loop's thread, on an instance that
    was not initialized.

    After `shutdown` responses say ``Connection: close``. `server_close` also closes the connections between two
    requests, a second later, as a client that was not told may be about to send one. A request that is being read is
    read to its end, and answered.

    Connections leave one file descriptor to each worker, but take half of those that the process may have in any case.
    Then those that are idle are closed, and if there are none, new ones have to wait.

    The attributes may be set on a class, or on a server before it serves. Those of `AdaptivePoolMixIn` apply, too.

    Attributes:
        header_timeout: Seconds for a whole head, from its first byte, or from the accept. After that the answer is 408.
        body_timeout: Seconds that the server waits for a body, renewed while the client sends at least 500 bytes a
            second. After that the answer is 408.
        idle_timeout: Seconds between two requests. After that the connection is closed.
        request_timeout: Seconds for one operation of a handler on its connection; `math.inf` for no limit. While a
            handler reads a body it is a total, plus a second for each 500 bytes received.
        max_header_size: How many bytes a head may have. With more the answer is 431, or 414 for a long first line.
        max_buffered_body: The largest body, in bytes, that the server reads before it takes a worker. Once the bodies
            that are read, or wait for a worker, have 64 MiB together, workers read what still arrives, as larger ones.
        retry_after: The least seconds that the answer 503 names to clients that are refused: it names as many as the
            oldest task has waited.
    """

    header_timeout: float = 10.0
    body_timeout: float = 30.0
    idle_timeout: float = 60.0
    request_timeout: float = 30.0
    max_header_size: int = 65536
    max_buffered_body: int = 1 << 20
    retry_after: int = 1

    _door: FrontDoor = None  # type: ignore[assignment]  # made by the first loop, before there is any `Connection`

    @property
    def _limits(self) -> RequestLimits:
        timeout = seconds("request_timeout", self.request_timeout)
        return RequestLimits(
            header_timeout=seconds("header_timeout", self.header_timeout),
            body_timeout=seconds("body_timeout", self.body_timeout),
            idle_timeout=seconds("idle_timeout", self.idle_timeout),
            request_timeout=None if timeout == math.inf else timeout,
            max_header_size=whole("max_header_size", self.max_header_size, 1),
            max_buffered_body=whole("max_buffered_body", self.max_buffered_body, 0),
            retry_after=whole("retry_after", self.retry_after, 0),
        )

    @property
    def _pause(self) -> int:
        return max(self._limits.retry_after, math.ceil(self.pool_handlers.retry_after()))

    def server_activate(self) -> None:
        """Check the attributes, make the pool, and listen; this raises what the mix-in's does."""
        self._limits  # noqa: B018 (checked here, so that a bad attribute is found now)
        super().server_activate()
        if self._adopted:
            # What `server_bind` does besides binding, without the name service, for which no child should wait. The
            # address of a Unix socket has no host and no port, but WSGI wants both.
            address: Any = self.server_address
            host, port = address[:2] if isinstance(address, tuple) else ("localhost", 80)
            self.server_name: str = socket.gethostname() if host in ("0.0.0.0", "::") else str(host)
            self.server_port: int = int(port)
            setup_environ = getattr(self, "setup_environ", None)
            if setup_environ is not None:
                setup_environ()

    def get_request(self) -> Any:
        """Return a connection and the client's address."""
        request, client_address = super().get_request()
        if self.address_family in (socket.AF_INET, socket.AF_INET6):
            # So that a short body is not held back until the client confirms the head. Not left to the listener: the
            # system may have taken the connection before this server got it.
            with contextlib.suppress(OSError):
                request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The address of a Unix socket is a string; `http.server` needs a host, which it logs.
        return request, client_address if isinstance(client_address, tuple) else ("unix", 0)

    def _entrance(self) -> Door:
        if hasattr(self.socket, "do_handshake_on_connect"):
            return super()._entrance()
        if self._door is None:
            self._door = FrontDoor(self)
        return self._door

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Handle one request, in a worker, and give the connection back.

        An error goes to `handle_error`, and the connection is closed.
        """
        if not isinstance(request, Connection):
            if request.gettimeout() is None:
                request.settimeout(self._limits.request_timeout)
            super().process_request_thread(request, client_address)
            return
        self._door.count(request, 0)
        request.again = self._handle(request, client_address) and request.again
        self._door.give_back(request)

    def _lost(self, request: Any, client_address: Any) -> None:
        if not isinstance(request, Connection):
            super()._lost(request, client_address)
            return
        request.again = False
        self._door.count(request, 0)
        self._log_refusal(request, HTTPStatus.SERVICE_UNAVAILABLE)
        # Only the loop's thread may have the front door answer.
        with contextlib.suppress(OSError):
            request.post(self._refusal())
        self._door.give_back(request)

    def refuse_request(self, request: Any, client_address: Any) -> None:
        """Answer 503 with Retry-After. An override must not wait either."""
        if isinstance(request, Connection):
            self._door.answer(request, HTTPStatus.SERVICE_UNAVAILABLE, self._pause)
        else:
            super().refuse_request(request, client_address)

    def _log_refusal(self, connection: Connection, status: HTTPStatus) -> None:
        """Have the handler class log a refusal, as it would if it had read the request itself."""
        kind: Any = self.RequestHandlerClass
        while isinstance(kind, functools.partial):
            kind = kind.func
        line, end, _ = bytes(connection.data).partition(b"\n")
        words = str(line, "latin-1").split() if end else []
        try:
            handler = kind.__new__(kind)
            handler.request = handler.connection = connection
            handler.client_address, handler.server = connection.address, self
            handler.requestline, handler.headers = " ".join(words), Message()
            handler.command, handler.path, handler.request_version, *_ = [*words, "", "", ""]
            handler.log_error("code %d, message %s", status, status.phrase)
            handler.log_request(status)
        except Exception:
            LOGGER.warning("answered %s without a handler: %d %s", connection.address, status.value, status.phrase)

    def _refusal(self) -> bytes:
        return response(HTTPStatus.SERVICE_UNAVAILABLE, self._pause)

    def _close_listener(self, timeout: float | None) -> None:
        if self._loop.threads:
            self.shutdown()
        super()._close_listener(timeout)
        if self._door is not None:
            # What has no handler yet is read to its end, and answered.
            self._door.close(timeout)
