"""How the script is counted: instructions by valgrind, system calls by strace, context switches by the kernel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks import ROOT
from benchmarks.guard.figures import LOADS, MARK, Figures, Load, differences

_SCRIPT = (sys.executable, "-m", "benchmarks.guard.script")
_SECONDS = 600.0


def available() -> bool:
    """Return whether instructions can be counted here."""
    return shutil.which("valgrind") is not None


def _script(core: str, *tool: str, loads: Iterable[str] = ()) -> str:
    """Run the script on one core under a tool, with all loads or the named ones; return what it prints."""
    environment = os.environ | {"PYTHONHASHSEED": "0", "EBBPOOL_PURE": "1" if core == "plain" else ""}
    command = [*tool, *_SCRIPT, *loads]
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_SECONDS)
    if found.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with status {found.returncode}:\n{found.stdout}{found.stderr}")
    return found.stdout


def instructions(core: str, loads: Mapping[str, Load] = LOADS) -> Figures:
    """Count the instructions of each load, in user space."""
    with tempfile.TemporaryDirectory() as folder:
        parts = Path(folder) / "parts"
        # It writes down what was counted, and begins anew, before each call of `getsid`.
        marks = ("--dump-before=getsid", f"--callgrind-out-file={parts}")
        _script(core, "valgrind", "--quiet", "--tool=callgrind", *marks, loads=loads)
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


def system_calls(core: str) -> Figures:
    """Count the system calls of each load; none where strace is not there, or may not look."""
    if shutil.which("strace") is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "calls"
        try:
            _script(core, "strace", "-f", "-qq", "-e", "signal=none", "-o", str(log))
        except RuntimeError:
            return {}
        return differences(calls(log.read_text(errors="replace").splitlines()))


def calls(lines: Sequence[str]) -> list[int]:
    """Return how many system calls came before each call of `getsid` in a log of strace, since the one before."""
    counts, count = list[int](), 0
    for line in lines:
        call = line.partition(" ")[2].lstrip()
        if call.startswith("getsid("):
            counts.append(count)
            count = 0
        # A call that was interrupted by that of another thread has two lines.
        elif not call.startswith("<... "):
            count += 1
    return counts


def switches(core: str) -> Figures:
    """Count how often threads changed places in each load, on one processor."""
    told = [line.split() for line in _script(core).splitlines() if line.startswith(MARK)]
    return {name: int(count) / LOADS[name].count for _, name, count in told}
