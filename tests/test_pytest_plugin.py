"""The plugin for pytest, in runs of its own: what it finds, and what it leaves alone."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.common import PLUGIN, STACKS
from support.pages import ROOT, blocks_of

import ebbpool

pytest_plugins = ["pytester"]

GRACE = ["--ebbpool-leaks", "--ebbpool-grace=5"]

HEAD = """
import asyncio
import threading
import pytest
from ebbpool import AdaptiveExecutor

opened = threading.Event()
begun = threading.Event()

@pytest.fixture(scope="session", autouse=True)
def open_at_the_end():
    yield
    opened.set()

def hang_here():
    begun.set()
    opened.wait(30)

def hang_in(pool):
    begun.clear()
    pool.submit(hang_here)
    assert begun.wait(10)
"""


OURS = ["-p", "_ebbpool_pytest"]
AUTOLOAD = "PYTEST_DISABLE_PLUGIN_AUTOLOAD"


@pytest.fixture(autouse=True)
def alone(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the project's configuration out of the runs, whose folder may be inside the project's, and other plugins."""
    pytester.makeini("[pytest]\n")
    monkeypatch.setenv(AUTOLOAD, "1")


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    ours = OURS if AUTOLOAD in os.environ else PLUGIN
    return pytester.runpytest_subprocess(*ours, "-p", "no:cacheprovider", *options, timeout=50)


def test_the_fixture_fails_a_test_whose_task_does_not_end(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(HEAD + "def test_hanging(adaptive_executor):\n    hang_in(adaptive_executor)\n")
    result = run(pytester, "--ebbpool-grace=0.1")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["adaptive_executor could not be shut down: after 0.1 s*", "*hang_here*"])


LEAKS = """
kept = []

def test_the_fixture(adaptive_executor):
    kept.append(adaptive_executor)
    assert adaptive_executor.submit(threading.current_thread).result(10).name.startswith("adaptive_executor")

def test_it_was_shut_down(adaptive_executor):
    pool = kept.pop()
    assert pool is not adaptive_executor and pool.stats().workers == 0
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(print)

def test_open():
    kept.append(AdaptiveExecutor(thread_name_prefix="mine"))

def test_not_blamed_for_the_one_before():
    assert kept[0].submit(abs, -1).result(10) == 1

def test_hanging():
    pool = AdaptiveExecutor(thread_name_prefix="stuck")
    hang_in(pool)
    pool.shutdown(wait=False)

def test_it_hangs_on():
    pass

def test_cleaned_up():
    with AdaptiveExecutor() as pool:
        pool.submit(abs, 1)

def test_dropped():
    AdaptiveExecutor().submit(abs, 1)

def test_dropped_in_a_circle():
    circle = [AdaptiveExecutor()]
    circle.append(circle)
    circle[0].submit(abs, 1)

@pytest.fixture(scope="module")
def shared():
    with AdaptiveExecutor(thread_name_prefix="shared") as pool:
        yield pool

def test_with_a_wider_fixture(shared):
    assert shared.submit(abs, -1).result(10) == 1

def test_a_task_in_it(shared):
    hang_in(shared)

def test_the_task_is_not_blamed_on_this_one(shared):
    pass

def test_the_last():
    opened.set()

@pytest.fixture(scope="class")
def careless():
    return AdaptiveExecutor(thread_name_prefix="careless")

class TestUse:
    def test_first(self, careless):
        kept.append(careless)

    def test_last(self, careless):
        pass

@pytest.mark.ebbpool_may_leak
def test_it_may():
    kept.append(AdaptiveExecutor(thread_name_prefix="allowed"))

def test_failing():
    left = AdaptiveExecutor(thread_name_prefix="after-a-failure")
    assert left is None
"""


def test_what_is_left_behind_is_named_at_the_end_of_what_made_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=HEAD + LEAKS)
    result = run(pytester, *GRACE, "--strict-markers")
    result.assert_outcomes(passed=16, failed=1, errors=4)
    result.stdout.fnmatch_lines(
        [
            "test_it.py::test_open left this behind:",
            "pool 'mine' is open: it was never shut down (0 threads, 0 tasks running, 0 waiting)",
            "test_it.py::test_hanging left this behind:",
            "pool 'stuck' was shut down, but has not ended (1 threads, 1 tasks running, 0 waiting)",
            "stuck_0: test_it.hang_here, running for * s",
            "*hang_here*" if STACKS else "*(no stack*",
            "test_it.py::test_a_task_in_it left this behind:",
            "pool 'shared', which is not the test's own, goes on to run test_it.hang_here for * s",
            "*hang_here*" if STACKS else "*(no stack*",
            "test_it.py::TestUse::test_last left this behind:",
            "pool 'careless' is open*",
        ]
    )
    assert "'allowed'" not in result.stdout.str()
    assert "pool 'after-a-failure'" not in result.stdout.str()


LOOPS = """
async def offload():
    return (await asyncio.to_thread(threading.current_thread)).name, type(asyncio.get_running_loop()).__module__
"""


def test_the_loop_of_pytest_asyncio_may_be_ours(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(blocks_of(ROOT / "docs/how-to/testing.md", "### pytest-asyncio")[0])
    pytester.makepyfile(
        HEAD
        + LOOPS
        + """
@pytest.mark.asyncio
async def test_on_it(adaptive_executor):
    name, module = await offload()
    assert module == "ebbpool.aio"
    assert name.startswith("asyncio")
    assert await adaptive_executor.run(abs, -1) == 1
"""
    )
    result = run(pytester, *GRACE, "-p", "pytest_asyncio.plugin", "-o", "asyncio_default_fixture_loop_scope=function")
    result.assert_outcomes(passed=1)


def test_the_loop_of_anyio_s_plugin_may_be_ours(pytester: pytest.Pytester) -> None:
    pytest.importorskip("anyio")
    pytester.makepyfile(
        HEAD
        + LOOPS
        + """
import anyio.to_thread
import ebbpool.anyio
from ebbpool.aio import new_loop_factory

@pytest.fixture(scope="module", autouse=True)
def installed():
    with ebbpool.anyio.install():
        yield

@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio", {"loop_factory": new_loop_factory()}

@pytest.fixture(scope="module")
async def wide(anyio_backend):
    yield

@pytest.mark.anyio
async def test_first(wide):
    assert (await offload())[0].startswith("asyncio")

@pytest.mark.anyio
async def test_second(wide):
    assert (await offload())[1] == "ebbpool.aio"

@pytest.mark.anyio
async def test_on_the_shared_pool():
    thread = await anyio.to_thread.run_sync(threading.current_thread)
    assert thread.name.startswith("ebbpool-anyio")
"""
    )
    run(pytester, *GRACE, "-p", "anyio.pytest_plugin").assert_outcomes(passed=3)


def test_the_plugin_works_in_the_processes_of_xdist(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    pytester.makepyfile(test_it=HEAD + LEAKS.split("def test_hanging")[0])
    result = run(pytester, *GRACE, "-p", "xdist.plugin", "-n", "1")
    result.assert_outcomes(passed=4, errors=1)
    result.stdout.fnmatch_lines(["*test_open left this behind:*", "*pool 'mine' is open*"])


def test_a_run_without_pools_does_not_import_the_package(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it where pytest finds the plugin by itself."""
    monkeypatch.delenv(AUTOLOAD)
    pytester.makepyfile(
        """
        import sys

        def test_nothing():
            assert "_ebbpool_pytest" in sys.modules
            assert not [name for name in sys.modules if name.split(".")[0] == "ebbpool"]
        """
    )
    run(pytester, *GRACE).assert_outcomes(passed=1)


def test_a_program_of_the_user_s_is_measured(pytester: pytest.Pytester) -> None:
    pytest.importorskip("coverage")
    pytester.makepyfile(used="def double(n):\n    return 2 * n\n")
    pytester.makepyfile(
        test_it="""
        import used

        def test_it(adaptive_executor):
            assert adaptive_executor.submit(used.double, 2).result(10) == 4
        """
    )
    python = [sys.executable, "-m"]
    result = pytester.run(*python, "coverage", "run", "--include=used.py", "-m", "pytest", *OURS, *GRACE, timeout=50)
    result.assert_outcomes(passed=1)
    pytester.run(*python, "coverage", "report", timeout=50).stdout.re_match_lines([r"used\.py .* 100%"])


@pytest.mark.parametrize("grace", ["-1", "soon", "nan", "inf"])
def test_bad_seconds_are_refused(pytester: pytest.Pytester, grace: str) -> None:
    result = pytester.runpytest_inprocess(*OURS, f"--ebbpool-grace={grace}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*--ebbpool-grace: must be a number of seconds, at least 0, not '{grace}'*"])


def test_the_plugin_starts_under_the_switch_where_warnings_are_errors(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(AUTOLOAD)
    # An installation that is not editable says which files it has, and pytest would rewrite those of a plugin.
    installed = pytester.mkdir("there-1.dist-info")
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: there\nVersion: 1\n", encoding="utf-8")
    (installed / "RECORD").write_text("ebbpool/__init__.py,,\n", encoding="utf-8")
    (pytester.path / "ebbpool").symlink_to(Path(ebbpool.__file__).parent, target_is_directory=True)
    (installed / "entry_points.txt").write_text("[pytest11]\nthere = there\n", encoding="utf-8")
    pytester.makepyfile(there="")
    monkeypatch.setenv("PYTHONPATH", str(pytester.path), prepend=os.pathsep)
    pytester.makepyfile("def test_it(adaptive_executor):\n    assert adaptive_executor.submit(int).result(10) == 0\n")
    python = [sys.executable, "-m", "ebbpool", "run", "-m", "pytest", *PLUGIN, "-p", "no:cacheprovider"]
    result = pytester.run(*python, "-W", "error::pytest.PytestAssertRewriteWarning", timeout=50)
    result.assert_outcomes(passed=1)
