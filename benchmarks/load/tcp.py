"""Lean TCP clients: of echo servers, and those that never come to an end."""

from __future__ import annotations

import itertools
import multiprocessing
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Self

from benchmarks.load.http import Answered

_OTHER = bytes(byte ^ 255 for byte in range(256))


class WrongEcho(Exception):
    """What came back is not what was sent."""


class _Client:
    """One connection, on which each message is sent when the last has come back whole.

    Its two messages differ in every byte: what is left of one never passes for the other.
    """

    def __init__(self, port: int, size: int, seed: int) -> None:
        first = random.Random(seed).randbytes(size)
        self.messages = (first, first.translate(_OTHER))
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = bytearray(size)

    def check(self, turn: int, count: int) -> None:
        sent = self.messages[turn]
        if count < len(sent):
            raise WrongEcho(f"{count} of {len(sent)} bytes came back")
        if self.received != sent:
            at = next(at for at in range(count) if self.received[at] != sent[at])
            raise WrongEcho(f"byte {at} of {len(sent)} is wrong")

    def end(self, turn: int) -> None:
        """Take the last message, say that no more will come, and look that the server hangs up without another byte."""
        self.check(turn, self.socket.recv_into(self.received, 0, socket.MSG_WAITALL))
        self.socket.shutdown(socket.SHUT_WR)
        if self.socket.recv(1):
            raise WrongEcho("more came back than was sent")


class EchoClients:
    """So many connections to one echo server on this machine, each with one message of `size` bytes under way.

    A context manager. They are looked after in turn, with blocking calls: two system calls a message.
    """

    def __init__(self, port: int, count: int, size: int) -> None:
        with ExitStack() as opened:
            self._clients = []
            for seed in range(count):
                self._clients.append(_Client(port, size, seed))
                opened.enter_context(self._clients[-1].socket)
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._opened.close()

    def load(
        self, warm_up: float, seconds: float, watch: Callable[[], float] = time.process_time
    ) -> tuple[Answered, int]:
        """Sends and compares for `seconds` after `warm_up` seconds; then every client ends its connection.

        Returns what it took, and how many messages came back in these seconds. `watch` tells the processor seconds of
        the watched process.

        Raises:
            WrongEcho: a byte was wrong, or too few or too many came, or the server did not stop at end of file.
        """
        for client in self._clients:
            client.socket.sendall(client.messages[0])
        _, turn = self._rounds(warm_up, 0)
        answered = Answered()
        ends = answered.counting(watch)
        messages, turn = self._rounds(seconds, turn)
        ends()
        for client in self._clients:
            client.end(turn)
        return answered, messages

    def _rounds(self, seconds: float, turn: int) -> tuple[int, int]:
        """Returns how many messages came back, and which of the two is under way now."""
        wait_all, clock = socket.MSG_WAITALL, time.perf_counter
        work = [(it.socket.recv_into, it.socket.sendall, it.messages, it.received, it) for it in self._clients]
        rounds, end = 0, clock() + seconds
        while clock() < end:
            for receive, send, messages, received, client in work:
                count = receive(received, 0, wait_all)
                send(messages[1 - turn])
                # The server has the next message before this one is compared.
                if received != messages[turn] or count != len(received):
                    client.check(turn, count)
            turn = 1 - turn
            rounds += 1
        return rounds * len(work), turn


BODIES = {"bodies": 50_000, "large bodies": 1_000_000}
"""What a request of each kind says the length of its body is, in bytes: one that is buffered, and one that is not."""
WHATS = ("heads", *BODIES)
_TURNS = 10
"""After how many bytes of each it tells how it goes even though not all have connected."""


def beginning(what: str) -> bytes:
    """Return what is sent at once; the rest, a byte at a time, is never complete."""
    if what == "heads":
        return b"GET /small HTTP/1.1\r\nhost: localhost\r\nx-slow: "
    return b"POST /upload HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % BODIES[what]


@dataclass(slots=True)
class Report:
    """What the attack has come to: connections that are open now, and those that the server ended since it began."""

    open: int = 0
    dropped: int = 0


def _begun(port: int, what: str) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), 1.0)
    made.setblocking(False)
    made.send(beginning(what))
    return made


def _over(connection: socket.socket) -> bool:
    try:
        return not connection.recv(65_536)
    except BlockingIOError:
        return False
    except OSError:
        return True


def attack(port: int, count: int, what: str, interval: float, seconds: float, tell: Connection) -> None:
    """Connect, send a byte each `interval` seconds on each connection, and connect anew when that ends.

    Go on for so long, and tell again and again how it goes, from when all have connected on.
    """
    clients: list[socket.socket | None] = [None] * count
    report, end = Report(), time.monotonic() + seconds
    for turn in itertools.count():
        for at, client in enumerate(clients):
            time.sleep(interval / count)
            if client is not None and _over(client):
                client.close()
                report.dropped += 1
                client = None
            with suppress(OSError):
                if client is None:
                    clients[at] = None
                    clients[at] = _begun(port, what)
                else:
                    client.send(b"a")
        report.open = sum(client is not None for client in clients)
        if report.open == count or turn >= _TURNS:
            tell.send(report)
        if time.monotonic() > end:
            return


@contextmanager
def trickling(port: int, count: int, what: str, seconds: float, interval: float = 1.0) -> Iterator[Report]:
    """Attack from a process of its own, from the time it has connected on; yield what is filled in at the end."""
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
