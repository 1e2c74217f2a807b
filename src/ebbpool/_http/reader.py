"""The file from which a handler reads one request, and not a byte of the next."""

from __future__ import annotations

import io
import os
import tempfile
from typing import IO, Final, NoReturn, Protocol

from ebbpool._http.framing import REQUEST_LINE
from ebbpool._http.request import ENDLESS, Request

CHUNK: Final = 65536
"""Most bytes taken from a socket at once."""


class Source(Protocol):
    """What of a connection is needed here."""

    def fileno(self) -> int:
        """Return the descriptor."""

    def await_bytes(self, size: int) -> bytes:
        """Wait for up to `size` further bytes of the request; none if there will be no more."""


class RequestReader(io.BufferedIOBase):
    """The file that ends where the request does; what comes behind it is left for the next one.

    When `http.server` asks for the line of a next request, and that is here in full, the file goes on with it. If it
    is not, the file ends, and so does the handler: the connection is parked. The sign is the number of bytes that
    `http.server` asks for, after a response. Whoever overrides `handle_one_request` and asks for another number gets
    the end of the file, too, but the connection is closed, for that may as well be the end of a body.

    Args:
        request: What came of the request, and what it lacks.
        source: Where the rest comes from.
        shared: Whether a child process that was forked may ask for `fileno`, as with http.server's CGI, which wants no
            buffer. Its parent must know then what was read there.
    """

    mode = "rb"

    def __init__(self, request: Request, source: Source, *, shared: bool = False) -> None:
        self._request = request
        self._source = source
        self._shared = shared
        self._copy: IO[bytes] | None = None
        self._begin()

    def _begin(self) -> None:
        if self._copy is not None:
            self._copy.close()
            self._copy = None
        if self._shared and self._request.to_come > 0:
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
        request = self._request
        if request.rest is None:
            here = request.position < request.end
            if (request.to_come > 0 and (here or not request.expects)) or (here and not request.to_come):
                self._lay_out()
        return self._source.fileno() if request.rest is None else request.rest.fileno()

    def _lay_out(self) -> None:
        request = self._request
        copy = self._copy
        if copy is None:
            copy = self._copy = _temporary()
        found = os.fstat(copy.fileno()).st_size
        if found:
            # A child has done it. Where it failed nobody knows what it took: no request follows.
            whole = request.end - request.position + request.to_come
            request.last = request.last or found != whole
            request.to_come = max(0, whole - found)
            request.position = request.end
        else:
            open_ended, request.open_ended = request.open_ended, False
            try:
                while part := self.peek():
                    request.position += copy.write(part)
                copy.seek(0)
            except BaseException:
                # It is to be read by other means, from where it began.
                self._copy = None
                with copy:
                    copy.seek(0)
                    taken = copy.read()
                request.end += len(taken) - request.position
                request.data = taken + request.data[request.position :]
                request.position = request.head_end = 0
                raise
            finally:
                request.open_ended = open_ended
        request.rest = copy

    def close(self) -> None:
        """Closes the file, and not the connection."""
        if self._copy is not None:
            self._copy.close()
            self._request.rest = None
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
        request = self._request
        if size is None:
            size = -1
        if size == REQUEST_LINE and request.answered and request.position >= request.head_end:
            if not request.advance():
                return b""
            self._begin()
        line = b""
        while True:
            start = request.position
            stop = request.end
            if 0 <= size < stop - start + len(line):
                stop = start + size - len(line)
            cut = request.data.find(b"\n", start, stop) + 1
            request.position = cut or stop
            if cut and not line:
                return bytes(request.data[start:cut])
            line += request.data[start : cut or stop]
            if cut or 0 <= size <= len(line) or not self._more():
                return line

    def peek(self, size: int = 0, /) -> bytes:
        """As of a buffered reader."""
        self._check()
        request = self._request
        if request.position == request.end:
            self._more()
        return bytes(request.data[request.position : request.end])

    def read1(self, size: int = -1, /) -> bytes:
        """As of a buffered reader."""
        found = self.peek()
        if size >= 0:
            found = found[:size]
        self._request.position += len(found)
        return found

    def read(self, size: int | None = -1, /) -> bytes:
        """As of a buffered reader.

        Raises:
            TimeoutError: Nothing came in time.
        """
        self._check()
        if size is None or size < 0:
            size = -1
        request = self._request
        stop = request.end if size < 0 else min(request.end, request.position + size)
        found = bytes(request.data[request.position : stop])
        request.position = stop
        if len(found) == size or not (request.to_come or request.open_ended or request.rest):
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
        request = self._request
        if request.rest is not None:
            chunk = request.rest.read(CHUNK)
            if chunk:
                request.data = chunk + request.data[request.end :]
                request.position = request.head_end = 0
                request.end = len(chunk)
                return True
        if not request.to_come and request.open_ended and not request.ended:
            # From here on these are not requests.
            request.to_come = ENDLESS
            request.end = len(request.data)
            if request.position < request.end:
                return True
        if not request.to_come or request.ended:
            return False
        size = CHUNK if request.to_come == ENDLESS else min(request.to_come, CHUNK)
        chunk = self._source.await_bytes(size)
        request.head_end = max(0, request.head_end - request.position)
        request.data = chunk
        request.position = 0
        request.end = len(chunk)
        if not chunk:
            request.ended = True
            return False
        if request.to_come != ENDLESS:
            request.to_come -= len(chunk)
        return True

    def write(self, *_: object) -> NoReturn:
        """It cannot be written to.

        Raises:
            io.UnsupportedOperation: Always.
        """
        raise io.UnsupportedOperation("write")


def _temporary() -> IO[bytes]:
    return tempfile.TemporaryFile(buffering=0)
