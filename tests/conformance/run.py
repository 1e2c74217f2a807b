"""Runs CPython's own tests of thread pools and futures on ebbpool.

    python tests/conformance/run.py [--list] [-k PATTERN] [-v] [--control] [--lib DIR]
    python tests/conformance/run.py --stale python3.11 python3.13 ...

The interpreter that runs this file is the one whose tests are run, and ebbpool has to be installed for it.
What is run are the thread suites of `test.test_concurrent_futures` and those parts of `test.test_asyncio`
that reach a thread pool, with `AdaptiveExecutor` and `ebbpool.Future` put in (`suites.py`, `put_in.py`), and those
parts of `test.test_socketserver` and `test.test_httpservers` that make a server, with our servers put in
(`put_in_servers.py`).
Tests that do not apply stand in `not_applicable.py`, each with its reason; every other test has to pass. A
test that was to meet our executor or server and never made one, or that made one of the standard library's, is a
failure, too: so a run cannot pass by testing the standard library.

`--control` runs the same tests through the same machinery with the standard library's own classes; what
fails there is the interpreter's or the harness's doing. `--lib` names the Lib folder of a CPython (a source
tree, or another installation of the same version) to take `test_concurrent_futures` from where the
interpreter ships none. `--stale` looks at several interpreters and names the entries of the tables that
match no test on any. `--cluster` puts `ebbpool.dask.ClusterExecutor` in, over a cluster of one worker process
(`on_cluster.py`), and runs what CPython has for executors, but for what `not_applicable.py` lists for clusters.

The exit status is 0 only if everything applicable passed, 1 if something failed, 2 if nothing could be run.
An interpreter that ships none of the suites has nothing applicable: that is said loudly, and is no failure.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import suites
from not_applicable import NOT_APPLICABLE
from suites import Suite

HERE = Path(__file__).resolve().parent
OUTPUT_LINES = 40

WHOLE = "(the suite)"
"""Stands for a test where it is the suite as a whole that failed."""

LONG = 8.0
"""Seconds. CPython's own take up to 6; a test that takes longer may have sat out a time-out to pass."""


@dataclass
class SuiteResult:
    """What one suite came to.

    Attributes:
        name: The suite's name.
        passed: Tests that passed.
        failed: Test and what it failed of.
        skipped: Tests that CPython's suite skips by itself, and why.
        left_out: Tests that `not_applicable.py` lists, and why.
        patterns: The entries of `not_applicable.py` that matched.
        collected: Every test of the suite.
        took: Tests and their seconds.
        made: Executors and futures of the kind under test, fresh interpreters included.
        seconds: How long it took.
        output: What the suite's process wrote.
    """

    name: str
    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    patterns: set[str] = field(default_factory=set)
    collected: list[str] = field(default_factory=list)
    took: dict[str, float] = field(default_factory=dict)
    made: int = 0
    seconds: float = 0.0
    output: str = ""

    @property
    def run(self) -> int:
        """How many tests really ran."""
        return len(self.passed) + sum(test != WHOLE for test in self.failed)


def run_suite(suite: Suite, options: argparse.Namespace) -> SuiteResult:
    """Run one suite in a process of its own.

    A test that hangs or crashes takes its process along; the tests after it are then run in another one.
    """
    result = SuiteResult(suite.name)
    began = time.monotonic()
    deadline = began + options.suite_timeout
    while True:
        lines, output = run_process(suite, options, deadline, done=[*result.passed, *result.failed, *result.skipped])
        result.output += output
        read_report(result, lines)
        last = lines[-1]
        if last["event"] == "finished" or not any(line["event"] == "start" for line in lines):
            break
    if last["event"] == "died":
        result.failed[WHOLE] = f"its process {last['ending']} without running a test"
    elif result.run and not result.made:
        result.failed[WHOLE] = "nothing of what is under test was made"
    result.seconds = time.monotonic() - began
    return result


def run_process(
    suite: Suite, options: argparse.Namespace, deadline: float, done: list[str]
) -> tuple[list[dict[str, Any]], str]:
    """Run a suite but for what is done, and stop its process if it does not end.

    Returns:
        What the process reported, in order, ended by ``finished`` or ``died``; and what it wrote.
    """
    with tempfile.TemporaryDirectory(prefix="ebbpool-conformance-") as folder:
        report, scripts, output = (Path(folder) / name for name in ("report", "scripts", "output"))
        task = {
            "suite": dataclasses.asdict(suite),
            "report": str(report),
            "scripts": str(scripts),
            "control": options.control,
            "list": options.list,
            "cluster": options.cluster,
            "pattern": options.pattern,
            "lib": options.lib,
            "timeout": options.timeout,
            "done": done,
        }
        command = [sys.executable, "-X", "faulthandler", str(HERE / "suite_process.py"), json.dumps(task)]
        with output.open("wb") as sink:
            process = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
                ending = f"ended with status {process.returncode}"
            except subprocess.TimeoutExpired:
                ending = f"was stopped, as the suite took more than {options.suite_timeout:g} s"
            finally:
                if process.poll() != 0:
                    _stop_with_children(process)
        text = report.read_text("utf-8") if report.exists() else ""
        lines = [json.loads(line) for line in text.splitlines()]
        if not lines or lines[-1]["event"] != "finished":
            lines.append({"event": "died", "ending": ending})
        return lines, output.read_text("utf-8", "replace")


def _stop_with_children(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()


def read_report(result: SuiteResult, lines: list[dict[str, Any]]) -> None:
    """Add what one process of a suite reported; a test that began and did not end has failed."""
    running: str | None = None
    chosen: list[str] = []
    for line in lines:
        match line:
            case {"event": "collected", "test": test}:
                if test not in result.collected:
                    result.collected.append(test)
                if "reason" in line:
                    result.left_out[test] = line["reason"]
                    result.patterns.add(line["pattern"])
            case {"event": "chosen", "test": test}:
                chosen.append(test)
            case {"event": "start", "test": test}:
                running = test
            case {"event": "end", "test": test, "outcome": outcome, "text": text, "made": made}:
                running = None
                result.made += made
                result.took[test] = line.get("took", 0.0)
                if outcome == "passed":
                    result.passed.append(test)
                else:
                    (result.skipped if outcome == "skipped" else result.failed)[test] = text
            case {"event": "loaded", "made": made}:
                result.made += made
            case {"event": "died", "ending": ending} if running is not None:
                result.failed[running] = f"while it ran, the suite's process {ending} (see its output)"
            case {"event": "finished"}:
                told = {*result.passed, *result.failed, *result.skipped}
                result.failed.update({test: "it was chosen, but did not run" for test in chosen if test not in told})


def shipped(options: argparse.Namespace) -> tuple[list[Suite], list[str]]:
    """Return the suites that this interpreter ships, and a line for each kind that it does not ship."""
    try:
        package = importlib.import_module("test")
        importlib.import_module("test.support")
    except ImportError as error:
        return [], [f"the package test with its suites: not shipped ({error})"]
    if options.lib:
        package.__path__.append(os.path.join(options.lib, "test"))
    missing: list[str] = []
    found: list[Suite] = []
    for name, there in (
        (suites.CONCURRENT, suites.concurrent_suites()),
        (suites.ASYNCIO, suites.asyncio_suites()),
        (f"{suites.SOCKETSERVER} and {suites.HTTPSERVERS}", suites.server_suites()),
    ):
        found += suites.of_executors(there) if options.cluster else there
        if not there and not options.cluster:
            missing.append(f"{name}: not shipped by this interpreter")
    return found, missing


def describe(*, control: bool) -> str:
    """Say which interpreter runs which implementation.

    Raises:
        ImportError: ebbpool is not installed.
    """
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    interpreter = f"{platform.python_implementation()} {platform.python_version()}"
    if not gil:
        interpreter += " without the GIL"
    if control:
        return f"{interpreter}, the standard library's own classes (control)"
    ebbpool = importlib.import_module("ebbpool")
    core = "compiled" if ebbpool.COMPILED else "plain"
    return f"{interpreter}, ebbpool {ebbpool.__version__}, {core} core"


def print_suite(result: SuiteResult, options: argparse.Namespace) -> None:
    """Print one line for a suite, and what its failures are about."""
    counts = f"{result.run:3} run {len(result.passed):3} passed {len(result.failed):3} failed"
    others = f"{len(result.left_out):3} not applicable {len(result.skipped):2} skipped by CPython"
    made = f"{result.made:4} of those under test made"
    print(f"{result.name:34} {counts}  {others}  {made}  {result.seconds:5.1f} s", flush=True)
    if options.verbose:
        for test in result.passed:
            print(f"    passed   {test}  ({result.took[test]:.2f} s)")
        for test, reason in result.skipped.items():
            print(f"    skipped  {test}: {reason}")
    for test, text in result.failed.items():
        print(f"    FAILED   {test}")
        print("".join(f"        | {line}\n" for line in text.splitlines()), end="")
    if result.failed or options.verbose:
        for line in result.output.splitlines()[-OUTPUT_LINES:]:
            print(f"        output: {line}")


def print_reasons(results: list[SuiteResult]) -> None:
    """Print what was left out and why, one line per reason."""
    for title, entries in (
        ("not applicable", (reason for r in results for reason in r.left_out.values())),
        ("skipped by CPython itself", (reason for r in results for reason in r.skipped.values())),
    ):
        tally = Counter(entries)
        if tally:
            print(f"\n{title}:")
        for reason, number in sorted(tally.items(), key=lambda item: -item[1]):
            print(f"  {number:4}  {reason}")


def unmatched(results: list[SuiteResult], version: tuple[int, ...]) -> list[str]:
    """Return the entries of the tables, meant for this version, that match none of the tests collected."""
    matched = {pattern for result in results for pattern in result.patterns}
    entries = [entry.pattern for entry in NOT_APPLICABLE if entry.covers(version)]
    stale = [f"not_applicable.py: {pattern}" for pattern in entries if pattern not in matched]
    collected = {result.name: result.collected for result in results}
    for suite in (*suites.ASYNCIO_SUITES, *suites.SERVER_SUITES):
        for pattern in suite.select:
            tests = collected.get(suite.name)
            if tests is not None and not any(fnmatchcase(test, pattern) for test in tests):
                stale.append(f"suites.py: {suite.name} {pattern}")
    return stale


def report_stale(interpreters: list[str]) -> int:
    """Print the entries that match no test on any of the interpreters; return the exit status."""
    votes: Counter[str] = Counter()
    judges = 0
    for interpreter in interpreters:
        command = [interpreter, str(HERE / "run.py"), "--control", "--list", "--json", "-"]
        answer = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        print(f"{interpreter}: {answer['implementation']}, {answer['collected']} tests")
        for line in answer["not_shipped"]:
            print(f"  {line}")
        if answer["not_shipped"]:
            print("  so it is no judge of what is stale")
            continue
        judges += 1
        votes.update(answer["unmatched"])
    stale = sorted(entry for entry, number in votes.items() if number == judges)
    for entry in stale:
        print(f"STALE: {entry} matches no test on any of these interpreters")
    if not judges:
        print("conformance: no interpreter that ships the suites was named; nothing can be said")
        return 2
    print(f"conformance: {len(stale)} stale entries, {judges} interpreters looked at")
    return 1 if stale else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Run CPython's own thread pool tests on ebbpool.")
    add = parser.add_argument
    add("--list", action="store_true", help="name the tests instead of running them")
    add("-k", dest="pattern", metavar="PATTERN", help="only tests whose suite::Class.method matches")
    add("-v", "--verbose", action="store_true", help="name every test and print what the suites wrote")
    add("--control", action="store_true", help="run the standard library's own classes instead")
    add("--cluster", action="store_true", help="run the suites of executors on one over a Dask cluster")
    add("--lib", metavar="DIR", help="a CPython Lib folder for suites that the interpreter lacks")
    add("--timeout", type=float, default=120.0, metavar="S", help="seconds per test (120)")
    add("--suite-timeout", type=float, default=900.0, metavar="S", help="seconds per suite (900)")
    add("--json", metavar="FILE", help="write the result here as well; '-' writes nothing else")
    add("--stale", nargs="+", metavar="PYTHON", help="name entries that match no test on any of these")
    options = parser.parse_args(arguments)
    if options.lib:
        options.lib = os.path.abspath(options.lib)
        if not os.path.isdir(os.path.join(options.lib, "test")):
            parser.error(f"--lib {options.lib}: there is no folder 'test' in it")
    return options


def print_listing(result: SuiteResult) -> None:
    """Name the tests of a suite, each left-out one with its reason."""
    for test in result.collected:
        reason = result.left_out.get(test)
        print(f"{result.name}::{test}{f'  (not applicable: {reason})' if reason else ''}")
    for test, text in result.failed.items():
        print(f"{result.name}: {test}: {text}\n{result.output}")


def count(results: list[SuiteResult]) -> dict[str, int]:
    """Add up all suites."""
    return {
        "run": sum(result.run for result in results),
        "passed": sum(len(result.passed) for result in results),
        "not applicable": sum(len(result.left_out) + len(result.skipped) for result in results),
        "failed": sum(len(result.failed) for result in results),
    }


def print_end(implementation: str, results: list[SuiteResult], missing: list[str], stale: list[str]) -> None:
    """Print what was left out and why, what is not shipped, and the closing line."""
    print_reasons(results)
    long = [(took, f"{r.name}::{test}") for r in results for test, took in r.took.items() if took > LONG]
    if long:
        print(f"\ntook more than {LONG:g} s (was it a time-out that let them pass?):")
    for took, test in sorted(long, reverse=True):
        print(f"  {took:6.1f} s  {test}")
    if stale:
        print("\nmatched no test here (stale, if no other interpreter has one: see --stale):")
        print("".join(f"  {entry}\n" for entry in stale), end="")
    print()
    for line in missing:
        print(f"*** {line} ***")
    totals = count(results)
    verdict = "everything applicable passed" if totals["run"] else "nothing applicable"
    if totals["failed"]:
        verdict = "FAILED"
    counted = ", ".join(f"{number} {what}" for what, number in totals.items())
    print("; ".join([f"conformance: {implementation}: {counted}: {verdict}", *missing]))


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for and return the exit status."""
    options = parse(arguments)
    if options.stale:
        return report_stale(options.stale)
    try:
        implementation = describe(control=options.control or options.list)
    except ImportError as error:
        print(f"conformance: nothing was run: {error}")
        return 2
    if options.cluster:
        implementation += ", over a Dask cluster"
    found, missing = shipped(options)
    quiet = options.json == "-"
    if not quiet:
        print(f"conformance: {implementation}")
        print("".join(f"  *** {line} ***\n" for line in missing), end="", flush=True)
    results: list[SuiteResult] = []
    with importlib.import_module("on_cluster").cluster() if options.cluster else contextlib.nullcontext():
        for suite in found:
            result = run_suite(suite, options)
            results.append(result)
            if options.list and not quiet:
                print_listing(result)
            elif not quiet and (result.collected or result.failed):
                print_suite(result, options)
    stale = [] if options.pattern or missing or options.cluster else unmatched(results, sys.version_info[:3])
    collected = sum(len(result.collected) for result in results)
    if options.json:
        answer = {
            "implementation": implementation,
            "not_shipped": missing,
            "collected": collected,
            "unmatched": stale,
            "totals": count(results),
            "suites": [dataclasses.asdict(r) | {"patterns": sorted(r.patterns)} for r in results],
        }
        text = json.dumps(answer, indent=1) + "\n"
        if quiet:
            print(text)
        else:
            Path(options.json).write_text(text, "utf-8")
    if options.list and not quiet:
        print(f"conformance: {collected} tests listed")
    elif options.pattern and not collected and not missing:
        print(f"conformance: no test matches {options.pattern!r}")
        return 2
    elif not quiet:
        print_end(implementation, results, missing, stale)
    return 1 if count(results)["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
