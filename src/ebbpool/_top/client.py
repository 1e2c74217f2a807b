"""Which processes listen, as Linux tells under /proc; and a connection to one that never waits, for it may be stuck."""

from __future__ import annotations

import errno
import json
import os
import re
import select
import socket
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, Final, Protocol

from ebbpool._monitor import PRIVATE
from ebbpool._unix import peer

LONGEST: Final = 1 << 28
"""How many bytes an answer may have: thousands of tasks with deep stacks have a few millions."""
_LISTENS: Final = 0x10000
"""The flag of /proc/net/unix for a socket that listens."""
_BOUND: Final = re.compile(rf"(?P<folder>.*/){re.escape(PRIVATE)}[^/]+/(?P<name>[^/]+)")


class Failed(Exception):
    """What the user is told, in one or more lines, before the command ends."""


def alive(pid: int) -> bool:
    """Return whether there is such a process, which has not ended yet."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        pass
    if sys.platform == "linux":
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def command_of(pid: int) -> str:
    with suppress(OSError), open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
        return file.read().rstrip("\0").replace("\0", " ")
    return ""


def root_of(pid: int) -> str:
    """Return the folder in which this process sees the root of `pid`: empty where both have the same."""
    try:
        if os.stat(f"/proc/{pid}/ns/mnt").st_ino != os.stat("/proc/self/ns/mnt").st_ino:
            return f"/proc/{pid}/root"
    except OSError:
        pass
    return ""


def find(pid: int) -> str | None:
    """Return where `pid` listens, or None; a socket is found by the name under which it was bound."""
    with suppress(OSError):
        inodes = _sockets(pid)
        if not inodes:
            return None
        with open(f"/proc/{pid}/net/unix", encoding="utf-8", errors="surrogateescape") as table:
            for line in table:
                path = _monitor(line, inodes)
                if path is not None and os.path.exists(root_of(pid) + path):
                    return root_of(pid) + path
    return None


def everyone() -> list[tuple[int, str, str]]:
    """Return number, path and command line of the processes of this user that listen; for root those of all users.

    Raises:
        Failed: The platform does not tell.
    """
    if not os.path.exists("/proc/net/unix"):
        raise Failed("listing needs Linux; give the PATH of the socket instead")
    found = []
    for name in sorted(filter(str.isdigit, os.listdir("/proc")), key=int):
        pid = int(name)
        # The table is that of the process's own network; most processes have no socket of ours, and are not asked.
        if (path := find(pid)) is not None:
            found.append((pid, path, command_of(pid)))
    return found


def _sockets(pid: int) -> set[str]:
    found = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):
            target = os.readlink(f"/proc/{pid}/fd/{name}")
            if target.startswith("socket:["):
                found.add(target[8:-1])
    return found


def _monitor(line: str, inodes: set[str]) -> str | None:
    """Return the path of a monitor, if a line of /proc/net/unix is about one that has one of the `inodes`."""
    fields = line.rstrip("\n").split(None, 7)
    if len(fields) < 8 or fields[6] not in inodes or not int(fields[3], 16) & _LISTENS:
        return None
    match = _BOUND.fullmatch(fields[7])
    return match["folder"] + match["name"] if match else None


class Asked(Protocol):
    """A process that has been asked to listen."""

    def refusal(self) -> str | None:
        """Return why it does not listen, once it has said so."""

    def close(self, answered: bool) -> None:
        """Leave; `answered` tells whether it has come to what it was asked for."""


class Client:
    """What asks a monitor for snapshots, one at a time.

    Args:
        path: Where the process listens, or will once it has come to what it was asked for.
        pid: Its number, if that is known.
        asked: What has asked it to listen, if anything has.
    """

    def __init__(self, path: str, pid: int | None = None, asked: Asked | None = None) -> None:
        self.path = path
        self.pid = pid
        self._asked = asked
        self._socket: socket.socket | None = None
        self._received = bytearray()
        self._since: float | None = None
        self._request = b""

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
        if self._asked is None:
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
        if self._asked is not None:
            self._asked.close(self._socket is not None)

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
        if self._asked is not None:
            if (refusal := self._asked.refusal()) is not None:
                raise Failed(f"cannot watch process {self.pid}: {refusal}")
            if self.pid is not None and not alive(self.pid):
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
            raise Failed(f"cannot watch process {self.pid}: {found['error']}")
        if not isinstance(found, dict) or not isinstance(found.get("pools"), list):
            raise Failed(f"{self.path!r} is not an ebbpool monitor: it answers {line[:40]!r}")
        return found
