"""``python -m ebbpool run``: a program, unchanged, whose hand-overs go to one pool."""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import ebbpool


def run(module: list[str] | None, script: list[str], *, executors: bool, explain: bool, **settings: Any) -> int:
    """Install a pool, and run a module or a script as Python itself does."""
    pool = ebbpool.AdaptiveExecutor(thread_name_prefix="ebbpool", **settings)
    ebbpool.install(pool, executors=executors, explain=_say if explain else None)
    if module:
        spec = _spec_of(module[0])
        path = str(spec.origin)
        loader: Any = spec.loader
        code = loader.get_code(spec.name)
        sys.argv = [path, *module[1:]]
    else:
        spec, path = None, script[0]
        loader = SourceFileLoader("__main__", path)
        code = loader.source_to_code(loader.get_data(path), path)
        sys.argv = script
        sys.path[0] = os.path.dirname(os.path.abspath(path))
    # Unlike with runpy it stays the main module while threads go on after its last line.
    main: Any = ModuleType("__main__")
    sys.modules["__main__"] = main
    main.__file__, main.__loader__, main.__spec__, main.__package__ = path, loader, spec, spec.parent if spec else None
    exec(code, main.__dict__)
    return 0


def _spec_of(name: str) -> ModuleSpec:
    spec = find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        name += ".__main__"
        spec = find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {name}", name=name)
    return spec


def _say(line: str) -> None:
    print(f"ebbpool: {line}", file=sys.stderr, flush=True)
