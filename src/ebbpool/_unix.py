"""The path of a Unix socket: whether it is free, and removed by its owner alone; and who is at the other end."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import struct
import sys
from collections.abc import Iterator


def must_be_free(path: str) -> None:
    """Raise `OSError` unless there is nothing at `path`, or the socket of a dead process."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "there is a file that is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return
        except BlockingIOError:
            # It is busy.
            whom = ""
        else:
            owner = peer(probe)
            whom = f" (process {owner[0]})" if owner is not None and owner[0] is not None else ""
    raise OSError(errno.EADDRINUSE, f"a process{whom} is already listening there")


@contextlib.contextmanager
def opened(folder: str, more: int = 0) -> Iterator[int]:
    """Open a directory that may be another user's: names in it, with this descriptor, lead nowhere else."""
    place = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | more)
    try:
        yield place
    finally:
        os.close(place)


def identity(path: str, place: int | None = None) -> tuple[int, int]:
    """Return what tells the file at `path`, or of that name in a directory, from any other."""
    found = os.stat(path, dir_fd=place, follow_symlinks=False)
    return found.st_dev, found.st_ino


def remove(path: str, made: tuple[int, int]) -> None:
    """Remove the file at `path`, unless it is no longer the one that was made there."""
    folder, name = os.path.split(path)
    with contextlib.suppress(OSError), opened(folder) as place:
        if identity(name, place) == made:
            os.unlink(name, dir_fd=place)


def refused(where: object, error: OSError) -> OSError:
    """Return an error of listening that names the address."""
    # The error for a path that is too long has no number.
    reason = (error.strerror or str(error)).partition(" (while attempting")[0]
    return OSError(error.errno or errno.ENAMETOOLONG, f"cannot listen on {where!r}: {reason}")


def peer(connection: socket.socket) -> tuple[int | None, int] | None:
    """Return the process at the other end, where the platform tells it, and its user; None if it tells neither."""
    with contextlib.suppress(OSError):
        if hasattr(socket, "SO_PEERCRED"):
            layout = struct.Struct("3i")
            pid, user, _ = layout.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, layout.size))
            return pid, user
        if sys.platform == "darwin":
            # SOL_LOCAL and LOCAL_PEERCRED, which give a `struct xucred`: its version, then the user.
            _, user = struct.unpack_from("2I", connection.getsockopt(0, 1, 76))
            return None, user
    return None
