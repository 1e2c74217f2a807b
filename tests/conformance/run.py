"""Runs CPython's own tests of thread pools and futures on ebbpool.

    python tests/conformance/run.py [--control] [--cluster] [OPTION OF PYTEST ...]

The interpreter that runs this file is the one whose tests are run, and ebbpool, pytest and pytest-timeout have to be
installed for it. What is run are the thread suites of `test.test_concurrent_futures` and those parts of
`test.test_asyncio` that reach a thread pool, with `AdaptiveExecutor` and `ebbpool.Future` put in (`suites.py`,
`put_in.py`), and those parts of `test.test_socketserver` and `test.test_httpservers` that make a server, with our
servers put in. Tests that do not apply stand in `not_applicable.py`, each with its reason; every other test has to
pass. A test that was to meet our executor or server and never made one, or that made one of the standard library's, is
a failure, too: so a run cannot pass by testing the standard library.

`--control` runs the same tests through the same machinery with the standard library's own classes; what fails there is
the interpreter's or the harness's doing. `--cluster` puts `ebbpool.dask.ClusterExecutor` in, over a cluster of one
worker process (`on_cluster.py`), and runs what CPython has for executors, but for what `not_applicable.py` lists for
clusters.

The exit status is 0 only if everything applicable passed, 1 if something failed, 2 if nothing could be run. An
interpreter that ships none of the suites has nothing applicable: that is said loudly, and is no failure.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import platform
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import suites
from not_applicable import NOT_APPLICABLE
from suites import Suite

HERE = Path(__file__).resolve().parent
TIMEOUT, SUITE_TIMEOUT = 120.0, 900.0
"""Seconds that a test, and a suite, may take: what hangs or crashes takes its process along, and the suite fails."""
LONG = 8.0
"""Seconds. CPython's own take up to 6; a test that takes longer may have sat out a time-out to pass."""
OPTIONS = (
    *("-q", "-rs", "--assert=plain", "-c", os.devnull, "-o", "python_classes=", "-o", "python_functions="),
    *("-p", "no:cacheprovider", "-p", "no:logging", "-p", "pytest_timeout", "-p", "put_in", "--disable-warnings"),
    *(f"--timeout={TIMEOUT:g}", "--timeout-method=thread", "--durations=5", f"--durations-min={LONG:g}"),
    *("-W", "error::pytest.PytestUnhandledThreadExceptionWarning"),
    *("-W", "error::pytest.PytestUnraisableExceptionWarning"),
)
PASSED, NOTHING_CHOSEN = 0, 5
"""Exit statuses of pytest; the second of a suite all of whose tests are left out, or that `-k` does not match."""


def run_suite(suite: Suite, notes: Path, asked: argparse.Namespace, options: list[str]) -> int | None:
    """Run one suite in a process of its own; return pytest's exit status, None if it was stopped."""
    command = [sys.executable, "-X", "faulthandler", "-m", "pytest", *OPTIONS, "--suite", suite.name]
    command += ["--notes", str(notes), *(["--control"] * asked.control), *(["--cluster"] * asked.cluster), *options]
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    print(f"\n{suite.name}", flush=True)
    with subprocess.Popen(
        [*command, "--pyargs", suite.module],
        cwd=notes,
        env=environment,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            return process.wait(SUITE_TIMEOUT)
        except subprocess.TimeoutExpired:
            print(f"stopped, as it took more than {SUITE_TIMEOUT:g} s")
            return None
        finally:
            if process.poll() != PASSED:
                stop_with_children(process)


def stop_with_children(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def describe(asked: argparse.Namespace) -> str:
    """Say which interpreter runs which implementation; raise ImportError if ebbpool is not installed."""
    interpreter = f"{platform.python_implementation()} {platform.python_version()}"
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        interpreter += " without the GIL"
    if asked.control:
        return f"{interpreter}, the standard library's own classes (control)"
    ebbpool = importlib.import_module("ebbpool")
    core = f"{'compiled' if ebbpool.COMPILED else 'plain'} core{', over a Dask cluster' * asked.cluster}"
    return f"{interpreter}, ebbpool {ebbpool.__version__}, {core}"


def stale(found: list[Suite], matched: set[str]) -> list[str]:
    """Return the entries of the tables that match no test here; they may be for another interpreter."""
    entries = [entry.pattern for entry in NOT_APPLICABLE if entry.covers(sys.version_info[:3])]
    patterns = [*entries, *(pattern for suite in found for pattern in suite.select)]
    return sorted({pattern for pattern in patterns if pattern not in matched})


def main() -> int:
    """Run what the command line asks for and return the exit status."""
    parser = argparse.ArgumentParser(description="Run CPython's own thread pool tests on ebbpool.")
    parser.add_argument("--control", action="store_true", help="run the standard library's own classes instead")
    parser.add_argument("--cluster", action="store_true", help="run the suites of executors on one over a Dask cluster")
    asked, options = parser.parse_known_args()
    try:
        implementation = describe(asked)
    except ImportError as error:
        print(f"conformance: nothing was run: {error}")
        return 2
    found, missing = suites.suites(asked.cluster), suites.missing()
    print(f"conformance: {implementation}")
    with contextlib.ExitStack() as stack:
        notes = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ebbpool-conformance-")))
        if asked.cluster:
            stack.enter_context(importlib.import_module("on_cluster").cluster())
        ended = {suite.name: run_suite(suite, notes, asked, options) for suite in found}
        matched = {*(notes / "matched").read_text().splitlines()} if found else set[str]()
    failed = [name for name, status in ended.items() if status not in (PASSED, NOTHING_CHOSEN)]
    if not (options or missing or asked.cluster) and (old := stale(found, matched)):
        print("\nmatched no test here (stale, if no other interpreter has one):", *old, sep="\n  ")
    print("".join(f"\n*** {name}: not shipped by this interpreter ***" for name in missing))
    passed = PASSED in ended.values()
    verdict = "everything applicable passed" if passed else "nothing applicable"
    verdict = f"FAILED: {', '.join(failed)}" if failed else verdict
    print(f"conformance: {implementation}: {verdict}")
    if failed:
        return 1
    return 0 if passed or missing else 2


if __name__ == "__main__":
    sys.exit(main())
