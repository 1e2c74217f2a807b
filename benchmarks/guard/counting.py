"""How the script is counted: by valgrind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmarks import ROOT
from benchmarks.guard.figures import LOADS, Figures, Load, differences

_SCRIPT = (sys.executable, "-m", "benchmarks.guard.script")
_SECONDS = 600.0


def available() -> bool:
    """Return whether instructions can be counted here."""
    return shutil.which("valgrind") is not None


def instructions(core: str, loads: Mapping[str, Load] = LOADS) -> Figures:
    """Count the instructions of each load on one core, in user space."""
    environment = os.environ | {"PYTHONHASHSEED": "0", "EBBPOOL_PURE": "1" if core == "plain" else ""}
    with tempfile.TemporaryDirectory() as folder:
        parts = Path(folder) / "parts"
        # It writes down what was counted, and begins anew, before each call of `getsid`.
        marks = ("--dump-before=getsid", f"--callgrind-out-file={parts}")
        command = ["valgrind", "--quiet", "--tool=callgrind", *marks, *_SCRIPT, *loads]
        found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_SECONDS)
        if found.returncode:
            raise RuntimeError(f"{command} ended with status {found.returncode}:\n{found.stdout}{found.stderr}")
        totals = [total(parts.with_suffix(f".{at + 1}").read_text()) for at in range(3 * len(loads))]
        return differences(totals, loads)


def total(part: str) -> int:
    """Return the number of instructions in what callgrind has written.

    Raises:
        ValueError: There is none.
    """
    for line in part.splitlines():
        name, _, count = line.partition(":")
        if name == "totals":
            return int(count)
    raise ValueError("callgrind has written no total")
