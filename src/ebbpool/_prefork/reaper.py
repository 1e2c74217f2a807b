"""Reaps what processes leave behind that end before their children, where those become children of this process."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
import subprocess
import sys
from multiprocessing import popen_fork
from pathlib import Path
from typing import Any, Final

INTERVAL: Final = 0.5
"""Seconds between two looks. Nobody is waiting for a process that has ended before both of them."""

_GET_CHILD_SUBREAPER: Final = 37
_ZOMBIE: Final = re.compile(rb"\nState:\tZ(?:.*\n)+?PPid:\t(\d+)\n(?:.*\n)*?NSpid:.*\t(\d+)\n")


def adopts() -> bool:
    """Return whether the system makes this process the parent of others: it is process 1, or a subreaper, on Linux."""
    if sys.platform != "linux":
        return False
    answer = ctypes.c_int()
    ctypes.CDLL(None).prctl(_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0)
    return os.getpid() == 1 or bool(answer.value)


class Reaper:
    """Reaps children that have ended, except those whose exit status an object of this process is to tell."""

    def __init__(self) -> None:
        self._next = 0.0
        self._seen: set[int] = set()

    def turn(self, now: float) -> float:
        """Look if it is time for that; return after how many seconds the next look is due."""
        if now >= self._next:
            self._next = now + INTERVAL
            found = _zombies()
            if found & self._seen:
                kinds = (subprocess.Popen, popen_fork.Popen)
                owners: list[Any] = [each for each in gc.get_objects() if issubclass(type(each), kinds)]
                for pid in (found & self._seen) - {getattr(owner, "pid", None) for owner in owners}:
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(pid, os.WNOHANG)
            self._seen = found
        return self._next - now


def _zombies() -> set[int]:
    """Return the process ids of the children that have ended."""
    with contextlib.suppress(ChildProcessError):
        # PyPy cannot ask whether there is any.
        if hasattr(os, "waitid") and os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return set()
    found: set[int] = set()
    # Without a file descriptor nothing is found, and the next look finds it.
    with contextlib.suppress(OSError):
        # Process ids in the file system may be those of an outer namespace, and so is that of this process.
        own = os.readlink("/proc/self").encode()
        for entry in Path("/proc").glob("[0-9]*/status"):
            with contextlib.suppress(OSError):
                zombie = _ZOMBIE.search(entry.read_bytes())
                if zombie is not None and zombie[1] == own:
                    found.add(int(zombie[2]))
    return found
