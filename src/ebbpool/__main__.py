"""``python -m ebbpool``: which ebbpool this is, and what it runs on."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import ebbpool
from ebbpool._compat import available_cpus, interpreter


def describe() -> str:
    """Return the version, the core that runs, the interpreter and the processors, one to a line."""
    core = "compiled" if ebbpool.COMPILED else "plain Python"
    return "\n".join(
        (
            f"ebbpool {ebbpool.__version__}",
            f"core: {core}",
            f"interpreter: {interpreter()}",
            f"processors: {available_cpus()}",
        )
    )


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    result = argparse.ArgumentParser(
        prog="python -m ebbpool", description="Tell which ebbpool this is, and what it runs on."
    )
    result.add_argument("--version", action="version", version=f"ebbpool {ebbpool.__version__}")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: The arguments, without the program's name; those of the process if None.

    Returns:
        The exit status.

    Raises:
        SystemExit: From argparse: 0 after ``--help`` or ``--version``, 2 for an argument it does not know.
    """
    parser().parse_args(argv)
    print(describe())
    return 0


if __name__ == "__main__":
    sys.exit(main())
