"""How tests talk to the monitor of a process, and what they see of its inside and of `top`."""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from ebbpool._monitor import THREAD, listener
from ebbpool._monitor.listener import answer
from ebbpool._top import client, processes, run
from support.common import TIMEOUT

with suppress(ImportError):
    # Where rich is not installed there is no screen.
    from ebbpool._top import terminal, view

__all__ = ["SNAPSHOT", "THREAD", "Talk", "answer", "ask", "client", "listener", "processes", "run", "terminal", "view"]

SNAPSHOT = {"get": "snapshot"}


class Talk:
    """One request, and its answer."""

    def __init__(self, path: str | Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(TIMEOUT)
        self.socket.connect(str(path))

    def hear(self) -> Any:
        """Return the object that comes before the end of the connection, or None."""
        with self.socket.makefile("rb") as lines:
            (line,) = list(lines) or [b"null"]
        return json.loads(line)

    def ask(self, request: Any = SNAPSHOT) -> Any:
        self.socket.sendall(request if isinstance(request, bytes) else json.dumps(request).encode() + b"\n")
        return self.hear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def ask(path: str | Path, request: Any = SNAPSHOT) -> Any:
    with Talk(path) as talk:
        return talk.ask(request)
