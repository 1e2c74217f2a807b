"""A lean HTTP/1.1 client: prepared requests on raw sockets and one selector, every response looked at."""

from __future__ import annotations

import re
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)[ \t]*\r\n", re.IGNORECASE)
_END = b"\r\n\r\n"
_RECEIVE = 65_536
_MOST_ERRORS = 1_000


class BadResponse(Exception):
    """What came is no HTTP/1.1 response with a length."""


def take_response(received: bytes) -> tuple[int, bytes, bytes] | None:
    """Returns status and body of the first response in `received`, and what follows it.

    Returns:
        None while it is not complete.

    Raises:
        BadResponse: it is not HTTP/1.1, or has no content-length.
    """
    end = received.find(_END)
    if end < 0:
        return None
    head = received[: end + 2]
    length = _LENGTH.search(head)
    if head[:9] != b"HTTP/1.1 " or not head[9:12].isdigit() or length is None:
        raise BadResponse(repr(head))
    start = end + len(_END)
    stop = start + int(length[1])
    if len(received) < stop:
        return None
    return int(head[9:12]), received[start:stop], received[stop:]


def request(target: str) -> bytes:
    return f"GET {target} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode("ascii")


class _Client:
    """One keep-alive connection, with at most one request under way."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10.0)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.received = b""
        self.sent_at = 0.0

    def send(self, text: bytes) -> None:
        self.sent_at = time.perf_counter()
        if self.socket.send(text) != len(text):
            raise OSError("the socket takes no whole request")


@dataclass(slots=True)
class Answered:
    """What came back. `latencies` are in seconds; `errors` are responses that were wrong, or never came.

    `cpu_seconds` is what the clients needed of a processor, `watched_seconds` what the watched process did.
    """

    latencies: list[float] = field(default_factory=list)
    errors: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    watched_seconds: float = 0.0


class Clients:
    """So many keep-alive connections to one server on this machine; a context manager.

    Args:
        port: where the server listens.
        count: how many clients.
        target: what they ask for.
        expected: the body that is right.
    """

    def __init__(self, port: int, count: int, target: str, expected: bytes) -> None:
        self._port, self._text, self._expected = port, request(target), expected
        self._selector = selectors.DefaultSelector()
        for _ in range(count):
            self._connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for key in list(self._selector.get_map().values()):
            key.data.socket.close()
        self._selector.close()

    def _connect(self) -> _Client:
        client = _Client(self._port)
        self._selector.register(client.socket, selectors.EVENT_READ, client)
        return client

    def _all(self) -> list[_Client]:
        return [key.data for key in self._selector.get_map().values()]

    def _receive(self, client: _Client) -> bool | None:
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

    def _replace(self, client: _Client) -> _Client:
        self._selector.unregister(client.socket)
        client.socket.close()
        return self._connect()

    def burst(self, timeout: float) -> Answered:
        """Sends one request from every client at once; returns when the last is answered, or time is over."""
        answered = Answered()
        clients = self._all()
        start, cpu = time.perf_counter(), time.process_time()
        for client in clients:
            client.send(self._text)
        left = len(clients)
        while left and time.perf_counter() - start < timeout:
            for key, _ in self._selector.select(timeout):
                client = key.data
                try:
                    right = self._receive(client)
                except (OSError, BadResponse):
                    self._replace(client)
                    right = False
                if right is None:
                    continue
                left -= 1
                answered.latencies.append(time.perf_counter() - client.sent_at)
                answered.errors += not right
        answered.seconds = time.perf_counter() - start
        answered.cpu_seconds = time.process_time() - cpu
        answered.errors += left
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
        start = clock() + warm_up
        end, counting, cpu, watched, now = start + seconds, False, 0.0, 0.0, clock()
        while now < end and answered.errors < _MOST_ERRORS:
            events = self._selector.select(end - now)
            now = clock()
            if not counting and now >= start:
                counting, start, end = True, now, now + seconds
                cpu, watched = time.process_time(), watch()
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
        answered.seconds = clock() - start
        answered.cpu_seconds = time.process_time() - cpu
        answered.watched_seconds = watch() - watched
        return answered
