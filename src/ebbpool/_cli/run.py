"""``python -m ebbpool run``: a program, unchanged, whose hand-overs go to one pool."""

from __future__ import annotations

import os
import runpy
import sys
from typing import Any

import ebbpool


def run(module: list[str] | None, script: list[str], *, executors: bool, explain: bool, **settings: Any) -> int:
    """Install a pool, and run a module or a script as Python itself does.

    Returns:
        0, if the program does not end in another way.
    """
    pool = ebbpool.AdaptiveExecutor(thread_name_prefix="ebbpool", **settings)
    ebbpool.install(pool, executors=executors, explain=_say if explain else None)
    if module:
        # `run_module` puts the file's path in place of the name.
        sys.argv = module
        runpy.run_module(module[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = script
        sys.path[0] = os.path.dirname(os.path.abspath(script[0]))
        runpy.run_path(script[0], run_name="__main__")
    return 0


def _say(line: str) -> None:
    print(f"ebbpool: {line}", file=sys.stderr, flush=True)
