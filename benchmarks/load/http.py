"""Lean HTTP/1.1 clients, every response of which is looked at.

`Clients` have prepared requests on raw sockets and one selector. `ask_steadily` asks at a bounded rate, and survives
the deaths of those who serve.
"""

from __future__ import annotations

import asyncio
import re
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.engine.model import Column, Samples, spread
from benchmarks.load import Connections, Spent

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
        Column("cpu", "µs of a processor a request", 0),
        WRONG,
        CLIENT,
    )


class BadResponse(Exception):
    """What came is no HTTP/1.1 response with a length."""


def parse_head(head: bytes) -> tuple[int, int]:
    """Return the status of a response, and how long its body is.

    Raises:
        BadResponse: It is not HTTP/1.1, or has no content-length.
    """
    length = _LENGTH.search(head)
    if head[:9] != b"HTTP/1.1 " or not head[9:12].isdigit() or length is None:
        raise BadResponse(repr(head))
    return int(head[9:12]), int(length[1])


def take_response(received: bytes) -> tuple[int, bytes, bytes] | None:
    """Return status and body of the first response in `received`, and what follows it; None while it is incomplete.

    Raises:
        BadResponse: It is not HTTP/1.1, or has no content-length.
    """
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
        """Send a request, and return the status and the body of the response.

        Raises:
            BadResponse: It is not HTTP/1.1, or has no content-length.
            OSError: The connection ended before.
        """
        try:
            self._writer.write(text)
            status, length = parse_head(await self._reader.readuntil(END_OF_HEAD))
            return status, await self._reader.readexactly(length)
        except asyncio.IncompleteReadError as error:
            raise ConnectionResetError("the server closed the connection") from error

    def close(self) -> None:
        self._writer.transport.abort()


class Client:
    """One keep-alive connection, with at most one request under way."""

    def __init__(self, port: int, selector: selectors.BaseSelector) -> None:
        self._port, self._selector = port, selector
        self.sent_at = 0.0
        self.connect()

    def connect(self) -> None:
        self.socket = socket.create_connection(("127.0.0.1", self._port), timeout=10.0)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.received = b""
        self._selector.register(self.socket, selectors.EVENT_READ, self)

    def close(self) -> None:
        self._selector.unregister(self.socket)
        self.socket.close()

    def send(self, text: bytes) -> None:
        self.sent_at = time.perf_counter()
        if self.socket.send(text) != len(text):
            raise OSError("the socket takes no whole request")


class FreshClient(Client):
    """Asks on a new connection each time; the wait counts from before it connects."""

    def send(self, text: bytes) -> None:
        asked_at = time.perf_counter()
        if self.sent_at:
            self.close()
            self.connect()
        super().send(text)
        self.sent_at = asked_at


@dataclass(slots=True)
class Answered(Spent):
    """What came back. `latencies` are in seconds; `errors` are responses that were wrong, or never came."""

    latencies: list[float] = field(default_factory=list)
    errors: int = 0

    def served(self) -> Samples:
        """Return how many answers came a second, how late they were (ms), and what they took of processors.

        Raises:
            RuntimeError: There was none.
        """
        count = len(self.latencies)
        if not count:
            raise RuntimeError(f"not one right response, {self.errors} wrong ones")
        rate = {"rate": [count / self.seconds], "errors": [float(self.errors)]}
        return spread(self.latencies) | rate | self.samples(count)


class Clients(Connections):
    """So many clients of one server on this machine, which keep their connections if `kind` does; a context manager."""

    def __init__(self, port: int, count: int, target: str, expected: bytes, kind: type[Client] = Client) -> None:
        super().__init__()
        self._port, self._text, self._expected, self._kind = port, request(target), expected, kind
        for _ in range(count):
            self._connect()

    def _connect(self) -> Client:
        return self._kind(self._port, self._selector)

    def _all(self) -> list[Client]:
        return [key.data for key in self._selector.get_map().values()]

    def waits(self) -> list[float]:
        """Return how long each has waited since it asked last."""
        now = time.perf_counter()
        return [now - client.sent_at for client in self._all()]

    def _receive(self, client: Client) -> bool | None:
        """Returns whether the response is right; None while it is not complete.

        Raises:
            OSError, BadResponse: the connection is of no more use.
        """
        data = client.socket.recv(_RECEIVE)
        if not data:
            raise ConnectionResetError("the server closed the connection")
        found = take_response(client.received + data if client.received else data)
        if found is None:
            client.received += data
            return None
        status, body, client.received = found
        return status == 200 and body == self._expected and not client.received

    def _replace(self, client: Client) -> Client:
        client.close()
        return self._connect()

    def burst(self, timeout: float) -> Answered:
        """Sends one request from every client at once; returns when the last is answered, or time is over."""
        answered = Answered()
        clients = self._all()
        start, ends = time.perf_counter(), answered.counting()
        for client in clients:
            client.send(self._text)
        waiting = set(clients)
        while waiting and time.perf_counter() - start < timeout:
            for key, _ in self._selector.select(timeout):
                client = key.data
                if client not in waiting:
                    # Its server hangs up after each answer.
                    client.close()
                    continue
                try:
                    right = self._receive(client)
                except (OSError, BadResponse):
                    self._replace(client)
                    right = False
                if right is None:
                    continue
                waiting.discard(client)
                answered.latencies.append(time.perf_counter() - client.sent_at)
                answered.errors += not right
        ends()
        answered.errors += len(waiting)
        return answered

    def load(self, warm_up: float, seconds: float, watch: Callable[[], float] = time.process_time) -> Answered:
        """Each client asks again as soon as it is answered, for `seconds` after `warm_up` seconds.

        Only responses of that time count; one that was asked for before it is among them. `watch` tells the
        processor seconds of the watched process.
        """
        answered = Answered()
        latencies, text, clock, receive = answered.latencies, self._text, time.perf_counter, self._receive
        for client in self._all():
            client.send(text)
        start, ends = clock() + warm_up, answered.counting(watch)
        end, counting, now = start + seconds, False, clock()
        while now < end and answered.errors < _MOST_ERRORS:
            events = self._selector.select(end - now)
            now = clock()
            if not counting and now >= start:
                counting, end, ends = True, now + seconds, answered.counting(watch)
                latencies.clear()
            for key, _ in events:
                client = key.data
                try:
                    right = receive(client)
                except (OSError, BadResponse):
                    client, right = self._replace(client), False
                if right is None:
                    continue
                if right:
                    latencies.append(clock() - client.sent_at)
                else:
                    answered.errors += 1
                client.send(text)
        ends()
        return answered


def answers(port: int, target: str, expected: bytes, seconds: float = 30.0) -> None:
    """Ask once.

    Raises:
        RuntimeError: The server does not answer rightly in so many seconds.
    """
    with Clients(port, 1, target, expected) as clients:
        if clients.burst(seconds).errors:
            raise RuntimeError(f"the server did not answer within {seconds:g} s")


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


class _SteadyClient:
    """One client, which keeps its connection if the server does."""

    def __init__(self, port: int, target: str, kept: bool, tally: Tally) -> None:
        self._text, self._port, self._kept, self._tally = request(target, kept), port, kept, tally
        self._connection: Connection | None = None

    async def ask(self, due: float) -> None:
        """Send a request that was due at a moment of `time.perf_counter`, and judge the answer: a number."""
        keep = False
        try:
            # What the server ended while nobody asked is no loss.
            if self._connection is None or self._connection.ended:
                self.close()
                self._connection = await Connection.open(self._port)
            status, body = await self._connection.get(self._text)
            if status != 200 or not body.isdigit():
                raise BadResponse(f"{status} {body!r}")
            self._tally.latencies.append(time.perf_counter() - due)
            keep = self._kept
        except ConnectionRefusedError:
            self._tally.refused += 1
        except OSError:
            self._tally.lost.append(time.time())
        except BadResponse:
            self._tally.wrong += 1
        finally:
            if not keep:
                self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


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
        asked = set[asyncio.Task[None]]()

        async def ask_anew() -> None:
            for number in range(round(fresh * seconds)):
                due = start + number / fresh
                await asyncio.sleep(due - time.perf_counter())
                asked.add(asyncio.create_task(_SteadyClient(port, target, False, tally).ask(due)))

        async def ask_again(first: float) -> None:
            client, due = _SteadyClient(port, target, True, tally), start + first
            while due < start + seconds:
                await asyncio.sleep(due - time.perf_counter())
                asking = asyncio.create_task(client.ask(due))
                asked.add(asking)
                await asyncio.wait({asking})
                due = max(due + 1 / kept_rate, time.perf_counter())
            client.close()

        clients = [asyncio.create_task(ask_again(number / kept / kept_rate)) for number in range(kept)]
        clients.append(asyncio.create_task(ask_anew()))
        await asyncio.wait(clients, timeout=seconds + patience)
        under_way = {task for task in asked if not task.done()}
        if under_way:
            await asyncio.wait(under_way, timeout=max(0.0, start + seconds + patience - time.perf_counter()))
        tally.unanswered = sum(not task.done() for task in asked)

    asyncio.run(main())
    return tally
