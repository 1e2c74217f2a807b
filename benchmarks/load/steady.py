"""HTTP clients at a bounded rate that survive the deaths of those who serve them: who was refused, what was lost?"""

from __future__ import annotations

import errno
import selectors
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from benchmarks.load.clients import Connections
from benchmarks.load.http import BadResponse, take_response

_RECEIVE = 65_536


@dataclass(slots=True)
class Tally:
    """What became of the requests.

    Attributes:
        latencies: seconds that each request took that was answered right.
        refused: connections that nobody took.
        lost: moments (as of `time.time`) at which a connection ended with a request under way.
        wrong: responses that were not what they ought to be.
        unanswered: requests that had no answer at the end.
        dropped: kept connections that ended while idle; the next request takes a new one.
        servers: for each process that answered, when it did so first.
    """

    latencies: list[float] = field(default_factory=list)
    refused: int = 0
    lost: list[float] = field(default_factory=list)
    wrong: int = 0
    unanswered: int = 0
    dropped: int = 0
    servers: dict[int, float] = field(default_factory=dict)


class _Connection:
    """One connection.

    Attributes:
        kept: whether it is used again.
        asked: when the request under way was due, or None.
        due: when the next request is, of a kept one.
    """

    def __init__(self, kept: bool, due: float) -> None:
        self.kept, self.due = kept, due
        self.asked: float | None = None
        self.socket: socket.socket | None = None
        self.connecting = False
        self.received = b""


class SteadyClients(Connections):
    """Asks at a steady rate, whatever becomes of the answers: from new connections, and from some that are kept.

    The server answers with the number of its process.

    Args:
        port: where it listens.
        target: what to ask for.
        fresh: requests a second from new connections.
        kept: how many connections are kept.
        kept_rate: requests a second from each of them; one that waits for an answer asks later.
    """

    def __init__(self, port: int, target: str, *, fresh: float, kept: int, kept_rate: float) -> None:
        super().__init__()
        self._address = ("127.0.0.1", port)
        head = f"GET {target} HTTP/1.1\r\nhost: localhost\r\n"
        self._texts = {
            True: f"{head}\r\n".encode("ascii"),
            False: f"{head}connection: close\r\n\r\n".encode("ascii"),
        }
        self._fresh, self._kept, self._kept_rate = 1.0 / fresh, kept, 1.0 / kept_rate
        self._tally = Tally()
        self._under_way = 0

    def run(self, seconds: float, timeout: float) -> Tally:
        """Asks for `seconds`, then waits up to `timeout` seconds for what is still under way."""
        with self:
            start = time.perf_counter()
            next_fresh, end = start, start + seconds
            connections = [
                _Connection(True, start + self._kept_rate * number / self._kept) for number in range(self._kept)
            ]
            while (now := time.perf_counter()) < end:
                while next_fresh <= now:
                    self._ask(_Connection(False, next_fresh))
                    next_fresh += self._fresh
                for connection in connections:
                    if connection.due <= now and connection.asked is None:
                        self._ask(connection)
                        connection.due = max(connection.due + self._kept_rate, now)
                waiting = [connection.due for connection in connections if connection.asked is None]
                self._look(max(0.0, min([next_fresh, end, *waiting]) - time.perf_counter()))
            while self._under_way and time.perf_counter() < end + timeout:
                self._look(0.05)
            self._tally.unanswered = self._under_way
        return self._tally

    def _ask(self, connection: _Connection) -> None:
        connection.asked = connection.due
        self._under_way += 1
        try:
            if connection.socket is None:
                self._connect(connection)
            else:
                connection.socket.sendall(self._texts[connection.kept])
        except OSError as error:
            self._failed(connection, error)

    def _connect(self, connection: _Connection) -> None:
        connection.socket = socket.socket()
        connection.socket.setblocking(False)
        connection.connecting = True
        self._selector.register(connection.socket, selectors.EVENT_WRITE, connection)
        code = connection.socket.connect_ex(self._address)
        if code not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
            raise OSError(code, "not connected")

    def _look(self, timeout: float) -> None:
        for key, _ in self._selector.select(timeout):
            try:
                self._go_on(key.data)
            except (OSError, BadResponse) as error:
                self._failed(key.data, error)

    def _go_on(self, connection: _Connection) -> None:
        assert connection.socket is not None
        if connection.connecting:
            code = connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, "not connected")
            connection.connecting = False
            self._selector.modify(connection.socket, selectors.EVENT_READ, connection)
            connection.socket.sendall(self._texts[connection.kept])
            return
        data = connection.socket.recv(_RECEIVE)
        if not data:
            raise ConnectionResetError("the server hung up")
        connection.received += data
        found = take_response(connection.received)
        if found is not None:
            self._answered(connection, *found)

    def _answered(self, connection: _Connection, status: int, body: bytes, rest: bytes) -> None:
        if connection.asked is None or status != 200 or not body.isdigit() or rest:
            raise BadResponse(f"{status} {body!r} {rest!r}")
        self._tally.latencies.append(time.perf_counter() - connection.asked)
        self._tally.servers.setdefault(int(body), time.time())
        self._over(connection)
        if not connection.kept:
            self._forget(connection)

    def _failed(self, connection: _Connection, error: Exception) -> None:
        if connection.asked is None:
            self._tally.dropped += 1
        elif isinstance(error, BadResponse):
            self._tally.wrong += 1
        elif isinstance(error, ConnectionRefusedError):
            self._tally.refused += 1
        else:
            self._tally.lost.append(time.time())
        self._over(connection)
        self._forget(connection)

    def _over(self, connection: _Connection) -> None:
        self._under_way -= connection.asked is not None
        connection.asked, connection.received = None, b""

    def _forget(self, connection: _Connection) -> None:
        it: Any = connection.socket
        self._selector.unregister(it)
        it.close()
        connection.socket, connection.connecting = None, False
