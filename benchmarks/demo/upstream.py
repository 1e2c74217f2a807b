r"""The slow store: a TCP server that takes its time, and the blocking call that waits for it.

One request per connection: ``"<n> <path>\n"`` is answered with ``"<sha256>\n"`` after `delay` seconds.
"""

from __future__ import annotations

import asyncio
import socket
import zlib
from collections.abc import Mapping

TIMEOUT = 15.0
SLOW = "slow-"
"""What a request's number begins with while the store has trouble."""


def delay(n: str) -> float:
    """Return how long the store takes over request ``n``, always the same: 0.05 to 0.3 s; in trouble 1 to 1.1 s."""
    drawn = zlib.crc32(n.encode())
    return (1000 + drawn % 101 if n.startswith(SLOW) else 50 + drawn % 251) / 1000


async def serve(digests: Mapping[str, str]) -> asyncio.Server:
    """Start the store on a free port of 127.0.0.1."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            n, _, path = (await reader.readline()).decode().rstrip("\n").partition(" ")
            await asyncio.sleep(delay(n))
            writer.write(f"{digests.get(path, 'unknown')}\n".encode())
            await writer.drain()
        except ConnectionError:
            return
        finally:
            writer.close()

    return await asyncio.start_server(answer, "127.0.0.1", 0, backlog=512)


def fetch(port: int, n: str, path: str) -> str:
    """Ask the store for a path's digest; blocks the calling thread until it comes.

    Raises:
        OSError: The store is gone, or took longer than `TIMEOUT`.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT) as connection:
        connection.sendall(f"{n} {path}\n".encode())
        with connection.makefile("rb") as file:
            return file.readline().decode().strip()
