"""What the demo's tests share: `benchmarks` to import, and a server with prepared replies."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


@asynccontextmanager
async def canned(replies: dict[str, list[bytes]]) -> Any:
    """Serve prepared replies by target, piece by piece; an empty reply closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                while (await reader.readline()).strip():
                    pass
                pieces = replies[line.split()[1].decode()]
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                if not pieces:
                    break
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def ok(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
