"""Imports run one way, and `import ebbpool` stays small."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import ebbpool

PACKAGE = Path(ebbpool.__file__).parent
MODULES = sorted(path.stem for path in PACKAGE.glob("*.py"))

COMPILED = {"_core_c", "_semaphore_c"}
"""Extension modules: they have no source of their own."""
UNNAMED = {"_missing_stdlib_info", "_resource_cffi"}
"""Modules of the standard library that `sys.stdlib_module_names` leaves out."""
FEEDERS = {"_census", "_crew", "_lifecycle", "_sizing", "_stack", "_timekeeper", "_timers"}
"""What only `executor` may build on, and each other."""

ALLOWED: dict[str, set[str]] = {
    "_quota": set(),
    "_compat": {"_quota"},
    "_uncompiled": set(),
    "_core": {"_compat", "_uncompiled"},
    "_accel": {"_compat", "_core", "_core_c"},
    "_complaints": set(),
    "_frames": set(),
    "_instruments": set(),
    "_sizing": set(),
    "_census": {"_sizing"},
    "_settings": {"_compat"},
    "_map": {"_claims", "_compat", "_ledger", "_settings"},
    "_crew": {"_accel", "_compat", "_frames", "_instruments"} | FEEDERS,
    "_lifecycle": {"_accel", "_compat"} | FEEDERS,
    "_stack": {"_settings"},
    "_alarms": set(),
    "_schedule": set(),
    "_timekeeper": {"_accel", "_alarms", "_compat"} | FEEDERS,
    "_timers": {"_accel", "_compat", "_instruments", "_schedule", "_settings"} | FEEDERS,
    "_loops": {"_accel", "_compat"},
    "_amap": {"_compat", "_settings"},
    "_semaphore": {"_settings", "_uncompiled"},
    "sync": {"_compat", "_semaphore", "_semaphore_c"},
    "_stats": set(),
    "lane": {"_accel", "_compat", "_map", "_settings", "_stats"},
    "executor": {
        "_accel",
        "_amap",
        "_compat",
        "_instruments",
        "_loops",
        "_map",
        "_schedule",
        "_settings",
        "_stats",
        "_stream",
        "lane",
    }
    | FEEDERS,
    "_anyio_shared": set(),
    "_anyio_asyncio": {"_accel", "_anyio_shared", "aio"},
    "_anyio_trio": {"_accel", "_anyio_shared"},
    "anyio": {"_anyio_asyncio", "_anyio_trio", "_lifecycle", "executor"},
    "_fastthreadpool_outlet": {"sync"},
    "_fastthreadpool_jobs": {"_accel", "_schedule", "_settings"},
    "fastthreadpool": {"_accel", "_fastthreadpool_jobs", "_fastthreadpool_outlet", "_settings", "executor"},
    "_ledger": {"_compat"},
    "_claims": {"_accel", "_ledger"},
    "_stream": {"_accel", "_lifecycle", "_settings"},
    "aio": {"_accel", "_compat", "_loops", "executor", "lane"},
    "__init__": {"_accel", "_compat", "_schedule", "_stats", "_stream", "executor", "lane"},
    "_handlers": {"_complaints", "_frames", "executor", "lane"},
    "_serving": {"_crew", "_lifecycle"},
    "_servers": {"_compat", "_complaints", "_handlers", "_serving", "_settings", "executor"},
    "_requests": set(),
    "_reader": {"_requests"},
    "_connections": {"_reader", "_requests"},
    "_poller": {"_connections"},
    "_frontdoor": {"_complaints", "_connections", "_poller", "_requests", "_servers"},
    "_httpserver": {"_complaints", "_connections", "_frontdoor", "_requests", "_servers", "_settings"},
    "socketserver": {"_httpserver", "_servers"},
    "_watchdog": set(),
    "_prefork_bind": set(),
    "_prefork_forks": set(),
    "_streams": set(),
    "_prefork_child": {"_prefork_forks", "_streams"},
    "_prefork_helpers": {"_prefork_child"},
    "_prefork_parent": {
        "_prefork_bind",
        "_prefork_child",
        "_prefork_forks",
        "_prefork_helpers",
        "_streams",
        "_watchdog",
    },
    "prefork": {"_compat", "_prefork_bind", "_prefork_child", "_prefork_parent", "_settings", "_streams", "_watchdog"},
    "_serve": {"_httpserver", "_streams", "prefork"},
    "__main__": {"__init__", "_compat", "_serve", "_settings", "executor"},
    "testing": {"__init__", "_compat", "executor"},
}


def executed(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports in `tree` that can run: all but those under ``if TYPE_CHECKING``."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                yield from executed(ast.Module([other], []))
        else:
            yield from executed(node)


def imported(tree: ast.AST, modules: set[str]) -> Iterator[str]:
    """Yield the dotted names that `tree` imports; ``from ebbpool import x`` counts as x if it is a module."""
    for node in executed(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
            continue
        base = node.module or ""
        if node.level:
            base = f"ebbpool.{base}".rstrip(".")
        if base != "ebbpool":
            yield base
            continue
        for alias in node.names:
            yield f"ebbpool.{alias.name}" if alias.name in modules else "ebbpool"


def own(names: Iterator[str]) -> set[str]:
    """Reduce dotted names to the modules of this package among them."""
    parts = (name.split(".") for name in names)
    return {part[1] if len(part) > 1 else "__init__" for part in parts if part[0] == "ebbpool"}


def names_of(module: str) -> Iterator[str]:
    tree = ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))
    return imported(tree, {*MODULES, *COMPILED})


def names_in(source: str) -> list[str]:
    return sorted(imported(ast.parse(source), {*MODULES, *COMPILED}))


def test_the_check_sees_every_form_of_import() -> None:
    assert names_in("import ebbpool._core") == ["ebbpool._core"]
    assert names_in("from . import _core as c") == ["ebbpool._core"]
    assert names_in("from ._core import Future") == ["ebbpool._core"]
    assert names_in("from ebbpool import _core, AdaptiveExecutor") == ["ebbpool", "ebbpool._core"]
    assert names_in("def f():\n try:\n  import anyio.abc\n except ImportError: pass") == ["anyio.abc"]
    assert names_in("if TYPE_CHECKING:\n import ebbpool.executor\nelse:\n import time") == ["time"]


def test_every_module_has_its_place() -> None:
    assert set(MODULES) <= ALLOWED.keys(), "give a new module its row in ALLOWED"


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_it_may(module: str) -> None:
    assert own(names_of(module)) <= ALLOWED[module]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_needs_nothing_but_the_standard_library(module: str) -> None:
    roots = {name.split(".")[0] for name in names_of(module)} - {"ebbpool"}
    if f"{module}_c" in COMPILED:
        roots -= {"cython"}
    if "anyio" in module:
        roots -= {"anyio", "outcome", "sniffio", "trio"}
    assert roots <= sys.stdlib_module_names


def test_sizing_has_no_threads_and_no_clock() -> None:
    assert not set(names_of("_sizing")) & {"_thread", "asyncio", "threading", "time"}


def test_imports_go_in_no_circle() -> None:
    TopologicalSorter({module: own(names_of(module)) for module in MODULES}).prepare()


def test_import_brings_in_no_bridge_and_no_third_party() -> None:
    script = (
        "import sys; before = set(sys.modules); import ebbpool; "
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before}))"
    )
    result = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=50)
    loaded = set(result.stdout.split())
    assert "ebbpool" in loaded
    assert not loaded & {"anyio", "asyncio", "http", "multiprocessing", "socketserver", "trio", "uvloop"}
    cython = {name for name in loaded if name.lstrip("_").lower().startswith("cython")}
    assert loaded - cython - sys.stdlib_module_names - UNNAMED - {"ebbpool"} == set()
