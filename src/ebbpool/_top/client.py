"""One connection to a monitor that never waits for it: the process on the other end may be stuck."""

from __future__ import annotations

import errno
import json
import select
import socket
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from ebbpool._top.finding import Failed, alive
from ebbpool._unix import peer

if TYPE_CHECKING:
    from ebbpool._top.attaching import Attached


LONGEST: Final = 1 << 28
"""How many bytes an answer may have: thousands of tasks with deep stacks have a few millions."""


class Client:
    """What asks a monitor for snapshots, one at a time.

    Args:
        path: Where the process listens, or will once it has come to what it was asked for.
        attached: What asked it to listen, if it had not done so by itself.
    """

    def __init__(self, path: str, attached: Attached | None = None, pid: int | None = None) -> None:
        self.path = path
        self.pid = pid if attached is None else attached.pid
        self._attached = attached
        self._socket: socket.socket | None = None
        self._received = bytearray()
        self._since: float | None = None
        self._request: bytes = b""
        self._answered = False

    def ask(self, stacks: bool = False) -> None:
        """Ask for a snapshot, unless one is still waited for.

        Raises:
            Failed: The process is gone, or does not listen.
        """
        if self._since is not None:
            return
        self._since = monotonic()
        self._request = json.dumps({"get": "snapshot", "stacks": stacks}).encode() + b"\n"
        self._send()

    def take(self, timeout: float = 0.0) -> dict[str, Any] | None:
        """Return the snapshot that was asked for, or None if it does not come within `timeout` seconds.

        Raises:
            Failed: The process is gone, has refused, or does not listen.
        """
        deadline = monotonic() + timeout
        while True:
            if self._send() and (line := self._line()) is not None:
                self._since = None
                self._answered = True
                return self._snapshot(line)
            left = deadline - monotonic()
            if left <= 0:
                return None
            # What does not listen yet is asked again.
            ready = self.waits_for()
            select.select(ready, [], [], left if ready else min(left, 0.02))

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
            f"waiting for process {self.pid} to listen\nIts main thread has to run Python code first. If it is in a "
            "system call\n(waiting for a lock, a connection), that call has to return."
        )

    def waits_for(self) -> list[socket.socket]:
        return [] if self._socket is None else [self._socket]

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._attached is not None:
            self._attached.close(self._answered)

    def _send(self) -> bool:
        """Connect and send the request if that is still to be done; return whether it is done."""
        if self._socket is None:
            self._connect()
        if self._socket is not None and self._request:
            # There is room for it, because the last one has been answered. The monitor may have said why before it
            # closed the connection.
            with suppress(OSError):
                self._socket.send(self._request)
            self._request = b""
        return self._socket is not None

    def _connect(self) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            connection.connect(self.path)
        except BlockingIOError:
            # Too many others wait to be accepted, by a process that does not come to it.
            connection.close()
        except OSError as error:
            connection.close()
            self._explain(error)
        else:
            self._socket = connection
            if self.pid is None and (other := peer(connection)) is not None:
                self.pid = other[0]

    def _explain(self, error: OSError) -> None:
        absent = error.errno in (errno.ENOENT, errno.ECONNREFUSED)
        if self._attached is not None:
            refusal = self._attached.refusal()
            if refusal is not None:
                raise Failed(f"cannot watch process {self.pid}: {refusal}")
            if not alive(self._attached.pid):
                raise Failed(f"process {self.pid} has ended")
            if absent:
                return
        if error.errno == errno.ENOENT:
            raise Failed(f"there is no {self.path!r}")
        reason = error.strerror or str(error)
        if absent:
            dead = Path(self.path).is_socket()
            reason = "nobody is listening there: the process has ended" if dead else "it is no socket"
        raise Failed(f"cannot watch {self.path!r}: {reason}")

    def _line(self) -> bytes | None:
        assert self._socket is not None
        while b"\n" not in self._received:
            try:
                piece = self._socket.recv(1 << 20)
            except BlockingIOError:
                return None
            except OSError:
                piece = b""
            if not piece:
                whose = f"the process behind {self.path!r}" if self.pid is None else f"process {self.pid}"
                raise Failed(f"{whose} has ended, or no longer listens on {self.path!r}")
            self._received += piece
            if len(self._received) > LONGEST:
                raise Failed(f"{self.path!r} is not an ebbpool monitor: it sends without an end")
        line, _, rest = self._received.partition(b"\n")
        self._received = bytearray(rest)
        return bytes(line)

    def _snapshot(self, line: bytes) -> dict[str, Any]:
        found: Any = None
        with suppress(ValueError):
            found = json.loads(line)
        if isinstance(found, dict) and "error" in found:
            raise Failed(f"process {self.pid} refuses: {found['error']}")
        if not isinstance(found, dict) or not isinstance(found.get("pools"), list):
            raise Failed(f"{self.path!r} is not an ebbpool monitor: it answers {line[:40]!r}")
        return found
