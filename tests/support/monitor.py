"""How tests talk to the monitor of a process."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any, Self

from support.common import TIMEOUT

SNAPSHOT = {"get": "snapshot"}


class Talk:
    def __init__(self, path: str | Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(TIMEOUT)
        self.socket.connect(str(path))
        self._lines = self.socket.makefile("rb")

    def say(self, line: bytes) -> None:
        self.socket.sendall(line)

    def hear(self) -> Any:
        """Return the next line's object, or None at the end of the connection."""
        line = self._lines.readline()
        return json.loads(line) if line else None

    def ask(self, request: Any = SNAPSHOT) -> Any:
        self.say(json.dumps(request).encode() + b"\n")
        return self.hear()

    def close(self) -> None:
        self._lines.close()
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
