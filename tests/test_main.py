"""``python -m ebbpool`` and the facts that it prints."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
import sysconfig

import pytest

import ebbpool
from ebbpool import __main__, _compat


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ebbpool", *arguments],
        capture_output=True,
        text=True,
        timeout=50,
        env=os.environ | environ,
    )


def test_prints_what_runs() -> None:
    result = run()
    assert result.returncode == 0, result.stderr
    version, core, interpreter, processors = result.stdout.splitlines()
    assert version == f"ebbpool {ebbpool.__version__}"
    assert core == f"core: {'compiled' if ebbpool.COMPILED else 'plain Python'}"
    assert platform.python_version() in interpreter
    assert platform.python_implementation() in interpreter
    assert int(processors.removeprefix("processors: ")) >= 1


def test_the_plain_core_can_be_asked_for() -> None:
    assert "core: plain Python" in run(EBBPOOL_PURE="1").stdout.splitlines()


def test_zero_asks_for_nothing() -> None:
    assert run(EBBPOOL_PURE="0").stdout == run(EBBPOOL_PURE="").stdout


def test_main_in_process(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main([]) == 0
    assert capsys.readouterr().out == __main__.describe() + "\n"


def test_version_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        __main__.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"ebbpool {ebbpool.__version__}\n"


def test_an_unknown_argument_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        __main__.main(["--no-such-option"])
    assert caught.value.code == 2
    assert "--no-such-option" in capsys.readouterr().err


def test_the_version_is_that_of_the_installed_package() -> None:
    assert importlib.metadata.version("ebbpool") == ebbpool.__version__


def test_gil_facts() -> None:
    assert bool(sysconfig.get_config_var("Py_GIL_DISABLED")) == _compat.FREE_THREADED
    if sys.version_info < (3, 13):
        assert _compat.gil_enabled()
        assert not _compat.FREE_THREADED
    else:
        assert _compat.gil_enabled() == sys._is_gil_enabled()
    assert ("free-threaded" in _compat.interpreter()) == _compat.FREE_THREADED


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the platform has no processor affinity")
def test_processors_follow_the_affinity() -> None:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHON_CPU_COUNT"}
    script = (
        "import os; from ebbpool._compat import available_cpus; "
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(available_cpus())"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=50, env=environ
    )
    assert result.stdout == "1\n"
