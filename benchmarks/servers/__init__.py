"""The programs that are loaded, each in a process of its own.

`python -m benchmarks.servers.NAME KIND [--OPTION VALUE ...]` prints its port, and serves until its parent ends.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from benchmarks.load.serving import die_with_parent

Kinds = Mapping[str, Callable[..., object]]
"""What serves, by kind; the options are its arguments, all of them text."""


def main(kinds: Kinds) -> None:
    """Serve as the command line says."""
    kind, *words = sys.argv[1:]
    options = zip(words[::2], words[1::2], strict=True)
    die_with_parent()
    kinds[kind](**{name.removeprefix("--").replace("-", "_"): value for name, value in options})
