"""How ``python -m ebbpool run`` puts a process on a pool, and the Pythons that it starts."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

from ebbpool import switch
from ebbpool.executor import AdaptiveExecutor

VARIABLE: Final = "EBBPOOL_RUN"
"""Has the settings, for the children."""


def begin(explain: bool, **settings: Any) -> None:
    """Put this process on a pool."""
    pool = AdaptiveExecutor(thread_name_prefix="ebbpool", **settings)
    switch.install(pool, explain=_say if explain else None)


def pass_on(settings: dict[str, Any]) -> None:
    """Have the Pythons that inherit this process's environment begin with these settings, too."""
    os.environ[VARIABLE] = json.dumps(settings)
    folders = (str(Path(__file__).with_name("children")), os.environ.get("PYTHONPATH"))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    if sys.flags.ignore_environment or sys.flags.no_site:
        _say("Pythons that this one starts with the same options (-E, -I, -S) have their own threads")


def begin_in_child() -> None:
    if VARIABLE in os.environ and switch._installed is None:
        begin(**json.loads(os.environ[VARIABLE]))


def _say(line: str) -> None:
    print(f"ebbpool: {line}", file=sys.stderr, flush=True)
