"""A client's connection, lent to a handler for one request at a time, and a file that ends where the request does."""

from __future__ import annotations

import io
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Self

from ebbpool._clock import monotonic
from ebbpool._http.framing import BLANK, CHUNKS, ENDLESS, FINAL, REQUEST_LINE, measure, measure_response
from ebbpool._stdio import wait_for

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

CHUNK: Final = 65536
"""How many bytes are taken from a socket at once."""
LEAST_RATE: Final = 500.0
"""Bytes per second that a client has to send of a body."""
INTERIM: Final = (b"HTTP/1.1 100", b"HTTP/1.1 102", b"HTTP/1.1 103")
"""How responses begin that announce another one."""
LAST_CHUNK: Final = b"\n0\r\n\r\n"
"""How a body in chunks ends."""

_receive = socket.socket.recv
_receive_into = socket.socket.recv_into
_send = socket.socket.send
_readline = io.BufferedReader.readline


class Connection(socket.socket):
    """A client's connection, as handlers get it, and the requests on it, one at a time.

    It behaves as a blocking socket with a timeout. The descriptor does not block: a timeout of the socket's own would
    cost a system call an operation.

    One thread at a time owns it: the front door's while it is in one of the door's rooms, otherwise the worker that
    runs the handler. Both hand it over through a queue.
    """

    address: Any  # the client's
    door: Any  # the server's front door
    limit: float | None  # seconds that one operation of a handler may take; None for ever
    room: Any  # the front door's room that it is in; None while a worker has it
    descriptor: int  # under which the door has it, even if it has been closed since
    since: float  # when it came into the room, in seconds of the door's clock
    counted: int  # for how many bytes it counts among those that the door has buffered
    polled: bool  # whether the door's poller knows the descriptor
    data: bytes | bytearray  # what came and has not been dropped, from the first byte of the request line on
    head: Any  # what the head says, a `Head`; None until it has come
    position: int  # how far `data` has been searched for the end of the head; then, how far the handler has read
    end: int  # where the request, as far as it has come, ends in `data`
    to_come: int  # how many bytes of the request have not come yet, or `ENDLESS`
    reply: bytes | None  # the head of the response, kept until it is whole; None once it was sent
    left: int  # how many bytes of its body may still be sent, or `ENDLESS`, or `CHUNKS`
    tail: bytes  # the last bytes that were sent of a body in chunks
    told: bool  # whether the client was told that the connection ends
    again: bool  # whether the handler asked for the next request, and the connection can carry one
    ended: bool  # whether the client has closed its side of the connection
    came: int  # bytes that came while a handler read; in a room, those there when it got more time
    waited: float  # seconds for which that handler has waited for them

    __slots__ = tuple(__annotations__)

    def __init__(self, family: int = -1, type: int = -1, proto: int = -1, fileno: int | None = None) -> None:  # noqa: A002 (socket's)
        super().__init__(family, type, proto, fileno)
        self.address = self.room = self.head = self.door = None
        self.descriptor = -1
        self.data = b""
        self.position = self.end = self.came = self.counted = 0
        self.to_come = ENDLESS
        self.since = self.waited = 0.0
        self.polled = self.told = self.again = self.ended = False
        self.reply, self.left, self.tail = None, ENDLESS, b""
        self.limit = super().gettimeout() or None  # that of `socket.setdefaulttimeout`
        super().setblocking(False)

    @classmethod
    def adopt(cls, other: socket.socket) -> Self:
        """Make one of a plain socket, which is detached; its timeout is kept."""
        limit = other.gettimeout()
        made = cls(other.family, other.type, other.proto, other.detach())
        made.limit = limit
        return made

    # For the loop and the worker. Nothing waits.

    def receive(self, size: int = CHUNK) -> bytes:
        return _receive(self, size)

    def post(self, data: bytes) -> None:
        _send(self, data)

    def ready(self, may_wait: bool = True) -> bool:
        """Return whether `data` begins with a request that can be handed over; if so, prepare to read it.

        A short body is waited for if it `may_wait`. A `BadRequest` must not reach a handler.
        """
        head = self.head
        if head is None:
            if self.data.startswith((b"\r\n", b"\n")):
                self.data = BLANK.sub(b"", self.data)
                self.position = 0
            if not self.data:
                return False
            head = self.head = measure(self.data, self.position, self.door.limits.max_header_size)
            if head is None:
                self.position = len(self.data)
                return False
        came = len(self.data)
        if head.length is None:
            self.end = came
            self.to_come = ENDLESS
        else:
            whole = head.size + head.length
            if came < whole and may_wait and head.length <= self.door.limits.max_buffered_body and not head.expects:
                return False
            self.end = min(whole, came)
            self.to_come = whole - self.end
        self.data = bytes(self.data)
        self.position = self.came = 0
        self.reply, self.left, self.tail = b"", ENDLESS, b"\n"
        self.told = self.again = False
        self.waited = 0.0
        return True

    def advance(self) -> None:
        """Go on to the next request."""
        self.data = self.data[self.end :]
        self.head = None
        self.position = self.end = 0

    def unread(self) -> bool:
        """Return whether bytes are or may be unread: with them a close becomes a reset, and destroys the response."""
        if (self.to_come or self.head.last) and not self.ended:
            return True
        try:
            return bool(self.receive(1))
        except OSError:
            return False

    # For handlers.

    def makefile(self, mode: Any = "r", buffering: int | None = None, **options: Any) -> Any:
        """Do what any socket does; a binary file for reading ends where the request does."""
        if mode in ("rb", "br"):
            return RequestFile(self, 1 if buffering == 0 else io.DEFAULT_BUFFER_SIZE)
        return super().makefile(mode, buffering, **options)

    def take(self, size: int) -> bytes:
        # The head is read apart from the body, which may be read in another way.
        head = 0 if self.head is None else self.head.size
        stop = head if self.position < head else self.end
        found = bytes(self.data[self.position : min(stop, self.position + size)])
        self.position += len(found)
        return found

    def leave_frame(self) -> bool:
        """Make all bytes that came readable without regard to requests; return whether there are any."""
        self.to_come = ENDLESS
        self.end = len(self.data)
        return self.position < self.end

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """Receive from the first unread byte of the request on; no other request follows on the connection then."""
        if self.leave_frame():
            found = bytes(self.data[self.position : self.position + size])
            if not flags & socket.MSG_PEEK:
                self.position += len(found)
            return found
        taken: bytes = self.within_limit(_receive, False, size, flags)
        return taken

    def recv_into(self, buffer: WriteableBuffer, nbytes: int = 0, flags: int = 0) -> int:
        with memoryview(buffer) as whole, whole.cast("B") as view:
            found = self.recv(nbytes or view.nbytes, flags)
            view[: len(found)] = found
        return len(found)

    def send(self, data: ReadableBuffer, flags: int = 0, /) -> int:
        """Send a part of the response; what comes after the end of its body is dropped, as if it was sent."""
        if self.reply is not None:
            return self._send_head(self.reply, bytes(data), flags)
        if self.left == 0:
            return memoryview(data).nbytes
        with memoryview(data).cast("B") as view:
            sent: int = self.within_limit(_send, True, view if self.left < 0 else view[: self.left], flags)
            self._count(view[:sent])
            return sent if self.left else view.nbytes

    def _send_head(self, before: bytes, data: bytes, flags: int) -> int:
        said = before + data
        size, left = measure_response(said, bytes(self.data[:8]))
        if size > len(said):
            self.reply = said
            return len(data)
        head, body = (said[:size], said[size:]) if size else (said, b"")
        ends = self.head.last or (self.door.leaving and len(self.data) <= self.end)
        if ends and (line := FINAL.match(head)):
            # Before the handler's own header lines: of two of a name many clients look at the first.
            self.told = True
            head = line[0] + b"Connection: close\r\n" + head[line.end() :]
        while head:
            head = head[self.within_limit(_send, True, head, flags) :]
        if said.startswith(INTERIM):
            self.reply = b""
        else:
            self.reply, self.left = None, left
        return len(data) - len(body) + (self.send(body, flags) if body else 0)

    def _count(self, body: Any) -> None:
        """Take note of a part of the body that was sent."""
        if self.left > 0:
            self.left -= len(body)
        elif self.left == CHUNKS:
            self.tail = (self.tail + body[-len(LAST_CHUNK) :])[-len(LAST_CHUNK) :]

    def is_whole(self) -> bool:
        """Return whether the response was sent to its end, and does not end by that of the connection."""
        return self.reply is None and (self.left == 0 or (self.left == CHUNKS and self.tail == LAST_CHUNK))

    def sendall(self, data: ReadableBuffer, flags: int = 0, /) -> None:
        """Send all of `data`; unlike that of any socket, the timeout limits each part that is sent."""
        sent = self.send(data, flags)
        if isinstance(data, bytes) and sent == len(data):
            return
        with memoryview(data).cast("B") as view:
            while sent < view.nbytes:
                sent += self.send(view[sent:], flags)

    def _refuse(self, *_: object, **__: object) -> Any:
        raise io.UnsupportedOperation("not on the connection of a request: use recv, recv_into, send or sendall")

    if not TYPE_CHECKING:
        recvfrom = recvfrom_into = recvmsg = recvmsg_into = sendmsg = sendto = _refuse

    def sendfile(self, file: Any, offset: int = 0, count: int | None = None) -> int:
        """Do what any socket does, by way of `send`, which knows what is left of the body."""
        sent: int = super()._sendfile_use_send(file, offset, count)  # type: ignore[misc]  # not in typeshed
        return sent

    def within_limit(self, operation: Callable[..., Any], writing: bool, *args: Any, in_all: bool = False) -> Any:
        """Do an operation within the timeout.

        If `in_all`, that limits all waiting for one request together, and is extended only for bytes that have come, as
        in Apache's mod_reqtimeout.
        """
        while True:
            try:
                return operation(self, *args)
            except BlockingIOError:
                limit = self.limit
                if limit == 0:
                    raise
                if in_all and limit is not None:
                    limit += self.came / LEAST_RATE - self.waited
                begun = monotonic()
                if (limit is not None and limit <= 0) or not wait_for(self, writing, limit):
                    raise TimeoutError("timed out") from None
                if in_all:
                    self.waited += monotonic() - begun

    def settimeout(self, value: float | None, /) -> None:
        if value is not None and not value >= 0:
            raise ValueError("Timeout value out of range")
        self.limit = value if value is None else float(value)

    def gettimeout(self) -> float | None:
        return self.limit

    def setblocking(self, flag: bool, /) -> None:
        self.limit = None if flag else 0.0

    def getblocking(self) -> bool:
        return self.limit != 0

    def detach(self) -> int:
        """Do what any socket does; the descriptor blocks."""
        if self.fileno() >= 0:
            super().setblocking(True)
        return super().detach()


class RequestFile(io.BufferedReader):
    """The file that ends where the request does; bytes that follow are left for the next request.

    When `http.server` asks for the first line of a next request, by the number of bytes that it asks for after a
    response, the file ends, and so does the handler. A handler that asks for another number gets the end of the file,
    too, but then the connection is closed: that may just as well be the end of a body.
    """

    def __init__(self, connection: Connection, size: int) -> None:
        super().__init__(RequestBytes(connection), size)
        self._connection = connection

    def readline(self, size: int | None = -1, /) -> bytes:
        """Read a line, as from any file."""
        connection = self._connection
        if size == REQUEST_LINE and connection.reply != b"" and not self.closed:
            # What is unread of this request is dropped, if it is here.
            connection.again = connection.is_whole() and not (connection.told or connection.to_come)
            return b""
        return _readline(self, size)


class RequestBytes(io.RawIOBase):
    """The bytes of a request: those that came, then those that come; the head and the body are read apart."""

    mode = "rb"

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        # A buffer asks once, when it is made, and an exception would be dearer.
        return 0

    def readinto(self, buffer: Any, /) -> int:
        connection = self._connection
        if not connection.to_come and connection.position == connection.end and connection.head.open_ended:
            # From here on the connection carries no requests.
            connection.leave_frame()
        size = len(buffer)
        found = connection.take(size)
        if found or not connection.to_come or connection.ended:
            buffer[: len(found)] = found
            return len(found)
        endless = connection.to_come == ENDLESS
        most = size if endless else min(connection.to_come, size)
        # On a connection that no longer carries requests the timeout limits each wait alone.
        in_all = not endless or connection.head is None or not connection.head.open_ended
        # Each view is released by hand: where references are not counted, it would keep the buffer from being resized.
        with memoryview(buffer) as whole, whole[:most] as wanted:
            received: int = connection.within_limit(_receive_into, False, wanted, in_all=in_all)
        connection.came += received
        connection.ended = not received
        if not endless:
            connection.to_come -= received
        return received
