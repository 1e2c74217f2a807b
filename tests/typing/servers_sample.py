"""How the servers look to a type checker; checked with mypy, never run."""

from __future__ import annotations

import socket
from concurrent.futures import Executor, ThreadPoolExecutor
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseRequestHandler, StreamRequestHandler, TCPServer
from typing import Any, assert_type

from ebbpool import AdaptiveExecutor
from ebbpool.socketserver import (
    AdaptivePoolHTTPServer,
    AdaptivePoolMixIn,
    AdaptivePoolTCPServer,
    AdaptivePoolUDPServer,
    AdaptivePoolUnixDatagramServer,
    AdaptivePoolUnixStreamServer,
)


class Echo(StreamRequestHandler):
    def handle(self) -> None:
        for line in self.rfile:
            self.wfile.write(line)


class Tuned(AdaptivePoolTCPServer):
    min_workers = 2
    max_workers = 200
    min_spare_workers = 20
    keep_alive = 5.0
    max_queue = 1000
    thread_stack_size = 256 * 1024
    daemon_threads = True
    shutdown_timeout = None
    block_on_close = False

    def refuse_request(self, request: Any, client_address: Any) -> None:
        request.sendall(b"busy\n")
        super().refuse_request(request, client_address)


class Mixed(AdaptivePoolMixIn, TCPServer):
    executor = AdaptiveExecutor(max_workers=64)


class Shared(AdaptivePoolTCPServer):
    executor: Executor | None = ThreadPoolExecutor()


class Web(AdaptivePoolHTTPServer):
    max_workers = 64


def serve() -> None:
    with Tuned(("127.0.0.1", 0), Echo) as server:
        assert_type(server, Tuned)
        assert_type(server.join(), bool)
        assert_type(server.join(1.5), bool)
        assert_type(server.pool_handlers.executor, Executor)
        server.serve_forever()
        server.serve_forever(0.1)
        server.shutdown()
        server.server_close()
    Mixed(("127.0.0.1", 0), Echo)
    AdaptivePoolUDPServer(("127.0.0.1", 0), BaseRequestHandler)
    AdaptivePoolUnixStreamServer("/run/echo", Echo)
    AdaptivePoolUnixDatagramServer(b"/run/echo", BaseRequestHandler)


def adopt(listener: socket.socket) -> Tuned:
    return Tuned.from_socket(listener, Echo)


def http() -> None:
    with Web(("", 8000), SimpleHTTPRequestHandler) as server:
        assert_type(server.server_port, int)
        server.serve_forever()


def wrong() -> None:
    Tuned(("127.0.0.1", 0))  # type: ignore[call-arg]  # a handler class is needed
    Tuned.from_socket("127.0.0.1", Echo)  # type: ignore[arg-type]  # a socket, not an address
    ThreadingHTTPServer(("", 0), SimpleHTTPRequestHandler).join()  # type: ignore[attr-defined]  # the standard one has none
