"""A lean TCP client: so many connections, each made anew as soon as its reply is there, every byte counted."""

from __future__ import annotations

import selectors
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.load.clients import Connections, Spent

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


class _Connection:
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
        self._selector.register(made, selectors.EVENT_READ, _Connection(made))

    def _receive(self, found: _Connection) -> str | None:
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

    def _close(self, found: _Connection) -> None:
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
