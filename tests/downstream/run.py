"""Runs the test suites of real users, as published, first as they are and then with ebbpool, and compares.

    python tests/downstream/run.py [--work DIR] [--only SUITE ...] [-k EXPRESSION]

The interpreter that runs this file is the one whose suites are run: ebbpool, the projects of `suites.py`, and what
their tests need have to be installed for it. The tests come out of the projects' sdists, which pip downloads into DIR;
what they test is what is installed. Logs and the unpacked tests are left in DIR, too.

A test that fails stock says nothing about ebbpool: it is let fail (`put_in.py`). One that passes stock and fails
with ebbpool, or is not there any more, is a failure, unless `suites.py` has it as expected, with a reason. An entry of
that table that is no longer true is a failure as well. So is a suite, or a backend in it, of which no call reached a
pool of ebbpool's, or where anyio or a loop made threads of its own: a run cannot pass by testing somebody else's
threads.

The exit status is 0 if nothing is unexplained, 1 if something is, 2 if not everything could be run.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from suites import PINS, SUITES, Suite

HERE = Path(__file__).resolve().parent
LINES = 60
"""How much of the log of a failed run is printed."""
EMPTY = 5
"""pytest's exit status for a run in which no test was chosen."""
FINE = {"stock": (0, 1, EMPTY), "ebbpool": (0, EMPTY)}
"""The exit statuses of pytest that each side may end with."""


class CannotRun(Exception):
    """A suite cannot be run here; the message says why."""


def check_installed(suite: Suite) -> None:
    """Raise CannotRun unless the project is installed in the release that the table names."""
    try:
        found = importlib.metadata.version(suite.project)
    except importlib.metadata.PackageNotFoundError:
        found = "not installed"
    if found != PINS[suite.project]:
        raise CannotRun(f"{suite.project} {PINS[suite.project]} is wanted and {found} is what there is")


def fetch(suite: Suite, folder: Path) -> Path:
    """Return the project's sdist, downloaded if it is not in the folder."""
    there = folder / f"{suite.project}-{PINS[suite.project]}.tar.gz"
    if there.exists():
        return there
    requirement = f"{suite.project}=={PINS[suite.project]}"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command = [*pip, "--no-binary", suite.project, "--dest", str(folder), requirement]
    told = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if told.returncode or not there.exists():
        last = told.stdout.strip().splitlines()[-1:] or ["pip said nothing"]
        raise CannotRun(f"the sdist of {requirement} cannot be had (is this machine offline?): {last[0]}")
    return there


def unpack(suite: Suite, sdist: Path, folder: Path) -> Path:
    """Unpack an sdist, all but the package itself; return its one folder."""
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (root,) = folder.iterdir()
    shutil.rmtree(root / suite.project, ignore_errors=True)
    for path in (*suite.tests, *(path for path, _ in suite.left_out)):
        if not (root / path.partition("::")[0]).exists():
            raise CannotRun(f"suites.py names {path}, which {sdist.name} has not")
    return root


def run_side(suite: Suite, side: str, sdist: Path, options: argparse.Namespace) -> bool:
    """Run a suite in a process of its own, stock or with ebbpool; return whether it ended as it may."""
    name = f"{suite.name}.{side}"
    root = unpack(suite, sdist, options.work / "unpacked" / name)
    record, log = options.work / f"{suite.name}.json", options.work / f"{name}.log"
    command = [sys.executable, "-X", "faulthandler", "-m", "pytest", "-q", "-rfExX"]
    for plugin in ("no:cacheprovider", "put_in", *suite.plugins):
        command += ["-p", plugin]
    command += [f"--put-in-suite={suite.name}", f"--put-in-side={side}", f"--put-in-record={record}"]
    command += [f"--timeout={options.timeout:g}", "-o", f"faulthandler_timeout={2 * options.timeout:g}", *suite.options]
    command += [f"--{'deselect' if '::' in path else 'ignore'}={path}" for path, _ in suite.left_out]
    if options.k:
        command += ["--put-in-part", "-k", options.k]
    command += suite.tests
    limit = options.suite_timeout
    with log.open("wb") as sink:
        try:
            status: int | None = subprocess.run(
                command, cwd=root, env=environment(), stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, timeout=limit
            ).returncode
        except subprocess.TimeoutExpired:
            status = None
    lines = log.read_text("utf-8", "replace").splitlines() or ["pytest said nothing"]
    fine = status in FINE[side]
    ending = f"was stopped after {limit:g} s" if status is None else f"ended with status {status}"
    last = [lines[-1]] if fine else [*lines[-LINES:], f"FAILED: pytest {ending}; see {log}"]
    print("".join(f"{suite.name} {PINS[suite.project]} {side}: {line}\n" for line in last), end="", flush=True)
    return fine


def environment() -> dict[str, str]:
    """Return the environment of a suite: no pytest options of the caller's, no plugins but those named."""
    leave = {"PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTHONPATH", "CI", "GITHUB_ACTIONS"}
    kept = {name: value for name, value in os.environ.items() if name not in leave}
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    return kept | {"PYTHONPATH": path, "PYTHONHASHSEED": "0", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def prepare(suites: list[Suite], folder: Path) -> tuple[dict[str, Path], dict[str, str]]:
    """Get the sdists; return them, and why others cannot be had."""
    sdists: dict[str, Path] = {}
    missing: dict[str, str] = {}
    for suite in suites:
        try:
            check_installed(suite)
            sdists[suite.name] = fetch(suite, folder)
            unpack(suite, sdists[suite.name], folder / "unpacked" / suite.name)
        except CannotRun as error:
            missing[suite.name] = str(error)
    return sdists, missing


def parse() -> argparse.Namespace:
    names = [suite.name for suite in SUITES]
    parser = argparse.ArgumentParser(description="Run the test suites of real users on ebbpool.")
    add = parser.add_argument
    add("--work", type=Path, default=Path("downstream-work"), metavar="DIR", help="for sdists, logs and results")
    add("--only", nargs="+", choices=names, default=names, metavar="SUITE", help=f"of {', '.join(names)}")
    add("-k", metavar="EXPRESSION", help="only the tests that pytest's -k picks; nothing is said to be stale then")
    add("--jobs", type=int, default=min(2, os.cpu_count() or 1), metavar="N", help="runs at a time (2)")
    add("--timeout", type=float, default=60.0, metavar="S", help="seconds per test (60)")
    add("--suite-timeout", type=float, default=600.0, metavar="S", help="seconds per suite (600)")
    return parser.parse_args()


def main() -> int:
    """Run what the command line asks for and return the exit status."""
    options = parse()
    options.work = options.work.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    wanted = [suite for suite in SUITES if suite.name in options.only]
    sdists, missing = prepare(wanted, options.work)
    suites = [suite for suite in wanted if suite.name in sdists]

    def run(suite: Suite) -> bool:
        # One side after the other: some suites listen at a port of their choice.
        return all(run_side(suite, side, sdists[suite.name], options) for side in FINE)

    with ThreadPoolExecutor(options.jobs) as threads:
        failed = [suite.name for suite, fine in zip(suites, threads.map(run, suites), strict=True) if not fine]
    for name, reason in missing.items():
        print(f"*** {name} was not run: {reason} ***")
    lacking = [suite.name for suite in wanted if suite.name in missing and not suite.optional]
    print(f"\ndownstream: logs are in {options.work}")
    if failed:
        print(f"downstream: FAILED: {', '.join(failed)}")
        return 1
    if lacking or not suites:
        print(f"downstream: incomplete: {', '.join(missing)} could not be run")
        return 2
    print("downstream: every difference is explained")
    return 0


if __name__ == "__main__":
    sys.exit(main())
