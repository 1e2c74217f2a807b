"""Runs CPython's own tests of thread pools and futures on ebbpool.

    python tests/conformance/run.py [-k PATTERN] [-v] [--control] [--cluster] [--lib DIR]

The interpreter that runs this file is the one whose tests are run, and ebbpool has to be installed for it.
What is run are the thread suites of `test.test_concurrent_futures` and those parts of `test.test_asyncio`
that reach a thread pool, with `AdaptiveExecutor` and `ebbpool.Future` put in (`suites.py`, `put_in.py`), and those
parts of `test.test_socketserver` and `test.test_httpservers` that make a server, with our servers put in.
Tests that do not apply stand in `not_applicable.py`, each with its reason; every other test has to pass. A
test that was to meet our executor or server and never made one, or that made one of the standard library's, is a
failure, too: so a run cannot pass by testing the standard library.

`--control` runs the same tests through the same machinery with the standard library's own classes; what
fails there is the interpreter's or the harness's doing. `--lib` names the Lib folder of a CPython (a source
tree, or another installation of the same version) to take `test_concurrent_futures` from where the
interpreter ships none. `--cluster` puts `ebbpool.dask.ClusterExecutor` in, over a cluster of one worker process
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
from collections.abc import Iterable
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
    """What one suite came to: `tests` has what its processes told last of each test (`suite_process.py`)."""

    name: str
    tests: dict[str, dict[str, Any]] = field(default_factory=dict)
    made: int = 0
    seconds: float = 0.0
    output: str = ""

    def ended(self, *outcomes: str) -> list[str]:
        """Return the tests of which one of these became."""
        return [test for test, told in self.tests.items() if told["outcome"] in outcomes]

    def fail(self, test: str, text: str) -> None:
        self.tests[test] = {"outcome": "failed", "text": text}

    @property
    def run(self) -> int:
        """How many tests really ran."""
        return sum(test != WHOLE for test in self.ended("passed", "failed"))

    def read(self, lines: list[dict[str, Any]]) -> None:
        """Add what one process of the suite reported; a test that began and did not end has failed."""
        running: str | None = None
        for line in lines:
            self.made += line.get("made", 0)
            match line:
                case {"event": "start", "test": test}:
                    running = test
                case {"event": "end", "test": test}:
                    running = None
                    self.tests[test] = line
                case {"event": "died", "ending": ending} if running is not None:
                    self.fail(running, f"while it ran, the suite's process {ending} (see its output)")
                case {"event": "finished"}:
                    for test in self.ended("chosen"):
                        self.fail(test, "it was chosen, but did not run")


def run_suite(suite: Suite, options: argparse.Namespace) -> SuiteResult:
    """Run one suite in a process of its own.

    A test that hangs or crashes takes its process along; the tests after it are then run in another one.
    """
    result = SuiteResult(suite.name)
    began = time.monotonic()
    deadline = began + options.suite_timeout
    while True:
        done = result.ended("passed", "failed", "skipped")
        lines, output = run_process(suite, options, deadline, done)
        result.output += output
        result.read(lines)
        last = lines[-1]
        if last["event"] == "finished" or not any(line["event"] == "start" for line in lines):
            break
    if last["event"] == "died":
        result.fail(WHOLE, f"its process {last['ending']} without running a test")
    elif result.run and not result.made:
        result.fail(WHOLE, "nothing of what is under test was made")
    result.seconds = time.monotonic() - began
    return result


def run_process(
    suite: Suite, options: argparse.Namespace, deadline: float, done: list[str]
) -> tuple[list[dict[str, Any]], str]:
    """Run a suite but for what is `done`; return its report, ended by ``finished`` or ``died``, and what it wrote."""
    with tempfile.TemporaryDirectory(prefix="ebbpool-conformance-") as folder:
        report, scripts, output = (Path(folder) / name for name in ("report", "scripts", "output"))
        task = {**vars(options), "suite": dataclasses.asdict(suite), "done": done}
        task |= {"report": str(report), "scripts": str(scripts)}
        command = [sys.executable, "-X", "faulthandler", str(HERE / "suite_process.py"), json.dumps(task)]
        with output.open("wb") as sink:
            process = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True
            )
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
                ending = f"ended with status {process.returncode}"
            except subprocess.TimeoutExpired:
                ending = f"was stopped, as the suite took more than {options.suite_timeout:g} s"
            finally:
                if process.poll() != 0:
                    stop_with_children(process)
        text = report.read_text("utf-8") if report.exists() else ""
        lines = [json.loads(line) for line in text.splitlines()]
        if not lines or lines[-1]["event"] != "finished":
            lines.append({"event": "died", "ending": ending})
        return lines, output.read_text("utf-8", "replace")


def stop_with_children(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()


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
        (suites.ASYNCIO, suites.there(suites.ASYNCIO_SUITES)),
        (f"{suites.SOCKETSERVER} and {suites.HTTPSERVERS}", suites.there(suites.SERVER_SUITES)),
    ):
        found += suites.of_executors(there) if options.cluster else there
        if not there and not options.cluster:
            missing.append(f"{name}: not shipped by this interpreter")
    return found, missing


def describe(*, control: bool) -> str:
    """Say which interpreter runs which implementation; raise ImportError if ebbpool is not installed."""
    interpreter = f"{platform.python_implementation()} {platform.python_version()}"
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        interpreter += " without the GIL"
    if control:
        return f"{interpreter}, the standard library's own classes (control)"
    ebbpool = importlib.import_module("ebbpool")
    return f"{interpreter}, ebbpool {ebbpool.__version__}, {'compiled' if ebbpool.COMPILED else 'plain'} core"


def print_suite(result: SuiteResult, verbose: bool) -> None:
    """Print one line for a suite, and what its failures are about."""
    number = Counter(told["outcome"] for told in result.tests.values())
    counts = f"{result.run:3} run {number['passed']:3} passed {number['failed']:3} failed"
    others = f"{number['not applicable']:3} not applicable {number['skipped']:2} skipped by CPython"
    made = f"{result.made:4} of those under test made"
    print(f"{result.name:34} {counts}  {others}  {made}  {result.seconds:5.1f} s", flush=True)
    if verbose:
        for test in result.ended("passed"):
            print(f"    passed   {test}  ({result.tests[test]['took']:.2f} s)")
        for test in result.ended("skipped", "not applicable"):
            print(f"    skipped  {test}: {result.tests[test]['text']}")
    for test in result.ended("failed"):
        print(f"    FAILED   {test}")
        print("".join(f"        | {line}\n" for line in result.tests[test]["text"].splitlines()), end="")
    if number["failed"] or verbose:
        for line in result.output.splitlines()[-OUTPUT_LINES:]:
            print(f"        output: {line}")


def unmatched(results: list[SuiteResult]) -> Iterable[str]:
    """Yield the entries of the tables, meant for this version, that match none of the tests there are."""
    matched = {told.get("pattern") for result in results for told in result.tests.values()}
    for entry in NOT_APPLICABLE:
        if entry.covers(sys.version_info[:3]) and entry.pattern not in matched:
            yield f"not_applicable.py: {entry.pattern}"
    there = {result.name: result.tests for result in results}
    for suite in (*suites.ASYNCIO_SUITES, *suites.SERVER_SUITES):
        for pattern in suite.select if suite.name in there else ():
            if not any(fnmatchcase(test, pattern) for test in there[suite.name]):
                yield f"suites.py: {suite.name} {pattern}"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run CPython's own thread pool tests on ebbpool.")
    add = parser.add_argument
    add("-k", dest="pattern", metavar="PATTERN", help="only tests whose suite::Class.method matches")
    add("-v", "--verbose", action="store_true", help="name every test and print what the suites wrote")
    add("--control", action="store_true", help="run the standard library's own classes instead")
    add("--cluster", action="store_true", help="run the suites of executors on one over a Dask cluster")
    add("--lib", type=os.path.abspath, metavar="DIR", help="a CPython Lib folder for suites that the interpreter lacks")
    add("--timeout", type=float, default=120.0, metavar="S", help="seconds per test (120)")
    add("--suite-timeout", type=float, default=900.0, metavar="S", help="seconds per suite (900)")
    options = parser.parse_args()
    if options.lib and not os.path.isdir(os.path.join(options.lib, "test")):
        parser.error(f"--lib {options.lib}: there is no folder 'test' in it")
    return options


def print_list(title: str, lines: Iterable[str]) -> None:
    if lines := [f"  {line}" for line in lines]:
        print(f"\n{title}:", *lines, sep="\n")


def print_end(implementation: str, results: list[SuiteResult], missing: list[str], stale: Iterable[str]) -> int:
    """Print what was left out and why, what is not shipped, and the closing line; return how many failed."""
    for title, outcome in (("not applicable", "not applicable"), ("skipped by CPython itself", "skipped")):
        reasons = Counter(result.tests[test]["text"] for result in results for test in result.ended(outcome))
        print_list(title, (f"{number:4}  {reason}" for reason, number in reasons.most_common()))
    times = [(told.get("took", 0), f"{r.name}::{test}") for r in results for test, told in r.tests.items()]
    lines = [f"{took:6.1f} s  {test}" for took, test in sorted(times, reverse=True) if took > LONG]
    print_list(f"took more than {LONG:g} s (was it a time-out that let them pass?)", lines)
    print_list("matched no test here (stale, if no other interpreter has one)", stale)
    print()
    for line in missing:
        print(f"*** {line} ***")
    number = Counter(told["outcome"] for result in results for told in result.tests.values())
    ran = sum(result.run for result in results)
    verdict = "FAILED" if number["failed"] else "everything applicable passed" if ran else "nothing applicable"
    left_out = number["not applicable"] + number["skipped"]
    counted = f"{ran} run, {number['passed']} passed, {left_out} not applicable, {number['failed']} failed"
    print("; ".join([f"conformance: {implementation}: {counted}: {verdict}", *missing]))
    return number["failed"]


def main() -> int:
    """Run what the command line asks for and return the exit status."""
    options = parse()
    try:
        implementation = describe(control=options.control)
    except ImportError as error:
        print(f"conformance: nothing was run: {error}")
        return 2
    if options.cluster:
        implementation += ", over a Dask cluster"
    found, missing = shipped(options)
    print(f"conformance: {implementation}")
    print("".join(f"  *** {line} ***\n" for line in missing), end="", flush=True)
    results: list[SuiteResult] = []
    with importlib.import_module("on_cluster").cluster() if options.cluster else contextlib.nullcontext():
        for suite in found:
            result = run_suite(suite, options)
            results.append(result)
            if result.tests:
                print_suite(result, options.verbose)
    if options.pattern and not missing and not any(result.tests for result in results):
        print(f"conformance: no test matches {options.pattern!r}")
        return 2
    stale = () if options.pattern or missing or options.cluster else unmatched(results)
    return 1 if print_end(implementation, results, missing, stale) else 0


if __name__ == "__main__":
    sys.exit(main())
