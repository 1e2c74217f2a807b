"""Where an HTTP/1 request ends, and what the server answers by itself: values and functions, no sockets.

The end of one request decides where the next one begins. A request that a proxy in front could read in another way is
answered with 400, or is the last one of its connection.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Final, NamedTuple

BLANK: Final = re.compile(rb"\A(?:\r?\n)++")
"""Blank lines before a request: some clients send one after a body."""
ENDLESS: Final = -1
"""The value in place of a number of bytes when only the end of the connection ends a request, or a response."""
CHUNKS: Final = -2
"""That of the body of a response that is sent in chunks."""
FINAL: Final = re.compile(rb"HTTP/1\.[01] [2-9][^\n]*\n")
"""The first line of a response that is not an interim one, and does not change the protocol."""
REQUEST_LINE: Final = 65537
"""The bytes that `http.server` asks for when it wants the line that begins a request."""

_CLEAN = re.compile(rb"(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[^\r\n]*\r?\n)*+\r?\n")
"""Header lines that all implementations read alike, up to the blank one."""
_END = re.compile(rb"\n\r?\n")
_SPACED_NAME = re.compile(rb"\n[^:\s]+[ \t]+:")
_LENGTHS = re.compile(rb"\ncontent-length:([^\n]*)")
_LENGTH = re.compile(rb"[0-9]{1,20}")
_BODILESS = re.compile(rb"HTTP/1\.[01] (?:1(?!01)|204|304)")
_LONGEST_HEAD = 1 << 18
"""Bytes of a response without an end of its head after which none is looked for."""


class RequestLimits(NamedTuple):
    """The limits that a server sets its clients, as its attributes of the same names have them."""

    header_timeout: float
    body_timeout: float
    idle_timeout: float
    request_timeout: float | None
    max_header_size: int
    max_buffered_body: int
    retry_after: int


class BadRequest(Exception):
    """A request that no handler gets to see."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


class Head(NamedTuple):
    """What the head of a request says about where the request ends."""

    size: int  # of the head, in bytes, with the blank line
    length: int | None = 0  # bytes of the body; None if that is known only after decoding it
    open_ended: bool = False  # whether the connection may cease to carry requests after this one
    expects: bool = False  # whether the client waits for an interim response before it sends the body
    last: bool = False  # whether the connection must carry no further request


def parse_head(head: bytes) -> Head:
    """Read a whole head; a `BadRequest` can be read in more than one way."""
    size = len(head)
    line_end = head.index(b"\n")
    lower = head.lower()
    # Twice as quick as `in`, which first tries its operand as a number.
    coded = lower.find(b"transfer-encoding") >= 0
    framed = coded or lower.find(b"content-length") >= 0
    clean = _CLEAN.fullmatch(head, line_end + 1) is not None and head.find(b"\r", 0, max(0, line_end - 1)) < 0
    # Split as text, as `http.server` does: some characters are blanks in text and not in bytes.
    words = str(head[:line_end], "latin-1").split()
    odd = len(words) != 3 or not words[2].startswith("HTTP/")
    if (framed and odd) or (not clean and (framed or _SPACED_NAME.search(head, line_end))):
        raise BadRequest(HTTPStatus.BAD_REQUEST)
    length: int | None = 0
    open_ended = head.startswith(b"CONNECT ") or lower.find(b"\nupgrade:") >= 0
    expects = lower.find(b"\nexpect:") >= 0
    # Without any lengths the words are in a value, or in the middle of another name.
    lengths = _LENGTHS.findall(lower, line_end) if framed else []
    if coded and lower.find(b"\ntransfer-encoding:") >= 0:
        if lengths:
            raise BadRequest(HTTPStatus.BAD_REQUEST)
        # Not `open_ended`, which lifts the time limit: the end of a coded body is not seen here.
        return Head(size, None, False, expects, last=True)
    if lengths:
        text = lengths[0].strip(b" \t\r")
        if len(lengths) > 1 or _LENGTH.fullmatch(text) is None:
            raise BadRequest(HTTPStatus.BAD_REQUEST)
        length = int(text)
    return Head(size, length, open_ended, expects, last=odd or not clean)


def measure(data: bytes | bytearray, scanned: int, most: int) -> Head | None:
    """Read the head that `data` begins with, of at most `most` bytes; None if there is more of it to come.

    The first `scanned` bytes have been looked at before. A `BadRequest` is too large, holds a NUL, or can be read in
    more than one way.
    """
    found = _END.search(data, max(0, scanned - 3))
    size = found.end() if found is not None else 0
    if data.find(b"\0", scanned, size or len(data)) >= 0:
        raise BadRequest(HTTPStatus.BAD_REQUEST)
    if not size and len(data) <= most:
        return None
    if not size or size > most:
        whole_line = data.find(b"\n", 0, most) >= 0
        raise BadRequest(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE if whole_line else HTTPStatus.REQUEST_URI_TOO_LONG)
    return parse_head(bytes(data[:size]))


def measure_response(said: bytes, request: bytes) -> tuple[int, int]:
    """Return how long the head is that a response begins with, and how long its body, or how it ends.

    It is for a request that begins with `request`.

    Of a head that is not whole the length is more than has been said.
    """
    if not said.startswith(b"HTTP/1."[: len(said)]) or len(said) > _LONGEST_HEAD:
        return 0, ENDLESS
    found = _END.search(said)
    if found is None:
        return len(said) + 1, ENDLESS
    size = found.end()
    head = said[:size].lower()
    if request.startswith(b"HEAD ") or _BODILESS.match(said):
        return size, 0
    if request.startswith(b"CONNECT ") or said.startswith(b"101", 9):
        return size, ENDLESS
    if head.find(b"\ntransfer-encoding:") >= 0:
        return size, CHUNKS
    lengths = {text.strip() for text in _LENGTHS.findall(head)}
    text = lengths.pop() if len(lengths) == 1 else b""
    return size, int(text) if _LENGTH.fullmatch(text) else ENDLESS


def response(status: HTTPStatus, retry_after: int = 0, *, body: bool = True) -> bytes:
    """Return a whole response that ends the connection: to HEAD without a body, and 503 with `retry_after` seconds."""
    text = f"{status.value} {status.phrase}\n"
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        "Content-Type: text/plain; charset=utf-8",
        f"Content-Length: {len(text)}",
        "Connection: close",
    ]
    if status is HTTPStatus.SERVICE_UNAVAILABLE:
        lines.append(f"Retry-After: {retry_after}")
    return "\r\n".join([*lines, "", text if body else ""]).encode("ascii")
