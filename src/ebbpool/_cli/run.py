"""``python -m ebbpool run``: runs a program unchanged, with its thread work on one pool, as `ebbpool.install` does."""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader, SourcelessFileLoader
from importlib.util import find_spec
from pkgutil import get_importer
from types import ModuleType
from typing import Any

import ebbpool


def run(module: list[str] | None, script: list[str], *, executors: bool, explain: bool, **settings: Any) -> int:
    """Install a pool, and run a module or a script as Python itself does."""
    pool = ebbpool.AdaptiveExecutor(thread_name_prefix="ebbpool", **settings)
    ebbpool.install(pool, executors=executors, explain=_say if explain else None)
    spec: ModuleSpec | None
    loader: Any
    if module:
        spec, path = _spec_of(module[0]), ""
        sys.argv = [str(spec.origin), *module[1:]]
    else:
        sys.argv, path = script, os.path.abspath(script[0])
        # That of a directory or an archive; none of a file.
        finder: Any = get_importer(path)
        spec = finder and finder.find_spec("__main__")
        if finder is not None and spec is None:
            raise ModuleNotFoundError(f"can't find '__main__' module in {script[0]!r}")
        sys.path[0] = path if finder is not None else os.path.dirname(os.path.realpath(path))
    # Unlike with runpy it stays the main module while threads go on after its last line.
    main: Any = ModuleType("__main__")
    sys.modules["__main__"] = main
    if spec is not None:
        loader = spec.loader
        code = loader.get_code(spec.name)
    elif path.endswith(".pyc"):
        loader = SourcelessFileLoader("__main__", path)
        code = loader.get_code("__main__")
    else:
        loader = SourceFileLoader("__main__", path)
        code = loader.source_to_code(loader.get_data(path), path)
    if code is None:
        raise ImportError(f"No code object available for {spec and spec.name}")
    main.__loader__, main.__spec__ = loader, spec
    main.__file__ = spec.origin if spec else path
    main.__package__, main.__cached__ = spec and spec.parent, spec and spec.cached
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
