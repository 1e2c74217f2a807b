"""Reaps what processes leave behind that end before their children, where those become children of this process."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import subprocess
import sys
from multiprocessing import popen_fork
from pathlib import Path
from typing import Any, Final

INTERVAL: Final = 0.5
"""Seconds between two looks. Nobody is waiting for a process that has ended before both of them."""

_GET_CHILD_SUBREAPER: Final = 37


def adopts() -> bool:
    """Return whether the system makes this process the parent of others: it is process 1, or a subreaper, on Linux."""
    # PyPy has no `waitid`.
    if sys.platform != "linux" or not hasattr(os, "waitid"):
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
            found = set(filter(_has_ended, _children()))
            if found & self._seen:
                kinds = (subprocess.Popen, popen_fork.Popen)
                owners: list[Any] = [each for each in gc.get_objects() if issubclass(type(each), kinds)]
                for pid in (found & self._seen) - {getattr(owner, "pid", None) for owner in owners}:
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(pid, os.WNOHANG)
            self._seen = found
        return self._next - now


def _children() -> list[int]:
    # Without a file descriptor none are found, and the next look finds them.
    with contextlib.suppress(OSError):
        return [int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()]
    return []


def _has_ended(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return False
