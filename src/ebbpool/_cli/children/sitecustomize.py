"""Puts a program under ``python -m ebbpool run`` on a pool, and the Pythons that it starts; imported by `site`."""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

_program, _, _settings = os.environ.get("EBBPOOL_RUN", "").partition(" ")


def _begin() -> None:
    import json

    from ebbpool import AdaptiveExecutor, switch

    settings = json.loads(_settings)
    explain = settings.pop("explain")
    if switch._installed is None:
        pool = AdaptiveExecutor(thread_name_prefix="ebbpool", **settings)
        switch.install(pool, explain=_say if explain else None)


def _say(line: str) -> None:
    print(f"ebbpool: {line}", file=sys.stderr, flush=True)


class _Later:
    """Begins as soon as the process imports a library with threads: few of those that a program starts do."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname not in ("anyio", "asyncio", "trio"):
            return None
        sys.meta_path.remove(self)
        # It may be an interpreter that has no ebbpool.
        if importlib.util.find_spec("ebbpool") is not None:
            _begin()
        return importlib.util.find_spec(fullname)


if _program == str(os.getpid()):
    _begin()
elif _settings:
    sys.meta_path.insert(0, _Later())
# The file that this one hides.
sys.path[:] = [folder for folder in sys.path if folder != os.path.dirname(__file__)]
_hidden = PathFinder.find_spec("sitecustomize")
if _hidden is not None and _hidden.loader is not None:
    sys.modules["sitecustomize"] = importlib.util.module_from_spec(_hidden)
    _hidden.loader.exec_module(sys.modules["sitecustomize"])
