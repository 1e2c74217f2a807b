"""Other processes: which of them listen, and how CPython from 3.14 on makes one answer."""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from ebbpool._monitor import PRIVATE

_MONITOR: Final = re.compile(
    rf"^\S+ \S+ \S+ 00010000 \S+ \S+ +(?P<inode>\d+) (?P<folder>.*/){re.escape(PRIVATE)}[^/\n]+/(?P<name>[^/\n]+)$",
    re.MULTILINE,
)
"""A line of /proc/net/unix about a socket that listens, as the flag tells, and was bound in a private directory."""
_SCRIPT: Final = """
def _begin():
    def look():
        import os, shutil, sys
        try:
            import json, socket
            with socket.socket(socket.AF_UNIX) as top:
                # The program may have set another default.
                top.settimeout(None)
                top.connect(os.path.join({folder!r}, "s"))
                reason = "it has not imported ebbpool"
                try:
                    if "ebbpool" in sys.modules:
                        from ebbpool._monitor.listener import answer
                        return answer(top)
                except BaseException as error:
                    reason = type(error).__name__ + ": " + str(error)
                top.sendall(json.dumps({{"error": reason}}).encode() + b"\\n")
        except BaseException:
            # Nobody looks any more, or this process may have no socket.
            pass
        finally:
            shutil.rmtree({folder!r}, True)
    import _thread
    _thread.start_new_thread(look, ())
_begin()
"""
"""What the process runs: it starts a thread, so that its main thread goes on at once."""
_OWN: Final = ".".join(map(str, sys.version_info[:2]))
PREPARE: Final = (
    "Start it with EBBPOOL_MONITOR=PATH in its environment (it listens once it has made a pool, or logs why not), or "
    "have it call ebbpool.monitor.listen(PATH), and watch it with: python -m ebbpool top PID"
)


class Failed(Exception):
    """What the user is told, in one or more lines, before the command ends."""


def printable(text: object) -> str:
    """Return `text` without characters that would steer a terminal."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in str(text))


def alive(pid: int) -> bool:
    """Return whether there is such a process, which has not ended yet."""
    try:
        if sys.platform == "linux":
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
        os.kill(pid, 0)
    except (OSError, OverflowError) as error:
        return isinstance(error, PermissionError)
    return True


def _told(path: str) -> str:
    """Return what a file under /proc says; nothing if it is not there."""
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read().rstrip("\0\n")
    return ""


def elsewhere(pid: int) -> bool:
    """Return whether `pid` sees other files: it is in another mount namespace, as in a container, or has another root.

    What is in there may be links to files of ours. So nothing is opened or made there.
    """
    for name in ("ns/mnt", "root"):
        with suppress(OSError):
            if not os.path.samestat(os.stat(f"/proc/{pid}/{name}"), os.stat(f"/proc/self/{name}")):
                return True
    return False


def owner_of(pid: int) -> tuple[int, int] | None:
    with suppress(OSError):
        found = os.stat(f"/proc/{pid}")
        return found.st_uid, found.st_gid
    return None


def find(pid: int) -> str | None:
    """Return where `pid` listens, or None; a socket is found by the name under which it was bound."""
    opened = set()
    if elsewhere(pid):
        return None
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                opened.add(os.readlink(f"/proc/{pid}/fd/{name}"))
        if not any(link.startswith("socket:") for link in opened):
            return None
        # The table is that of the process's own network.
        with open(f"/proc/{pid}/net/unix", encoding="utf-8", errors="surrogateescape") as table:
            for found in _MONITOR.finditer(table.read()):
                path = found["folder"] + found["name"]
                if f"socket:[{found['inode']}]" in opened and os.path.exists(path):
                    return path
    return None


def everyone() -> list[tuple[int, str, str]]:
    """Return number, path and command line of the processes of this user that listen; for root those of all users."""
    if not os.path.exists("/proc/net/unix"):
        raise Failed("listing needs Linux; give the PATH of the socket instead")
    pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    found = [(pid, path) for pid in pids if (path := find(pid)) is not None]
    return [(pid, path, _command(pid).replace("\0", " ")) for pid, path in found]


def _command(pid: int) -> str:
    """Return a command line; that of a child of multiprocessing says nothing, so that of its parent."""
    told = _told(f"/proc/{pid}/cmdline")
    if told.endswith("--multiprocessing-fork"):
        parent = _told(f"/proc/{pid}/stat").rpartition(")")[2].split()[1:2]
        told = _told(f"/proc/{parent and parent[0]}/cmdline") or told
    return told


class Attached:
    """A process that has been asked to connect to a socket of ours, in a directory of its own."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        _must_be_possible(pid)
        # Nobody else can change the directory, from which the process runs a script.
        self._folder = tempfile.mkdtemp(prefix="ebb-top-", dir=_base())
        self.path, script = (os.path.join(self._folder, name) for name in ("s", "script.py"))
        self.socket = socket.socket(socket.AF_UNIX)
        try:
            self.socket.bind(self.path)
            self.socket.listen()
            self.socket.setblocking(False)
            os.chmod(self.path, 0o600)
            with open(script, "w", encoding="utf-8") as file:
                file.write(_SCRIPT.format(folder=self._folder))
            os.chmod(script, 0o644)
            owner = owner_of(pid)
            if owner is not None and os.geteuid() == 0 and owner[0] != 0:
                os.chown(self.path, *owner)
                os.chmod(self._folder, 0o711)
            sys.remote_exec(  # type: ignore[attr-defined,unused-ignore]  # since 3.14
                pid, script
            )
        except BaseException as error:
            self.close(True)
            if isinstance(error, (OSError, RuntimeError)):
                raise Failed(_explained(pid, error)) from None
            raise

    def accept(self) -> socket.socket | None:
        """Return the connection of the process, or None until it has come to the script."""
        # It removes this at the end, whether it has connected or not.
        over = not os.path.exists(self.path)
        try:
            connection, _ = self.socket.accept()
        except BlockingIOError:
            if not alive(self.pid):
                raise Failed(f"process {self.pid} has ended") from None
            if over:
                raise Failed(f"cannot watch process {self.pid}: it cannot connect to {self.path!r}") from None
            return None
        connection.setblocking(False)
        return connection

    def close(self, connected: bool) -> None:
        """Let it go. If it has not connected yet it will run the script, which then tidies up."""
        self.socket.close()
        if connected or not alive(self.pid):
            shutil.rmtree(self._folder, ignore_errors=True)


def _base() -> str:
    """Return a directory for temporary ones, in which nobody else can put a link in the place of ours."""
    for base in map(os.path.realpath, (tempfile.gettempdir(), "/tmp")):
        # A system takes some hundred bytes for the path of a socket.
        if len(base) < 64 and all(_is_ours(folder) for folder in (Path(base), *Path(base).parents)):
            return base
    raise Failed("others can change all directories for temporary files; set TMPDIR to one that only you can change")


def _is_ours(folder: Path) -> bool:
    """Return whether only this user and the system's can take away or rename what this user has in a directory."""
    found = folder.lstat()
    shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
    return not shared and found.st_uid in (os.geteuid(), os.stat("/").st_uid)


def _must_be_possible(pid: int) -> None:
    if not alive(pid):
        raise Failed(f"there is no process {pid}")
    if elsewhere(pid):
        raise Failed(
            f"process {pid} sees other files than top, as in a container; run top in there (docker exec, kubectl exec, "
            f"or nsenter -a -t {pid}), with the number that the process has in there"
        )
    owner = owner_of(pid)
    if owner is not None and os.geteuid() not in (0, owner[0]):
        raise Failed(f"process {pid} belongs to another user; try: sudo {sys.executable} -m ebbpool top {pid}")
    if not hasattr(sys, "remote_exec"):
        raise Failed(
            f"process {pid} does not listen, and this Python, {_OWN}, cannot attach to it: that needs CPython 3.14 "
            f"or later, the same for both processes.\n{PREPARE}"
        )


def _explained(pid: int, error: Exception) -> str:
    """Return why a process cannot be attached to, and what to do; the text of the error says what is the matter."""
    text, again = str(error), f"-m ebbpool top {pid}"
    if not alive(pid):
        return f"process {pid} has ended"
    hint = ""
    if isinstance(error, PermissionError):
        hint = (
            "That needs the same user and, where /proc/sys/kernel/yama/ptrace_scope is not 0 (and in "
            f"containers without SYS_PTRACE), root. Try: sudo {sys.executable} {again}\nOr prepare it. "
        )
    elif "not enabled" in text:
        hint = "It was started with PYTHON_DISABLE_REMOTE_DEBUG or -X disable-remote-debug, or built without it. "
    elif "Can't send commands" in text:
        hint = (
            f"Run top with the Python of that process: {os.path.realpath(f'/proc/{pid}/exe')} {again}\nOr prepare it. "
        )
    elif "PyRuntime" in text:
        hint = f"It is not CPython {_OWN}, or no Python at all. "
    return f"process {pid} cannot be attached to: {text}\n{hint}{PREPARE}"
