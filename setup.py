"""What pyproject.toml cannot say: the optional extensions, and what a wheel tells about its version and its parts."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from pathlib import Path
from urllib.parse import quote

import setuptools
from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py


def flag(name: str) -> bool:
    return os.environ.get(name, "") not in ("", "0")


DIRECTIVES = {
    "language_level": 3,
    "binding": True,
    "annotation_typing": False,
    "freethreading_compatible": True,
    "nonecheck": True,
    "auto_pickle": False,
}


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
    parts = ("executor_core", "future", "known", "lane", "loop_calls", "pool", "semaphore", "timers", "worker")
    wanted = [Extension(f"ebbpool._core.{name}_c", [f"src/ebbpool/_core/{name}.py"]) for name in parts]
    try:
        compiled = cythonize(wanted, build_dir="build/cython", compiler_directives=DIRECTIVES)
    except CompileError:
        if require:
            raise
        return []
    for extension in compiled:
        extension.optional = not require  # cythonize forgets it
    return compiled


class Modules(build_py):
    """Write the version into a wheel; an editable install asks its metadata."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            lines = '"""The version, as this was built."""', f'__version__ = "{self.distribution.get_version()}"'
            Path(self.build_lib, "ebbpool/_version.py").write_text("\n\n".join(lines) + "\n", encoding="utf-8")


def part(kind: str, name: str, version: str, licence: str) -> dict[str, object]:
    package = f"pkg:pypi/{name.lower()}@{quote(version)}"
    known = {"type": kind, "bom-ref": package, "name": name, "version": version, "purl": package}
    return known | {"licenses": [{"license": {"id": licence}}]}


class Wheel(bdist_wheel):
    """Tag a wheel as what it became, and put a bill of materials where PEP 770 has it: in sboms of its metadata."""

    @property
    def compiled(self) -> bool:
        """Whether an extension is there: they are optional, so that one which could not be built is no error."""
        return any(Path(path).exists() for path in self.get_finalized_command("build_ext").get_outputs())

    def get_tag(self) -> tuple[str, str, str]:
        self.root_is_pure = not self.compiled
        return super().get_tag()

    def write_wheelfile(self, wheelfile_base: str, *arguments: str, **named: str) -> None:
        super().write_wheelfile(wheelfile_base, *arguments, **named)
        folder = Path(wheelfile_base, "sboms")
        folder.mkdir(exist_ok=True)
        text = json.dumps(self.bill(self.compiled), indent=2)
        (folder / "ebbpool.cdx.json").write_text(text + "\n", encoding="utf-8")

    def bill(self, compiled: bool) -> dict[str, object]:
        """Return what a wheel is made of: nothing else, or what Cython adds to the code that it generates."""
        ours = part("library", "ebbpool", self.distribution.get_version(), "MIT")
        others = [part("library", "Cython", importlib.metadata.version("Cython"), "Apache-2.0")] if compiled else []
        maker = part("application", "setuptools", setuptools.__version__, "MIT")
        return {
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "version": 1,
            "metadata": {"tools": {"components": [maker]}, "component": ours},
            "components": others,
            "dependencies": [
                {"ref": ours["bom-ref"], "dependsOn": [other["bom-ref"] for other in others]},
                *({"ref": other["bom-ref"]} for other in others),
            ],
        }


setup(ext_modules=extensions(), cmdclass={"build_py": Modules, "bdist_wheel": Wheel})
