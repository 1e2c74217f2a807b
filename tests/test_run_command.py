"""``python -m ebbpool run``: a program runs as Python would run it, on one pool."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import ebbpool

PROGRAM = """
import sys
import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

def name():
    return threading.current_thread().name.partition("_")[0]

print(__name__, sys.argv[1:], sys.path[0], sys.modules["__main__"].name is name)
print(asyncio.run(asyncio.to_thread(name)), [pool.stats().max_workers for pool in __import__("ebbpool").pools()])
with ThreadPoolExecutor(2) as executor:
    print(type(executor) is ThreadPoolExecutor)
sys.exit(3)
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(PROGRAM, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "ebbpool", "run", *arguments],
        cwd=folder,
        env=dict(os.environ, PYTHONPATH=str(Path(ebbpool.__file__).parent.parent)),
        capture_output=True,
        text=True,
        timeout=50,
    )


def test_a_script(tmp_path: Path) -> None:
    done = run(tmp_path, "--max-workers", "7", "program.py", "--explain", "-m", "x")
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.splitlines() == [
        f"__main__ ['--explain', '-m', 'x'] {tmp_path} True",
        "ebbpool [7]",
        "True",
    ]


def test_a_module(tmp_path: Path) -> None:
    done = run(tmp_path, "--executors", "-m", "program", "--version", "y")
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.splitlines() == [f"__main__ ['--version', 'y'] {tmp_path} True", "ebbpool [256]", "False"]


def test_it_says_what_was_done(tmp_path: Path) -> None:
    done = run(tmp_path, "--explain", "program.py")
    lines = done.stderr.splitlines()
    assert all(line.startswith("ebbpool: ") for line in lines)
    assert lines[-1] == "ebbpool: asyncio: the default executor of new loops"


def test_what_it_cannot_run(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 2
    assert "say which program: -m MODULE, or SCRIPT" in done.stderr
    done = run(tmp_path, "--min-workers", "9", "--max-workers", "3", "program.py")
    assert done.returncode == 2
    assert "--min-workers: 9 is more than --max-workers, 3" in done.stderr
    done = run(tmp_path, "-m", "no_such_module")
    assert done.returncode == 1
    assert "No module named no_such_module" in done.stderr
