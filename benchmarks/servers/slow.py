"""The servers of `slow_clients`: all answer `GET /` with one small page, and `POST /upload` when they have the body."""

from __future__ import annotations

import asyncio
import http.server
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.load.serving import announce, serve_forever
from benchmarks.peers import package
from benchmarks.servers import Kinds, main
from benchmarks.servers.tcp import ExecutorMixIn

PAGE = b"<!doctype html><title>page</title><p>" + b"ebb and flow " * 64
_ADDRESS = ("127.0.0.1", 0)
_BACKLOG = 1024
_HEAD_SECONDS, _BODY_SECONDS = 10.0, 30.0
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)


class PageHandler(http.server.BaseHTTPRequestHandler):
    """The same page for the servers of `http.server`."""

    protocol_version = "HTTP/1.1"
    # The head and the body are two writes, and Nagle's algorithm would hold the second one back.
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.do_GET()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the name is http.server's)
        pass


class _Quiet:
    """What slow clients leave behind, when they are gone, is no news."""

    request_queue_size = _BACKLOG

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


class ThreadPerConnection(_Quiet, http.server.ThreadingHTTPServer):
    """The standard library's."""


class FixedPool(_Quiet, ExecutorMixIn, http.server.HTTPServer):
    """The standard library's server with a `ThreadPoolExecutor`."""

    def __init__(self, workers: int) -> None:
        super().__init__(_ADDRESS, PageHandler)
        self.executor = ThreadPoolExecutor(workers)


def adaptive() -> None:
    class Server(_Quiet, package("ebbpool.socketserver").AdaptivePoolHTTPServer):  # type: ignore[misc]  # imported when asked for
        """Ours, with its settings as they come."""

    serve_forever(Server(_ADDRESS, PageHandler))


def plain_front() -> None:
    """Asyncio reads a request whole, within a time, and only then takes a worker of the pool."""

    async def front(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                async with asyncio.timeout(_HEAD_SECONDS):
                    head = await reader.readuntil(b"\r\n\r\n")
                if length := _LENGTH.search(head):
                    async with asyncio.timeout(_BODY_SECONDS):
                        await reader.readexactly(int(length[1]))
                page = await pool.run(lambda: PAGE)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(page), page))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            writer.transport.abort()

    async def serve() -> None:
        server = await asyncio.start_server(front, *_ADDRESS, backlog=_BACKLOG)
        announce(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    with package("ebbpool").AdaptiveExecutor() as pool:
        asyncio.run(serve())


def greenlets() -> None:
    def wsgi(environ: Any, start_response: Any) -> list[bytes]:
        environ["wsgi.input"].read()
        start_response("200 OK", [("Content-Length", str(len(PAGE)))])
        return [PAGE]

    server = package("gevent.pywsgi").WSGIServer(_ADDRESS, wsgi, backlog=_BACKLOG, log=None, error_log=None)
    server.start()
    # What is accepted inherits it; see `PageHandler`.
    server.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    serve_forever(server)


KINDS: Kinds = {
    "adaptive": adaptive,
    "plain-front": plain_front,
    "threads": lambda: serve_forever(ThreadPerConnection(_ADDRESS, PageHandler)),
    "fixed-20": lambda: serve_forever(FixedPool(20)),
    "fixed-200": lambda: serve_forever(FixedPool(200)),
    "gevent": greenlets,
}

if __name__ == "__main__":
    main(KINDS)
