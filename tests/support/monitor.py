"""How tests talk to the monitor of a process."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from support.common import TIMEOUT

SNAPSHOT = {"get": "snapshot"}


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory whose path leaves room for the name of a socket, of which a system takes some hundred bytes."""
    with tempfile.TemporaryDirectory(prefix="ebb-", dir="/tmp" if os.path.isdir("/tmp") else None) as folder:
        yield Path(folder)


class Talk:
    """A connection to a monitor, line by line."""

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


def lane_of(name: str, **figures: Any) -> dict[str, Any]:
    """Return a lane's part of a snapshot."""
    fixed = {"limit": 4, "running": 0, "queued": 0, "oldest_wait": 0.0, "completed": 0, "failed": 0, "cancelled": 0}
    return fixed | {"name": name, "submitted": 0} | figures


def task_of(name: str, seconds: float, **figures: Any) -> dict[str, Any]:
    """Return a task's part of a snapshot."""
    fixed = {"lane": None, "thread": f"thread_of_{name}", "native_id": 77, "blocked": False, "stack": None}
    return fixed | {"name": name, "seconds": seconds} | figures


def pool_of(name: str, **figures: Any) -> dict[str, Any]:
    """Return a pool's part of a snapshot."""
    counts = ("idle", "running", "blocked", "queued", "submitted", "completed", "failed", "cancelled", "rejected")
    others = {"started": 0, "retired": 0, "delayed": 0, "oldest_wait": 0.0, "longest_running": 0.0, "workers": 0}
    bounds = {
        "name": name,
        "min_workers": 0,
        "max_workers": 256,
        "max_queue": None,
        "last_decision": "",
        "closed": False,
    }
    return dict.fromkeys(counts, 0) | others | bounds | {"lanes": [], "tasks": [], "decisions": []} | figures


def snapshot_of(*pools: dict[str, Any], time: float = 1000.0) -> dict[str, Any]:
    """Return a snapshot as a monitor sends it."""
    return {"ebbpool": "0.1.0", "pid": 4242, "python": "CPython 3.13.0 (GIL on)", "time": time, "pools": list(pools)}
