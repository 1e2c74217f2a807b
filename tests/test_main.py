"""``python -m ebbpool``: the facts that it prints, and programs that it runs as Python would, on one pool."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import py_compile
import re
import runpy
import subprocess
import sys
import sysconfig
import zipapp
from pathlib import Path
from unittest import mock

import pytest
from support import seams
from support.common import HOME, output_of, python

import ebbpool


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "ebbpool", *arguments, **environ)


def main(*arguments: str) -> int:
    """Run the command in this process, and return its exit status."""
    with mock.patch.object(sys, "argv", ["ebbpool", *arguments]), pytest.raises(SystemExit) as ended:
        runpy.run_path(os.path.join(os.path.dirname(ebbpool.__file__), "__main__.py"), run_name="__main__")
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_prints_what_runs_and_the_plain_core_can_be_asked_for() -> None:
    result = run()
    assert result.returncode == 0, result.stderr
    version, core, interpreter, processors = result.stdout.splitlines()
    assert version == f"ebbpool {ebbpool.__version__}"
    assert core == f"core: {'compiled' if ebbpool.COMPILED else 'plain Python'}"
    assert platform.python_version() in interpreter
    assert platform.python_implementation() in interpreter
    assert int(processors.removeprefix("CPUs: ")) >= 1
    assert "core: plain Python" in run(EBBPOOL_PURE="1").stdout.splitlines()


UNCOMPILED = """
import logging
import sys

class Uncompiled:
    def find_spec(name, path=None, target=None):
        if name.startswith("ebbpool.") and name.endswith("_c"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Uncompiled)
logging.basicConfig(level=logging.INFO, format="%(name)s %(levelname)s %(message)s", stream=sys.stdout)
"""
POOLS = """
import ebbpool

for _ in range(2):
    with ebbpool.AdaptiveExecutor() as pool:
        pool.submit(int).result()
"""
INSTALL = """
import ebbpool.anyio

with ebbpool.anyio.install():
    pass
print("installed")
"""
SAID = "ebbpool INFO the plain engine runs: none is compiled here"


def test_a_plain_engine_that_was_not_asked_for_is_told_once() -> None:
    # Elsewhere it is the one that there is.
    said = [SAID] if sys.implementation.name == "cpython" else []
    cases = [("", POOLS, said), ("1", POOLS, [])]
    if importlib.util.find_spec("anyio") is not None:
        cases.append(("", INSTALL + POOLS, [*said, "installed"]))
    for pure, script, lines in cases:
        done = python("-c", UNCOMPILED + script, EBBPOOL_PURE=pure)
        assert (done.stdout.splitlines(), done.stderr) == (lines, ""), (pure, script)


ANOTHER = """
import asyncio.futures
import concurrent.futures.thread
import threading

# A later Python may keep these elsewhere.
vars(threading.main_thread())["elsewhere"] = threading.main_thread()._started
threading.Thread._started = property(
    lambda thread: vars(thread)["elsewhere"], lambda thread, event: vars(thread).update(elsewhere=event)
)
after_fork = {
    name: vars(threading.Thread)[name]
    for name in ("_after_fork", "_reset_internal_locks")
    if name in vars(threading.Thread)
}
for name in after_fork:
    delattr(threading.Thread, name)
threading.Thread.__getattr__ = lambda thread, name: after_fork[name].__get__(thread)
del threading._register_atexit
chain = asyncio.futures._chain_future
asyncio.futures._chain_future = lambda *futures: chain(*futures)
"""
USE = """
import logging
import os
import sys
import ebbpool

logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
with ebbpool.AdaptiveExecutor(2) as pool:
    print([future.result() for future in [pool.submit(pow, 2, power) for power in range(4)]])

    async def main():
        return await asyncio.wrap_future(pool.submit(pow, 2, 4)), await pool.run(pow, 2, 5)

    print(asyncio.run(main()))
    threads = list(pool._threads)
print([thread.ended() for thread in threads] == [True] * len(threads) != [])
if hasattr(os, "fork"):
    with ebbpool.AdaptiveExecutor(1) as pool:
        pool.submit(int).result()
        if pid := os.fork():
            print(os.waitpid(pid, 0)[1])
        else:
            os._exit(pool.submit(int).result())
from ebbpool.__main__ import main
main()
"""


def test_what_a_later_python_lacks_is_named_and_done_without() -> None:
    lacking = "threading.Thread._started, threading.Thread._after_fork, threading._register_atexit"
    said = f"this Python lacks what ebbpool knows a way without: {lacking}"
    lines = output_of(USE, ANOTHER)
    assert lines[:4] == [said, "[1, 2, 4, 8]", "(16, 32)", "True"]
    assert lines[4 : 4 + hasattr(os, "fork")] == ["0"] * hasattr(os, "fork")
    assert lines[-1] == f"works without what this Python lacks: {lacking}, asyncio.futures._chain_future"


def test_this_python_lacks_nothing() -> None:
    """Here to fail on the first Python that does."""
    assert "lacks" not in run().stdout


def test_help_is_there_for_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("--help") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "print the version, and what it runs on" in text and "watch the pools of another process" in text
    for command in ("run", "top"):
        assert main(command, "--help") == 0
        assert f"usage: python -m ebbpool {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("--max-workers 0", r"max_workers must be greater than 0, not 0"),
        ("--max-workers 2.5", r"argument --max-workers: invalid int value: '2.5'"),
        ("--min-workers 9 --max-workers 8", r"min_workers must not exceed max_workers: min_workers=9, max_workers=8"),
        ("--keep-alive=-0.1", r"keep_alive must be at least 0 seconds, not -0.1"),
        ("--keep-alive soon", r"argument --keep-alive: invalid float value: 'soon'"),
    ],
)
def test_a_wrong_option_is_one_clear_line(arguments: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("run", *arguments.split(), "x.py") == 2
    shown = capsys.readouterr()
    usage, line = shown.err.splitlines()
    assert usage.startswith("usage: python -m ebbpool")
    assert re.fullmatch(rf"python -m ebbpool run: error: {reason}", line), line
    assert shown.out == ""


@pytest.mark.parametrize("arguments", ["--no-such-option", "top 1 2", "top --jso", "top --interval 3"])
def test_wrong_use_is_refused(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(*arguments.split()) == 2
    assert "unrecognized arguments: " in capsys.readouterr().err


def test_the_version_is_that_of_the_installed_package() -> None:
    assert importlib.metadata.version("ebbpool") == ebbpool.__version__


def test_the_interpreter_is_named_after_its_gil() -> None:
    assert bool(sysconfig.get_config_var("Py_GIL_DISABLED")) == seams.FREE_THREADED
    assert seams.gil_enabled() == getattr(sys, "_is_gil_enabled", lambda: True)()
    assert ("free-threaded" in seams.interpreter()) == seams.FREE_THREADED


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the platform has no processor affinity")
def test_processors_follow_the_affinity() -> None:
    script = (
        "import os, runpy; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
        "runpy.run_module('ebbpool', run_name='__main__')"
    )
    assert "CPUs: 1" in python("-c", script, PYTHON_CPU_COUNT="default").stdout.splitlines()


PROGRAM = """
import ebbpool
ebbpool.install()
import sys
import asyncio
import threading

def name():
    return threading.current_thread().name.partition("_")[0]

print(__name__, sys.argv[1:], sys.path[0], sys.modules["__main__"].name is name)
print(asyncio.run(asyncio.to_thread(name)), [pool.stats().max_workers for pool in __import__("ebbpool").pools()])
sys.exit(3)
"""


def program_run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(PROGRAM, encoding="utf-8")
    return python("-m", "ebbpool", "run", *arguments, cwd=folder)


@pytest.mark.parametrize(
    ("arguments", "given", "ceiling"),
    [
        ("--max-workers 7 program.py --explain -m x", ["--explain", "-m", "x"], 7),
        ("-m program --version y", ["--version", "y"], 256),
    ],
    ids=["script", "module"],
)
def test_a_program(tmp_path: Path, arguments: str, given: list[str], ceiling: int) -> None:
    done = program_run(tmp_path, *arguments.split())
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.splitlines() == [f"__main__ {given} {tmp_path} True", f"ebbpool [{ceiling}]"]


CHILDREN = """
import subprocess, sys

for imported in ("asyncio", "json"):
    child = f"import {imported}, sys; print('ebbpool' in sys.modules, sys.path)"
    subprocess.run([sys.executable, "-c", child], check=True)
"""


def test_a_python_that_the_program_starts_has_a_pool_once_it_has_threads_to_send_to(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(CHILDREN, encoding="utf-8")
    (tmp_path / "sitecustomize.py").write_text("print('mine', __file__)", encoding="utf-8")
    done = python("-m", "ebbpool", "run", "program.py", cwd=tmp_path, PYTHONPATH=f"{tmp_path}{os.pathsep}{HOME}")
    # Each Python prints it as it starts: ours, the program, and those that the program starts.
    here = f"mine {tmp_path / 'sitecustomize.py'}"
    mine, program, first, of_first, second, of_second = done.stdout.splitlines()
    assert (mine, program, first, second, done.stderr) == (here, here, here, here, "")
    assert (of_first.partition(" ")[0], of_second.partition(" ")[0]) == ("True", "False")
    assert "_cli" not in of_first + of_second


@pytest.mark.parametrize("option", ["-E", "-I", "-S"])
def test_a_python_that_cannot_be_told_what_to_begin_with_is_refused(tmp_path: Path, option: str) -> None:
    command = f"import sys; sys.path[:0] = {sys.path!r}; from ebbpool.__main__ import main; main(['run', 'program.py'])"
    done = python(option, "-c", command, cwd=tmp_path)
    assert done.returncode == 2
    assert "error: -E, -I and -S keep Python from reading what it is to begin with" in done.stderr


LATER = """
import pickle, threading

class Mine: ...

def later():
    threading.main_thread().join()
    print(type(pickle.loads(pickle.dumps(Mine()))) is Mine)

threading.Thread(target=later).start()
"""


@pytest.mark.parametrize(
    "how", [["later.py"], ["-m", "later"], ["-m", "package"], ["package"], ["package.zip"], ["later.pyc"]]
)
def test_a_thread_that_goes_on_finds_the_main_module(tmp_path: Path, how: list[str]) -> None:
    (tmp_path / "later.py").write_text(LATER, encoding="utf-8")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(LATER, encoding="utf-8")
    zipapp.create_archive(tmp_path / "package", tmp_path / "package.zip")
    py_compile.compile(str(tmp_path / "later.py"), str(tmp_path / "later.pyc"))
    done = program_run(tmp_path, *how)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "True\n")


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        ("--explain program.py", 3, "ebbpool: asyncio: the default executor of new loops\n"),
        ("", 2, "say which program: -m MODULE, or SCRIPT"),
        ("-m no_such_module", 1, "No module named no_such_module"),
    ],
)
def test_it_says_what_was_done_or_why_it_cannot_run(tmp_path: Path, arguments: str, status: int, reason: str) -> None:
    done = program_run(tmp_path, *arguments.split())
    assert done.returncode == status
    assert reason in done.stderr
