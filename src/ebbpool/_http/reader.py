"""The file from which a handler reads one request, and no byte of the next."""

from __future__ import annotations

import io
import os
import tempfile
from typing import IO, Final, NoReturn, Protocol

from ebbpool._http.framing import REQUEST_LINE
from ebbpool._http.request import ENDLESS, Request

CHUNK: Final = 65536
"""How many bytes are taken from a socket at once."""


class Source(Protocol):
    """The part of a connection that is needed here."""

    def fileno(self) -> int:
        """Return the descriptor."""
        ...

    def await_bytes(self, size: int) -> bytes:
        """Wait for up to `size` further bytes of the request; return none if there will be no more."""
        ...


class RequestReader(io.BufferedIOBase):
    """The file that ends where the request does; bytes that follow are left for the next request.

    When `http.server` asks for the first line of a next request that has come in full, the file goes on with that
    request. If it has not come, the file ends, and so does the handler: the connection goes back to the front door. The
    reader recognises this by the number of bytes that `http.server` asks for after a response. A handler whose own
    `handle_one_request` asks for another number gets the end of the file, too, but then the connection is closed,
    because that may just as well be the end of a body.

    Args:
        request: What came of the request, and what is to come.
        source: Where the rest comes from.
        shared: Whether a forked child process may ask for `fileno`, as http.server's CGI does, which wants no buffer.
            The parent must know then what the child has read.
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
            # Empty until `fileno` is asked for. A child copies what it takes from the socket here, for its parent.
            self._copy = _temporary()

    def readable(self) -> bool:
        """Return True."""
        self._check()
        return True

    def fileno(self) -> int:
        """Return a descriptor from which a child process can read what is left of the request.

        It is that of a temporary file if the rest has a known length, because some of the rest may have been taken from
        the socket. If the client waits for an interim response before it sends the body, there is nothing to copy.

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
            # A child has made the copy. If it failed half way, what it took is unknown, so no request follows.
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
                # The rest may still be read by other means, so what was copied is put back.
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
        """Close the file, and not the connection."""
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
        """Read a line, as from any file.

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
        """Return the buffered bytes, or wait for some, without taking them."""
        self._check()
        request = self._request
        if request.position == request.end:
            self._more()
        return bytes(request.data[request.position : request.end])

    def read1(self, size: int = -1, /) -> bytes:
        """Read up to `size` bytes with at most one wait."""
        found = self.peek()
        if size >= 0:
            found = found[:size]
        self._request.position += len(found)
        return found

    def read(self, size: int | None = -1, /) -> bytes:
        """Read up to `size` bytes, or to the end of the request.

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
        """Wait for more of the request, when all that came has been read; return whether more has come."""
        request = self._request
        if request.rest is not None:
            chunk = request.rest.read(CHUNK)
            if chunk:
                request.data = chunk + request.data[request.end :]
                request.position = request.head_end = 0
                request.end = len(chunk)
                return True
        if not request.to_come and request.open_ended and not request.ended:
            # From here on the connection carries no requests.
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
        """Raise an error: the file is for reading only.

        Raises:
            io.UnsupportedOperation: Always.
        """
        raise io.UnsupportedOperation("write")


def _temporary() -> IO[bytes]:
    return tempfile.TemporaryFile(buffering=0)
