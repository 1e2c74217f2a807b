"""Where a monitor listens: the file of its Unix socket, and who may connect."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from typing import Any, Final

from ebbpool._unix import identity, must_be_free, peer, refused, remove

PRIVATE: Final = ".ebb-"
"""What the name of the private directory begins with in which a socket is bound.

The kernel goes on showing the name under which a socket was bound. That is how `top` recognises our sockets, and finds
their files: one directory further up.
"""


def path_of(value: Any) -> str:
    """Return `value` as a path, in which ``{pid}`` may stand for the number of the process.

    Raises:
        TypeError: It is not a path.
        ValueError: It is empty, or has a NUL character in it.
    """
    try:
        path = os.fsdecode(value)
    except TypeError:
        raise TypeError(f"path must be a string or a path, not {value!r}") from None
    try:
        fits = bool(path) and b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise ValueError(f"path must name a file, not {value!r}")
    return path


class Place:
    """A listening Unix socket that only the owner of this process, and root, may open.

    Raises:
        OSError: The path is taken, or cannot be used; the message names it.
        RuntimeError: The platform has no Unix sockets.
    """

    def __init__(self, path: str) -> None:
        if not hasattr(socket, "AF_UNIX"):
            raise RuntimeError(f"cannot listen on {path!r}: this Python has no Unix sockets")
        self.path = os.path.abspath(path)
        try:
            self.socket = self._bound()
        except OSError as error:
            raise refused(self.path, error) from None

    def _bound(self) -> socket.socket:
        folder, name = os.path.split(self.path)
        # Nobody else can enter the directory, so nobody finds the socket there before its mode is set.
        private = tempfile.mkdtemp(prefix=PRIVATE, dir=folder)
        inside = os.path.join(private, name)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(inside)
            os.chmod(inside, 0o600)
            listener.listen(128)
            listener.setblocking(False)
            self._identity = identity(inside)
            must_be_free(self.path)
            # Where two processes come to this line at once, the later one has the path.
            os.rename(inside, self.path)
        except BaseException:
            listener.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(inside)
            raise
        finally:
            os.rmdir(private)
        return listener

    def remove(self) -> None:
        remove(self.path, self._identity)


def welcome(connection: socket.socket) -> bool:
    """Return whether the other end is a process of this user, or of root.

    Where the platform does not say whose it is, the mode of the socket's file has to do.
    """
    other = peer(connection)
    return other is None or other[1] in (0, os.geteuid())
