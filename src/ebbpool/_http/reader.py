"""The file from which a handler reads one request, and no byte of the next."""

from __future__ import annotations

import io
import os
import tempfile
from typing import Any, Final, Protocol

from ebbpool._http.framing import REQUEST_LINE
from ebbpool._http.request import ENDLESS, Request

CHUNK: Final = 65536
"""How many bytes are taken from a socket at once."""

_readline = io.BufferedReader.readline


class Connection(Protocol):
    """What the file of a request asks of its connection."""

    request: Request

    def fileno(self) -> int:
        """Return the descriptor."""
        ...

    def await_into(self, view: memoryview) -> int:
        """Wait for bytes and read them into `view`; return how many there were."""
        ...


class RequestFile(io.BufferedReader):
    """The file that ends where the request does; bytes that follow are left for the next request.

    When `http.server` asks for the first line of a next request that has come in full, the file goes on with that
    request. If it has not come, the file ends, and so does the handler: the connection goes back to the front door.
    This is recognised by the number of bytes that `http.server` asks for after a response. A handler whose own
    `handle_one_request` asks for another number gets the end of the file, too, but then the connection is closed,
    because that may just as well be the end of a body.

    Args:
        connection: Whose request it is.
        shared: Whether a forked child process may ask for `fileno`, as http.server's CGI does, which wants no buffer.
    """

    def __init__(self, connection: Connection, *, shared: bool = False) -> None:
        self._bytes = RequestBytes(connection, shared)
        self._size = 1 if shared else io.DEFAULT_BUFFER_SIZE
        super().__init__(self._bytes, self._size)
        self._request = connection.request

    def readline(self, size: int | None = -1, /) -> bytes:
        """Read a line, as from any file.

        Raises:
            TimeoutError: Nothing came in time.
        """
        if size == REQUEST_LINE and self._request.answered and not self.closed:
            if not (self._request.skip() and self._request.advance()):
                return b""
            self._bytes.begin()
            # With an empty buffer: the old one may have some of a body.
            super().__init__(self._bytes, self._size)
        return _readline(self, size)

    def tell(self) -> int:
        """Raise `io.UnsupportedOperation`, as the file of a socket does."""
        raise io.UnsupportedOperation("tell")


class RequestBytes(io.RawIOBase):
    """The bytes of a request: those that came, then those that come; the head and the body are read apart."""

    mode = "rb"

    def __init__(self, connection: Connection, shared: bool) -> None:
        self._connection = connection
        self._shared = shared
        self._copy: io.FileIO | None = None
        if shared:
            self.begin()

    def begin(self) -> None:
        """Begin with the connection's request."""
        if self._copy is not None:
            self._copy.close()
        # Empty until `fileno` is asked for. A child copies what it takes from the socket here, for its parent.
        self._copy = _temporary() if self._shared and self._connection.request.to_come > 0 else None

    def readable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return 0: a buffer asks once, when it is made, and an exception would be dearer."""
        return 0

    def readinto(self, buffer: Any, /) -> int:
        """Read some bytes, or wait for some; none at the end of the request.

        Raises:
            TimeoutError: Nothing came in time.
        """
        request = self._connection.request
        if request.rest is not None and (count := request.rest.readinto(buffer)):
            return count
        if not request.to_come and request.position == request.end and request.open_ended and not request.ended:
            # From here on the connection carries no requests.
            request.leave_frame()
        size = len(buffer)
        found = request.take(size)
        if found or not request.to_come or request.ended:
            buffer[: len(found)] = found
            return len(found)
        most = size if request.to_come == ENDLESS else min(request.to_come, size)
        # Each view is released by hand: where references are not counted, it would keep the buffer from being resized.
        with memoryview(buffer) as whole, whole[:most] as wanted:
            count = self._connection.await_into(wanted)
        if not count:
            request.ended = True
        elif request.to_come != ENDLESS:
            request.to_come -= count
        return count

    def fileno(self) -> int:
        """Return a descriptor from which a child process can read what is left of the request.

        It is that of a temporary file if the rest has a known length, because some of the rest may have been taken from
        the socket. If the client waits for an interim response before it sends the body, there is nothing to copy.

        Raises:
            TimeoutError: The rest did not come in time.
        """
        request = self._connection.request
        if request.rest is None:
            here = request.position < request.end
            if (request.to_come > 0 and (here or not request.expects)) or (here and not request.to_come):
                self._lay_out()
        return self._connection.fileno() if request.rest is None else request.rest.fileno()

    def _lay_out(self) -> None:
        request = self._connection.request
        copy = self._copy = self._copy or _temporary()
        found = os.fstat(copy.fileno()).st_size
        if found:
            # A child has made the copy. If it failed half way, what it took is unknown, so no request follows.
            whole = request.end - request.position + request.to_come
            request.last = request.last or found != whole
            request.to_come = max(0, whole - found)
            request.position = request.end
        else:
            open_ended, request.open_ended = request.open_ended, False
            try:
                while part := self.read(CHUNK):
                    copy.write(part)
            finally:
                request.open_ended = open_ended
            copy.seek(0)
        request.rest = copy

    def close(self) -> None:
        """Close the file, and not the connection."""
        if self._copy is not None:
            self._copy.close()
            if self._connection.request.rest is self._copy:
                self._connection.request.rest = None
        super().close()


def _temporary() -> io.FileIO:
    return tempfile.TemporaryFile(buffering=0)
