"""The file from which a handler reads one request, and not a byte of the next."""

from __future__ import annotations

import io
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
        laid_out: Whether bodies are copied to a temporary file before the request is read.
    """

    mode = "rb"

    def __init__(self, connection: Connection, *, laid_out: bool = False) -> None:
        self._connection = connection
        self._laid_out = laid_out
        self._rest: IO[bytes] | None = None
        self._begin()

    def _begin(self) -> None:
        if self._rest is not None:
            self._rest.close()
            self._rest = None
        if self._laid_out:
            self._lay_out()

    def readable(self) -> bool:
        """It is."""
        self._check()
        return True

    def fileno(self) -> int:
        """A descriptor from which a child process can read what is left of the request.

        That of a temporary file, if the rest has a known length: some of it may have left the socket.
        """
        self._check()
        connection = self._connection
        if connection.beyond > 0 or (connection.position < connection.end and not connection.beyond):
            self._rest = self._copy()
        return connection.fileno() if self._rest is None else self._rest.fileno()

    def _lay_out(self) -> None:
        """Copies the body to a temporary file, before any of the request is read.

        It is for handlers that want no buffer, as http.server's CGI has it: they fork, and the child asks for the
        descriptor. What it reads there its parent must know to be read, and only a position in a file is shared.
        """
        connection = self._connection
        if connection.beyond < 0 or not (connection.beyond or connection.end > connection.head_end):
            return
        head = bytes(connection.data[: connection.head_end])
        behind = bytes(connection.data[connection.end :])
        connection.position = connection.head_end
        self._rest = self._copy()
        connection.data = head + behind
        connection.position = 0
        connection.end = connection.head_end = len(head)

    def _copy(self) -> IO[bytes]:
        copy = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (closed by `close`)
        try:
            for part in iter(self.read1, b""):
                copy.write(part)
        except TimeoutError:
            # As if the client had left in the middle: whoever reads it finds it short.
            self._connection.ended = True
        copy.seek(0)
        return copy

    def close(self) -> None:
        """Closes the file, and not the connection."""
        if self._rest is not None:
            self._rest.close()
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
        if len(found) == size or not (connection.beyond or connection.open_ended or self._rest):
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
        if self._rest is not None:
            chunk = self._rest.read(CHUNK)
            connection.data = chunk + connection.data[connection.end :]
            connection.position = connection.head_end = 0
            connection.end = len(chunk)
            return bool(chunk)
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
