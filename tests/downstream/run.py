"""Runs the test suites of real users, as published, first as they are and then with ebbpool, and compares.

    python tests/downstream/run.py [--work DIR] [--only SUITE ...] [-k EXPRESSION]

The interpreter that runs this file is the one whose suites are run: ebbpool, the projects of `suites.py`, and what
their tests need have to be installed for it. The tests come out of the projects' sdists, which pip downloads into DIR;
what they test is what is installed. Results, logs and the unpacked tests are left in DIR, too.

A test that fails on both sides says nothing about ebbpool: it is listed as not ours. One that passes stock and fails
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
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from compare import Comparison, Side, compare, stale
from suites import EXPECTED, PINS, SUITES, Suite

HERE = Path(__file__).resolve().parent


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
    pin = f"{suite.project}-{PINS[suite.project]}"
    there = folder / f"{pin}.tar.gz"
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


def run_side(suite: Suite, kind: str, sdist: Path, options: argparse.Namespace) -> Side:
    """Run a suite in a process of its own; `kind` is stock or ebbpool."""
    name = f"{suite.name}.{kind}"
    root = unpack(suite, sdist, options.work / "unpacked" / name)
    record, log = options.work / f"{name}.jsonl", options.work / f"{name}.log"
    record.unlink(missing_ok=True)
    command = [sys.executable, "-X", "faulthandler", "-m", "pytest", "-q", "--continue-on-collection-errors"]
    for plugin in ("no:cacheprovider", "put_in", *suite.plugins):
        command += ["-p", plugin]
    command += [f"--put-in-way={suite.way}", f"--put-in-side={kind}", f"--put-in-record={record}"]
    command += [f"--timeout={options.timeout:g}", "-o", f"faulthandler_timeout={2 * options.timeout:g}", *suite.options]
    command += [f"--{'deselect' if '::' in path else 'ignore'}={path}" for path, _ in suite.left_out]
    if options.k:
        command += ["-k", options.k]
    began = time.monotonic()
    with log.open("wb") as sink:
        try:
            ended = subprocess.run(
                [*command, *suite.tests],
                cwd=root,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                timeout=options.suite_timeout,
            )
            ending = f"ended with status {ended.returncode}"
        except subprocess.TimeoutExpired:
            ending = f"had not ended after {options.suite_timeout:g} s and was stopped"
    side = Side(log, seconds=time.monotonic() - began)
    side.read(record, ending)
    return side


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


def run_all(suites: list[Suite], sdists: dict[str, Path], options: argparse.Namespace) -> list[Comparison]:
    """Run the suites, all of them stock first, `options.jobs` at a time; never both sides of one at the same time."""
    # Some suites listen at a port of their choice.
    alone = {suite.name: threading.Lock() for suite in suites}

    def run(suite: Suite, kind: str) -> Side:
        with alone[suite.name]:
            side = run_side(suite, kind, sdists[suite.name], options)
        failed = side.count("failed", "died")
        print(f"  {suite.name} {kind}: {len(side.outcome)} tests, {failed} failed, {side.seconds:.0f} s", flush=True)
        return side

    with ThreadPoolExecutor(options.jobs) as threads:
        stock = [threads.submit(run, suite, "stock") for suite in suites]
        ours = [threads.submit(run, suite, "ebbpool") for suite in suites]
    return [
        compare(suite, before.result(), after.result(), EXPECTED, whole=not options.k)
        for suite, before, after in zip(suites, stock, ours, strict=True)
    ]


def print_table(comparisons: list[Comparison]) -> None:
    """Print one line per suite."""
    row = "{:24} {:>5} {:>13} {:>13} {:>8} {:>9} {:>9} {:>12} {:>7}".format
    print(row("suite", "tests", "stock", "with ebbpool", "skipped", "not ours", "expected", "unexplained", "calls"))
    for each in comparisons:
        passed = [f"{side.count('passed')} in {side.seconds:.0f} s" for side in (each.stock, each.ours)]
        wrong = len(each.unexplained) + len(each.problems)
        numbers = (each.ours.count("skipped"), len(each.not_ours), len(each.expected), wrong, each.ours.total)
        print(row(f"{each.suite.name} {PINS[each.suite.project]}", len(each.stock.outcome), *passed, *numbers))


def print_lists(comparisons: list[Comparison]) -> None:
    """Print what is behind the numbers."""
    for each in comparisons:
        name = each.suite.name
        if each.reached:
            print(f"\n{name}: calls by variant: " + ", ".join(f"{v} {n}" for v, n in each.reached.items()))
        for test in each.not_ours:
            print(f"{name}: not ours: {test}")
        for test in each.only_stock:
            print(f"{name}: fails stock only: {test}")
        for reason in dict.fromkeys(each.expected.values()):
            print(f"{name}: expected: {reason}")
            print("".join(f"    {test}\n" for test, why in each.expected.items() if why == reason), end="")
        for test, text in each.unexplained.items():
            print(f"{name}: UNEXPLAINED: {test}: " + "\n    | ".join(text.splitlines()))
        for problem in each.problems:
            print(f"{name}: FAILED: {problem}; see {each.ours.log.parent}")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    names = [suite.name for suite in SUITES]
    parser = argparse.ArgumentParser(description="Run the test suites of real users on ebbpool.")
    add = parser.add_argument
    add("--work", type=Path, default=Path("downstream-work"), metavar="DIR", help="for sdists, logs and results")
    add("--only", nargs="+", choices=names, default=names, metavar="SUITE", help=f"of {', '.join(names)}")
    add("-k", metavar="EXPRESSION", help="only the tests that pytest's -k picks; nothing is said to be stale then")
    add("--jobs", type=int, default=min(2, os.cpu_count() or 1), metavar="N", help="runs at a time (2)")
    add("--timeout", type=float, default=60.0, metavar="S", help="seconds per test (60)")
    add("--suite-timeout", type=float, default=600.0, metavar="S", help="seconds per suite (600)")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for and return the exit status."""
    options = parse(arguments)
    options.work = options.work.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    wanted = [suite for suite in SUITES if suite.name in options.only]
    sdists, missing = prepare(wanted, options.work)
    for name, reason in missing.items():
        print(f"*** {name} is not run: {reason} ***")
    suites = [suite for suite in wanted if suite.name in sdists]
    comparisons = run_all(suites, sdists, options)
    if comparisons:
        print()
        print_table(comparisons)
        print_lists(comparisons)
    old = [] if options.k else stale(EXPECTED, comparisons)
    for line in old:
        print(f"STALE: suites.py: {line}")
    for name, reason in missing.items():
        print(f"*** {name} was not run: {reason} ***")
    failed = [each.suite.name for each in comparisons if each.failed]
    lacking = [suite.name for suite in wanted if suite.name in missing and not suite.optional]
    print(f"\ndownstream: logs are in {options.work}")
    if failed or old:
        print(f"downstream: FAILED: {', '.join(failed) or 'stale entries'}")
        return 1
    if lacking or not comparisons:
        print(f"downstream: incomplete: {', '.join(missing)} could not be run")
        return 2
    print("downstream: every difference is explained")
    return 0


if __name__ == "__main__":
    sys.exit(main())
