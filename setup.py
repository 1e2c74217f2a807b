"""The one optional extension; everything else is in pyproject.toml."""

from __future__ import annotations

import os
import sys

from setuptools import Extension, setup


def flag(name: str) -> bool:
    return os.environ.get(name, "") not in ("", "0")


REQUIRE = flag("EBBPOOL_REQUIRE_EXT")


def extensions() -> list[Extension]:
    if flag("EBBPOOL_PURE") or sys.implementation.name != "cpython":
        return []
    try:
        from Cython.Build import cythonize
        from Cython.Compiler.Errors import CompileError
    except ImportError:
        if REQUIRE:
            raise
        return []
    core = Extension("ebbpool._core_c", ["src/ebbpool/_core.py"], optional=not REQUIRE)
    try:
        (compiled,) = cythonize([core], build_dir="build/cython")
    except CompileError:
        if REQUIRE:
            raise
        return []
    compiled.optional = core.optional  # cythonize forgets it
    return [compiled]


setup(ext_modules=extensions())
