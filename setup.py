"""What pyproject.toml cannot say: the optional extensions, and what a wheel tells about its version and its tag."""

from __future__ import annotations

import os
import sys
from pathlib import Path

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
    # What is compiled has its C types in a file beside it; native_c has functions that exist only in C.
    parts = [path.stem for path in sorted(Path("src/ebbpool/_core").glob("*_c.pxd"))]
    sources = {part: f"src/ebbpool/_core/{part.removesuffix('_c')}.py" for part in parts if part != "native_c"}
    # What is volatile orders other reads and writes for Microsoft's compiler alone, and on ARM64 only if asked to.
    flags = ["/volatile:ms"] if "MSC" in sys.version else []
    wanted = [Extension(f"ebbpool._core.{part}", [path], extra_compile_args=flags) for part, path in sources.items()]
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


class Wheel(bdist_wheel):
    """Tag a wheel as what it became: extensions are optional, so that one which could not be built is no error."""

    def get_tag(self) -> tuple[str, str, str]:
        outputs = self.get_finalized_command("build_ext").get_outputs()
        self.root_is_pure = not any(Path(path).exists() for path in outputs)
        return super().get_tag()


setup(ext_modules=extensions(), cmdclass={"build_py": Modules, "bdist_wheel": Wheel})
