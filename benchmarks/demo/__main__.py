"""Entry point: ``python -m benchmarks.demo [--quick] [--out FOLDER]``."""

from __future__ import annotations

import sys
from importlib.util import find_spec

NEEDED = ("ebbpool", "starlette", "uvicorn", "rich", "matplotlib")


def main() -> int:
    """Run the demo if everything it needs is installed."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        names = ", ".join(missing)
        print(
            f"The demo needs {names}: install the dependency group 'demo', or run `nox -s demo`.",
            file=sys.stderr,
        )
        return 1
    from .cli import main

    return main()


if __name__ == "__main__":
    sys.exit(main())
