"""The one thread that answers all who look at this process."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import selectors
import signal
import socket
import sys
import threading
from contextvars import Context
from time import monotonic
from typing import TYPE_CHECKING, Final

from ebbpool._interpreter import daemon_threads
from ebbpool._monitor import names
from ebbpool._monitor.names import THREAD, residents
from ebbpool._monitor.place import Place, path_of, welcome
from ebbpool._monitor.requests import LONGEST, answer, refusal, too_long
from ebbpool._pool import lifecycle
from ebbpool._pool.threads import WorkerThread

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

LOGGER: Final = logging.getLogger("ebbpool.monitor")
MOST: Final = 256
"""How many clients may be connected at once."""
PATIENCE: Final = 1.0
"""Seconds for which `close` waits for the thread, which an answer may hold up; and until a failed accept is retried."""
UNVISITED: Final = 60.0
"""Seconds after which a listener that ends with its last client ends without having had any."""

_open: dict[int, Listener] = {}


def complain(message: str, *values: object) -> None:
    """Log one line."""
    LOGGER.warning(message, *values)


class _Client:
    """One connection: what has come and is not answered yet, and what is still to be sent.

    A request is read only when the answer to the one before has been sent. So a client that does not read holds
    one answer here at most.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.incoming = bytearray()
        self.outgoing = memoryview(b"")
        self.last = False
        """Whether nothing is read any more: the connection ends when everything has been sent."""

    def read(self) -> None:
        """Take what has come.

        Raises:
            OSError: The connection is gone.
        """
        try:
            piece = self.socket.recv(LONGEST)
        except BlockingIOError:
            return
        if piece:
            self.incoming += piece
        else:
            # What has no newline at the end of the connection is a line all the same.
            self.last = True
            if self.incoming:
                self.incoming += b"\n"

    def proceed(self) -> bool:
        """Answer one request, if one is here in full; return whether there may be another.

        Raises:
            OSError: The connection is gone.
        """
        if not self.outgoing:
            end = self.incoming.find(b"\n")
            if end > LONGEST or (end < 0 and len(self.incoming) > LONGEST):
                self.incoming.clear()
                self.outgoing = memoryview(too_long())
                self.last = True
            elif end >= 0:
                line = bytes(self.incoming[:end])
                del self.incoming[: end + 1]
                if line.strip():
                    self.outgoing = memoryview(answer(line))
        self.send()
        return not self.outgoing and b"\n" in self.incoming

    def send(self) -> None:
        """Send what goes out without waiting.

        Raises:
            OSError: The connection is gone.
        """
        with contextlib.suppress(BlockingIOError):
            while self.outgoing:
                self.outgoing = self.outgoing[self.socket.send(self.outgoing) :]

    @property
    def over(self) -> bool:
        """Whether nothing is left to be done."""
        return self.last and not self.outgoing and not self.incoming

    @property
    def events(self) -> int:
        """What the selector is to wait for."""
        return selectors.EVENT_WRITE if self.outgoing else selectors.EVENT_READ


class Listener:
    """A Unix socket on which this process tells what its pools are doing; see `listen`.

    It is closed by `close`, at the end of a ``with`` block, and when the process exits.

    Attributes:
        path: Where it listens.
    """

    __module__ = "ebbpool.monitor"

    path: str

    def __init__(self, path: str | os.PathLike[str], *, resident: bool = False, until_left: bool = False) -> None:
        self._pattern = path_of(path)
        self._resident = resident
        self._until_left = until_left
        # Re-entrant: a signal handler may close in the midst of closing.
        self._guard = threading.RLock()
        self._start()

    def _start(self) -> None:
        self._place = Place(self._pattern.replace("{pid}", str(os.getpid())))
        self.path = self._place.path
        self._open = True
        self._bell, self._rope = socket.socketpair()
        self._bell.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._clients: dict[socket.socket, _Client] = {}
        # The start must not wait: it may be made in a fork hook.
        self._thread = WorkerThread(target=self._run, name=THREAD, daemon=daemon_threads())
        _open[id(self)] = self
        try:
            # In an empty context: the thread belongs to nobody's request.
            Context().run(self._thread.start)
        except BaseException:
            self._end()
            raise
        if self._resident:
            residents.add(self._thread)

    def close(self) -> None:
        """Stop listening, close the connections and remove the socket's file; again is no error."""
        with contextlib.suppress(OSError, ValueError):
            self._rope.send(b".")
        if threading.current_thread() is not self._thread:
            self._thread.join(PATIENCE)
        self._end()

    def __enter__(self) -> Self:
        """Return the listener."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the listener."""
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.path!r}{'' if self._open else ', closed'}>"

    def _end(self) -> None:
        with self._guard:
            if not self._open:
                return
            self._open = False
        self._place.remove()
        self._let_go()

    def _let_go(self) -> None:
        _open.pop(id(self), None)
        residents.discard(self._thread)
        for each in (self._place.socket, self._bell, self._rope, *list(self._clients)):
            each.close()
        # Nothing is unregistered: in a forked child that would change what the parent's selector watches.
        self._selector.close()

    def _forked(self) -> None:
        """In a forked child: leave the socket to the parent, and listen again if the path is the child's own."""
        self._guard = threading.RLock()
        was_open, self._open = self._open, False
        self._let_go()
        if not was_open or "{pid}" not in self._pattern:
            return
        if sys.implementation.name == "pypy":
            # A thread that is started in a fork hook may crash PyPy. The child's first pool asks the environment again.
            names.asked = not self._resident
        else:
            try:
                self._start()
            except (OSError, RuntimeError) as error:
                complain("the process forked, and its child cannot be looked at: %s", error)

    def _run(self) -> None:
        if hasattr(signal, "pthread_sigmask"):
            # Signals must go to other threads, which wait for them.
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._serve()
        except Exception:
            if self._open:
                LOGGER.exception("%r ends", self)
        finally:
            self._end()

    def _serve(self) -> None:
        selector, listening = self._selector, self._place.socket
        selector.register(self._bell, selectors.EVENT_READ)
        selector.register(listening, selectors.EVENT_READ)
        ready: set[_Client] = set()
        visited, deadline = False, monotonic() + UNVISITED
        accepting = True
        while True:
            if self._until_left and not self._clients and (visited or monotonic() >= deadline):
                return
            limit = 0.0 if ready else PATIENCE if self._until_left or not accepting else None
            found = selector.select(limit)
            if not accepting and not ready:
                accepting = True
                selector.register(listening, selectors.EVENT_READ)
            # Each client has one request answered in a turn, so that none has to wait for all requests of another.
            turn, ready = ready, set()
            for key, _ in found:
                if key.fileobj is self._bell:
                    return
                if key.fileobj is listening:
                    accepting = self._accept()
                    visited = visited or bool(self._clients)
                else:
                    turn.add(key.data)
            for client in turn:
                if self._attend(client):
                    ready.add(client)
            if not accepting:
                selector.unregister(listening)

    def _accept(self) -> bool:
        """Take the connections that have come; return False if the system has run out of something."""
        while True:
            try:
                connection, _ = self._place.socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return True
            except OSError as error:
                complain("%r cannot accept: %s", self, error)
                return False
            connection.setblocking(False)
            if not welcome(connection):
                _turn_away(connection, "this process belongs to another user")
            elif len(self._clients) >= MOST:
                _turn_away(connection, f"{MOST} clients are connected, and no more are taken")
            else:
                client = self._clients[connection] = _Client(connection)
                self._selector.register(connection, selectors.EVENT_READ, client)

    def _attend(self, client: _Client) -> bool:
        """Read, answer and send what can be; return whether the client has another request here."""
        try:
            if not client.outgoing and not client.last and b"\n" not in client.incoming:
                client.read()
            more = client.proceed()
            if not client.over:
                if self._selector.get_key(client.socket).events != client.events:
                    self._selector.modify(client.socket, client.events, client)
                return more
        except OSError:
            pass
        self._selector.unregister(client.socket)
        del self._clients[client.socket]
        client.socket.close()
        return False


def _turn_away(connection: socket.socket, reason: str) -> None:
    with connection, contextlib.suppress(OSError):
        connection.send(refusal(reason))


def _close_all() -> None:
    for listener in list(_open.values()):
        listener.close()


def _after_fork() -> None:
    for listener in list(_open.values()):
        listener._forked()


# `atexit` comes after the pools have been waited for, so that a task that hangs at the exit can still be looked at. But
# a thread that is no daemon would be waited for before that.
if daemon_threads():
    atexit.register(_close_all)
else:
    lifecycle.before_exit(_close_all)
lifecycle.after_fork(_after_fork)
