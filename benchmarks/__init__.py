"""How fast ebbpool is beside its rivals: `python -m benchmarks` asks the questions.

- `tasks.py`, `loops.py`, `tcp.py` and so on hold the questions of one kind: what is measured, and of whom;
  docs/performance/benchmarks.md says how. `engine/model.py` names them all.
- `engine/` measures each cell of a question in a fresh process, the peers in turn, and reads what came of it.
- `peers/` has the rivals: `table.py` names each once, `pools.py` and `ways.py` give them one face.
- `servers/` has the programs that are loaded, each in a process of its own.
- `load/` has the clients, every answer of which is looked at.
- `report/` writes tables and pages.
- `demo/` is a programme of its own: whole servers with and without ebbpool, `python -m benchmarks.demo`.
- `guard.py` counts instructions, `python -m benchmarks.guard`.

It is run from the root of the repository and is no part of the installed package.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def processors() -> list[int]:
    """Return the processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
