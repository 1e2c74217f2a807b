"""The file from which a handler reads one request, and not a byte of the next."""

from __future__ import annotations

import io
import os
import tempfile
from typing import IO, TYPE_CHECKING, Final, NoReturn

from ebbpool._requests import REQUEST_LINE

if TYPE_CHECKING:
    from ebbpool._connections import Connection

CHUNK: Final = 65536
"""Most bytes taken from a socket at once."""
ENDLESS: Final = -1
"""In place of a number of bytes: only the end of the connection ends the request."""


class RequestReader(io.BufferedIOBase):
    """The file that ends where the request does; what comes behind it is left for the next one.

    When `http.server` asks for the line of a next request, and that is here in full, the file goes on with it. If it
    is not, the file ends, and so does the handler: the connection is parked. The sign is the number of bytes that
    `http.server` asks for, after a response. Whoever overrides `handle_one_request` and asks for another number gets
    the end of the file, too, but the connection is closed, for that may as well be the end of a body.

    Args:
        connection: What to read from.
        shared: Whether a child process that was forked may ask for `fileno`, as with http.server's CGI, which wants no
            buffer. Its parent must know then what was read there.
    """

    mode = "rb"

    def __init__(self, connection: Connection, *, shared: bool = False) -> None:
        self._connection = connection
        self._shared = shared
        self._copy: IO[bytes] | None = None
        self._begin()

    def _begin(self) -> None:
        if self._copy is not None:
            self._copy.close()
            self._copy = None
        if self._shared and self._connection.beyond > 0:
            # Empty until somebody asks for it. What a child takes from the socket its parent finds here.
            self._copy = _temporary()

    def readable(self) -> bool:
        """It is."""
        self._check()
        return True

    def fileno(self) -> int:
        """A descriptor from which a child process can read what is left of the request.

        That of a temporary file, if the rest has a known length: some of it may have left the socket. A client that
        waits for a word before it sends a body has nothing there to copy.

        Raises:
            TimeoutError: The rest did not come in time.
        """
        self._check()
        connection = self._connection
        if connection.rest is None:
            here = connection.position < connection.end
            if (connection.beyond > 0 and (here or not connection.expects)) or (here and not connection.beyond):
                self._lay_out()
        return connection.fileno() if connection.rest is None else connection.rest.fileno()

    def _lay_out(self) -> None:
        connection = self._connection
        copy = self._copy
        if copy is None:
            copy = self._copy = _temporary()
        found = os.fstat(copy.fileno()).st_size
        if found:
            # A child has done it. Where it failed nobody knows what it took: no request follows.
            whole = connection.end - connection.position + connection.beyond
            connection.last = connection.last or found != whole
            connection.beyond = max(0, whole - found)
            connection.position = connection.end
        else:
            open_ended, connection.open_ended = connection.open_ended, False
            try:
                while part := self.peek():
                    connection.position += copy.write(part)
                copy.seek(0)
            except BaseException:
                # It is to be read by other means, from where it began.
                self._copy = None
                with copy:
                    copy.seek(0)
                    taken = copy.read()
                connection.end += len(taken) - connection.position
                connection.data = taken + connection.data[connection.position :]
                connection.position = connection.head_end = 0
                raise
            finally:
                connection.open_ended = open_ended
        connection.rest = copy

    def close(self) -> None:
        """Closes the file, and not the connection."""
        if self._copy is not None:
            self._copy.close()
            self._connection.rest = None
        super().close()

    @property
    def name(self) -> int:
        """The descriptor."""
        return self.fileno()

    def _check(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file.")

    def readline(self, size: int | None = -1, /) -> bytes:
        """As of any file.

        Raises:
            TimeoutError: Nothing came in time.
        """
        if self.closed:
            self._check()
        connection = self._connection
        if size is None:
            size = -1
        if size == REQUEST_LINE and connection.answered and connection.position >= connection.head_end:
            if not connection.advance():
                return b""
            self._begin()
        line = b""
        while True:
            start = connection.position
            stop = connection.end
            if 0 <= size < stop - start + len(line):
                stop = start + size - len(line)
            cut = connection.data.find(b"\n", start, stop) + 1
            connection.position = cut or stop
            if cut and not line:
                return bytes(connection.data[start:cut])
            line += connection.data[start : cut or stop]
            if cut or 0 <= size <= len(line) or not self._more():
                return line

    def peek(self, size: int = 0, /) -> bytes:
        """As of a buffered reader."""
        self._check()
        connection = self._connection
        if connection.position == connection.end:
            self._more()
        return bytes(connection.data[connection.position : connection.end])

    def read1(self, size: int = -1, /) -> bytes:
        """As of a buffered reader."""
        found = self.peek()
        if size >= 0:
            found = found[:size]
        self._connection.position += len(found)
        return found

    def read(self, size: int | None = -1, /) -> bytes:
        """As of a buffered reader.

        Raises:
            TimeoutError: Nothing came in time.
        """
        self._check()
        if size is None or size < 0:
            size = -1
        connection = self._connection
        stop = connection.end if size < 0 else min(connection.end, connection.position + size)
        found = bytes(connection.data[connection.position : stop])
        connection.position = stop
        if len(found) == size or not (connection.beyond or connection.open_ended or connection.rest):
            return found
        parts = [found]
        left = size - len(found)
        while left and self._more():
            part = self.read1(left)
            parts.append(part)
            left -= len(part) if size >= 0 else 0
        return b"".join(parts)

    def _more(self) -> bool:
        """Waits for more of the request, all of what came having been read; tells whether there is more."""
        connection = self._connection
        if connection.rest is not None:
            chunk = connection.rest.read(CHUNK)
            if chunk:
                connection.data = chunk + connection.data[connection.end :]
                connection.position = connection.head_end = 0
                connection.end = len(chunk)
                return True
        if not connection.beyond and connection.open_ended and not connection.ended:
            # From here on these are not requests.
            connection.beyond = ENDLESS
            connection.end = len(connection.data)
            if connection.position < connection.end:
                return True
        if not connection.beyond or connection.ended:
            return False
        size = CHUNK if connection.beyond == ENDLESS else min(connection.beyond, CHUNK)
        chunk = connection.await_bytes(size)
        connection.head_end = max(0, connection.head_end - connection.position)
        connection.data = chunk
        connection.position = 0
        connection.end = len(chunk)
        if not chunk:
            connection.ended = True
            return False
        if connection.beyond != ENDLESS:
            connection.beyond -= len(chunk)
        return True

    def write(self, *_: object) -> NoReturn:
        """It cannot be written to.

        Raises:
            io.UnsupportedOperation: Always.
        """
        raise io.UnsupportedOperation("write")


def _temporary() -> IO[bytes]:
    return tempfile.TemporaryFile(buffering=0)
