"""The front door of an HTTP server: one thread reads requests, and keeps the connections that wait."""

from __future__ import annotations

import errno
import logging
import math
import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from ebbpool._clock import monotonic
from ebbpool._http.connection import LEAST_RATE, Connection
from ebbpool._http.framing import BadRequest, RequestLimits, response
from ebbpool._servers.door import DRAINED, Complaint, Door, SelectorPoller, turn_away
from ebbpool._stdio import Bell

if sys.platform != "win32":
    import resource

TICK: Final = 0.25
"""Seconds between two looks at the clocks of connections, at most."""
LINGER: Final = 2.0
"""Seconds for which a connection that was answered early stays open, so that the client gets to read the answer."""
GRACE: Final = 1.0
"""Seconds after the accept in which a connection without a request is assumed to have one on its way."""
MOST_BUFFERED: Final = 64 << 20
"""Once the bodies that are here take so many bytes, further requests go to a worker without waiting for theirs."""
FIRST_READ: Final = 16384
RESERVED: Final = 256
"""Descriptors kept for as many workers, each of which may open one, if the server does not say how many there are."""


@dataclass(eq=False)
class Room:
    """Connections in one state, oldest first: all may stay for so many seconds."""

    seconds: float
    held: dict[Connection, None] = field(default_factory=dict)


class FrontDoor(Door):
    """The part of a server that reads requests without a worker, hands them over, and keeps connections.

    Only the thread that runs the loop may use it, except for `give_back` and what that touches: the queue of returned
    connections, and whether the door is open, both under the lock.
    """

    keeps = True

    def __init__(self, host: Any, poller: SelectorPoller | None = None, clock: Callable[[], float] = monotonic) -> None:
        super().__init__(host, poller, clock)
        limits: RequestLimits = host._limits
        self.limits = limits
        self.leaving = False  # whether the server stops: then responses say that the connection ends
        self.reading = Room(limits.header_timeout)  # whose head has not come in full, new ones included
        self.filling = Room(limits.body_timeout)  # whose head has come, and whose body has not come in full
        self.idle = Room(limits.idle_timeout)  # between requests
        self.lingering = Room(LINGER)  # that were answered, and that their clients are to close
        self.buffered = 0  # bytes of the requests with a body that are here, or wait for a worker
        self._unwatched = Complaint(logging.WARNING, "cannot watch the connection from %s: %s", clock)
        self._held: dict[int, Connection] = {}
        self._now = clock()
        self._next_look = 0.0
        # Re-entrant: a signal handler may close the server whose loop it interrupts right here.
        self._lock = threading.RLock()
        self._returned: list[tuple[Connection, Room]] = []
        self._open = False
        self._closed = False

    # The loop.

    def open(self, listener: int, bell: Bell) -> None:
        """Begin to take connections back as well."""
        super().open(listener, bell)
        with self._lock:
            self._open = True
        self.leaving = False
        self._most = math.inf
        if sys.platform != "win32":
            most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            if most != resource.RLIM_INFINITY:
                self._most = most - min(most // 2, self._host.max_workers or RESERVED)

    def shut(self) -> None:
        """End `open`: waiting connections stay as they are, and clients that are answered are told that it ends."""
        self.leaving = True
        self._poller.forget(self._listener)
        self._poller.forget(self._bell.ear.fileno())
        self._listener = -1
        self._resume = 0.0

    def turn(self, timeout: float) -> bool:
        """Deal as well with what has happened to connections."""
        ready = self._wait(min(timeout, TICK) if self._held else timeout)
        self._now = self._clock()
        self._take_returned()
        for descriptor in ready:
            # A connection that is not held was closed, or lent, since the event.
            connection = self._held.get(descriptor)
            if connection is not None:
                self._read(connection)
        if self._now >= self._next_look:
            self._expire()
        return self._listener in ready

    def _take_returned(self) -> None:
        if not self._returned:
            return
        with self._lock:
            batch, self._returned = self._returned, []
        for connection, room in batch:
            self._enter(connection, room)
            if connection.data:
                self._advance(connection)
            elif not self._poller.shared:
                self._arm(connection)

    # Accepting.

    def check_room(self) -> None:
        """Raise `OSError` if a connection more would take a descriptor that a handler may need."""
        if self._most < math.inf:
            # A new descriptor has the lowest number that is free.
            lowest = os.dup(self._bell.ear.fileno())
            os.close(lowest)
            if lowest >= self._most:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def take_in(self, request: Any, client_address: Any) -> None:
        """Read the first request of a connection that was accepted."""
        connection = Connection.adopt(request) if type(request) is socket.socket else request
        if not isinstance(connection, Connection):
            # It is of another kind, which only a worker can read from.
            super().take_in(connection, client_address)
            return
        connection.address = client_address
        connection.door = self
        self._enter(connection, self.reading)
        self._read(connection)

    def shed(self) -> bool:
        """Close the connection that matters least, the oldest of its kind."""
        for room in (self.idle, self.lingering, self.reading, self.filling):
            # A request may still be on its way to a connection that has just been accepted.
            grace = 0.0 if room in (self.idle, self.lingering) else GRACE
            oldest = next(iter(room.held), None)
            if oldest is not None and oldest.since + grace <= self._now:
                self._drop(oldest)
                return True
        return False

    # Reading.

    def _read(self, connection: Connection) -> None:
        try:
            if connection.room is self.lingering:
                self._discard(connection)
                return
            chunk = connection.receive() if connection.data else connection.receive(FIRST_READ)
        except BlockingIOError:
            self._arm(connection)
            return
        except OSError:
            self._drop(connection)
            return
        if not chunk:
            connection.ended = True
            if connection.data:
                self.answer(connection, HTTPStatus.BAD_REQUEST)
            else:
                self._drop(connection)
            return
        if not connection.data:
            connection.data = chunk
        else:
            if isinstance(connection.data, bytes):
                connection.data = bytearray(connection.data)
            connection.data += chunk
            if connection.room is self.filling:
                self.count(connection, len(connection.data))
        self._advance(connection)

    def _advance(self, connection: Connection) -> None:
        try:
            ready = connection.ready(self.buffered <= MOST_BUFFERED)
        except BadRequest as error:
            self.answer(connection, error.status)
            return
        if ready:
            self._leave(connection)
            self._poller.drop(connection)
            if connection.head.length != 0:
                self.count(connection, len(connection.data))
            connection.limit = self.limits.request_timeout
            self._host._guarded(self._host.process_request, connection, connection.address)
            if connection.fileno() < 0:
                self.count(connection, 0)
            return
        room = self.reading if connection.head is None else self.filling
        if connection.data and connection.room is not room:
            self._leave(connection)
            self._enter(connection, room)
        self._arm(connection)

    def _discard(self, connection: Connection) -> None:
        for _ in range(DRAINED):
            if not connection.receive():
                self._drop(connection)
                return
        self._arm(connection)

    def answer(self, connection: Connection, status: HTTPStatus, retry_after: int = 0) -> None:
        """Answer in place of a handler, and end the connection."""
        self._leave(connection)
        self.count(connection, 0)
        body = not connection.data.startswith(b"HEAD ")
        self._host._log_refusal(connection, status)
        connection.data = b""
        try:
            connection.post(response(status, retry_after, body=body))
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            connection.ended = True
        if connection.ended:
            self._drop(connection)
        else:
            self._enter(connection, self.lingering)
            self._arm(connection)

    # Keeping.

    def _enter(self, connection: Connection, room: Room) -> None:
        connection.descriptor = connection.fileno()
        connection.room = room
        connection.since = self._now
        connection.came = 0
        room.held[connection] = None
        self._held[connection.descriptor] = connection
        if room is self.filling:
            self.count(connection, len(connection.data))

    def _leave(self, connection: Connection) -> None:
        room, connection.room = connection.room, None
        if room is not None:
            del room.held[connection]
            # Other code may have closed it, and its descriptor may be another one's by now.
            if self._held.get(connection.descriptor) is connection:
                del self._held[connection.descriptor]
            self.count(connection, 0)

    def _arm(self, connection: Connection) -> None:
        try:
            self._poller.arm(connection)
        except (OSError, ValueError) as error:
            self._unwatched.make(connection.address, error)
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        self._leave(connection)
        self._poller.drop(connection)
        self._host._shut_down(connection, connection.address)

    def _expire(self) -> None:
        self._next_look = self._now + TICK
        for room in (self.reading, self.filling, self.idle, self.lingering):
            while room.held:
                connection = next(iter(room.held))
                if connection.since + room.seconds > self._now:
                    break
                came = len(connection.data)
                if room is self.filling and came - connection.came >= max(1, LEAST_RATE * room.seconds):
                    # It has sent its share of a body since the last look.
                    self._leave(connection)
                    self._enter(connection, room)
                    connection.came = came
                elif connection.data and room is not self.idle:
                    self.answer(connection, HTTPStatus.REQUEST_TIMEOUT)
                else:
                    self._drop(connection)

    # For workers.

    def count(self, connection: Connection, size: int) -> None:
        """Have a connection count for `size` bytes; in any thread that has it."""
        if connection.counted != size:
            with self._lock:
                self.buffered += size - connection.counted
            connection.counted = size

    def give_back(self, connection: Connection) -> None:
        """Take a connection back from its handler, or close it; in the worker."""
        if connection.fileno() >= 0:
            if connection.again:
                connection.advance()
                if self._take_back(connection, self.reading if connection.data else self.idle):
                    return
            elif connection.unread():
                connection.data = b""
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_WR)
                    if self._take_back(connection, self.lingering):
                        return
                turn_away(connection)
        self._host._shut_down(connection, connection.address)

    def _take_back(self, connection: Connection, room: Room) -> bool:
        # Queued before it is armed: the event may come at once, and the loop empties the queue before it looks up the
        # event's connection.
        with self._lock:
            if not self._open:
                return False
            self._returned.append((connection, room))
            if self._poller.shared and not connection.data:
                try:
                    self._poller.arm(connection)
                except (OSError, ValueError):
                    self._returned.pop()
                    return False
            else:
                self._bell.ring()
        return True

    # The end.

    def close(self, timeout: float | None) -> None:
        """Close waiting connections, once requests that have begun to come have been read; while no loop runs.

        A client that was not told of the end may be about to send a request: it has a moment for that. All may take
        `timeout` seconds; None for as long as the limits for clients, and the handlers, allow.
        """
        if self._closed:
            return
        self._closed = True
        begun = self._now = self._clock()
        left = step = GRACE / 20
        handlers = self._host.pool_handlers
        while self._open:
            if timeout is not None:
                left = min(step, begun + timeout - self._now)
            self.turn(left if self._held else 0.0)
            for connection in [*self.reading.held, *self.idle.held]:
                if not connection.data and max(connection.since, begun) + GRACE <= self._now:
                    self._drop(connection)
            # Handlers give back connections whose clients were not told.
            if left <= 0 or (not self._held and handlers.join(left) and not self._returned):
                break
        with self._lock:
            self._open = False
        self._take_returned()
        for connection in list(self._held.values()):
            self._drop(connection)
        self._poller.close()
