"""Where the children of `ebbpool.prefork` listen: checks of addresses, and the sockets that the parent keeps open."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
from collections.abc import Collection
from typing import Any, Final, TypeAlias

from ebbpool._unix import identity, must_be_free, refused, remove

Bind: TypeAlias = tuple[str, int] | str | socket.socket

UNIX: Final = "unix:"
_INET = re.compile(r"(?:\[(.+)\]|([^:\[\]]*)):([0-9]+)")


def address_of(bind: Any, name: str = "bind") -> str | tuple[str, int] | socket.socket:
    """Return `bind`, which errors call `name`, as the path of a Unix socket, a host and a port, or the socket it is."""
    if isinstance(bind, socket.socket):
        return _bound(bind, name)
    if isinstance(bind, str):
        if bind.startswith(UNIX):
            return _path(bind, name)
        parts = _INET.fullmatch(bind)
        if parts is None:
            raise ValueError(f'{name} must be "host:port", "[host]:port" or "unix:path", not {bind!r}')
        bind = parts[1] or parts[2], int(parts[3])
    if not isinstance(bind, tuple) or len(bind) != 2:
        raise TypeError(f"{name} must be (host, port), a string or a socket, not {bind!r}")
    host, number = bind
    if not isinstance(host, str):
        raise TypeError(f"{name} must have a string for its host, not {host!r}")
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError(f"{name} must have an integer for its port, not {number!r}")
    if not 0 <= number <= 65535:
        raise ValueError(f"{name} must have a port of 0 to 65535, not {number}")
    return host, number


def _path(bind: str, name: str) -> str:
    path = bind[len(UNIX) :]
    if not hasattr(socket, "AF_UNIX"):
        raise ValueError(f"{name} must be an internet address on this system, which has no Unix sockets, not {bind!r}")
    if not path or "\0" in path:
        raise ValueError(f"{name} must name a path after {UNIX!r}, not {bind!r}")
    return path


def _bound(listener: socket.socket, name: str) -> socket.socket:
    if listener.fileno() < 0:
        raise ValueError(f"{name} must be an open socket, not {listener!r}")
    if listener.type != socket.SOCK_STREAM:
        raise ValueError(f"{name} must be a stream socket, not {listener!r}")
    bound = listener.getsockname()
    if not (bound[1] if isinstance(bound, tuple) else bound):
        raise ValueError(f"{name} must be a socket that is bound, not {listener!r}")
    return listener


class Listeners:
    """The listening sockets of one server, opened once: one of its own for each number with `reuse_port`.

    A socket that was handed in stays the caller's: it is made non-blocking, and not closed. Errors call `bind` `name`.
    """

    def __init__(self, bind: Bind, backlog: int, reuse_port: bool, name: str = "bind") -> None:
        address = address_of(bind, name)
        self._backlog = backlog
        self._own: dict[int, socket.socket] = {}
        self._file: tuple[str, tuple[int, int]] | None = None
        self._reuse_port = reuse_port
        if reuse_port and not hasattr(socket, "SO_REUSEPORT"):
            raise ValueError("reuse_port must be False on this system, which has no SO_REUSEPORT")
        if reuse_port and not isinstance(address, tuple):
            raise ValueError(f"reuse_port needs an internet address to bind, not {bind!r}")
        shown = _shown(*bind) if isinstance(bind, tuple) else bind
        try:
            if isinstance(address, socket.socket):
                self._first = address
                address.listen(backlog)
                address.setblocking(False)
            elif isinstance(address, str):
                self._first = self._own[0] = self._unix(address)
            else:
                host, port = address
                found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
                if not host:
                    # IPv4 comes first, wherever it stands on this system.
                    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
                self._family, self._address = found[0][0], found[0][4]
                if reuse_port:
                    # A socket with SO_REUSEPORT joins others that listen at the address with it. Bind once without it,
                    # to notice if another program listens there.
                    with self._inet(False) as probe:
                        self._address = probe.getsockname()
                self._first = self._own[0] = self._inet(reuse_port)
        except socket.gaierror as error:
            raise OSError(errno.EADDRNOTAVAIL, f"cannot listen on {shown!r}: {error.strerror}") from None
        except OSError as error:
            raise refused(shown, error) from None
        except UnicodeError as error:
            raise ValueError(f"{name} must have a name that can be encoded, not {shown!r}: {error}") from None

    @property
    def shown(self) -> str:
        """The address, with the port that the system chose if none was given."""
        name = self._first.getsockname()
        return _shown(*name[:2]) if isinstance(name, tuple) else UNIX + os.fsdecode(name)

    def of(self, number: int) -> socket.socket:
        """Return the socket that child `number` listens on; with `reuse_port` it may have to be opened."""
        if not self._reuse_port:
            return self._first
        if number not in self._own:
            self._own[number] = self._inet(True)
        return self._own[number]

    def keep_only(self, numbers: Collection[int]) -> None:
        # The first is kept so that the port is never given up.
        for number in self._own.keys() - {0, *numbers}:
            self._own.pop(number).close()

    def close(self) -> None:
        """Close the sockets that were opened here, and remove the file of a Unix socket."""
        for listener in self._own.values():
            listener.close()
        if self._file is not None:
            remove(*self._file)

    def _inet(self, reuse_port: bool) -> socket.socket:
        listener = socket.create_server(
            self._address,
            family=self._family,
            backlog=self._backlog,
            reuse_port=reuse_port,
            dualstack_ipv6=self._family == socket.AF_INET6 and socket.has_dualstack_ipv6(),
        )
        listener.setblocking(False)
        return listener

    def _unix(self, path: str) -> socket.socket:
        must_be_free(path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(path)
            made = identity(path)
            listener.listen(self._backlog)
        except BaseException:
            listener.close()
            raise
        self._file = path, made
        listener.setblocking(False)
        return listener


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
