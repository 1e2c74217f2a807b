"""Lean TCP clients: of echo servers, of servers that reply and close, and those that never come to an end."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import selectors
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Self

from benchmarks.load import Connections, Spent

_TIMEOUT = 10.0
_OTHER = bytes(byte ^ 255 for byte in range(256))


class WrongEcho(Exception):
    """What came back is not what was sent."""


def two_messages(size: int, seed: int) -> tuple[bytes, bytes]:
    """Returns two messages that differ in every byte: what is left of one never passes for the other."""
    first = random.Random(seed).randbytes(size)
    return first, first.translate(_OTHER)


def _bound_waits(connection: socket.socket, seconds: float) -> None:
    """No wait of this socket is for ever; the system looks after it, so that a call stays one system call."""
    if sys.platform == "win32":
        limit = struct.pack("=L", round(seconds * 1e3))
    else:
        limit = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, limit)


class _Client:
    """One connection, on which each message is sent when the last has come back whole."""

    def __init__(self, port: int, size: int, seed: int, timeout: float) -> None:
        self.messages = two_messages(size, seed)
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(None)
        _bound_waits(self.socket, timeout)
        self.received = bytearray(size)

    def end(self) -> None:
        """Says that nothing more will come, and looks that the server hangs up without another byte."""
        self.socket.shutdown(socket.SHUT_WR)
        if self.socket.recv(1):
            raise WrongEcho("more came back than was sent")


@dataclass(slots=True)
class Echoed(Spent):
    """How many messages came back, every byte right."""

    messages: int = 0


class EchoClients:
    """So many connections to one echo server on this machine, each with one message of `size` bytes under way.

    A context manager. They are looked after in turn, with blocking calls: two system calls a message, which may take
    `timeout` seconds.
    """

    def __init__(self, port: int, count: int, size: int, timeout: float = _TIMEOUT) -> None:
        self._size = size
        with ExitStack() as opened:
            self._clients = []
            for seed in range(count):
                self._clients.append(_Client(port, size, seed, timeout))
                opened.callback(self._clients[-1].socket.close)
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._opened.close()

    def load(self, warm_up: float, seconds: float, watch: Callable[[], float] = time.process_time) -> Echoed:
        """Sends and compares for `seconds` after `warm_up` seconds; then every client ends its connection.

        `watch` tells the processor seconds of the watched process.

        Raises:
            WrongEcho: a byte was wrong, or too few or too many came, or the server did not stop at end of file.
        """
        for client in self._clients:
            client.socket.sendall(client.messages[0])
        turn = self._rounds(warm_up, 0)[1]
        echoed = Echoed()
        ends = echoed.counting(watch)
        echoed.messages, turn = self._rounds(seconds, turn)
        ends()
        for client in self._clients:
            self._receive(client, turn)
            client.end()
        return echoed

    def _receive(self, client: _Client, turn: int) -> None:
        count = client.socket.recv_into(client.received, self._size, socket.MSG_WAITALL)
        if count != self._size or client.received != client.messages[turn]:
            raise self._wrong(client, turn, count)

    def _wrong(self, client: _Client, turn: int, count: int) -> WrongEcho:
        if count < self._size:
            return WrongEcho(f"{count} of {self._size} bytes came back")
        at = next(at for at in range(count) if client.received[at] != client.messages[turn][at])
        return WrongEcho(f"byte {at} of {self._size} is wrong")

    def _rounds(self, seconds: float, turn: int) -> tuple[int, int]:
        """Returns how many messages came back, and which of the two is under way now."""
        size, wait_all, clock = self._size, socket.MSG_WAITALL, time.perf_counter
        work = [(it.socket.recv_into, it.socket.sendall, it.messages, it.received, it) for it in self._clients]
        rounds, end = 0, clock() + seconds
        while clock() < end:
            for receive, send, messages, received, client in work:
                count = receive(received, size, wait_all)
                send(messages[1 - turn])
                # The server has the next message before this one is compared.
                if count != size or received != messages[turn]:
                    raise self._wrong(client, turn, count)
            turn = 1 - turn
            rounds += 1
        return rounds * len(work), turn


# What has read to the end of the file closes with a reset: then neither side keeps the connection in TIME_WAIT, where
# a minute of load would leave hundreds of thousands.
_RESET = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
# Linux counts what it is to drop, instead of copying it: a client that only counts is not what is measured then.
_DROP = socket.MSG_TRUNC if sys.platform == "linux" else 0
_RECEIVE = 262_144
_MOST_ERRORS = 1_000


@dataclass(slots=True)
class Replies(Spent):
    """What came back.

    Attributes:
        count: replies with the right number of bytes, up to the end of the file, that ended in `seconds`.
        errors: by kind, those that were none, at any time.
        unanswered: connections still without a reply when the time was over.
    """

    count: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    unanswered: int = 0


class _Reply:
    __slots__ = ("received", "socket")

    def __init__(self, made: socket.socket) -> None:
        self.socket, self.received = made, 0


class Reconnecting(Connections):
    """A context manager; one thread, one selector.

    Args:
        port: where the server listens, on this machine.
        count: how many connections there are at a time.
        length: how many bytes the right reply has; they are counted and not looked at.
    """

    def __init__(self, port: int, count: int, length: int) -> None:
        super().__init__()
        self._address, self._count, self._length = ("127.0.0.1", port), count, length
        self._buffer = bytearray(_RECEIVE)

    def _connect(self) -> None:
        """Opens one more connection.

        Raises:
            OSError: this machine has no port, or no memory, left for it.
        """
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        made.setblocking(False)
        made.connect_ex(self._address)
        self._selector.register(made, selectors.EVENT_READ, _Reply(made))

    def _receive(self, found: _Reply) -> str | None:
        """Reads what is there; returns "" if the reply has ended and is right, what is wrong with it, or None."""
        received, length, take = found.received, self._length, found.socket.recv_into
        buffer = self._buffer
        while True:
            try:
                count = take(buffer, _RECEIVE, _DROP)
            except BlockingIOError:
                found.received = received
                return None
            except OSError as error:
                return type(error).__name__
            if not count:
                return "" if received == length else f"{received} bytes"
            received += count
            if received > length:
                return "too many bytes"

    def _close(self, found: _Reply) -> None:
        self._selector.unregister(found.socket)
        found.socket.close()

    def _take(self, replies: Replies, timeout: float) -> int:
        """Waits for something to come; returns how many connections ended, all of which are closed."""
        ended = 0
        for key, _ in self._selector.select(timeout):
            outcome = self._receive(key.data)
            if outcome is None:
                continue
            self._close(key.data)
            ended += 1
            if outcome:
                replies.errors[outcome] += 1
            else:
                replies.count += 1
        return ended

    def load(self, warm_up: float, seconds: float, patience: float, watch: Callable[[], float]) -> Replies:
        """Keeps all connections busy for `seconds` after `warm_up` seconds; what is under way then may end.

        After `patience` seconds more it is `unanswered`. `watch` tells the processor seconds of the watched process.
        """
        clock = time.perf_counter
        replies = Replies()
        for _ in range(self._count):
            self._connect()
        self._keep_busy(replies, clock() + warm_up)
        replies.count, start, ends = 0, clock(), replies.counting(watch)
        self._keep_busy(replies, start + seconds)
        ends()
        count, end = replies.count, clock() + patience
        left = len(self._selector.get_map())
        while left and (now := clock()) < end:
            left -= self._take(replies, end - now)
        replies.count, replies.unanswered = count, left
        return replies

    def _keep_busy(self, replies: Replies, end: float) -> None:
        while (now := time.perf_counter()) < end and replies.errors.total() < _MOST_ERRORS:
            for _ in range(self._take(replies, end - now)):
                self._connect()


BODIES = {"bodies": 50_000, "large bodies": 1_000_000}
"""What a request of each kind says the length of its body is, in bytes: one that is buffered, and one that is not."""
WHATS = ("heads", *BODIES)
_LOOKS = 1000
"""How often, one every 10 ms, it looks whether all have connected."""


def beginning(what: str) -> bytes:
    """Return what is sent at once; the rest, a byte at a time, is never complete."""
    if what == "heads":
        return b"GET / HTTP/1.1\r\nhost: localhost\r\nx-slow: "
    return b"POST /upload HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % BODIES[what]


@dataclass(slots=True)
class Report:
    """What the attack has come to: connections that are open now, and those that the server ended since it began."""

    open: int = 0
    dropped: int = 0


async def _trickle(writer: asyncio.StreamWriter, interval: float) -> None:
    while True:
        await asyncio.sleep(interval)
        writer.write(b"a")


async def _trickler(port: int, text: bytes, interval: float, report: Report) -> None:
    """Connect, send a byte every `interval` seconds, and connect anew when that ends."""
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(interval)
            continue
        report.open += 1
        writer.write(text)
        sending = asyncio.create_task(_trickle(writer, interval))
        with suppress(OSError):
            while await reader.read(65_536):
                pass
        sending.cancel()
        writer.transport.abort()
        report.open -= 1
        report.dropped += 1


async def _attack(port: int, count: int, what: str, interval: float, seconds: float, tell: Connection) -> None:
    report, loop = Report(), asyncio.get_running_loop()
    start = loop.time()
    clients = []
    for number in range(count):
        await asyncio.sleep(max(0.0, start + number * interval / count - loop.time()))
        clients.append(asyncio.create_task(_trickler(port, beginning(what), interval, report)))
    for _ in range(_LOOKS):
        if report.open == count:
            break
        await asyncio.sleep(0.01)
    while loop.time() < start + seconds:
        tell.send(report)
        await asyncio.sleep(min(1.0, interval))


def attack(*arguments: Any) -> None:
    """Attack for so long, and tell again and again how it goes, from when all have connected on."""
    asyncio.run(_attack(*arguments))


@contextmanager
def trickling(port: int, count: int, what: str, seconds: float, interval: float = 1.0) -> Iterator[Report]:
    """Attack from a process of its own, from the time it has connected on; yield what is filled in at the end.

    Raises:
        EOFError: It ended before it had begun.
    """
    heard, tell = multiprocessing.Pipe(duplex=False)
    arguments = (port, count, what, interval, seconds, tell)
    process = multiprocessing.get_context("spawn").Process(target=attack, args=arguments, daemon=True)
    process.start()
    tell.close()
    try:
        last, found = heard.recv(), Report()
        yield found
    finally:
        process.kill()
        process.join()
        with suppress(EOFError, OSError):
            while True:
                last = heard.recv()
        found.open, found.dropped = last.open, last.dropped
