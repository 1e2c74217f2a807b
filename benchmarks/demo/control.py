"""A child process on a lead: one loopback connection, one JSON text per line.

The child leaves by itself when the connection ends, so it never outlives its parent, however that one died.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LEAVE_WITHIN = 10.0


class ChildFailed(RuntimeError):
    """A child process ended, or did not answer in time."""


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop, or None (asyncio's own) where uvloop is not installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


class Link:
    """One end of the lead."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def to_parent(cls, port: int) -> Link:
        """Connect a child to the parent that listens on ``port``."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def send(self, **message: Any) -> None:
        """Send one message."""
        self._writer.write(json.dumps(message).encode() + b"\n")
        await self._writer.drain()

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message, or None once the other side is gone."""
        try:
            line = await self._reader.readline()
        except ConnectionError:
            return None
        if not line.endswith(b"\n"):
            return None
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        """Let go."""
        self._writer.close()


class Child:
    """A running child process, as its parent sees it."""

    def __init__(self, process: asyncio.subprocess.Process, link: Link, log: Path) -> None:
        self.pid = process.pid
        self._process = process
        self._link = link
        self._log = log

    async def send(self, **message: Any) -> None:
        """Send the child one message."""
        await self._link.send(**message)

    async def expect(self, what: str, within: float) -> dict[str, Any]:
        """Return the child's next message.

        Args:
            what: What is waited for, to be named if it does not come.
            within: Seconds to wait for it.

        Raises:
            ChildFailed: The child ended or took longer.
        """
        try:
            async with asyncio.timeout(within):
                message = await self._link.receive()
        except TimeoutError:
            raise ChildFailed(f"no {what} within {within:g} s{self.last_words()}") from None
        if message is None:
            # The lead ends before the process, whose last words are why it ended.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_WITHIN):
                    await self._process.wait()
            raise ChildFailed(f"ended before {what}{self.last_words()}")
        return message

    def last_words(self) -> str:
        """Return the end of what the child printed, ready to be appended to a message."""
        return last_words(self._log)


def last_words(log: Path) -> str:
    """Return the end of a log file, ready to be appended to a message; empty if there is none."""
    text = log.read_text(encoding="utf-8", errors="replace").strip() if log.exists() else ""
    return f"; it printed:\n{text[-2000:]}" if text else ""


@contextlib.asynccontextmanager
async def child(module: str, *arguments: str, log: Path) -> AsyncIterator[Child]:
    """Run ``python -m module --control PORT arguments...`` for the length of the block.

    Args:
        module: A module that connects to ``--control`` and leaves when that connection ends.
        arguments: Further arguments.
        log: The file that takes what the child prints.

    Raises:
        ChildFailed: The child did not connect within 30 s.
    """
    connected: asyncio.Future[Link] = asyncio.get_running_loop().create_future()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if connected.done():
            writer.close()
        else:
            connected.set_result(Link(reader, writer))

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    # Its own process group: Ctrl-C reaches the parent alone, which then lets go of the lead.
    apart: dict[str, Any] = (
        {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}
        if os.name == "nt"
        else {"start_new_session": True}
    )
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, "--control", str(port), *arguments,
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, **apart,
        )  # fmt: skip
    ended = asyncio.ensure_future(process.wait())
    try:
        either: set[asyncio.Future[Any]] = {connected, ended}
        await asyncio.wait(either, timeout=30.0, return_when=asyncio.FIRST_COMPLETED)
        if not connected.done():
            raise ChildFailed(f"{module} did not start{last_words(log)}")
        yield Child(process, connected.result(), log)
    finally:
        listener.close()
        if connected.done() and not connected.cancelled():
            connected.result().close()
        try:
            await asyncio.wait({ended}, timeout=LEAVE_WITHIN if connected.done() else 0.0)
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await ended
