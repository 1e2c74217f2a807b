"""The rival that is no Python: `bench.go`, which Go compiles anew only if something changed."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.peers import Unavailable, program

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
    """Return the path of the program.

    Raises:
        Unavailable: There is no Go, or it fails.
    """
    made = str(ROOT / "reports" / "bench-go")
    _told(program("go"), "build", "-o", made, str(Path(__file__).with_name("bench.go")))
    return made


def burst(count: int, seconds: float) -> dict[str, Any]:
    """Return what the program tells of so many tasks that wait: `ms` and `kB`."""
    told: dict[str, Any] = json.loads(_told(command(), "burst", str(count), str(seconds * 1e3)))
    return told
