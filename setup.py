"""The two optional extensions; everything else is in pyproject.toml."""

from __future__ import annotations

import os
import sys

from setuptools import Extension, setup


def flag(name: str) -> bool:
    return os.environ.get(name, "") not in ("", "0")


def extensions() -> list[Extension]:
    require = flag("EBBPOOL_REQUIRE_EXT")
    if flag("EBBPOOL_PURE") or sys.implementation.name != "cpython":
        return []
    try:
        from Cython.Build import cythonize
        from Cython.Compiler.Errors import CompileError
    except ImportError:
        if require:
            raise
        return []
    wanted = [
        Extension(f"ebbpool._core.{name}_c", [f"src/ebbpool/_core/{name}.py"]) for name in ("engine", "semaphore")
    ]
    try:
        compiled = cythonize(wanted, build_dir="build/cython")
    except CompileError:
        if require:
            raise
        return []
    for extension in compiled:
        extension.optional = not require  # cythonize forgets it
    return compiled


setup(ext_modules=extensions())
