"""The rival that is no Python: `bench.go`, compiled once."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.peers import Unavailable, program

_SOURCE = Path(__file__).with_name("bench.go")
_BUILD_SECONDS = 100.0


def _told(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_SECONDS, check=False)
    if done.returncode:
        raise Unavailable(f"{command[0]} failed: {(done.stderr or done.stdout).strip().splitlines()[-1:]}")
    return done.stdout


def version() -> str:
    """Return the version of Go.

    Raises:
        Unavailable: There is none.
    """
    found = re.search(r"[0-9]+(\.[0-9]+)+", _told(program("go"), "version"))
    return found[0] if found else "unknown"


def command() -> str:
    """Return the path of the program, compiled before if need be.

    Raises:
        Unavailable: There is no Go, or it fails.
    """
    digest = hashlib.sha256(_SOURCE.read_bytes() + version().encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"ebbpool-bench-{os.getuid() if hasattr(os, 'getuid') else 0}-{digest}"
    made = folder / "bench"
    if not made.exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as unfinished:
            _told(program("go"), "build", "-o", f"{unfinished}/bench", str(_SOURCE))
            Path(unfinished, "bench").replace(made)
    return str(made)


def burst(count: int, seconds: float) -> dict[str, Any]:
    """Return what the program tells of so many tasks that wait: `ms` and `kB`."""
    told: dict[str, Any] = json.loads(_told(command(), "burst", str(count), str(seconds * 1e3)))
    return told
