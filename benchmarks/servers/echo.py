"""The echo servers of `echo`: each sends back exactly what came, and stops at the end of what a client sends."""

from __future__ import annotations

import asyncio
import socket
import socketserver
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from benchmarks.load.serving import announce, serve_forever
from benchmarks.peers import package
from benchmarks.servers import Kinds, main

ADDRESS = ("127.0.0.1", 0)
_BACKLOG = 128
_READ = 65_536


def handler() -> type[socketserver.BaseRequestHandler]:
    """Return the blocking echo, with one preallocated buffer a connection."""

    class Echo(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            buffer = memoryview(bytearray(_READ))
            receive, send = self.request.recv_into, self.request.sendall
            while count := receive(buffer):
                send(buffer[:count])

    return Echo


class ThreadingServer(socketserver.ThreadingTCPServer):
    """A thread per connection, started for it and ended after it."""

    request_queue_size = _BACKLOG


def _greenlets() -> None:
    """The blocking handler as it is, each connection in a greenlet: gevent's sockets give way where others block."""
    handle: Any = handler()
    found = package("gevent.server").StreamServer(
        ADDRESS, lambda connection, address: handle(connection, address, None), backlog=_BACKLOG
    )
    found.start()
    serve_forever(found)


def _pool() -> None:
    serve_forever(package("ebbpool.socketserver").AdaptivePoolTCPServer(ADDRESS, handler()))


async def stream_echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The echo of a program that uses streams."""
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        while data := await reader.read(_READ):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


class _Paused(asyncio.BaseProtocol):
    """Reads no more while the client takes nothing."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

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
        self._buffer = memoryview(bytearray(_READ))

    def get_buffer(self, sizehint: int) -> memoryview:
        # What is written is not copied: it must not change before it is sent.
        if self.transport.get_write_buffer_size():
            self._buffer = memoryview(bytearray(_READ))
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.transport.write(self._buffer[:nbytes])


async def _loop_server(kind: str) -> None:
    loop = asyncio.get_running_loop()
    server: asyncio.Server
    if kind == "streams":
        server = await asyncio.start_server(stream_echo, *ADDRESS, backlog=_BACKLOG)
    else:
        made: Callable[[], asyncio.BaseProtocol] = {"protocol": ProtocolEcho, "buffered": BufferedEcho}[kind]
        server = await loop.create_server(made, *ADDRESS, backlog=_BACKLOG)
    async with server:
        announce(server.sockets[0].getsockname()[1])
        await server.serve_forever()


def _on_loop(kind: str, loop: str = "asyncio") -> None:
    with asyncio.Runner(loop_factory=package(loop).new_event_loop) as runner:
        runner.run(_loop_server(kind))


KINDS: Kinds = {
    "pool": _pool,
    "threading": lambda: serve_forever(ThreadingServer(ADDRESS, handler())),
    "gevent": _greenlets,
    **{kind: partial(_on_loop, kind) for kind in ("streams", "protocol", "buffered")},
}

if __name__ == "__main__":
    main(KINDS)
