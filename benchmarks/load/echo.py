"""Lean echo clients in this one process: every byte that comes back is compared."""

from __future__ import annotations

import random
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from benchmarks.load.clients import Spent

_TIMEOUT = 10.0
_OTHER = bytes(byte ^ 255 for byte in range(256))


class WrongEcho(Exception):
    """What came back is not what was sent."""


def two_messages(size: int, seed: int) -> tuple[bytes, bytes]:
    """Returns two messages that differ in every byte: what is left of one never passes for the other."""
    first = random.Random(seed).randbytes(size)
    return first, first.translate(_OTHER)


def _bound_waits(connection: socket.socket, seconds: float) -> None:
    """No wait of this socket is for ever; the system looks after it, so that a call stays one system call."""
    if sys.platform == "win32":
        limit = struct.pack("=L", round(seconds * 1e3))
    else:
        limit = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, limit)


class _Client:
    """One connection, on which each message is sent when the last has come back whole."""

    def __init__(self, port: int, size: int, seed: int, timeout: float) -> None:
        self.messages = two_messages(size, seed)
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(None)
        _bound_waits(self.socket, timeout)
        self.received = bytearray(size)

    def end(self) -> None:
        """Says that nothing more will come, and looks that the server hangs up without another byte."""
        self.socket.shutdown(socket.SHUT_WR)
        try:
            rest = self.socket.recv(1)
        except BlockingIOError:
            raise WrongEcho("the server does not stop at the end of file") from None
        if rest:
            raise WrongEcho("more came back than was sent")


@dataclass(slots=True)
class Echoed(Spent):
    """How many messages came back, every byte right."""

    messages: int = 0


class EchoClients:
    """So many connections to one echo server on this machine, each with one message of `size` bytes under way.

    A context manager. They are looked after in turn, with blocking calls: two system calls a message, which may take
    `timeout` seconds.
    """

    def __init__(self, port: int, count: int, size: int, timeout: float = _TIMEOUT) -> None:
        self._size = size
        with ExitStack() as opened:
            self._clients = []
            for seed in range(count):
                self._clients.append(_Client(port, size, seed, timeout))
                opened.callback(self._clients[-1].socket.close)
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._opened.close()

    def load(self, warm_up: float, seconds: float, watch: Callable[[], float] = time.process_time) -> Echoed:
        """Sends and compares for `seconds` after `warm_up` seconds; then every client ends its connection.

        `watch` tells the processor seconds of the watched process.

        Raises:
            WrongEcho: a byte was wrong, or too few or too many came, or the server did not stop at end of file.
        """
        for client in self._clients:
            client.socket.sendall(client.messages[0])
        turn = self._rounds(warm_up, 0)[1]
        echoed = Echoed()
        ends = echoed.counting(watch)
        echoed.messages, turn = self._rounds(seconds, turn)
        ends()
        for client in self._clients:
            self._receive(client, turn)
            client.end()
        return echoed

    def _receive(self, client: _Client, turn: int) -> None:
        count = client.socket.recv_into(client.received, self._size, socket.MSG_WAITALL)
        if count != self._size or client.received != client.messages[turn]:
            raise self._wrong(client, turn, count)

    def _wrong(self, client: _Client, turn: int, count: int) -> WrongEcho:
        if count < self._size:
            return WrongEcho(f"{count} of {self._size} bytes came back")
        at = next(at for at in range(count) if client.received[at] != client.messages[turn][at])
        return WrongEcho(f"byte {at} of {self._size} is wrong")

    def _rounds(self, seconds: float, turn: int) -> tuple[int, int]:
        """Returns how many messages came back, and which of the two is under way now."""
        size, wait_all, clock = self._size, socket.MSG_WAITALL, time.perf_counter
        work = [(it.socket.recv_into, it.socket.sendall, it.messages, it.received, it) for it in self._clients]
        rounds, end = 0, clock() + seconds
        while clock() < end:
            for receive, send, messages, received, client in work:
                count = receive(received, size, wait_all)
                send(messages[1 - turn])
                # The server has the next message before this one is compared.
                if count != size or received != messages[turn]:
                    raise self._wrong(client, turn, count)
            turn = 1 - turn
            rounds += 1
        return rounds * len(work), turn
