"""Lets threads write to stdout and stderr without waiting, even if nobody reads; `Bell` and `wait_for` for sockets."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import select
import signal
import socket
import stat
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, TextIO

from ebbpool._clock import monotonic

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

HELD: Final = 1 << 20
"""How many bytes may wait for a descriptor; beyond that, lines are dropped."""
PIECE: Final = 1 << 16
"""How many bytes are written at a time; until then they count as waiting."""
LONGEST_WAIT: Final = 1e6
"""Seconds: some systems cannot wait longer in one call."""
LAST_WORDS: Final = 2.0
"""Seconds for which the end of a process waits until the bytes that wait for a descriptor have been written."""


class Overflow(io.RawIOBase):
    """Bytes for a descriptor, which a thread of its own writes, so that only that thread waits.

    Lines for which there is no room are dropped, until all waiting bytes have been written. Then the number of dropped
    lines is written in their place. Bytes that cannot be written, because the other end is closed, are dropped without
    a message.

    A process that is forked from this one has no such thread, so it writes by itself.
    """

    def __init__(self, number: int, name: str, held: int = HELD) -> None:
        self.name = name
        self._number = number
        self._room = held
        self._waiting = bytearray()
        self._dropped = 0
        self._process = os.getpid()  # whose thread writes; -1 once each thread writes by itself
        # Re-entrant: a signal handler may write in the midst of a write.
        self._changed = threading.Condition(threading.RLock())
        self._thread = threading.Thread(target=self._write_on, name=f"ebbpool-{name}", daemon=True)
        self._thread.start()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return os.isatty(self._number)

    def write(self, data: ReadableBuffer, /) -> int:
        """Hand `data` to the thread, or drop it; any thread may call this, and does not wait."""
        piece = bytes(data)
        if os.getpid() != self._process:
            self._put_through(piece)
            return len(piece)
        with self._changed:
            if self._dropped or (self._waiting and len(self._waiting) + len(piece) > self._room):
                self._dropped += piece.count(b"\n") or 1
            else:
                self._waiting += piece
                self._changed.notify_all()
        return len(piece)

    def drain(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds until nothing waits to be written; return whether that came about."""
        if os.getpid() != self._process:
            return True
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting, max(0.0, timeout))

    def end(self) -> None:
        """End the thread, after `drain`; from now on each thread writes by itself, and waits."""
        with self._changed:
            self._process = -1
            self._changed.notify_all()
        self._thread.join(LAST_WORDS)

    def _write_on(self) -> None:
        if hasattr(signal, "pthread_sigmask"):
            # Signals must go to other threads, which wait for them; and a terminal must not stop this thread.
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._process < 0)
                piece = bytes(self._waiting[:PIECE])
            if not piece:
                return
            self._put_through(piece)
            with self._changed:
                del self._waiting[: len(piece)]
                if self._dropped and not self._waiting:
                    lines = "1 line was" if self._dropped == 1 else f"{self._dropped} lines were"
                    self._waiting += f"ebbpool: {lines} dropped here because nobody read {self.name}\n".encode()
                    self._dropped = 0
                self._changed.notify_all()

    def _put_through(self, piece: bytes) -> None:
        rest = memoryview(piece)
        while rest:
            try:
                rest = rest[os.write(self._number, rest) :]
            except BlockingIOError:
                # Another process that has this pipe made it non-blocking.
                wait_for(self._number, True, None)
            except OSError:
                return


@contextlib.contextmanager
def unhindered() -> Iterator[None]:
    """Keep threads that write to `sys.stdout` or `sys.stderr` from waiting, if it is a pipe, a socket or a terminal.

    Inside the block it is replaced by another stream, also in the handlers of `logging` that write there. A stream that
    cannot be written to at the end stays replaced, since the next write would wait.
    """
    replaced: list[tuple[str, TextIO, TextIO, Overflow]] = []
    try:
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            # If it is closed, or no thread can be started, the stream stays as it is.
            with contextlib.suppress(OSError, RuntimeError, ValueError):
                if _may_wait(stream):
                    stream.flush()
                    # A raw stream is enough: a text stream needs nothing more.
                    raw = Overflow(stream.fileno(), name)
                    ours: TextIO = io.TextIOWrapper(raw, stream.encoding, stream.errors, line_buffering=True)
                    replaced.append((name, stream, ours, raw))
                    _replace(name, stream, ours)
        yield
    finally:
        deadline = monotonic() + LAST_WORDS
        for name, stream, ours, raw in replaced:
            ours.flush()
            if raw.drain(deadline - monotonic()):
                _replace(name, ours, stream)
                raw.end()


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


def last_words() -> None:
    """Write what can be written of `sys.stdout` and `sys.stderr`, before `os._exit` ends the process."""
    deadline = monotonic() + LAST_WORDS
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
            if isinstance(stream.buffer, Overflow):
                stream.buffer.drain(deadline - monotonic())


def _may_wait(stream: Any) -> bool:
    if os.name != "posix" or type(stream) is not io.TextIOWrapper or isinstance(stream.buffer, Overflow):
        return False
    mode = os.fstat(stream.fileno()).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stream.isatty()


def _replace(name: str, old: TextIO, new: TextIO) -> None:
    if getattr(sys, name) is old:
        setattr(sys, name, new)
    loggers = [logging.getLogger(), *list(logging.root.manager.loggerDict.values())]
    handlers = {handler for logger in loggers for handler in getattr(logger, "handlers", ())}
    # Handlers behind a `MemoryHandler`, or a `QueueListener`, belong to no logger.
    handlers |= {handler for reference in list(getattr(logging, "_handlerList", ())) if (handler := reference())}
    for handler in handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is old:
            handler.setStream(new)


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
    if timeout is not None:
        timeout = min(timeout, LONGEST_WAIT)
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(source, select.POLLOUT if writing else select.POLLIN)
        return bool(poll.poll(None if timeout is None else timeout * 1000))
    ready = select.select([] if writing else [source], [source] if writing else [], [], timeout)
    return bool(ready[0] or ready[1])
