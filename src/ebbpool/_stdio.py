"""Streams that cannot be written to are no error at the end of a process; `Bell` and `wait_for` for sockets."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
from typing import Final, TextIO

LONGEST_WAIT: Final = 1e6
"""Seconds: some systems cannot wait longer in one call."""
Selector: Final[type[selectors.BaseSelector]] = getattr(selectors, "PollSelector", selectors.SelectSelector)
"""What waits for one descriptor: unlike others, it takes none itself."""


def flush_or_discard(*streams: TextIO | None) -> None:
    """Write what `streams` have buffered, and discard what cannot be written."""
    # Else the interpreter fails to write it at its end, and makes the exit status 120; and multiprocessing fails to
    # write it before it starts a process, and starts none.
    for stream in streams:
        if stream is not None:
            try:
                stream.flush()
            except (OSError, ValueError):
                with contextlib.suppress(OSError, ValueError):
                    _forget(stream)


def _forget(stream: TextIO) -> None:
    number = stream.fileno()
    inheritable = os.get_inheritable(number)
    kept = os.dup(number)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), number, inheritable)
        stream.flush()
    finally:
        os.dup2(kept, number, inheritable)
        os.close(kept)


class Bell:
    """A pair of sockets that ends a wait: `ear` becomes readable when somebody rings."""

    def __init__(self) -> None:
        self.ear, self._rope = socket.socketpair()
        self.ear.setblocking(False)
        self._rope.setblocking(False)

    def ring(self, message: bytes = b"\0") -> None:
        """End a wait that is under way, or the next one; in any thread, also in a signal handler."""
        # An error means that it has been rung often enough, or is closed.
        with contextlib.suppress(OSError):
            self._rope.send(message)

    def hear(self) -> bytes:
        """Make `ear` silent again; return what was rung."""
        with contextlib.suppress(BlockingIOError):
            return self.ear.recv(1 << 16)
        return b""

    def close(self) -> None:
        self.ear.close()
        self._rope.close()


def wait_for(source: int | socket.socket, writing: bool, timeout: float | None) -> bool:
    """Wait up to `timeout` seconds until the descriptor or socket can be read, or written; None waits for ever."""
    with Selector() as selector:
        selector.register(source, selectors.EVENT_WRITE if writing else selectors.EVENT_READ)
        return bool(selector.select(None if timeout is None else min(timeout, LONGEST_WAIT)))
