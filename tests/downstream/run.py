"""Runs the test suites of real users, as published, first as they are and then with ebbpool, and compares.

    python tests/downstream/run.py [--work DIR] [--only SUITE ...] [-k EXPRESSION]

The interpreter that runs this file is the one whose suites are run: ebbpool, the projects of `suites.py`, and what
their tests need have to be installed for it. The tests come out of the projects' sdists, which pip downloads into DIR;
what they test is what is installed. Results, logs and the unpacked tests are left in DIR, too.

A test that fails stock says nothing about ebbpool: it is listed as not ours. One that passes stock and fails
with ebbpool, or is not there any more, is a failure, unless `suites.py` has it as expected, with a reason. An entry of
that table that is no longer true is a failure as well. So is a suite, or a backend in it, of which no call reached a
pool of ebbpool's, or where anyio or a loop made threads of its own: a run cannot pass by testing somebody else's
threads.

The exit status is 0 if nothing is unexplained, 1 if something is, 2 if not everything could be run.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from suites import EXPECTED, PINS, SUITES, Expected, Suite

HERE = Path(__file__).resolve().parent
EMPTY = 5
"""pytest's exit status for a run in which no test was collected or chosen."""

COLLECTION = " (collection)"
"""Ends the name of what could not be imported; see `put_in.py`."""


@dataclass
class Side:
    """One run of a suite.

    Attributes:
        tests: What `put_in.py` told of each test: its outcome (passed, failed, skipped, or died), the text of a
            failure, and how many calls pools of ebbpool's took on.
        total: Calls that pools of ebbpool's took on.
        strangers: Worker threads of anyio's, and loops' default executors of the standard library's, that were made.
        broken: Why the run cannot be relied on as a whole; empty if it can.
    """

    log: Path
    seconds: float
    tests: dict[str, dict[str, Any]] = field(default_factory=dict)
    total: int = 0
    strangers: int = 0
    broken: str = ""

    def read(self, record: Path, ending: str) -> None:
        """Read what `put_in.py` wrote; `ending` says how the process ended."""
        lines = record.read_text("utf-8").splitlines() if record.exists() else []
        running = None
        self.broken = f"pytest {ending}"
        for entry in map(json.loads, lines):
            if entry["event"] == "start":
                running = entry["test"]
            elif entry["event"] == "end":
                running = None
                self.tests[entry["test"]] = entry
            elif entry["status"] in (0, 1, EMPTY):
                self.broken = ""
                self.total, self.strangers = entry["calls"], entry["strangers"]
        if running is not None:
            text = f"pytest {ending} while it ran; see {self.log}"
            self.tests[running] = {"outcome": "died", "text": text, "calls": 0}

    def outcome(self, test: str) -> str:
        return self.tests[test]["outcome"] if test in self.tests else "missing"

    def count(self, *outcomes: str) -> int:
        return sum(told["outcome"] in outcomes for told in self.tests.values())


@dataclass
class Comparison:
    """A suite's two runs side by side.

    Attributes:
        not_ours: Tests that fail stock, each with what became of it with ebbpool.
        expected: Differences that the table has, each with its reason.
        unexplained: Tests that pass stock and do not pass with ebbpool, each with what happened.
        problems: What is wrong with the suite as a whole.
        reached: Variants of the tests, and how many calls of theirs reached a pool of ebbpool's.
    """

    suite: Suite
    stock: Side
    ours: Side
    not_ours: dict[str, str] = field(default_factory=dict)
    expected: dict[str, str] = field(default_factory=dict)
    unexplained: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    reached: Counter[str] = field(default_factory=Counter)


def matches(entry: Expected, suite: str, test: str) -> bool:
    return fnmatchcase(suite, entry.suites) and fnmatchcase(test, entry.pattern.replace("[", "[[]"))


def compare(suite: Suite, stock: Side, ours: Side, *, whole: bool) -> Comparison:
    """Compare two runs; `whole` says that all of the suite was run, so that each variant can be asked for its calls."""
    result = Comparison(suite, stock, ours)
    for kind, side in (("stock", stock), ("with ebbpool", ours)):
        if side.broken:
            result.problems.append(f"{kind}, {side.broken}")
    for test, told in stock.tests.items():
        before, after = told["outcome"], ours.outcome(test)
        if after == "missing" and ours.broken:
            continue
        if before == "failed" and test.endswith(COLLECTION):
            result.problems.append(f"{test} fails stock (is a package missing?): {told['text'].splitlines()[-1]}")
        elif before in ("failed", "died"):
            result.not_ours[test] = after
        elif after not in ("passed", before):
            reason = next((entry.reason for entry in EXPECTED if matches(entry, suite.name, test)), None)
            if reason is not None and after == "failed":
                result.expected[test] = reason
            else:
                text = ours.tests[test]["text"] if test in ours.tests else ""
                result.unexplained[test] = f"{before} stock, {after} with ebbpool\n{text}"
    for test, told in ours.tests.items():
        if test not in stock.tests and told["outcome"] != "passed":
            result.unexplained[test] = f"not there stock, {told['outcome']} with ebbpool\n{told['text']}"
    check_reached(result, whole)
    return result


def check_reached(result: Comparison, whole: bool) -> None:
    """Count the calls of each variant, and object where there are tests that pass and no calls."""
    present = set()
    for test, told in result.ours.tests.items():
        # ``test_x[asyncio-1]`` is of the variants asyncio and 1.
        parts = test.partition("[")[2].removesuffix("]").split("-")
        for variant in {*parts} & {*result.suite.variants}:
            result.reached[variant] += told["calls"]
            if told["outcome"] == "passed":
                present.add(variant)
    if not whole:
        return
    if not result.ours.total:
        result.problems.append("no call reached a pool of ebbpool's")
    if result.ours.strangers:
        result.problems.append(f"{result.ours.strangers} threads or pools took the place of ebbpool's")
    for variant in sorted(present):
        if not result.reached[variant]:
            result.problems.append(f"no call of a test with {variant} reached a pool of ebbpool's")


def stale(comparisons: list[Comparison]) -> Iterator[str]:
    """Yield what is no longer true of the entries on these suites, one line each."""
    for entry in EXPECTED:
        for each in comparisons:
            name = each.suite.name
            if not fnmatchcase(name, entry.suites):
                continue
            here = [test for test in each.stock.tests if matches(entry, name, test)]
            if not here:
                yield f"{name}: {entry.pattern} matches no test"
            for test in here:
                if each.stock.outcome(test) == each.ours.outcome(test) == "passed":
                    yield f"{name}: {entry.pattern} is about {test}, which passes"


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
    command += suite.tests
    limit = options.suite_timeout
    began = time.monotonic()
    with log.open("wb") as sink:
        try:
            ended = subprocess.run(
                command, cwd=root, env=environment(), stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, timeout=limit
            )
            ending = f"ended with status {ended.returncode}"
        except subprocess.TimeoutExpired:
            ending = f"had not ended after {limit:g} s and was stopped"
    side = Side(log, time.monotonic() - began)
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
        print(f"  {suite.name} {kind}: {len(side.tests)} tests, {failed} failed, {side.seconds:.0f} s", flush=True)
        return side

    with ThreadPoolExecutor(options.jobs) as threads:
        stock = [threads.submit(run, suite, "stock") for suite in suites]
        ours = [threads.submit(run, suite, "ebbpool") for suite in suites]
    return [
        compare(suite, before.result(), after.result(), whole=not options.k)
        for suite, before, after in zip(suites, stock, ours, strict=True)
    ]


def print_table(comparisons: list[Comparison]) -> None:
    row = "{:24} {:>5} {:>13} {:>13} {:>8} {:>9} {:>9} {:>12} {:>7}".format
    print(row("suite", "tests", "stock", "with ebbpool", "skipped", "not ours", "expected", "unexplained", "calls"))
    for each in comparisons:
        passed = [f"{side.count('passed')} in {side.seconds:.0f} s" for side in (each.stock, each.ours)]
        wrong = len(each.unexplained) + len(each.problems)
        numbers = (each.ours.count("skipped"), len(each.not_ours), len(each.expected), wrong, each.ours.total)
        print(row(f"{each.suite.name} {PINS[each.suite.project]}", len(each.stock.tests), *passed, *numbers))


def print_lists(comparisons: list[Comparison]) -> None:
    for each in comparisons:
        name = each.suite.name
        if each.reached:
            print(f"\n{name}: calls by variant: " + ", ".join(f"{v} {n}" for v, n in each.reached.items()))
        for test, after in each.not_ours.items():
            print(f"{name}: not ours: {test}, {after} with ebbpool")
        for reason in dict.fromkeys(each.expected.values()):
            print(f"{name}: expected: {reason}")
            print("".join(f"    {test}\n" for test, why in each.expected.items() if why == reason), end="")
        for test, text in each.unexplained.items():
            print(f"{name}: UNEXPLAINED: {test}: " + "\n    | ".join(text.splitlines()))
        for problem in each.problems:
            print(f"{name}: FAILED: {problem}; see {each.ours.log.parent}")


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
    comparisons = run_all(suites, sdists, options)
    if comparisons:
        print()
        print_table(comparisons)
        print_lists(comparisons)
    old = [] if options.k else list(stale(comparisons))
    for line in old:
        print(f"STALE: suites.py: {line}")
    for name, reason in missing.items():
        print(f"*** {name} was not run: {reason} ***")
    failed = [each.suite.name for each in comparisons if each.unexplained or each.problems]
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
