"""Imported by each Python that a program under ``python -m ebbpool run`` starts, as its own `site` is: see `begin`."""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any


class _Begin:
    """Puts the process on a pool as soon as it imports a library with threads: few of a program's Pythons do."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname not in ("anyio", "asyncio", "trio", "uvloop"):
            return None
        sys.meta_path.remove(self)
        try:
            from ebbpool._cli.begin import begin_in_child
        except ImportError:
            # It may be an interpreter that has no ebbpool.
            pass
        else:
            begin_in_child()
        return importlib.util.find_spec(fullname)


sys.meta_path.insert(0, _Begin())
# The file that this one hides.
sys.path[:] = [folder for folder in sys.path if folder != os.path.dirname(__file__)]
_hidden = PathFinder.find_spec("sitecustomize")
if _hidden is not None and _hidden.loader is not None:
    sys.modules["sitecustomize"] = importlib.util.module_from_spec(_hidden)
    _hidden.loader.exec_module(sys.modules["sitecustomize"])
