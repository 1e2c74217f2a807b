"""Facts about this interpreter: the GIL, daemon threads, and how many processors it may use (cgroups too)."""

from __future__ import annotations

import errno
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Final

INTERVAL: Final = 5.0
"""Seconds for which a quota that was read is used."""

FILES: Final = {"": ("cpu.max",), "cpu": ("cpu.cfs_quota_us", "cpu.cfs_period_us")}
"""Where each version of control groups (2: no controller; 1: that of this name) has the quota and its period, in
microseconds: ``150000 100000``, or ``max 100000`` or -1 for none."""

_SHORT: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors that say nothing about the file that could not be read."""

_ESCAPED: Final = re.compile(r"\\([0-7]{3})")

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


def daemon_threads() -> bool:
    """Return whether this interpreter may have daemon threads; one with a GIL of its own may not (CPython 3.12)."""
    try:
        threading.Thread(name="ebbpool-probe", daemon=True)
    except RecursionError:
        raise
    except RuntimeError:
        return False
    return True


def cpu_quota(root: str = "") -> int | None:
    """Return how many processors the process may keep busy by the quotas of its control groups, rounded up.

    The least quota of the process's group and all groups above it that can be seen counts, in version 1 and 2 of
    control groups; None if there is none, or none can be read. `root` is a directory in place of that of the system.

    Raises:
        OSError: The process has no file descriptor, or no memory, left to read it.
    """
    try:
        mounts, groups = (_read(f"{root}/proc/self/{name}").split("\n") for name in ("mountinfo", "cgroup"))
        found = [
            _quota(root + folder, files)
            for controller, files in FILES.items()
            for folder in _folders(controller, groups, mounts)
        ]
        return min((quota for quota in found if quota is not None), default=None)
    except (OSError, ValueError) as error:
        _check(error)
        return None


def _check(error: Exception) -> None:
    if isinstance(error, OSError) and error.errno in _SHORT:
        raise error


def _read(path: str) -> str:
    with open(path, "rb") as file:
        return os.fsdecode(file.read())


def _folders(controller: str, groups: list[str], mounts: list[str]) -> Iterator[str]:
    """Yield the directories of the process's group and of those above it; no controller stands for version 2."""
    for line in groups:
        # 0::/user.slice (version 2), or 4:cpu,cpuacct:/user.slice
        _, _, rest = line.partition(":")
        controllers, separator, path = rest.partition(":")
        if separator and controller in controllers.split(","):
            for mounted, point in _mounts(controller, mounts):
                names = _below(path, mounted)
                for depth in range(len(names), -1, -1):
                    yield "/".join([point, *names[:depth]])


def _mounts(controller: str, mounts: list[str]) -> Iterator[tuple[str, str]]:
    """Yield (which group is mounted, where) for each mount of a controller's groups."""
    for line in mounts:
        # 35 24 0:31 /root /mount/point rw,relatime shared:9 - cgroup2 cgroup2 rw
        place, separator, system = line.partition(" - ")
        where, what = place.split(" "), system.split(" ")
        if not separator or len(where) < 5 or len(what) < 3:
            continue
        if what[0] == ("cgroup" if controller else "cgroup2") and (not controller or controller in what[2].split(",")):
            yield _plain(where[3]), _plain(where[4])


def _plain(path: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), path)


def _below(path: str, mounted: str) -> list[str]:
    """Return the names that lead from the group that is mounted to the group at `path`."""
    above = [name for name in mounted.split("/") if name]
    names = [name for name in path.split("/") if name]
    below = names[len(above) :]
    # In a control group namespace the path may lie outside the mount; then the mounted group is the container's.
    return [] if names[: len(above)] != above or ".." in below else below


def _quota(group: str, files: tuple[str, ...]) -> int | None:
    """Return the quota of one group in processors, rounded up; None if it has none, or none that can be read."""
    try:
        quota, period = " ".join(_read(f"{group}/{file}") for file in files).split()
        if quota == "max" or int(quota) <= 0 or int(period) <= 0:
            return None
        return -(-int(quota) // int(period))
    except (OSError, ValueError) as error:
        _check(error)
        return None


class Processors:
    """How many processors the process may use: those `given()`, each time, and no more than its container's `quota()`.

    Any thread may use it.
    """

    def __init__(self, given: Callable[[], int], quota: Callable[[], int | None]) -> None:
        self._given = given
        self._quota = quota
        self._read: tuple[float, int] | None = None

    def count(self, now: float) -> int:
        """Return how many there are at `now`, in seconds of a clock that never goes back; at least 1."""
        read = self._read
        if read is None or now >= read[0] + INTERVAL:
            try:
                quota = self._quota() or sys.maxsize
            except OSError:
                # Nothing new is known, so the last quota is used on.
                quota = sys.maxsize if read is None else read[1]
            self._read = read = (now, quota)
        return max(1, min(self._given(), read[1]))


def _given_cpus() -> int:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if sys.version_info >= (3, 13):
        count = min(count, os.process_cpu_count() or 1)
    return count


processors: Final = Processors(_given_cpus, cpu_quota if sys.platform == "linux" else lambda: None)
"""How many processors this process may use at a given time of `time.monotonic`."""


def available_cpus() -> int:
    """Return how many processors this process may use, at least 1.

    It respects the affinity of the process where the platform has one, ``PYTHON_CPU_COUNT`` from Python 3.13, and on
    Linux the CPU quota of the container, which is read anew every few seconds.
    """
    return processors.count(monotonic())


def interpreter() -> str:
    """Return the interpreter in one line, such as ``CPython 3.13.0 (free-threaded, GIL off)``."""
    implementation = {"cpython": "CPython", "pypy": "PyPy"}.get(sys.implementation.name, sys.implementation.name)
    build = "free-threaded, " if FREE_THREADED else ""
    gil = "on" if gil_enabled() else "off"
    return f"{implementation} {sys.version.split()[0]} ({build}GIL {gil})"
