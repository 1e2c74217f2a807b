"""Facts about this interpreter: the GIL, daemon threads, what it lacks, ``EBBPOOL_PURE``, usable processors."""

from __future__ import annotations

import _thread
import errno
import os
import sys
import threading
from contextlib import suppress
from math import inf
from typing import Final

from ebbpool._clock import monotonic

INTERVAL: Final = 5.0  # seconds for which a quota that was read is used

HIERARCHIES: Final = {
    "": (("", "/unified"), ("cpu.max",)),
    "cpu": (("/cpu", "/cpu,cpuacct", "/cpuacct,cpu"), ("cpu.cfs_quota_us", "cpu.cfs_period_us")),
}
"""Where each version of control groups (2: no controller; 1: that of this name) has its groups in /sys/fs/cgroup, and a
group its quota and its period, in microseconds: ``150000 100000``, or ``max 100000`` or -1 for none."""

PURE: Final[bool] = os.environ.get("EBBPOOL_PURE", "") not in ("", "0")
"""Whether the environment asks for the plain core (``EBBPOOL_PURE=1``)."""

FREE_THREADED: Final[bool] = "free-threading build" in sys.version
"""Whether this is a free-threaded build. Its GIL may be on all the same: see `gil_enabled`."""


def gil_enabled() -> bool:
    """Return whether the GIL is on now; a free-threaded build turns it on when it imports a module that needs it."""
    probe = getattr(sys, "_is_gil_enabled", None)
    return True if probe is None else bool(probe())


GIL_ENABLED: Final[bool] = gil_enabled()
"""Whether the GIL was on when this module was first imported."""


def _lacking() -> list[str]:
    """Return the names of private parts of the standard library that are used, and that this Python lacks."""
    started = isinstance(vars(threading.Thread(name="")).get("_started"), threading.Event)
    there = {
        "threading.Thread._started": started and "_started" in threading.Thread.start.__code__.co_names,
        "threading.Thread._after_fork": any(hasattr(threading.Thread, name) for name in AFTER_FORK),
        "threading._register_atexit": hasattr(threading, "_register_atexit"),
    }
    return [name for name, found in there.items() if not found]


AFTER_FORK: Final = ("_after_fork", "_reset_internal_locks")
"""The method of thread objects that `threading` calls after a fork, and its name before CPython 3.13."""

LACKING: Final = _lacking()
"""What `_lacking` found as this was imported, and `ebbpool._loops` of asyncio's parts: each has a way without it."""


def daemon_threads() -> bool:
    """Return whether this interpreter may have daemon threads; one with its own GIL may not (CPython 3.12)."""
    allowed = getattr(_thread, "daemon_threads_allowed", lambda: True)
    return bool(allowed())


def cpu_quota(root: str = "") -> int | None:
    """Return how many CPUs the process may keep busy by the quotas of its control groups, rounded up.

    The least quota of the process's group and all groups above it that can be seen counts; None if there is none.
    `OSError` is raised if the process has no file descriptor, or no memory, left to read it.
    """
    found = []
    for line in (_read(f"{root}/proc/self/cgroup") or "").split("\n"):
        # 0::/user.slice (version 2), or 4:cpu,cpuacct:/user.slice
        _, _, rest = line.partition(":")
        controllers, separator, path = rest.partition(":")
        for controller, (mounts, files) in HIERARCHIES.items():
            if separator and controller in controllers.split(","):
                for mount in mounts:
                    folders = _folders(f"{root}/sys/fs/cgroup{mount}", path)
                    found += [_quota([_read(f"{folder}/{file}") for file in files]) for folder in folders]
    return min((quota for quota in found if quota is not None), default=None)


def _folders(top: str, path: str) -> list[str]:
    """Return the directories of the group at `path` and of those above it, as far as they can be seen below `top`."""
    names = [name for name in path.split("/") if name]
    # What is mounted may begin at the container's own group, and the path at the host's; it may lead out of it, too.
    while names and (".." in names or not os.path.isdir("/".join([top, *names]))):
        names = names[1:]
    return ["/".join([top, *names[:depth]]) for depth in range(len(names) + 1)]


def _read(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            return os.fsdecode(file.read())
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise
        return None


def _quota(texts: list[str | None]) -> int | None:
    """Return the quota in CPUs, rounded up, that is in the files of a group; None if there is none."""
    try:
        quota, period = map(int, " ".join(text or "" for text in texts).split())
    except ValueError:
        return None
    return -(-quota // period) if quota > 0 and period > 0 else None


def _given_cpus() -> int:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if sys.version_info >= (3, 13):
        count = min(count, os.process_cpu_count() or 1)
    return count


_last = (-inf, sys.maxsize)
"""When the quota was read last, and what it was."""


def available_cpus(reads: bool = True) -> int:
    """Return how many CPUs this process may use, at least 1; any thread may call this.

    It respects the affinity of the process where the platform has one, ``PYTHON_CPU_COUNT`` from Python 3.13, and on
    Linux the CPU quota of the container, which is read anew every few seconds, unless this call `reads` no file: as in
    the thread of an event loop.
    """
    global _last
    now = monotonic()
    read_at, quota = _last
    if reads and now >= read_at + INTERVAL:
        # Where it cannot be read nothing new is known, so the last quota is used on.
        with suppress(OSError):
            quota = cpu_quota() or sys.maxsize
        _last = now, quota
    return max(1, min(_given_cpus(), quota))


# So that a quota is known from the first pool on.
available_cpus()


def interpreter() -> str:
    """Return the interpreter in one line, such as ``CPython 3.13.0 (free-threaded, GIL off)``."""
    implementation = {"cpython": "CPython", "pypy": "PyPy"}.get(sys.implementation.name, sys.implementation.name)
    build = "free-threaded, " if FREE_THREADED else ""
    gil = "on" if gil_enabled() else "off"
    return f"{implementation} {sys.version.split()[0]} ({build}GIL {gil})"
