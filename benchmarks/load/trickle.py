"""Clients that send a byte now and then and never come to an end: one process, one selector, bounded in time.

`python -m benchmarks.load.trickle PORT --what heads` prints a line of JSON when it has connected as often as it is to,
and again every second.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.engine.model import ROOT
from benchmarks.load.clients import Connections
from benchmarks.servers.serving import die_with_parent

BODIES = {"bodies": 50_000, "large bodies": 1_000_000}
"""What a request of each kind says the length of its body is, in bytes: one that is buffered, and one that is not."""
WHATS = ("heads", *BODIES)
_REPORT_SECONDS = 1.0
_CONNECT_SECONDS = 10.0


def beginning(what: str) -> bytes:
    """Returns what is sent at once; the rest, a byte at a time, is never complete."""
    if what == "heads":
        return b"GET / HTTP/1.1\r\nhost: localhost\r\nx-slow: "
    return b"POST /upload HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % BODIES[what]


@dataclass(slots=True)
class Report:
    """What the attack has come to: connections that are open now, and what happened since it began.

    Attributes:
        open: connections that are established.
        dropped: connections that the server ended; each is followed by a new one.
        refused: attempts to connect that failed.
        sent: bytes, apart from the beginnings.
    """

    open: int = 0
    dropped: int = 0
    refused: int = 0
    sent: int = 0


class Attack(Connections):
    """So many connections, each with a byte every `interval` seconds, evenly spread over that time.

    Args:
        port: where the server listens.
        count: how many connections.
        what: one of `WHATS`.
        interval: seconds between two bytes of a connection.
    """

    def __init__(self, port: int, count: int, what: str, interval: float) -> None:
        super().__init__()
        self._address, self._what, self._interval = ("127.0.0.1", port), beginning(what), interval
        self._due: deque[tuple[float, socket.socket | None]] = deque()
        self.report = Report()
        now = time.monotonic()
        self._due.extend((now + number * interval / count, None) for number in range(count))

    def run(self, seconds: float) -> None:
        """Attacks for so long, and tells on stdout how it goes."""
        start = time.monotonic()
        told = start + _CONNECT_SECONDS
        count, complete = len(self._due), False
        while (now := time.monotonic()) < start + seconds:
            while self._due[0][0] <= now:
                self._turn(*self._due.popleft())
            if now >= told or (not complete and self.report.open == count):
                complete, told = True, now + _REPORT_SECONDS
                print(json.dumps(asdict(self.report)), flush=True)
            for key, _ in self._selector.select(max(0.0, self._due[0][0] - time.monotonic())):
                self._listen(key.fileobj)

    def _turn(self, due: float, raw: socket.socket | None) -> None:
        """Sends one byte, or connects anew."""
        if raw is None or raw.fileno() < 0:
            raw = self._connect()
        else:
            with suppress(OSError):
                self.report.sent += raw.send(b"a")
        self._due.append((due + self._interval, raw))

    def _connect(self) -> socket.socket | None:
        raw = socket.socket()
        # A server that does not accept must not hold up all the other connections for long.
        raw.settimeout(0.1)
        try:
            raw.connect(self._address)
            raw.setblocking(False)
            raw.send(self._what)
        except OSError:
            raw.close()
            self.report.refused += 1
            return None
        self._selector.register(raw, selectors.EVENT_READ)
        self.report.open += 1
        return raw

    def _listen(self, raw: Any) -> None:
        try:
            ended = not raw.recv(65_536)
        except BlockingIOError:
            return
        except OSError:
            ended = True
        if ended:
            self._selector.unregister(raw)
            raw.close()
            self.report.open -= 1
            self.report.dropped += 1


@contextmanager
def trickling(port: int, count: int, what: str, seconds: float, interval: float = 1.0) -> Iterator[Report]:
    """Attacks from a process of its own, from the time it has connected on; yields what is filled in at the end.

    Raises:
        RuntimeError: it did not come to attack.
    """
    command = [sys.executable, "-m", __name__, str(port), "--what", what, "--count", str(count)]
    command += ["--seconds", str(seconds), "--interval", str(interval)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
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


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--what", choices=WHATS, default="heads")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--interval", type=float, default=1.0)
    asked = parser.parse_args(argv)
    die_with_parent()
    Attack(asked.port, asked.count, asked.what, asked.interval).run(asked.seconds)


if __name__ == "__main__":
    main(sys.argv[1:])
