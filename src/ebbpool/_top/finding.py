"""Which processes listen, and where: what Linux tells under /proc."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from typing import Final

from ebbpool._monitor import PRIVATE, VARIABLE

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
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
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
    with contextlib.suppress(OSError):
        inodes = _sockets(pid)
        if not inodes:
            return None
        with open(f"/proc/{pid}/net/unix", encoding="utf-8", errors="surrogateescape") as table:
            for line in table:
                path = _monitor(line, inodes)
                if path is not None and os.path.exists(root_of(pid) + path):
                    return root_of(pid) + path
    return None


def named_in_environment(pid: int) -> str | None:
    """Return the path that `EBBPOOL_MONITOR` names in the environment of `pid`, or None."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        for entry in file.read().split(b"\0"):
            name, _, value = entry.partition(b"=")
            if name == VARIABLE.encode() and value:
                path = os.fsdecode(value).replace("{pid}", str(pid))
                return root_of(pid) + os.path.join(os.readlink(f"/proc/{pid}/cwd"), path)
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
        with contextlib.suppress(OSError):
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
