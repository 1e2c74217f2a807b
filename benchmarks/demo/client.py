"""A small HTTP/1.1 client for one keep-alive connection."""

from __future__ import annotations

import asyncio
from typing import NamedTuple


class BadResponse(Exception):
    """What came back is not a response this client understands."""


class Head(NamedTuple):
    """The part of a response before its body."""

    status: int
    length: int
    keep_alive: bool


def parse_head(head: bytes) -> Head:
    """Read a status line and headers, up to and including the empty line.

    Raises:
        BadResponse: Not HTTP/1.1, or without a usable Content-Length.
    """
    status_line, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = status_line.partition(" ")
    status = rest[:3]
    if version != "HTTP/1.1" or not (status.isascii() and status.isdigit() and len(status) == 3):
        raise BadResponse(f"status line {status_line!r}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    length = headers.get("content-length", "")
    if not (length.isascii() and length.isdigit()):
        raise BadResponse(f"Content-Length {length!r}")
    return Head(int(status), int(length), headers.get("connection", "").lower() != "close")


class Client:
    """One connection to 127.0.0.1, opened when first needed and again after a failure."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open the connection unless it is open."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        return self._streams

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def get(self, target: str) -> tuple[int, bytes]:
        """Send one GET request and return status and body.

        Raises:
            BadResponse: The response was not understood.
            OSError, EOFError: The connection failed.
        """
        reader, writer = await self.connect()
        complete = False
        try:
            writer.write(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n\r\n".encode("ascii"))
            head = parse_head(await reader.readuntil(b"\r\n\r\n"))
            body = await reader.readexactly(head.length)
            complete = head.keep_alive
            return head.status, body
        finally:
            if not complete:
                self.close()
