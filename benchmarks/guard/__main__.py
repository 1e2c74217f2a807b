"""Counts, and holds the counts against those that are kept: `python -m benchmarks.guard [--update | --floors]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import ebbpool
from benchmarks.guard import counting
from benchmarks.guard.figures import ABOVE, FLOORS, KEPT, LOADS, above_floors, interpreter, judge, keep, kept

_CORES = ("compiled", "plain")
_AGAIN = 2
"""How often a load that takes too many instructions is counted again; the least counts."""


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit status: 1 if a load takes more instructions than it did, beyond the tolerance."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guard", description="instructions a task")
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--update", action="store_true", help="keep the new figures")
    ways.add_argument("--floors", action="store_true", help="count the cheapest way to do the same beside some loads")
    asked = parser.parse_args(argv)
    if not counting.available():
        print("guard: no valgrind here, so no instruction is counted")
        return 0
    if asked.floors:
        core = _CORES[0 if ebbpool.COMPILED else 1]
        ours = counting.instructions(core, {name: LOADS[name] for name in ABOVE})
        print(f"{core} core, {interpreter()}", *above_floors(ours, counting.instructions(core, FLOORS)), sep="\n  ")
        return 0
    excess = 0
    for core in _CORES if ebbpool.COMPILED else _CORES[1:]:
        before = kept().get(interpreter(), {}).get(core, {})
        figures = counting.instructions(core)
        for _ in range(0 if asked.update else _AGAIN):
            over = {verdict.load: LOADS[verdict.load] for verdict in judge(figures, before) if verdict.exceeds}
            if not over:
                break
            # Where threads have to wait for each other they take more instructions, and never fewer.
            for load, count in counting.instructions(core, over).items():
                figures[load] = min(figures[load], count)
        verdicts = judge(figures, before)
        print(f"{core} core, {interpreter()}")
        print(*(f"  {verdict}" for verdict in verdicts), sep="\n")
        if asked.update:
            keep(core, {verdict.load: verdict.count for verdict in verdicts})
            print(f"  kept in {KEPT.name}")
            continue
        if not all(verdict.before for verdict in verdicts):
            print("  no figures are kept for this interpreter: nothing to compare with (--update keeps these)")
        for verdict in verdicts:
            if verdict.exceeds:
                excess += 1
                load, over = LOADS[verdict.load], verdict.count - (verdict.before or 0)
                print(
                    f"  TOO MANY: {load.label} takes {over:,.0f} instructions more, {verdict.change:+.1%}; "
                    f"{load.tolerance:.0%} is the most it may be"
                )
    if excess:
        print(
            f"guard: {excess} counts exceed those in {KEPT.name}. Where that is meant, or where the compiler or Cython "
            "is another, --update keeps the new ones",
            file=sys.stderr,
        )
    return 1 if excess else 0


if __name__ == "__main__":
    sys.exit(main())
