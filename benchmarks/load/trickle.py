"""Clients that send a byte now and then and never come to an end: one process, bounded in time."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

BODIES = {"bodies": 50_000, "large bodies": 1_000_000}
"""What a request of each kind says the length of its body is, in bytes: one that is buffered, and one that is not."""
WHATS = ("heads", *BODIES)
_LOOKS = 1000
"""How often, one every 10 ms, it looks whether all have connected."""


def beginning(what: str) -> bytes:
    """Return what is sent at once; the rest, a byte at a time, is never complete."""
    if what == "heads":
        return b"GET / HTTP/1.1\r\nhost: localhost\r\nx-slow: "
    return b"POST /upload HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % BODIES[what]


@dataclass(slots=True)
class Report:
    """What the attack has come to: connections that are open now, and those that the server ended since it began."""

    open: int = 0
    dropped: int = 0


async def _trickle(writer: asyncio.StreamWriter, interval: float) -> None:
    while True:
        await asyncio.sleep(interval)
        writer.write(b"a")


async def _client(port: int, text: bytes, interval: float, report: Report) -> None:
    """Connect, send a byte every `interval` seconds, and connect anew when that ends."""
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(interval)
            continue
        report.open += 1
        writer.write(text)
        sending = asyncio.create_task(_trickle(writer, interval))
        with suppress(OSError):
            while await reader.read(65_536):
                pass
        sending.cancel()
        writer.transport.abort()
        report.open -= 1
        report.dropped += 1


async def _attack(port: int, count: int, what: str, interval: float, seconds: float, tell: Connection) -> None:
    report, loop = Report(), asyncio.get_running_loop()
    start = loop.time()
    clients = []
    for number in range(count):
        await asyncio.sleep(max(0.0, start + number * interval / count - loop.time()))
        clients.append(asyncio.create_task(_client(port, beginning(what), interval, report)))
    for _ in range(_LOOKS):
        if report.open == count:
            break
        await asyncio.sleep(0.01)
    while loop.time() < start + seconds:
        tell.send(report)
        await asyncio.sleep(min(1.0, interval))


def attack(*arguments: Any) -> None:
    """Attack for so long, and tell again and again how it goes, from when all have connected on."""
    asyncio.run(_attack(*arguments))


@contextmanager
def trickling(port: int, count: int, what: str, seconds: float, interval: float = 1.0) -> Iterator[Report]:
    """Attack from a process of its own, from the time it has connected on; yield what is filled in at the end.

    Raises:
        EOFError: It ended before it had begun.
    """
    heard, tell = multiprocessing.Pipe(duplex=False)
    arguments = (port, count, what, interval, seconds, tell)
    process = multiprocessing.get_context("spawn").Process(target=attack, args=arguments, daemon=True)
    process.start()
    tell.close()
    try:
        last, found = heard.recv(), Report()
        yield found
    finally:
        process.kill()
        process.join()
        with suppress(EOFError, OSError):
            while True:
                last = heard.recv()
        found.open, found.dropped = last.open, last.dropped
