"""The TCP servers of `server_sizes`, `waiting` and `echo`: one handler on each way to run it, and event loops."""

from __future__ import annotations

import asyncio
import queue
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

from benchmarks.load.serving import announce, serve_forever
from benchmarks.peers import package
from benchmarks.servers import main

ADDRESS = ("127.0.0.1", 0)
BACKLOG = 1024
BODY = b"awake\n"
RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 6\r\nConnection: close\r\n\r\n" + BODY
_RECEIVE = 65_536

Handle = Callable[[Any], None]


def writes(count: int) -> Handle:
    """Return a handler that writes `count` bytes, whoever asks."""
    payload = bytes(count)

    def handle(connection: Any) -> None:
        if payload:
            connection.sendall(payload)

    return handle


def sleeps(seconds: float, sleep: Callable[[float], object]) -> Handle:
    """Return a handler that reads a request's head, sleeps, and answers; without sleeping if `seconds` is 0."""

    def handle(connection: Any) -> None:
        head = connection.recv(_RECEIVE)
        while b"\r\n\r\n" not in head:
            more = connection.recv(_RECEIVE)
            if not more:
                return
            head += more
        if seconds:
            sleep(seconds)
        connection.sendall(RESPONSE)

    return handle


def _no_delay(connection: Any) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def echoes(connection: Any) -> None:
    """Send back exactly what comes, with one preallocated buffer, until the end of what the client sends."""
    _no_delay(connection)
    buffer = memoryview(bytearray(_RECEIVE))
    receive, send = connection.recv_into, connection.sendall
    while count := receive(buffer):
        send(buffer[:count])


class TCPServer(socketserver.TCPServer):
    """One after another, in the thread that accepts."""

    request_queue_size = BACKLOG
    allow_reuse_address = True


class ThreadingServer(socketserver.ThreadingMixIn, TCPServer):
    """A thread for each connection."""


class ExecutorMixIn(socketserver.ThreadingMixIn):
    """The standard library's pool: a thread is held as long as the connection lasts."""

    executor: ThreadPoolExecutor

    def process_request(self, request: Any, client_address: Any) -> None:
        self.executor.submit(self.process_request_thread, request, client_address)


class ExecutorServer(ExecutorMixIn, TCPServer):
    """A fixed pool."""


class Rule2008Server(socketserver.ThreadingMixIn, TCPServer):
    """A pool by the rule of the ThreadPoolingMixIn of 2008, which its later copies (as `ThreadPoolMixIn`) still have.

    All requests go to one queue. After putting one there, the accepting thread adds a worker if more than 3 wait and
    there are fewer than `max_workers`; a worker counts from when it runs. After each request a worker leaves if more
    than `min_spare_workers` others, or itself, have nothing to do; `min_workers` is only how many there are at first.
    """

    def start_pool(self, min_workers: int, max_workers: int, min_spare_workers: int) -> None:
        self._requests: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        self._most, self._spare = max_workers, min_spare_workers
        self._workers = self._busy = 0
        self._counts = threading.Lock()
        for _ in range(min_workers):
            threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        with self._counts:
            self._workers += 1
        while True:
            request, client_address = self._requests.get()
            with self._counts:
                self._busy += 1
            self.process_request_thread(request, client_address)
            with self._counts:
                self._busy -= 1
                if self._workers - self._busy > self._spare:
                    self._workers -= 1
                    return

    def process_request(self, request: Any, client_address: Any) -> None:
        self._requests.put((request, client_address))
        with self._counts:
            if self._requests.qsize() > 3 and self._workers < self._most:
                threading.Thread(target=self._work, daemon=True).start()


def _handler(handle: Handle) -> type[socketserver.BaseRequestHandler]:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            handle(self.request)

    return Handler


def adaptive(workers: int, handle: Handle) -> Any:
    base = package("ebbpool.socketserver").AdaptivePoolTCPServer
    made = type("Server", (base,), {"request_queue_size": BACKLOG, "max_workers": workers})
    return made(ADDRESS, _handler(handle))


def bare_thread(workers: int, handle: Handle) -> Any:
    """The accept loop of `adaptive`, and one bare thread behind a queue: no pool, no futures, nothing to wait for."""
    waiting: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()

    class Server(package("ebbpool.socketserver").AdaptivePoolTCPServer):  # type: ignore[misc]  # imported when asked for
        request_queue_size = BACKLOG

        def process_request(self, request: Any, client_address: Any) -> None:
            waiting.put((request, client_address))

    def work() -> None:
        while True:
            request, client_address = waiting.get()
            server.process_request_thread(request, client_address)

    server = Server(ADDRESS, _handler(handle))
    threading.Thread(target=work, daemon=True).start()
    return server


def executor(workers: int, handle: Handle) -> Any:
    server = ExecutorServer(ADDRESS, _handler(handle))
    server.executor = ThreadPoolExecutor(workers)
    return server


def rule_2008(workers: int, handle: Handle) -> Any:
    server = Rule2008Server(ADDRESS, _handler(handle))
    server.start_pool(2, workers, 20)
    return server


def greenlets(workers: int, handle: Handle) -> Any:
    """A greenlet for each connection, whose sockets give way where others block; gevent closes what is left open."""
    found = package("gevent.server").StreamServer(
        ADDRESS, lambda connection, address: handle(connection), backlog=BACKLOG
    )
    found.start()
    return found


WAYS: dict[str, Callable[[int, Handle], Any]] = {
    "adaptive": adaptive,
    "bare-thread": bare_thread,
    "executor": executor,
    "gevent": greenlets,
    "rule-2008": rule_2008,
    "sequential": lambda workers, handle: TCPServer(ADDRESS, _handler(handle)),
    "threading": lambda workers, handle: ThreadingServer(ADDRESS, _handler(handle)),
}


def serve(way: str, workers: str = "200", answer: str = "echo", size: str = "0") -> None:
    """Serve: "echo" sends back what comes, "bytes" writes `size` of them, "sleep" answers after `size` seconds."""
    pause = package("gevent").sleep if way == "gevent" else time.sleep
    handles: dict[str, Callable[[], Handle]] = {
        "echo": lambda: echoes,
        "bytes": lambda: writes(int(size)),
        "sleep": lambda: sleeps(float(size), pause),
    }
    serve_forever(WAYS[way](int(workers), handles[answer]()))


async def stream_echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The echo of a program that uses streams."""
    _no_delay(writer.get_extra_info("socket"))
    try:
        while data := await reader.read(_RECEIVE):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


class _Paused(asyncio.BaseProtocol):
    """Reads no more while the client takes nothing."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        _no_delay(transport.get_extra_info("socket"))

    def pause_writing(self) -> None:
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.transport.resume_reading()


class ProtocolEcho(_Paused, asyncio.Protocol):
    """The echo of a program that uses protocols."""

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class BufferedEcho(_Paused, asyncio.BufferedProtocol):
    """The same into a preallocated buffer; into a new one while the transport still sends from the last."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(_RECEIVE))

    def get_buffer(self, sizehint: int) -> memoryview:
        # What is written is not copied: it must not change before it is sent.
        if self.transport.get_write_buffer_size():
            self._buffer = memoryview(bytearray(_RECEIVE))
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.transport.write(self._buffer[:nbytes])


async def _loop_server(protocol: Callable[[], asyncio.BaseProtocol] | None) -> None:
    if protocol is None:
        server = await asyncio.start_server(stream_echo, *ADDRESS, backlog=BACKLOG)
    else:
        server = await asyncio.get_running_loop().create_server(protocol, *ADDRESS, backlog=BACKLOG)
    async with server:
        announce(server.sockets[0].getsockname()[1])
        await server.serve_forever()


def _on_loop(protocol: Callable[[], asyncio.BaseProtocol] | None, loop: str) -> None:
    with asyncio.Runner(loop_factory=package(loop).new_event_loop) as runner:
        runner.run(_loop_server(protocol))


_ON_LOOPS = {"streams": None, "protocol": ProtocolEcho, "buffered": BufferedEcho}

if __name__ == "__main__":
    ways = {way: partial(serve, way) for way in WAYS}
    main(ways | {kind: partial(_on_loop, protocol) for kind, protocol in _ON_LOOPS.items()})
