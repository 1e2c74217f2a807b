"""The rivals that are no Python: what compiles them, once, and runs them."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.peers import Unavailable, program

_FOLDER = Path(__file__).parent
_BUILD_SECONDS = 100.0
VIRTUAL_THREADS_SINCE = 21
"""The first Java whose virtual threads are no preview."""


def _told(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_SECONDS, check=False)
    if done.returncode:
        raise Unavailable(f"{command[0]} failed: {(done.stderr or done.stdout).strip().splitlines()[-1:]}")
    return done.stdout + done.stderr


def java_version(text: str) -> int:
    """Return the major version in what `java -version` or `javac -version` says; 0 if there is none."""
    found = re.search(r"(?:version \"|javac )(?:1\.)?([0-9]+)", text)
    return int(found[1]) if found else 0


def version(name: str, flag: str) -> str:
    """Return the version that a program tells of itself."""
    found = re.search(r"[0-9]+(\.[0-9]+)+", _told(program(name), flag))
    return found[0] if found else "unknown"


def go() -> None:
    """Raise `Unavailable` unless there is Go."""
    program("go")


def java() -> None:
    """Raise `Unavailable` unless there is a Java with virtual threads."""
    for name in ("javac", "java"):
        major = java_version(_told(program(name), "-version"))
        if major < VIRTUAL_THREADS_SINCE:
            raise Unavailable(f"{name} {major} is installed; virtual threads need {VIRTUAL_THREADS_SINCE}")


def command(language: str) -> list[str]:
    """Return the command that runs the program in Go or Java, compiled before if need be.

    Raises:
        Unavailable: There is no such compiler, or it fails.
    """
    source = _FOLDER / {"go": "bench.go", "java": "Bench.java"}[language]
    tool = program({"go": "go", "java": "javac"}[language])
    told = _told(tool, "version" if language == "go" else "-version")
    digest = hashlib.sha256(source.read_bytes() + told.encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"ebbpool-bench-{os.getuid() if hasattr(os, 'getuid') else 0}-{digest}"
    made = folder / ("bench" if language == "go" else "Bench.class")
    if not made.exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as unfinished:
            if language == "go":
                _told(tool, "build", "-o", f"{unfinished}/bench", str(source))
            else:
                _told(tool, "-d", unfinished, str(source))
            for path in Path(unfinished).iterdir():
                path.replace(folder / path.name)
    return [str(made)] if language == "go" else [program("java"), "-cp", str(folder), "Bench"]


def burst(language: str, count: int, seconds: float) -> dict[str, Any]:
    """Return what the program tells of so many tasks that wait: `ms` and `kB`."""
    told: dict[str, Any] = json.loads(_told(*command(language), "burst", str(count), str(seconds * 1e3)))
    return told


go_burst = functools.partial(burst, "go")
java_burst = functools.partial(burst, "java")
