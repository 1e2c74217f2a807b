"""An asyncio worker, which reads paths from a pipe, and prints the digest of each file as it is done.

Files are read in threads, and no path is read before there is room for it. SIGTERM stops it::

    find . -type f | python asyncio_worker.py
"""

import asyncio
import contextlib
import hashlib
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from ebbpool import AdaptiveExecutor


def digest(path: str) -> str:
    """Return a line about a file."""
    try:
        return f"{hashlib.sha256(Path(path).read_bytes()).hexdigest()}  {path}"
    except OSError as error:
        return f"{error.strerror}: {path}"


async def paths() -> AsyncIterator[str]:
    """Yield the lines of standard input, without blocking the loop."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async for line in reader:
        yield line.decode().rstrip("\n")


async def work() -> None:
    """Handle all paths."""
    async with AdaptiveExecutor(thread_name_prefix="digests", warn_after=30.0) as pool:
        async for line in pool.amap(digest, paths(), ordered=False, buffersize=100):
            print(line, flush=True)


async def main() -> None:
    """Work until there is nothing left, or until SIGTERM."""
    working = asyncio.create_task(work())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, working.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await working


if __name__ == "__main__":
    asyncio.run(main())
