"""Waiting until connections can be read. Each is reported once, and then has to be armed again."""

from __future__ import annotations

import contextlib
import select
import selectors
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ebbpool._http.connection import Connection


class SelectorPoller:
    """The poller for all systems: `selectors`, which only one thread may use.

    Attributes:
        shared: Whether any thread may call `arm`; if not, only the one that calls `wait`.
    """

    shared = False

    def __init__(self) -> None:
        self._system: Any = selectors.DefaultSelector()

    def watch(self, descriptor: int) -> None:
        """Report a descriptor whenever it can be read; one that is watched already stays so."""
        # It may have been the descriptor of a connection that other code closed.
        self.forget(descriptor)
        self._system.register(descriptor, selectors.EVENT_READ)

    def forget(self, descriptor: int) -> None:
        """End `watch`; harmless for one that is not watched, or closed."""
        if descriptor in self._system.get_map():
            self._system.unregister(descriptor)

    def arm(self, connection: Connection) -> None:
        """Report a connection once, when it can be read or is broken."""
        if not connection.polled:
            self._system.register(connection.fileno(), selectors.EVENT_READ, connection)
            connection.polled = True

    def drop(self, connection: Connection) -> None:
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

        def arm(self, connection: Connection) -> None:
            change = self._system.modify if connection.polled else self._system.register
            connection.polled = True
            change(connection.fileno(), select.EPOLLIN | select.EPOLLONESHOT)

        def drop(self, connection: Connection) -> None:
            # Closing takes it off the list. A child process that shares it may keep it there, but for one event only.
            pass

        def wait(self, timeout: float) -> list[int]:
            return [descriptor for descriptor, _ in self._system.poll(timeout)]


def make_poller() -> SelectorPoller:
    return EpollPoller() if sys.platform == "linux" else SelectorPoller()
