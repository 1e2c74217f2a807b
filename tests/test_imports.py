"""Imports run one way, and `import ebbpool` stays small.

Where a new import is meant, change the row of its file or folder in `IMPORTS`; that has to be one on a lower floor of
the package layout in docs/design.md, or `test_files_and_folders_form_no_circle` fails, too.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from support.common import HOME
from support.pages import ROOT

PACKAGE = Path(HOME) / "ebbpool"


def name_of(path: Path) -> str:
    """Return the dotted name of a module, without that of the package; "__init__" for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


SOURCES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
MODULES = list(SOURCES)
DECLARED = [path.stem for path in sorted((ROOT / "src/ebbpool/_core").glob("*_c.pxd"))]
COMPILED = {f"_core.{name}": f"_core.{name.removesuffix('_c')}" for name in DECLARED}
"""Extension modules, which have no source of their own, and what they are made from."""
UNNAMED = {"_lzma_cffi", "_missing_stdlib_info", "_resource_cffi"}
"""Modules of the standard library that `sys.stdlib_module_names` leaves out."""

IMPORTS: dict[str, set[str]] = {
    "_called": set(),
    "_clock": set(),
    "_checks": set(),
    "_errors": set(),
    "_replacements": set(),
    "_stdio": set(),
    "_unix": set(),
    "_version": set(),
    "_interpreter": {"_clock"},
    "_frames": {"_interpreter"},
    "_core": {"_called", "_checks", "_clock", "_errors", "_interpreter"},
    "_prefork": {"_clock", "_frames", "_stdio", "_unix"},
    "sync": {"_core", "_interpreter"},
    "_pool": {"_called", "_checks", "_clock", "_core", "_errors", "_frames", "_interpreter"},
    "_loops": {"_core", "_errors", "_interpreter", "_pool"},
    "_maps": {"_called", "_checks", "_clock", "_core", "_errors", "_interpreter", "_pool"},
    "_monitor": {"_interpreter", "_pool", "_stdio", "_unix", "_version"},
    "lane": {"_checks", "_core", "_maps", "_pool"},
    "session": {"_checks", "_core", "_pool"},
    "executor": {
        "_clock",
        "_checks",
        "_core",
        "_interpreter",
        "_loops",
        "_maps",
        "_monitor",
        "_pool",
        "lane",
        "session",
    },
    "switch": {"_anyio", "_interpreter", "_pool", "_replacements", "anyio", "executor", "lane"},
    "__init__": {"_core", "_errors", "_maps", "_pool", "_version", "executor", "lane", "session", "switch"},
    "aio": {"_loops", "executor", "lane"},
    "monitor": {"_monitor"},
    "testing": {"_clock", "_frames", "_monitor", "_pool"},
    "_leaks": {"_clock", "_core", "_pool"},
    "_anyio": {"_clock", "_core", "_interpreter", "_loops", "_pool", "executor"},
    "_dask": {"_called", "_clock", "_core", "_errors", "_checks", "_interpreter", "_maps", "_pool", "executor"},
    "dask": {"_checks", "_core", "_dask", "_errors", "executor", "lane"},
    "_servers": {
        "_clock",
        "_core",
        "_stdio",
        "_checks",
        "_errors",
        "_frames",
        "_interpreter",
        "_pool",
        "executor",
        "lane",
    },
    "anyio": {"_anyio", "_core", "_errors", "_pool", "_replacements", "executor"},
    "fastthreadpool": {"_clock", "_errors", "_checks", "_core", "_maps", "_pool", "executor", "sync"},
    "celery": {"executor"},
    "django": {"executor"},
    "gunicorn": {"_clock", "_errors", "_http", "_servers", "executor"},
    "_http": {"_clock", "_stdio", "_servers"},
    "socketserver": {"_checks", "_http", "_servers"},
    "_metrics": {"_core", "_pool", "executor"},
    "opentelemetry": {"__init__", "_errors", "_metrics"},
    "prometheus": {"_errors", "_metrics", "_pool"},
    "prefork": {"_checks", "_interpreter", "_prefork"},
    "_top": {"_clock", "_monitor", "_unix", "_version"},
    "_cli": {"__init__", "_interpreter", "_pool", "_top", "switch"},
    "__main__": {"_cli"},
}
"""What each file and each folder imports of the others, no more and no less, for type checkers too."""

BRIDGES = {
    "_dask.link": {"distributed"},
    "_dask.remote": {"cloudpickle", "dask", "distributed"},
    "celery": {"celery"},
    "dask": {"distributed"},
    "django": {"asgiref", "django"},
    "gunicorn": {"gunicorn"},
    "switch": {"outcome"},
    "_top.run": {"rich"},
    "_top.terminal": {"rich"},
    "_top.view": {"rich"},
    "opentelemetry": {"opentelemetry"},
    "prometheus": {"prometheus_client"},
}
"""Modules that are for a library, and need it."""


def imports_of(tree: ast.AST, all_of_them: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports in `tree`, those under ``if TYPE_CHECKING`` only if `all_of_them` are wanted."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and not all_of_them:
            for other in node.orelse:
                yield from imports_of(ast.Module([other], []), all_of_them)
        else:
            yield from imports_of(node, all_of_them)


def names_of(module: str, all_of_them: bool = True) -> set[str]:
    """Return what a module imports; ``from x import y`` counts as x.y if there is such a module."""
    found = set()
    for node in imports_of(ast.parse(SOURCES[module].read_text(encoding="utf-8")), all_of_them):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
            continue
        assert node.module and not node.level, "no import is relative"
        for alias in node.names:
            name = f"{node.module}.{alias.name}"
            found.add(name if name.removeprefix("ebbpool.") in {*MODULES, *COMPILED} else node.module)
    return found


def own(module: str, all_of_them: bool = True) -> set[str]:
    """Return the modules of this package that `module` imports."""
    names = {name.removeprefix("ebbpool.") for name in names_of(module, all_of_them) if name.startswith("ebbpool")}
    return {"__init__" if name == "ebbpool" else COMPILED.get(name, name) for name in names} - {module}


def unit_of(module: str) -> str:
    return module.split(".")[0]


def test_every_file_and_folder_has_its_row() -> None:
    assert {unit_of(module) for module in MODULES} == IMPORTS.keys(), "add or remove the row in IMPORTS"


@pytest.mark.parametrize("unit", IMPORTS)
def test_the_table_says_what_is_imported(unit: str) -> None:
    used = {unit_of(name) for module in MODULES if unit_of(module) == unit for name in own(module)}
    assert used - {unit} == IMPORTS[unit], f"if that is meant, and goes down, change the row {unit!r} in IMPORTS"


def borrowed_names(units: set[str]) -> set[str]:
    """Return what some files and folders use of the private parts of others: modules, and names that are not ours."""
    ours, used = {*MODULES}, set()
    for module, path in SOURCES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            words = [value for _, value in ast.iter_fields(node) if isinstance(value, str) and " " not in value]
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler)) or isinstance(
                getattr(node, "ctx", None), ast.Store
            ):
                ours.update(words)
            elif unit_of(module) in units:
                used.update(re.findall(r"(?<!\w)_(?!ebbpool)[A-Za-z]\w*", " ".join(words)))
                if isinstance(node, ast.ImportFrom) and re.match(r"(?!ebbpool)\w+.*\._", f"{node.module}"):
                    used.update(alias.name for alias in node.names)
    return used - ours


def test_what_is_private_to_libraries_of_event_loops_is_in_the_tables_about_them() -> None:
    """A release of anyio or trio may change it, and then this page says what to look at."""
    page = (ROOT / "docs/design/loops.md").read_text(encoding="utf-8")
    told = {word for code in re.findall(r"`([^`\n]+)`", page) for word in re.findall(r"\w+", code)}
    assert borrowed_names({"_anyio", "_loops", "anyio", "switch"}) <= told
    sources = "".join(path.read_text(encoding="utf-8") for path in SOURCES.values())
    assert [word for word in told if word.startswith("_") and word not in sources] == []


def test_one_module_reads_the_frames_of_other_threads() -> None:
    readers = [name for name, path in SOURCES.items() if "_current_frames" in path.read_text(encoding="utf-8")]
    assert readers == ["_frames"]


def test_files_and_folders_form_no_circle() -> None:
    assert {*TopologicalSorter(IMPORTS).static_order()} == IMPORTS.keys()


def test_modules_form_no_circle() -> None:
    # The types of the core are a true circle: a future knows its pool, and a pool its futures. What is imported there
    # to run is none.
    graph = {module: own(module, unit_of(module) != "_core") for module in MODULES}
    assert {*TopologicalSorter(graph).static_order()} == {*MODULES}


def test_private_folders_know_few_faces() -> None:
    faces = {unit for unit in IMPORTS if not unit.startswith("_")} - {"executor", "lane", "session", "sync"}
    for unit in IMPORTS:
        if unit.startswith("_") and unit not in ("_cli", "__init__", "__main__"):
            assert not IMPORTS[unit] & faces, unit


@pytest.mark.parametrize("module", MODULES)
def test_a_module_needs_nothing_but_the_standard_library(module: str) -> None:
    roots = {name.split(".")[0] for name in names_of(module, all_of_them=False)} - {"ebbpool"}
    if module in COMPILED.values():
        roots -= {"cython"}
    if "anyio" in module:
        roots -= {"anyio", "outcome", "sniffio", "trio"}
    roots -= BRIDGES.get(module, set())
    assert roots <= sys.stdlib_module_names


def test_a_module_that_has_not_been_imported_is_named() -> None:
    script = """
import sys
import ebbpool
for name in "anyio", "prefork", "no_such", "_cli":
    try:
        getattr(ebbpool, name)
    except AttributeError as error:
        print(str(error).removeprefix("module 'ebbpool' has no attribute "))
from ebbpool import prefork
print(ebbpool.prefork is prefork, "ebbpool.anyio" in sys.modules, "anyio" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=50)
    hints = ["'anyio': import ebbpool.anyio first", "'prefork': import ebbpool.prefork first"]
    assert done.stdout.splitlines() == [*hints, "'no_such'", "'_cli'", "True False False"]


def test_sizing_has_no_threads_and_no_clock() -> None:
    assert not names_of("_pool.sizing") & {"_thread", "asyncio", "threading", "time"}


def loaded_with_ebbpool(*there: str) -> set[str]:
    """Return what `import ebbpool` imports where some modules are there already."""
    script = f"import {', '.join(['sys', *there])}; before = set(sys.modules); import ebbpool"
    script += "; print(*set(sys.modules) - before)"
    result = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=50)
    return set(result.stdout.split())


def test_import_leaves_to_its_use_what_only_reports_and_tools_need() -> None:
    loaded = loaded_with_ebbpool("asyncio", "traceback")
    assert not loaded & {"dataclasses", "importlib.metadata", "json", "pickle", "selectors", "socket", "tempfile"}
    later = ("_anyio", "_cli", "_dask", "_http", "_loops", "_maps.async_maps", "_metrics", "_monitor", "_pool.reports")
    later += ("_prefork", "_servers", "_stdio", "_top", "_unix", "_version", "aio", "anyio", "sync", "testing")
    assert not [name for name in loaded if name.removeprefix("ebbpool.").startswith(later)]


def test_import_brings_in_no_bridge_and_no_third_party() -> None:
    loaded = {name.split(".")[0] for name in loaded_with_ebbpool()}
    assert "ebbpool" in loaded
    assert not loaded & {"anyio", "asyncio", "http", "multiprocessing", "socketserver", "trio", "uvloop"}
    cython = {name for name in loaded if name.lstrip("_").lower().startswith("cython")}
    assert loaded - cython - sys.stdlib_module_names - UNNAMED - {"ebbpool"} == set()
