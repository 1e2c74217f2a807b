"""Clients that send a byte now and then and never come to an end: one process, bounded in time.

`python -m benchmarks.load.trickle PORT --what heads` prints a line of JSON when it has connected as often as it is to,
and again every second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass

from benchmarks import ROOT
from benchmarks.load.serving import die_with_parent

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


async def attack(port: int, count: int, what: str, interval: float, seconds: float) -> None:
    """Attack for so long, and tell on stdout how it goes."""
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
        print(json.dumps(asdict(report)), flush=True)
        await asyncio.sleep(min(1.0, interval))


@contextmanager
def trickling(port: int, count: int, what: str, seconds: float, interval: float = 1.0) -> Iterator[Report]:
    """Attack from a process of its own, from the time it has connected on; yield what is filled in at the end.

    Raises:
        RuntimeError: It ended before it had begun.
    """
    command = [sys.executable, "-m", "benchmarks.load.trickle", str(port), "--what", what, "--count", str(count)]
    command += ["--seconds", str(seconds), "--interval", str(interval)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:  # fmt: skip
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            last, found = child.stdout.readline(), Report()
            if not last:
                raise RuntimeError("the slow clients ended before they had begun")
            yield found
        finally:
            child.stdin.close()
            last = child.stdout.read().strip().rpartition("\n")[2] or last
            for name, value in json.loads(last or "{}").items():
                setattr(found, name, value)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--what", choices=WHATS, default="heads")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--interval", type=float, default=1.0)
    asked = parser.parse_args()
    die_with_parent()
    asyncio.run(attack(asked.port, asked.count, asked.what, asked.interval, asked.seconds))
