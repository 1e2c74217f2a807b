"""An asyncio front for blocking handlers, twice: a plain `asyncio.start_server`, and a Flask app behind uvicorn.

A front reads a request whole, within limits on its size and on the time it may take, and only then takes a worker of
the pool for the handler. docs/servers.md says what each protects against.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from benchmarks.peers import package

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[str, str]]
Handler = Callable[[str, str, bytes], bytes]
"""Gets method, target and body in a worker, and returns the body of the response."""

_LOG = logging.getLogger("benchmarks.fronts")
_READ = 65_536
_CLOSE = [("connection", "close")]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client is granted: seconds for a whole head, body and response; bytes of a head and of a body."""

    head_seconds: float = 10.0
    body_seconds: float = 30.0
    write_seconds: float = 30.0
    head_bytes: int = 65_536
    body_bytes: int = 1_048_576


class Refused(Exception):
    """The client gets this status, and the connection ends."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class PlainFront:
    """What `asyncio.start_server` calls with each connection: HTTP/1.1, spoken with h11.

    Args:
        pool: an `AdaptiveExecutor`; one that rejects what its queue cannot hold lets clients see a 503.
        handler: called in a worker with each complete request; what it raises is logged, and answered with a 500.
        limits: what a client is granted.
    """

    def __init__(self, pool: Any, handler: Handler, limits: Limits) -> None:
        self._pool, self._handler, self._limits = pool, handler, limits
        self._h11, self._queue_full = package("h11"), package("ebbpool").QueueFull

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        h11 = self._h11
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=self._limits.head_bytes)
        # Otherwise `drain` would not wait for the last 64 kB.
        writer.transport.set_write_buffer_limits(0)
        try:
            while await self._exchange(connection, reader, writer):
                connection.start_next_cycle()
        except OSError:
            # The client is gone, or takes nothing (TimeoutError is one).
            writer.transport.abort()
        finally:
            writer.close()

    async def _exchange(self, connection: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answers one request; returns whether another may follow."""
        method = ""
        try:
            request = await self._head(connection, reader)
            if request is None:
                return False
            method, target = request.method.decode("ascii"), request.target.decode("ascii")
            body = await self._body(connection, request, reader, writer)
            status, answer, headers = await self._handle(method, target, body)
        except Refused as refused:
            status, answer, headers = refused.status, b"", _CLOSE
        if writer.is_closing():
            return False
        h11 = self._h11
        response = h11.Response(status_code=status, headers=[("content-length", str(len(answer))), *headers])
        body_sent = h11.Data(data=b"" if method == "HEAD" else answer)
        writer.write(b"".join(map(connection.send, (response, body_sent, h11.EndOfMessage()))))
        async with asyncio.timeout(self._limits.write_seconds):
            await writer.drain()
        return connection.our_state is h11.DONE is connection.their_state

    async def _handle(self, *request: Any) -> tuple[int, bytes, Headers]:
        try:
            return 200, await self._pool.run(self._handler, *request), []
        except self._queue_full:
            return 503, b"", [("retry-after", "1")]
        except Exception:
            _LOG.exception("the handler failed")
            return 500, b"", _CLOSE

    async def _event(self, connection: Any, reader: asyncio.StreamReader) -> Any:
        try:
            while (event := connection.next_event()) is self._h11.NEED_DATA:
                connection.receive_data(await reader.read(_READ))
        except self._h11.RemoteProtocolError as error:
            raise Refused(error.error_status_hint) from error
        return event

    async def _head(self, connection: Any, reader: asyncio.StreamReader) -> Any:
        """Returns the next request, or None when there is none: the client left, or was idle for too long."""
        try:
            async with asyncio.timeout(self._limits.head_seconds):
                event = await self._event(connection, reader)
        except TimeoutError:
            if connection.trailing_data[0]:
                raise Refused(408) from None
            return None
        return event if isinstance(event, self._h11.Request) else None

    async def _body(
        self, connection: Any, request: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bytes:
        most, body = self._limits.body_bytes, bytearray()
        if int(dict(request.headers).get(b"content-length", 0)) > most:
            raise Refused(413)
        if connection.they_are_waiting_for_100_continue:
            writer.write(connection.send(self._h11.InformationalResponse(status_code=100, headers=[])))
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                while isinstance(part := await self._event(connection, reader), self._h11.Data):
                    body += part.data
                    if len(body) > most:
                        raise Refused(413)
        except TimeoutError:
            raise Refused(408) from None
        return bytes(body)


class WholeBody:
    """An ASGI app that reads a request's body, within limits, before the app behind it sees the request.

    A body that came in chunks gets a content-length: a2wsgi gives an app none, and Flask reads nothing then.
    """

    def __init__(self, app: Any, limits: Limits) -> None:
        self._app, self._limits = app, limits

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body, more = bytearray(), True
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return
                    body += message.get("body", b"")
                    if len(body) > self._limits.body_bytes:
                        raise Refused(413)
                    more = message.get("more_body", False)
        except (TimeoutError, Refused) as error:
            headers = [(b"content-length", b"0"), (b"connection", b"close")]
            status = getattr(error, "status", 408)
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
            return
        headers = [header for header in scope["headers"] if header[0] not in (b"content-length", b"transfer-encoding")]
        headers.append((b"content-length", b"%d" % len(body)))
        whole = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def again() -> Message:
            return whole.pop() if whole else await receive()

        await self._app({**scope, "headers": headers}, again, send)


def flask_app(handler: Handler) -> Any:
    """Returns a Flask app that has every request answered by `handler`."""
    flask = package("flask")
    app = flask.Flask(__name__)

    def view(path: str = "") -> Any:
        return flask.Response(handler(flask.request.method, flask.request.full_path, flask.request.get_data()))

    for rule in ("/", "/<path:path>"):
        app.add_url_rule(rule, view_func=view, methods=["GET", "POST"])
    return app


def asgi(wsgi: Any, pool: Any, limits: Limits | None) -> Any:
    """Returns a WSGI app as an ASGI app whose calls run on `pool`.

    Without `limits` a request gets its worker when its head is there, and the worker waits for the body.
    """
    app = package("a2wsgi").WSGIMiddleware(wsgi)
    # It makes an executor for itself, which starts no thread before it is used; there is no argument for another one.
    app.executor = pool
    return app if limits is None else WholeBody(app, limits)


def uvicorn_server(app: Any) -> Any:
    """Returns a `uvicorn.Server`, to be given a socket that listens.

    h11 limits the size of a head to 64 kB; httptools, the quicker parser, does not.
    """
    uvicorn = package("uvicorn")
    return uvicorn.Server(uvicorn.Config(app, http="h11", lifespan="off", log_config=None, access_log=False))
