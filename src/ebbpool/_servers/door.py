"""How a server's loop waits for connections, pauses where it cannot accept any, and turns clients away."""

from __future__ import annotations

import contextlib
import errno
import logging
import select
import selectors
import socket
import sys
from collections.abc import Callable
from math import inf
from typing import Any, Final

from ebbpool._clock import monotonic
from ebbpool._stdio import Bell

LOGGER: Final = logging.getLogger("ebbpool.socketserver")

EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors of `accept` that say nothing about the connection: the next attempt fails, too."""
ACCEPTS = 64
"""How many connections are accepted at most before any of them is handed over."""
SHARED_ACCEPTS = 8
"""How many where other processes accept from the same listener."""
BURST = 4
"""After so many connections accepted at once, the loop leaves the GIL to the workers for a moment."""
NAP = 0.0002
"""Seconds for which it does so."""
LOOKS: Final = 128
"""Once in so many looks it does so anyway: where server and clients are in step, no look would ever find a burst."""
BACK_OFF = 0.01
"""Seconds without an attempt to accept when the system runs out of something."""
DRAINED: Final = 16
"""How many reads in a row at most from a connection that was refused, or answered early."""
QUIET: Final = 1.0
"""Least seconds between two log lines about the same trouble."""
LONGEST: Final = 1.0
"""Seconds after which a wait ends though nothing has happened."""


class Complaint:
    """One trouble, which is logged once a second at most, with the number of times since the last line."""

    def __init__(self, level: int, message: str, clock: Callable[[], float] = monotonic) -> None:
        self._level = level
        self._message = message
        self._clock = clock
        self._times = 0
        self._next = -inf

    def make(self, *args: object) -> None:
        """Count an occurrence of the trouble, and log it unless that was done less than a second ago."""
        now = self._clock()
        self._times += 1
        if now < self._next:
            return
        more = f" ({self._times} times since this was last logged)" if self._times > 1 else ""
        # Before a handler that may take long.
        self._next, self._times = now + QUIET, 0
        LOGGER.log(self._level, self._message + "%s", *args, more)


def turn_away(connection: socket.socket, answer: bytes = b"") -> None:
    """Answer a client for which there is no room, without waiting for it; the connection is to be closed then."""
    with contextlib.suppress(OSError):
        connection.setblocking(False)
        if answer:
            connection.send(answer)
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        # What nobody has read would make the close a reset, and the answer might be lost.
        for _ in range(DRAINED):
            if not connection.recv(1 << 16):
                break


class SelectorPoller:
    """The poller for all systems: `selectors`, which only one thread may use.

    A connection is reported once, and then has to be armed again. It has the number that it was armed under as
    `descriptor`, and whether the poller knows that as `polled`.
    """

    shared = False
    """Whether any thread may call `arm`; if not, only the one that calls `wait`."""

    def __init__(self) -> None:
        self._system: Any = selectors.DefaultSelector()

    def watch(self, descriptor: int) -> None:
        """Report a descriptor whenever it can be read; one that is watched already stays so."""
        self.forget(descriptor)
        self._system.register(descriptor, selectors.EVENT_READ)

    def forget(self, descriptor: int) -> None:
        """End `watch`; harmless for one that is not watched, or closed."""
        if descriptor in self._system.get_map():
            self._system.unregister(descriptor)

    def arm(self, connection: Any) -> None:
        """Report a connection once, when it can be read or is broken."""
        if not connection.polled:
            # It may have been the descriptor of a connection that other code closed.
            self.forget(connection.fileno())
            self._system.register(connection.fileno(), selectors.EVENT_READ, connection)
            connection.polled = True

    def drop(self, connection: Any) -> None:
        """End `arm`, before the connection is closed or lent; in the thread that waits."""
        if connection.polled:
            connection.polled = False
            # Other code may have closed the connection, and its descriptor may be another one's by now.
            key = self._system.get_map().get(connection.descriptor)
            if key is not None and key.data is connection:
                self._system.unregister(connection.descriptor)

    def wait(self, timeout: float) -> list[int]:
        try:
            found = [key for key, _ in self._system.select(timeout)]
        except (OSError, ValueError):
            # Some systems cannot wait for a socket that other code closed.
            found = [key for key in self._system.get_map().values() if key.data and key.data.fileno() < 0]
            if not found:
                raise
        for key in found:
            if key.data is not None:
                self.drop(key.data)
        return [key.fd for key in found]

    def close(self) -> None:
        self._system.close()


if sys.platform == "linux":

    class EpollPoller(SelectorPoller):
        """The kernel's list of descriptors: any thread may add to it while another waits, without waking that one.

        A connection is armed for one event. Once reported it is disarmed, and need not be taken off the list when it is
        lent to a worker, which saves a system call.
        """

        shared = True

        def __init__(self) -> None:
            self._system = select.epoll()

        def watch(self, descriptor: int) -> None:
            with contextlib.suppress(FileExistsError):
                self._system.register(descriptor, select.EPOLLIN)

        def forget(self, descriptor: int) -> None:
            with contextlib.suppress(OSError, ValueError):
                self._system.unregister(descriptor)

        def arm(self, connection: Any) -> None:
            change = self._system.modify if connection.polled else self._system.register
            connection.polled = True
            change(connection.fileno(), select.EPOLLIN | select.EPOLLONESHOT)

        def drop(self, connection: Any) -> None:
            # Closing takes it off the list. A child process that shares it may keep it there, but for one event only.
            pass

        def wait(self, timeout: float) -> list[int]:
            return [descriptor for descriptor, _ in self._system.poll(timeout)]


def make_poller() -> SelectorPoller:
    return EpollPoller() if sys.platform == "linux" else SelectorPoller()


class Door:
    """Where the loop of the server `host` waits for connections. Only the thread that runs it may use this."""

    keeps = False
    """Whether it keeps connections. Then the loop goes on without a listener, and accepts once more when it ends."""

    def __init__(self, host: Any, poller: SelectorPoller | None = None, clock: Callable[[], float] = monotonic) -> None:
        self._host = host
        self._poller = make_poller() if poller is None else poller
        self._clock = clock
        self._looks = 0
        self._shortages = Complaint(logging.WARNING, "cannot accept connections for now; new ones have to wait: %s")
        self._resume = 0.0
        self._listener = -1
        self._bell: Bell

    def open(self, listener: int, bell: Bell) -> None:
        """Begin to wait for connections at the descriptor `listener`; `bell` ends a wait."""
        self._listener = listener
        self._bell = bell
        self._poller.watch(listener)
        self._poller.watch(bell.ear.fileno())

    def shut(self) -> None:
        """End `open`."""
        self._poller.close()

    def turn(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds, a second at most; return whether there may be connections to accept."""
        return self._listener in self._wait(timeout)

    def admit(self, request: Any, client_address: Any) -> None:
        """Take in a connection that was accepted, or shut it down if it is not verified."""
        if self._host.verify_request(request, client_address):
            self.take_in(request, client_address)
        else:
            self._host.shutdown_request(request)

    def take_in(self, request: Any, client_address: Any) -> None:
        self._host.process_request(request, client_address)

    def check_room(self) -> None:
        """Raise the `OSError` of an accept for which there is no room."""

    def shed(self) -> bool:
        """Close a connection, for want of what the system needs for another one; return whether there was one."""
        return False

    def naps_after(self, count: int) -> bool:
        """Take note of a look that has found `count` connections; return whether to nap after it."""
        self._looks += 1
        return count >= BURST or self._looks % LOOKS == 0

    def rest(self, error: OSError) -> None:
        """Do not wait for connections for a while: the system lacks what one needs."""
        self._shortages.make(error)
        self._resume = self._clock() + BACK_OFF
        self._poller.forget(self._listener)

    def _wait(self, timeout: float) -> list[int]:
        if self._resume:
            left = self._resume - self._clock()
            timeout = min(timeout, left)
            if left <= 0:
                self._resume = 0.0
                self._poller.watch(self._listener)
        ready = self._poller.wait(min(max(0.0, timeout), LONGEST))
        if self._bell.ear.fileno() in ready:
            self._bell.hear()
        return ready
