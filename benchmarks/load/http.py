"""Lean clients, every answer of which is looked at.

`Clients` have prepared HTTP/1.1 requests on raw sockets and one selector; `Reconnecting` are those of a server that
writes and closes. `ask_steadily` asks at a bounded rate, and survives the deaths of those who serve.
"""

from __future__ import annotations

import asyncio
import re
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from benchmarks.engine.model import Column, Samples, spread

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)[ \t]*\r\n", re.IGNORECASE)
END_OF_HEAD = b"\r\n\r\n"
_RECEIVE = 65_536
_MOST_ERRORS = 1_000

WRONG = Column("errors", "wrong responses", 0, ratio=False, worst=True, wrong=True)
CLIENT = Column("client", "% of a processor, client", 0, ratio=False)


def served_columns(digits: int) -> tuple[Column, ...]:
    """Return the columns of what `Answered.served` says, the times in ms with so many digits."""
    return (
        Column("rate", "requests/s", 0, more=True),
        Column("p50", "p50, ms", digits, ratio=False),
        Column("p99", "p99, ms", digits),
        Column("cpu", "CPU, µs per request", 0),
        WRONG,
        CLIENT,
    )


class BadResponse(Exception):
    """What came is no HTTP/1.1 response with a length."""


def parse_head(head: bytes) -> tuple[int, int]:
    """Return the status of an HTTP/1.1 response, and how long it says that its body is; else it is a `BadResponse`."""
    length = _LENGTH.search(head)
    if head[:9] != b"HTTP/1.1 " or not head[9:12].isdigit() or length is None:
        raise BadResponse(repr(head))
    return int(head[9:12]), int(length[1])


def take_response(received: bytes) -> tuple[int, bytes, bytes] | None:
    """Return status and body of the first response in `received`, and what follows it; None while it is incomplete."""
    end = received.find(END_OF_HEAD)
    if end < 0:
        return None
    status, length = parse_head(received[: end + 2])
    start = end + len(END_OF_HEAD)
    stop = start + length
    if len(received) < stop:
        return None
    return status, received[start:stop], received[stop:]


def request(target: str, kept: bool = True) -> bytes:
    close = "" if kept else "connection: close\r\n"
    return f"GET {target} HTTP/1.1\r\nhost: localhost\r\n{close}\r\n".encode("ascii")


class Connection:
    """One keep-alive connection on an event loop, with at most one request under way."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    @property
    def ended(self) -> bool:
        """Whether the server has ended it."""
        return self._reader.at_eof()

    async def get(self, text: bytes) -> tuple[int, bytes]:
        """Send a request, and return the status and the body of the response; OSError if the connection ends before."""
        try:
            self._writer.write(text)
            status, length = parse_head(await self._reader.readuntil(END_OF_HEAD))
            return status, await self._reader.readexactly(length)
        except asyncio.IncompleteReadError as error:
            raise ConnectionResetError("the server closed the connection") from error

    def close(self) -> None:
        self._writer.transport.abort()


@dataclass(slots=True)
class Answered:
    """What came back.

    Attributes:
        seconds: How long it took; `cpu_seconds` is what the clients needed of a processor meanwhile, `watched_seconds`
            what a watched process did.
        latencies: In seconds, of the right answers (of a burst, of all).
        errors: Answers that were wrong, or never came.
        unanswered: Of `Reconnecting`: connections still without a reply when the time was over.
    """

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    watched_seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    errors: int = 0
    unanswered: int = 0

    def counting(self, watch: Callable[[], float] = time.process_time) -> Callable[[], None]:
        """Begin to count; the call returned ends it. `watch` tells the processor seconds of the watched process."""
        start, cpu, watched = time.perf_counter(), time.process_time(), watch()

        def end() -> None:
            self.seconds = time.perf_counter() - start
            self.cpu_seconds, self.watched_seconds = time.process_time() - cpu, watch() - watched

        return end

    def rate(self, count: int | None = None) -> Samples:
        """Return how many answers came a second, how busy the clients were (%), and the server's µs for each."""
        count = len(self.latencies) if count is None else count
        if not count:
            raise RuntimeError(f"not one right answer, {self.errors} wrong ones, {self.unanswered} that never came")
        found = {"rate": [count / self.seconds], "client": [self.cpu_seconds / self.seconds * 100]}
        return found | ({"cpu": [self.watched_seconds / count * 1e6]} if self.watched_seconds else {})

    def served(self) -> Samples:
        """Return the same, how late the answers were (ms), and the wrong ones."""
        return self.rate() | spread(self.latencies) | {"errors": [float(self.errors)]}


class Client:
    """One keep-alive connection, with at most one request under way, which was asked for at `sent_at`."""

    def __init__(self, port: int, selector: selectors.BaseSelector, text: bytes, expected: bytes) -> None:
        self._port, self._selector, self._text, self._expected = port, selector, text, expected
        self._received = b""
        self.sent_at = 0.0
        self.connect()

    def connect(self) -> None:
        self.socket = socket.create_connection(("127.0.0.1", self._port), timeout=10.0)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self._selector.register(self.socket, selectors.EVENT_READ, self)

    def close(self) -> None:
        self._selector.unregister(self.socket)
        self.socket.close()

    def ask(self) -> None:
        self.sent_at = time.perf_counter()
        if self._text and self.socket.send(self._text) != len(self._text):
            raise OSError("the socket takes no whole request")

    def receive(self) -> bool | None:
        """Return whether the answer is right; None while it is not complete. An error ends the connection."""
        data = self.socket.recv(_RECEIVE)
        if not data:
            raise ConnectionResetError("the server closed the connection")
        found = take_response(self._received + data if self._received else data)
        if found is None:
            self._received += data
            return None
        status, body, self._received = found
        return status == 200 and body == self._expected and not self._received


class FreshClient(Client):
    """Asks on a new connection each time; the wait counts from before it connects."""

    def ask(self) -> None:
        asked_at = time.perf_counter()
        if self.sent_at:
            self.close()
            self.connect()
        super().ask()
        self.sent_at = asked_at


class Clients:
    """So many clients of one server on this machine, which keep their connections if `kind` does; a context manager."""

    def __init__(self, port: int, count: int, target: str, expected: bytes, kind: type[Client] = Client) -> None:
        self._selector = selectors.DefaultSelector()
        self._port, self._text, self._expected, self._kind = port, request(target), expected, kind
        for _ in range(count):
            self._connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for client in self._all():
            client.close()
        self._selector.close()

    def _connect(self) -> Client:
        return self._kind(self._port, self._selector, self._text, self._expected)

    def _all(self) -> list[Client]:
        return [key.data for key in self._selector.get_map().values()]

    def waits(self) -> list[float]:
        """Return how long each has waited since it asked last."""
        now = time.perf_counter()
        return [now - client.sent_at for client in self._all()]

    def _take(self, client: Client) -> tuple[Client, bool | None]:
        """Return the client, or one in the place of one that is of no more use, and whether the answer is right."""
        try:
            return client, client.receive()
        except (OSError, BadResponse):
            client.close()
            return self._connect(), False

    def burst(self, timeout: float) -> Answered:
        """Sends one request from every client at once; returns when the last is answered, or time is over."""
        answered = Answered()
        waiting = set(self._all())
        start, ends = time.perf_counter(), answered.counting()
        for client in waiting:
            client.ask()
        while waiting and time.perf_counter() - start < timeout:
            for key, _ in self._selector.select(timeout):
                client = key.data
                if client not in waiting:
                    # Its server hangs up after each answer.
                    client.close()
                    continue
                _, right = self._take(client)
                if right is not None:
                    waiting.discard(client)
                    answered.latencies.append(time.perf_counter() - client.sent_at)
                    answered.errors += not right
        ends()
        answered.errors += len(waiting)
        return answered

    def load(self, warm_up: float, seconds: float, watch: Callable[[], float] = time.process_time) -> Answered:
        """Each client asks again as soon as it is answered, for `seconds` after `warm_up` seconds.

        Only right answers of that time count; one that was asked for before it is among them. `watch` tells the
        processor seconds of the watched process.
        """
        answered = Answered()
        for client in self._all():
            client.ask()
        self._keep_busy(answered, time.perf_counter() + warm_up)
        answered.latencies.clear()
        ends = answered.counting(watch)
        self._keep_busy(answered, time.perf_counter() + seconds)
        ends()
        return answered

    def _keep_busy(self, answered: Answered, end: float) -> None:
        latencies, clock, select, take = answered.latencies, time.perf_counter, self._selector.select, self._take
        while (now := clock()) < end and answered.errors < _MOST_ERRORS:
            for key, _ in select(end - now):
                client, right = take(key.data)
                if right is None:
                    continue
                if right:
                    latencies.append(clock() - client.sent_at)
                else:
                    answered.errors += 1
                client.ask()


# What has read to the end of the file closes with a reset: then neither side keeps the connection in TIME_WAIT, where
# a minute of load would leave hundreds of thousands.
_RESET = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
# Linux counts what it is to drop, instead of copying it: a client that only counts is not what is measured then.
_DROP = socket.MSG_TRUNC if sys.platform == "linux" else 0
_BUFFER = bytearray(262_144)


class _Reply(FreshClient):
    """Connects, and counts what comes up to the end of the file; it sends nothing, and looks at no byte."""

    def __init__(self, port: int, selector: selectors.BaseSelector, length: int) -> None:
        self._length = length
        super().__init__(port, selector, b"", b"")

    def connect(self) -> None:
        self._count = 0
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.socket.setblocking(False)
        self.socket.connect_ex(("127.0.0.1", self._port))
        self._selector.register(self.socket, selectors.EVENT_READ, self)

    def receive(self) -> bool | None:
        take, length, received = self.socket.recv_into, self._length, self._count
        while received <= length:
            try:
                count = take(_BUFFER, 0, _DROP)
            except BlockingIOError:
                self._count = received
                return None
            if not count:
                return received == length
            received += count
        return False


class Reconnecting(Clients):
    """So many connections at a time to a server that writes `length` bytes, whoever asks, and closes."""

    def __init__(self, port: int, count: int, length: int) -> None:
        self._length = length
        super().__init__(port, count, "", b"")

    def _connect(self) -> Client:
        return _Reply(self._port, self._selector, self._length)

    def finish(self, answered: Answered, patience: float) -> None:
        """Let what is under way end; what has not after `patience` seconds is `unanswered`."""
        end = time.perf_counter() + patience
        while (left := self._all()) and (now := time.perf_counter()) < end:
            for key, _ in self._selector.select(end - now):
                client, right = self._take(key.data)
                if right is not None:
                    client.close()
                    answered.errors += not right
        answered.unanswered = len(left)


def answers(port: int, target: str, expected: bytes, seconds: float = 30.0) -> None:
    """Ask once, and raise an error if there is no right answer within so many seconds."""
    with Clients(port, 1, target, expected) as clients:
        if clients.burst(seconds).errors:
            raise RuntimeError(f"no right answer at {target} within {seconds:g} s")


@dataclass(slots=True)
class Tally:
    """What became of the requests.

    Attributes:
        latencies: Seconds that each request took that was answered right, from when it was due.
        refused: Connections that nobody took.
        lost: Moments (as of `time.time`) at which a connection ended with a request under way.
        wrong: Responses that were not what they ought to be.
        unanswered: Requests that had no answer at the end.
    """

    latencies: list[float] = field(default_factory=list)
    refused: int = 0
    lost: list[float] = field(default_factory=list)
    wrong: int = 0
    unanswered: int = 0


async def _ask(
    port: int, target: str, keep: bool, connection: Connection | None, tally: Tally, due: float
) -> Connection | None:
    """Send a request that was due at a moment of `time.perf_counter`; return the connection if it is to be kept."""
    kept = False
    try:
        # What the server ended while nobody asked is no loss.
        if connection is None or connection.ended:
            if connection is not None:
                connection.close()
            connection = await Connection.open(port)
        status, body = await connection.get(request(target, keep))
        if status != 200 or not body.isdigit():
            raise BadResponse(f"{status} {body!r}")
        tally.latencies.append(time.perf_counter() - due)
        kept = keep
    except ConnectionRefusedError:
        tally.refused += 1
    except OSError:
        tally.lost.append(time.time())
    except BadResponse:
        tally.wrong += 1
    finally:
        if connection is not None and not kept:
            connection.close()
    return connection if kept else None


def ask_steadily(
    port: int, target: str, *, fresh: float, kept: int, kept_rate: float, seconds: float, patience: float
) -> Tally:
    """Ask at a steady rate, whatever becomes of the answers.

    `fresh` requests a second come from new connections, `kept_rate` from each of so many that are kept, unless it waits
    for an answer. What is under way after so many seconds is waited for a while (`patience`, in seconds).
    """
    tally = Tally()

    async def main() -> None:
        start = time.perf_counter()
        asked = set[asyncio.Task[Connection | None]]()

        def ask(due: float, keep: bool, kept: Connection | None = None) -> asyncio.Task[Connection | None]:
            asked.add(asking := asyncio.create_task(_ask(port, target, keep, kept, tally, due)))
            return asking

        async def ask_anew() -> None:
            for number in range(round(fresh * seconds)):
                due = start + number / fresh
                await asyncio.sleep(due - time.perf_counter())
                ask(due, False)

        async def ask_again(first: float) -> None:
            connection, due = None, start + first
            while due < start + seconds:
                await asyncio.sleep(due - time.perf_counter())
                connection = await ask(due, True, connection)
                due = max(due + 1 / kept_rate, time.perf_counter())
            if connection is not None:
                connection.close()

        clients = [asyncio.create_task(ask_again(number / kept / kept_rate)) for number in range(kept)]
        clients.append(asyncio.create_task(ask_anew()))
        # Late as it may be: this one waits for no answer.
        await clients[-1]
        await asyncio.wait(clients, timeout=max(0.0, start + seconds + patience - time.perf_counter()))
        under_way = {task for task in asked if not task.done()}
        if under_way:
            await asyncio.wait(under_way, timeout=max(0.0, start + seconds + patience - time.perf_counter()))
        tally.unanswered = sum(not task.done() for task in asked)

    asyncio.run(main())
    return tally
