"""The bytes that came on a connection, where in them each request ends, and how far they are read; no sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ebbpool._http.framing import BadRequest, Head, RequestLimits, measure, skip_blank

if TYPE_CHECKING:
    import io

ENDLESS: Final = -1
"""The value in place of a number of bytes when only the end of the connection ends the request."""


class Request:
    """The requests of one connection, one at a time.

    It belongs to the thread that owns the connection: the front door's, or the worker that runs the handler.

    Attributes:
        limits: How large a request may be; None while this is a plain socket, whose bytes are not split into requests.
        data: The bytes that came and have not been dropped, from the first byte of the request line on.
        scanned: How many of them have been searched for the end of the head.
        head: What the head says, once it has come.
        position: How far the handler has read in `data`.
        head_end: Where the head ends in `data`: it is read apart from the body.
        end: Where the request, as far as it has come, ends in `data`.
        to_come: How many bytes of the request have not come yet, or `ENDLESS`.
        open_ended: Whether the handler may read past the end: what follows need not be a request.
        last: Whether no request may follow this one.
        answered: Whether something was sent since the request was handed over, interim responses not counted.
        expects: Whether the client waits for an interim response before it sends the body, and nothing was sent.
        rest: The file with what is left of the request, if that was copied for a child process.
        again: Whether the handler asked for the next request, and there was none.
        ended: Whether the client has closed its side of the connection.
        came: How many bytes of the request came while a handler read it; before that, how many were there when it was
            last given more time.
        waited: Seconds for which that handler has waited for them.
    """

    __slots__ = (
        "again",
        "answered",
        "came",
        "data",
        "end",
        "ended",
        "expects",
        "head",
        "head_end",
        "last",
        "limits",
        "open_ended",
        "position",
        "rest",
        "scanned",
        "to_come",
        "waited",
    )

    def __init__(self) -> None:
        self.limits: RequestLimits | None = None
        self.data: bytes | bytearray = b""
        self.scanned = 0
        self.head: Head | None = None
        self.head_end = 0
        self.position = 0
        self.end = 0
        self.to_come = ENDLESS
        self.open_ended = False
        self.last = False
        self.expects = False
        self.answered = False
        self.rest: io.FileIO | None = None
        self.again = False
        self.ended = False
        self.came = 0
        self.waited = 0.0

    def ready(self, limits: RequestLimits, patient: bool = True) -> bool:
        """Return whether `data` begins with a request that can be handed over; if so, prepare to read it.

        Args:
            limits: The limits for clients.
            patient: Whether to wait for a short body.

        Raises:
            BadRequest: The request must not reach a handler.
        """
        head = self.head
        if head is None:
            if self.data[:1] in (b"\r", b"\n"):
                blank = skip_blank(self.data)
                if blank:
                    self.data = self.data[blank:]
                    self.scanned = 0
            if not self.data:
                return False
            head = self.head = measure(self.data, self.scanned, limits.max_header_size)
            if head is None:
                self.scanned = len(self.data)
                return False
        came = len(self.data)
        if head.length is None:
            self.end = came
            self.to_come = ENDLESS
        else:
            whole = head.size + head.length
            if came < whole and patient and head.length <= limits.max_buffered_body and not head.expects:
                return False
            self.end = min(whole, came)
            self.to_come = whole - self.end
        self.data = bytes(self.data)
        self.position = 0
        self.head_end = head.size
        self.open_ended = head.open_ended
        self.last = head.last
        self.answered = False
        self.expects = head.expects
        self.rest = None
        self.again = False
        self.came = 0
        self.waited = 0.0
        self.head = None
        self.scanned = 0
        return True

    def unread(self) -> bool:
        """Return whether the client may still be sending, so that a close would destroy the response on its way."""
        return (self.to_come != 0 or self.last) and not self.ended

    def take(self, size: int) -> bytes:
        """Read up to `size` bytes of those that came."""
        stop = self.head_end if self.position < self.head_end else self.end
        found = bytes(self.data[self.position : min(stop, self.position + size)])
        self.position += len(found)
        return found

    def skip(self) -> bool:
        """Drop what is unread of the request; return whether another may follow."""
        if self.last or self.to_come:
            return False
        self.rest = None
        self.open_ended = False
        self.position = self.end
        return True

    def advance(self) -> bool:
        """Go on to the next request if it has come in full; called by the reader, in the worker, after `skip`."""
        assert self.limits is not None
        self.again = True
        self.data = self.data[self.end :]
        self.position = self.end = self.head_end = 0
        if not self.data:
            return False
        try:
            return self.ready(self.limits)
        except BadRequest:
            # The front door finds the same error when it gets the connection back, and answers it.
            self.scanned = 0
            return False

    def leave_frame(self) -> bool:
        """Make all bytes that came readable without regard to requests; return whether there are any."""
        self.to_come = ENDLESS
        self.head_end = 0
        self.end = len(self.data)
        return self.position < self.end
