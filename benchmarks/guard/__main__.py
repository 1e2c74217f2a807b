"""Counts, and holds the counts against those that are kept: `python -m benchmarks.guard [--update | --floors]`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import ebbpool
from benchmarks import ROOT
from benchmarks.guard.script import ABOVE, ALL, FLOORS, LOADS

KEPT = Path(__file__).parent / "figures.json"
_CORES = ("compiled", "plain")
_AGAIN = 2
"""How often a load that takes too many instructions is counted again; the least counts."""
_SECONDS = 600.0

Figures = dict[str, float]
"""Instructions for each load."""


def available() -> bool:
    """Return whether instructions can be counted here."""
    return shutil.which("valgrind") is not None


def instructions(core: str, loads: Collection[str]) -> Figures:
    """Count with valgrind the instructions of each load on one core, in user space."""
    environment = os.environ | {"PYTHONHASHSEED": "0", "EBBPOOL_PURE": "1" if core == "plain" else ""}
    with tempfile.TemporaryDirectory() as folder:
        parts = Path(folder) / "parts"
        # It writes down what was counted, and begins anew, before each call of `getsid`.
        marks = ("--dump-before=getsid", f"--callgrind-out-file={parts}")
        script = (sys.executable, "-m", "benchmarks.guard.script", *loads)
        command = ["valgrind", "--quiet", "--tool=callgrind", *marks, *script]
        found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_SECONDS)
        if found.returncode:
            raise RuntimeError(f"{command} ended with status {found.returncode}:\n{found.stdout}{found.stderr}")
        return differences([total(parts.with_suffix(f".{at + 1}").read_text()) for at in range(3 * len(loads))], loads)


def total(part: str) -> int:
    """Return the number of instructions in what callgrind has written.

    Raises:
        ValueError: There is none.
    """
    found = re.search(r"^totals: *([0-9]+)", part, re.MULTILINE)
    if found is None:
        raise ValueError("callgrind has written no total")
    return int(found[1])


def differences(totals: Sequence[int], loads: Collection[str]) -> Figures:
    """Return what one of each load takes.

    Args:
        totals: For each load three numbers: what came before it is counted, the load, and the load twice over.
        loads: The loads.
    """
    pieces = zip(loads, totals[1::3], totals[2::3], strict=True)
    return {name: (twice - once) / ALL[name].count for name, once, twice in pieces}


def interpreter() -> str:
    """Return what decides how many instructions the same Python code takes: the interpreter and how it was built."""
    version = platform.python_version() + "t" * bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    parts = (sys.implementation.name, version, platform.machine(), *platform.libc_ver(), platform.python_compiler())
    return " ".join(filter(None, parts))


def kept() -> dict[str, dict[str, Figures]]:
    """Return the kept figures: for each interpreter, for each core."""
    found: dict[str, dict[str, Figures]] = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    return found


def keep(core: str, figures: Mapping[str, float]) -> None:
    """Write the figures of one core in place of those that were kept for this interpreter."""
    found = kept()
    found.setdefault(interpreter(), {})[core] = {name: round(count) for name, count in figures.items()}
    KEPT.write_text(json.dumps(found, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def exceeding(figures: Figures, before: Figures) -> list[str]:
    """Return the loads that take more instructions than were kept, beyond the tolerance."""
    return [name for name, count in figures.items() if count > before.get(name, count) * (1 + LOADS[name].tolerance)]


def above_floors(core: str) -> list[str]:
    """Say of each load that has a floor how much of what the standard library adds to it is left."""
    counts, lines = instructions(core, [*ABOVE, *FLOORS]), []
    for name, (floor, stock) in ABOVE.items():
        share = (counts[name] - counts[floor]) / (counts[stock] - counts[floor])
        told = "; ".join(f"{ALL[each].label}: {counts[each]:,.0f}" for each in (name, floor, stock))
        lines.append(f"{told} instructions; {share:.2f} of what that adds is left")
    return lines


def guard(core: str, update: bool) -> int:
    """Count all loads on one core, and say what came of it; return how many take too many instructions."""
    before, figures = kept().get(interpreter(), {}).get(core, {}), instructions(core, LOADS)
    for _ in range(0 if update else _AGAIN):
        # Where threads have to wait for each other they take more instructions, and never fewer.
        if over := exceeding(figures, before):
            figures |= {load: min(figures[load], count) for load, count in instructions(core, over).items()}
    print(f"{core} core, {interpreter()}")
    over = [] if update else exceeding(figures, before)
    for name, count in figures.items():
        was = f", {count / before[name] - 1:+.1%} of {before[name]:,.0f}" if name in before else ""
        print(f"  {LOADS[name].label}: {count:,.0f} instructions{was}")
        if name in over:
            print(f"  TOO MANY: {count - before[name]:,.0f} more; {LOADS[name].tolerance:.0%} is the most it may be")
    if update:
        keep(core, figures)
        print(f"  kept in {KEPT.name}")
    elif not before:
        print("  no figures are kept for this interpreter: nothing to compare with (--update keeps these)")
    return len(over)


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit status: 1 if a load takes more instructions than it did, beyond the tolerance."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guard", description="instructions a task")
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--update", action="store_true", help="keep the new figures")
    ways.add_argument("--floors", action="store_true", help="count the cheapest way to do the same beside some loads")
    asked = parser.parse_args(argv)
    cores = _CORES if ebbpool.COMPILED else _CORES[1:]
    if not available():
        print("guard: no valgrind here, so no instruction is counted")
        return 0
    if asked.floors:
        print(f"{cores[0]} core, {interpreter()}", *above_floors(cores[0]), sep="\n  ")
        return 0
    excess = sum(guard(core, asked.update) for core in cores)
    if excess:
        print(
            f"guard: {excess} counts exceed those in {KEPT.name}. Where that is meant, or where the compiler or Cython "
            "is another, --update keeps the new ones",
            file=sys.stderr,
        )
    return 1 if excess else 0


if __name__ == "__main__":
    sys.exit(main())
