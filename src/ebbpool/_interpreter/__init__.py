"""Facts about the interpreter that runs this. Everything else may import it, so it imports almost nothing."""

from __future__ import annotations

import os
import sys
import threading
from time import monotonic
from typing import Final

from ebbpool._interpreter.quota import Processors

PURE: Final[bool] = os.environ.get("EBBPOOL_PURE", "") not in ("", "0")
"""Whether the environment asks for the plain core (``EBBPOOL_PURE=1``)."""

FREE_THREADED: Final[bool] = "free-threading build" in sys.version
"""Whether this is a free-threaded build. Its GIL may be on all the same: see `gil_enabled`."""


def gil_enabled() -> bool:
    """Return whether the GIL is on right now.

    A free-threaded build turns it on for good when it imports an extension module that needs it, so that the
    answer may change from False to True while a program starts.
    """
    probe = getattr(sys, "_is_gil_enabled", None)
    return True if probe is None else bool(probe())


GIL_ENABLED: Final[bool] = gil_enabled()
"""Whether the GIL was on when this module was first imported."""


def _given_cpus() -> int:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if sys.version_info >= (3, 13):
        count = min(count, os.process_cpu_count() or 1)
    return count


processors: Final = Processors(_given_cpus)
"""How many processors this process may use at a given time of `time.monotonic`."""


def daemon_threads() -> bool:
    """Return whether this interpreter may have daemon threads; one with a GIL of its own may not (CPython 3.12)."""
    try:
        threading.Thread(name="ebbpool-probe", daemon=True)
    except RecursionError:
        raise
    except RuntimeError:
        return False
    return True


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
