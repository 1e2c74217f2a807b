"""Waiting until connections can be read. Each is reported once, and then has to be armed again."""

from __future__ import annotations

import select
import selectors
import socket
import sys
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ebbpool._http.connection import Connection


class Poller(Protocol):
    """The way in which the front door waits for descriptors.

    Attributes:
        shared: Whether any thread may call `arm`; if not, only the one that calls `wait`.
    """

    shared: bool

    def watch(self, descriptor: int) -> None:
        """Report a descriptor whenever it can be read; one that is watched already stays so."""

    def forget(self, descriptor: int) -> None:
        """End `watch`."""

    def arm(self, connection: Connection) -> None:
        """Report a connection once, when it can be read or is broken."""

    def drop(self, connection: Connection) -> None:
        """End `arm`, before the connection is closed or lent; in the thread that waits."""

    def wait(self, timeout: float) -> list[int]:
        """Wait up to `timeout` seconds for descriptors, and return them."""
        ...

    def wake(self) -> None:
        """End a `wait` that is under way, or the next one; any thread."""

    def close(self) -> None:
        """Close its own descriptors, and no connection."""


class _Bell:
    """A pair of sockets that ends a wait."""

    def __init__(self) -> None:
        self.ear, self._bell = socket.socketpair()
        self.ear.setblocking(False)
        self._bell.setblocking(False)

    def ring(self) -> None:
        try:
            self._bell.send(b"\0")
        except OSError:
            # The bell has been rung often enough, or is closed.
            pass

    def hear(self) -> None:
        try:
            while len(self.ear.recv(4096)) == 4096:
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        self.ear.close()
        self._bell.close()


class SelectorPoller:
    """The poller for all systems: `selectors`, which only one thread may use."""

    shared = False

    def __init__(self) -> None:
        self._bell = _Bell()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._bell.ear, selectors.EVENT_READ)
        self._lasting = {self._bell.ear.fileno()}

    def watch(self, descriptor: int) -> None:
        if descriptor not in self._lasting:
            self._lasting.add(descriptor)
            if descriptor in self._selector.get_map():
                # It was the descriptor of a connection that other code closed.
                self._selector.unregister(descriptor)
            self._selector.register(descriptor, selectors.EVENT_READ)

    def forget(self, descriptor: int) -> None:
        if descriptor in self._lasting:
            self._lasting.discard(descriptor)
            self._selector.unregister(descriptor)

    def arm(self, connection: Connection) -> None:
        if not connection.polled:
            self._selector.register(connection.fileno(), selectors.EVENT_READ, connection)
            connection.polled = True

    def drop(self, connection: Connection) -> None:
        if connection.polled:
            connection.polled = False
            # Other code may have closed the connection, and its descriptor may be another one's by now.
            key = self._selector.get_map().get(connection.descriptor)
            if key is not None and key.data is connection:
                self._selector.unregister(connection.descriptor)

    def wait(self, timeout: float) -> list[int]:
        try:
            events = self._selector.select(timeout)
        except (OSError, ValueError):
            # Some systems cannot wait for a socket that other code closed.
            broken = [key for key in self._selector.get_map().values() if key.data and key.data.fileno() < 0]
            if not broken:
                raise
            for key in broken:
                self.drop(key.data)
            return [key.fd for key in broken]
        found = []
        for key, _ in events:
            if key.fileobj is self._bell.ear:
                self._bell.hear()
                continue
            if key.data is not None:
                self.drop(key.data)
            found.append(key.fd)
        return found

    def wake(self) -> None:
        self._bell.ring()

    def close(self) -> None:
        self._selector.close()
        self._bell.close()


if sys.platform == "linux":

    class EpollPoller:
        """The kernel's list of descriptors: any thread may add to it while another waits, without waking that one.

        A connection is armed for one event. Once reported it is disarmed, and need not be taken off the list when it is
        lent to a worker, which saves a system call.
        """

        shared = True

        def __init__(self) -> None:
            self._bell = _Bell()
            self._epoll = select.epoll()
            self._ear = self._bell.ear.fileno()
            self._lasting: set[int] = set()
            self.watch(self._ear)

        def watch(self, descriptor: int) -> None:
            if descriptor not in self._lasting:
                self._lasting.add(descriptor)
                self._epoll.register(descriptor, select.EPOLLIN)

        def forget(self, descriptor: int) -> None:
            if descriptor in self._lasting:
                self._lasting.discard(descriptor)
                self._epoll.unregister(descriptor)

        def arm(self, connection: Connection) -> None:
            descriptor = connection.fileno()
            if connection.polled:
                self._epoll.modify(descriptor, select.EPOLLIN | select.EPOLLONESHOT)
            else:
                connection.polled = True
                self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLONESHOT)

        def drop(self, connection: Connection) -> None:
            # Closing takes it off the list. A child process that shares it may keep it there, but for one event only.
            pass

        def wait(self, timeout: float) -> list[int]:
            found = [descriptor for descriptor, _ in self._epoll.poll(timeout)]
            if self._ear in found:
                found.remove(self._ear)
                self._bell.hear()
            return found

        def wake(self) -> None:
            self._bell.ring()

        def close(self) -> None:
            self._epoll.close()
            self._bell.close()


def make_poller() -> Poller:
    """Return the best poller that this system has."""
    return EpollPoller() if sys.platform == "linux" else SelectorPoller()
