"""See what the pools of a process do: on the socket that ``python -m ebbpool top`` looks at, or as a snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbpool._monitor.listener import Listener, snapshot

if TYPE_CHECKING:
    import os

__all__ = ["Listener", "listen", "snapshot"]


def listen(path: str | os.PathLike[str]) -> Listener:
    """Answer on a Unix socket at `path` what the pools of this process are doing.

    Only processes of the same user, and of root, are answered. One thread serves all clients. It does not keep the
    interpreter alive. `EBBPOOL_MONITOR=PATH` in the environment does the same when the first pool is made.

    Args:
        path: Path of the socket's file; ``{pid}`` in it becomes the process ID. A file that a dead process has left
            there is replaced. After a fork the child listens as well if the path has ``{pid}`` in it, and does not
            listen otherwise.

    Returns:
        The listener, which works until its `close` is called, its ``with`` block ends, or the process exits.

    Raises:
        TypeError: `path` is not a path.
        ValueError: `path` is empty, or has a NUL character in it.
        OSError: `path` is taken, too long, or cannot be used; the message says which.
        RuntimeError: This Python has no Unix sockets, or the system refuses another thread.
    """
    return Listener(path)
