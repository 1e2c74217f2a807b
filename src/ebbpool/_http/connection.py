"""A client's connection, which is lent to a handler for one request at a time."""

from __future__ import annotations

import io
import socket
import sys
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from ebbpool._http.framing import is_interim
from ebbpool._http.reader import CHUNK, RequestFile
from ebbpool._http.request import ENDLESS, Request
from ebbpool._stdio import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Self

    from _typeshed import ReadableBuffer, WriteableBuffer

AT_ONCE: Final = int(getattr(socket, "MSG_DONTWAIT", 0))
"""The flag that keeps one call from waiting; where there is none, the whole socket is made non-blocking."""
LEAST_RATE: Final = 500.0
"""Bytes per second that a client has to send of a body."""

_receive = socket.socket.recv
_receive_into = socket.socket.recv_into
_send = socket.socket.send


class Connection(socket.socket):
    """A client's connection, as handlers get it.

    It behaves as a blocking socket with a time-out. The descriptor itself stays blocking, so that a child process can
    be given it, and has no time-out of its own, which would cost a system call per operation.

    One thread at a time owns it: the front door's while it is in one of the door's rooms, otherwise the worker that
    runs the handler. Both hand it over through a queue.

    Attributes:
        address: The client's address.
        request: The bytes that came, where in them a request ends, and how far they are read.
        limit: Seconds that one operation of a handler may take; None for ever.
        timed: Whether the handler has set `limit`.
        room: The front door's room that it is in; None while a worker has it.
        descriptor: The descriptor under which the room has it, even if it has been closed since.
        since: When it came into the room, in seconds of the door's clock.
        polled: Whether the door's poller knows the descriptor.
        discarded: How many bytes were thrown away while it lingers.
    """

    __slots__ = (
        "address",
        "descriptor",
        "discarded",
        "limit",
        "polled",
        "request",
        "room",
        "since",
        "timed",
    )

    def __init__(self, family: int = -1, type: int = -1, proto: int = -1, fileno: int | None = None) -> None:  # noqa: A002 (socket's)
        super().__init__(family, type, proto, fileno)
        self.address: Any = None
        self.request = Request()
        self.limit: float | None = None
        self.timed = False
        self.room: Room | None = None
        self.descriptor = -1
        self.since = 0.0
        self.polled = False
        self.discarded = 0
        default = super().gettimeout()
        if default is not None or not AT_ONCE or sys.platform != "linux":
            # On other systems than Linux an accepted socket may have its listener's O_NONBLOCK. With
            # `socket.setdefaulttimeout` every call would wait in C, in the door's thread too.
            self.limit = default or None
            super().setblocking(bool(AT_ONCE))

    @classmethod
    def adopt(cls, other: socket.socket) -> Self:
        """Make one of a plain socket, which is detached; its time-out is kept."""
        limit = other.gettimeout()
        other.setblocking(True)
        made = cls(other.family, other.type, other.proto, other.detach())
        made.limit = limit
        return made

    # For the loop and the worker.

    def receive(self, size: int = CHUNK) -> bytes:
        """Receive what is there, without waiting.

        Raises:
            BlockingIOError: Nothing is there.
            OSError: The connection is broken.
        """
        return _receive(self, size, AT_ONCE)

    def post(self, data: bytes) -> None:
        """Send what there is room for, without waiting.

        Raises:
            OSError: The connection is broken, or there is no room at all.
        """
        _send(self, data, AT_ONCE)

    # For handlers.

    def makefile(self, mode: Any = "r", buffering: int | None = None, **options: Any) -> Any:
        """Do what any socket does; a binary file for reading ends where the request does."""
        if self.request.limits is not None and mode in ("rb", "br"):
            return RequestFile(self, shared=buffering == 0)
        return super().makefile(mode, buffering, **options)

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """Receive from the first unread byte of the request on; no other request follows on the connection then."""
        if self.request.limits is not None and self.request.leave_frame():
            found = self.request.take(size)
            if flags & socket.MSG_PEEK:
                self.request.position -= len(found)
            return found
        taken: bytes = self._patiently(_receive, False, size, flags | AT_ONCE)
        return taken

    def await_into(self, view: memoryview) -> int:
        """Wait for further bytes of the request; return how many came.

        The time-out limits all waiting for one request together, and is extended only for bytes that have come, as in
        Apache's mod_reqtimeout. On a connection that no longer carries requests it limits each wait alone.

        Raises:
            TimeoutError: Nothing came in time, or too little.
        """
        while True:
            try:
                count = _receive_into(self, view, 0, AT_ONCE)
            except BlockingIOError:
                patience = self.limit
                if patience == 0:
                    raise
                if patience is not None and not (self.request.open_ended and self.request.to_come == ENDLESS):
                    patience += self.request.came / LEAST_RATE - self.request.waited
                begun = monotonic()
                if (patience is not None and patience <= 0) or not wait_for(self, False, patience):
                    raise TimeoutError("timed out") from None
                self.request.waited += monotonic() - begun
            else:
                self.request.came += count
                return count

    def recv_into(self, buffer: WriteableBuffer, nbytes: int = 0, flags: int = 0) -> int:
        """Receive as `recv` does."""
        if self.request.limits is not None and self.request.leave_frame():
            with memoryview(buffer) as whole, whole.cast("B") as view:
                found = self.recv(nbytes or view.nbytes, flags)
                view[: len(found)] = found
            return len(found)
        taken: int = self._patiently(_receive_into, False, buffer, nbytes, flags | AT_ONCE)
        return taken

    def _speak(self, data: ReadableBuffer) -> None:
        self.request.expects = False
        if not isinstance(data, bytes):
            with memoryview(data) as view:
                # No interim response is longer.
                data = bytes(view) if view.nbytes < CHUNK else b""
        self.request.answered = not is_interim(data)

    def send(self, data: ReadableBuffer, flags: int = 0, /) -> int:
        """Do what any socket does."""
        if not self.request.answered:
            self._speak(data)
        sent: int = self._patiently(_send, True, data, flags | AT_ONCE)
        return sent

    def sendall(self, data: ReadableBuffer, flags: int = 0, /) -> None:
        """Send all of `data`; unlike that of any socket, the time-out limits each part that is sent."""
        if not self.request.answered:
            self._speak(data)
        sent = self._patiently(_send, True, data, flags | AT_ONCE)
        if isinstance(data, bytes) and sent == len(data):
            return
        with memoryview(data).cast("B") as view:
            while sent < view.nbytes:
                sent += self._patiently(_send, True, view[sent:], flags | AT_ONCE)

    def sendmsg(self, buffers: Iterable[ReadableBuffer], *ancillary: Any) -> int:
        """Send the buffers one after the other; there is no ancillary data on a stream of requests."""
        return self._refuse() if any(ancillary) else self.send(b"".join(buffers))

    def _refuse(self, *_: object, **__: object) -> Any:
        raise io.UnsupportedOperation("not on the connection of a request: use recv, recv_into, send or sendall")

    if not TYPE_CHECKING:
        recvfrom = recvfrom_into = recvmsg = recvmsg_into = sendto = _refuse

    def sendfile(self, *args: Any, **kwargs: Any) -> int:
        """Do what any socket does."""
        self.request.answered = True
        if AT_ONCE:
            super().settimeout(self.limit)
        try:
            return super().sendfile(*args, **kwargs)
        finally:
            if AT_ONCE and self.fileno() >= 0:
                super().settimeout(None)

    def _patiently(self, operation: Callable[..., Any], writing: bool, *args: Any) -> Any:
        while True:
            try:
                return operation(self, *args)
            except BlockingIOError:
                if self.limit == 0:
                    raise
                if not wait_for(self, writing, self.limit):
                    raise TimeoutError("timed out") from None

    def settimeout(self, value: float | None, /) -> None:
        """Do what any socket does."""
        if value is not None and not value >= 0:
            raise ValueError("Timeout value out of range")
        self.limit = value if value is None else float(value)
        self.timed = True

    def gettimeout(self) -> float | None:
        """Do what any socket does."""
        return self.limit

    def setblocking(self, flag: bool, /) -> None:
        """Do what any socket does."""
        self.limit = None if flag else 0.0
        self.timed = True

    def getblocking(self) -> bool:
        """Do what any socket does."""
        return self.limit != 0

    def detach(self) -> int:
        """Do what any socket does; the descriptor blocks, unless the handler has set a time-out."""
        if self.fileno() >= 0:
            super().settimeout(self.limit if self.timed else None)
        return super().detach()


class Room:
    """Connections in one state, oldest first: all may stay for the same time.

    Attributes:
        seconds: How long a connection may stay.
        held: The connections, by descriptor.
    """

    __slots__ = ("held", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.held: dict[int, Connection] = {}
