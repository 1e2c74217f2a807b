"""Where the children of `ebbpool.prefork` listen: checks of addresses, and the socket that the parent keeps open."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final, TypeAlias

from ebbpool._unix import identity, must_be_free, refused, remove

Bind: TypeAlias = tuple[str, int] | str | socket.socket

UNIX: Final = "unix:"
MODE: Final = "?mode="


@contextlib.contextmanager
def listening(bind: Bind, backlog: int) -> Iterator[socket.socket]:
    """Listen at `bind` during the block, and yield the socket, which does not block.

    A socket that was handed in stays the caller's: it is not closed.
    """
    address = _address_of(bind)
    wanted = _host_and_port(*bind) if isinstance(bind, tuple) else bind
    with ExitStack() as ours:
        try:
            if isinstance(address, socket.socket):
                listener = address
                listener.listen(backlog)
            elif isinstance(address, str):
                listener = _unix(address, backlog, ours)
            else:
                listener = ours.enter_context(_inet(*address, backlog))
        except socket.gaierror as error:
            raise OSError(errno.EADDRNOTAVAIL, f"cannot listen on {wanted!r}: {error.strerror}") from None
        except OSError as error:
            raise refused(wanted, error) from None
        except UnicodeError as error:
            raise ValueError(f"bind must have a name that can be encoded, not {wanted!r}: {error}") from None
        listener.setblocking(False)
        yield listener


def shown(listener: socket.socket) -> str:
    """Return the address of a listener, with the port that the system chose if none was given."""
    name = listener.getsockname()
    return _host_and_port(*name[:2]) if isinstance(name, tuple) else UNIX + os.fsdecode(name)


def _address_of(bind: Any) -> str | tuple[str, int] | socket.socket:
    """Return `bind` as the path of a Unix socket, a host and a port, or the socket it is."""
    if isinstance(bind, socket.socket):
        return _bound(bind)
    if isinstance(bind, str) and bind.startswith(UNIX):
        path, marked, mode = bind[len(UNIX) :].partition(MODE)
        if not path or "\0" in path:
            raise ValueError(f"bind must name a path after {UNIX!r}, not {bind!r}")
        if marked and re.fullmatch("0?[0-7]{3}", mode) is None:
            raise ValueError(f"bind must have an octal mode of 000 to 777, not {mode!r} in {bind!r}")
        return bind[len(UNIX) :]
    if not isinstance(bind, tuple) or len(bind) != 2:
        raise TypeError(f'bind must be (host, port), "unix:path" or a socket, not {bind!r}')
    host, number = bind
    if not isinstance(host, str):
        raise TypeError(f"bind must have a string for its host, not {host!r}")
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError(f"bind must have an integer for its port, not {number!r}")
    if not 0 <= number <= 65535:
        raise ValueError(f"bind must have a port of 0 to 65535, not {number}")
    return host, number


def _bound(listener: socket.socket) -> socket.socket:
    if listener.fileno() < 0:
        raise ValueError(f"bind must be an open socket, not {listener!r}")
    if listener.type != socket.SOCK_STREAM:
        raise ValueError(f"bind must be a stream socket, not {listener!r}")
    bound = listener.getsockname()
    if not (bound[1] if isinstance(bound, tuple) else bound):
        raise ValueError(f"bind must be a socket that is bound, not {listener!r}")
    return listener


def _inet(host: str, port: int, backlog: int) -> socket.socket:
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    if not host:
        # IPv4 comes first, wherever it stands on this system.
        found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    family, address = found[0][0], found[0][4]
    dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    return socket.create_server(address, family=family, backlog=backlog, dualstack_ipv6=dual)


def _unix(where: str, backlog: int, ours: ExitStack) -> socket.socket:
    path, _, mode = where.partition(MODE)
    must_be_free(path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listener = ours.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    listener.bind(path)
    ours.callback(remove, path, identity(path))
    if mode:
        # Nobody can connect before it listens.
        os.chmod(path, int(mode, 8))
    listener.listen(backlog)
    return listener


def _host_and_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
