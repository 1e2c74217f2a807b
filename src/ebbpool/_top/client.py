"""A connection to a monitor that never waits for the process, which may be stuck."""

from __future__ import annotations

import errno
import json
import select
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from ebbpool._clock import monotonic
from ebbpool._top.processes import Attached, Failed
from ebbpool._unix import peer

LATE: Final = 2.0
"""Seconds after which a missing answer is mentioned."""
LONGEST: Final = 1 << 28
"""How many bytes an answer may have: thousands of tasks with deep stacks have a few millions."""


class Client:
    """What asks a monitor for snapshots, one at a time: the one at `path`, or in a process that has been `attached`."""

    def __init__(self, path: str, pid: int | None = None, attached: Attached | None = None) -> None:
        self.path = path
        self.pid = pid
        self._given = pid
        self._attached = attached
        self._socket: socket.socket | None = None
        self._received = bytearray()
        self._since: float | None = None
        self._request = b""

    def ask(self, stacks: bool = False) -> None:
        """Ask for a snapshot at the next `take`, unless one is still waited for."""
        if self._since is None:
            self._since = monotonic()
            self._request = json.dumps({"get": "snapshot", "stacks": stacks}).encode() + b"\n"

    def take(self, timeout: float = 0.0) -> dict[str, Any] | None:
        """Return the snapshot that was asked for, None if it takes longer; raise `Failed` if there will be none."""
        if self._since is None:
            return None
        deadline = monotonic() + timeout
        while (snapshot := self._answer()) is None:
            left = deadline - monotonic()
            if left <= 0:
                return None
            # Where too many others wait to be accepted, it is tried again.
            ready = self.waits_for()
            select.select(ready, [], [], left if ready else min(left, 0.02))
        self._since = None
        return snapshot

    @property
    def silent(self) -> float:
        """For how many seconds an answer has been waited for; 0 if none is."""
        return 0.0 if self._since is None else monotonic() - self._since

    @property
    def hope(self) -> str:
        """What is waited for until the first answer comes, in lines."""
        if self._attached is None:
            return f"waiting for what listens on {self.path!r}"
        return (
            f"waiting for process {self.pid} to answer\nIts main thread has to run Python code first. If it is in a "
            f"system call\n(waiting for a lock, a connection), that has to return: see py-spy dump --pid {self.pid}"
        )

    def waits_for(self) -> list[socket.socket]:
        """Return what can be read once there is more to do about the answer that is waited for, if there is one."""
        waited = self._socket if self._attached is None else self._socket or self._attached.socket
        return [] if waited is None or self._since is None else [waited]

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._attached is not None:
            self._attached.close(self._socket is not None)

    def _connect(self) -> socket.socket | None:
        if self._attached is not None:
            return self._attached.accept()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            connection.connect(self.path)
        except OSError as error:
            connection.close()
            # It blocks if too many others wait to be accepted, by a process that does not come to it.
            if isinstance(error, BlockingIOError):
                return None
            raise Failed(self._explained(error)) from None
        if (other := peer(connection)) is not None:
            if self._given not in (None, other[0]):
                # Another user may have put a link to any socket there, even to one that only root may use.
                connection.close()
                raise Failed(self._gone())
            self.pid = self.pid or other[0]
        return connection

    def _explained(self, error: OSError) -> str:
        if self.pid is not None and error.errno in (errno.ENOENT, errno.ECONNREFUSED):
            return self._gone()
        if error.errno == errno.ENOENT:
            return f"there is no {self.path!r}"
        reason = error.strerror or str(error)
        if error.errno == errno.ECONNREFUSED:
            dead = Path(self.path).is_socket()
            reason = "nothing is listening there: the process has exited" if dead else "it is no socket"
        return f"cannot watch {self.path!r}: {reason}"

    def _gone(self) -> str:
        whose = f"the process behind {self.path!r}" if self.pid is None else f"process {self.pid}"
        return f"{whose} has ended, or no longer listens on {self.path!r}"

    def _answer(self) -> dict[str, Any] | None:
        """Do what can be done without waiting; return the snapshot if it has come."""
        self._socket = connection = self._socket or self._connect()
        if connection is None:
            return None
        if self._request:
            # There is room for it, because the last one has been answered. The monitor may have said why before it
            # closed the connection.
            with suppress(OSError):
                connection.send(self._request)
            self._request = b""
        while b"\n" not in self._received:
            try:
                piece = connection.recv(1 << 20)
            except BlockingIOError:
                return None
            except OSError:
                piece = b""
            if not piece:
                raise Failed(self._gone())
            self._received += piece
            if len(self._received) > LONGEST:
                raise Failed(f"{self.path!r} is not an ebbpool monitor: it sends without an end")
        line, _, self._received = self._received.partition(b"\n")
        if self._attached is None:
            # A monitor answers one request a connection.
            connection.close()
            self._socket = None
        found: Any = None
        with suppress(ValueError):
            found = json.loads(line)
        if isinstance(found, dict) and "error" in found:
            raise Failed(f"cannot watch process {self.pid}: {found['error']}")
        if not isinstance(found, dict) or not isinstance(found.get("pools"), list):
            raise Failed(f"{self.path!r} is not an ebbpool monitor: it answers {bytes(line[:40])!r}")
        return found
