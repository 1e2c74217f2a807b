"""Runs CPython's own tests of thread pools and futures on ebbpool.

    python tests/conformance/run.py [-k PATTERN] [-v] [--control] [--cluster]

The interpreter that runs this file is the one whose tests are run, and ebbpool has to be installed for it.
What is run are the thread suites of `test.test_concurrent_futures` and those parts of `test.test_asyncio`
that reach a thread pool, with `AdaptiveExecutor` and `ebbpool.Future` put in (`suites.py`, `put_in.py`), and those
parts of `test.test_socketserver` and `test.test_httpservers` that make a server, with our servers put in.
Tests that do not apply stand in `not_applicable.py`, each with its reason; every other test has to pass. A
test that was to meet our executor or server and never made one, or that made one of the standard library's, is a
failure, too: so a run cannot pass by testing the standard library.

`--control` runs the same tests through the same machinery with the standard library's own classes; what
fails there is the interpreter's or the harness's doing. `--cluster` puts `ebbpool.dask.ClusterExecutor` in, over a
cluster of one worker process (`on_cluster.py`), and runs what CPython has for executors, but for what
`not_applicable.py` lists for clusters.

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
from pathlib import Path
from typing import Any

import suites
from not_applicable import NOT_APPLICABLE
from suites import Suite

HERE = Path(__file__).resolve().parent

LONG = 8.0
"""Seconds. CPython's own take up to 6; a test that takes longer may have sat out a time-out to pass."""


def run_suite(suite: Suite, options: argparse.Namespace) -> dict[str, Any]:
    """Run one suite in a process of its own, print what came of it and return that (`suite_process.py`).

    A test that hangs or crashes takes its process along, and the suite has failed.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ebbpool-conformance-") as folder:
        report, scripts, output = (Path(folder) / name for name in ("report", "scripts", "output"))
        task = {**vars(options), "suite": dataclasses.asdict(suite), "report": str(report), "scripts": str(scripts)}
        command = [sys.executable, "-X", "faulthandler", str(HERE / "suite_process.py"), json.dumps(task)]
        with output.open("wb") as sink:
            process = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True
            )
            try:
                process.wait(options.suite_timeout)
                ending = f"ended with status {process.returncode}"
            except subprocess.TimeoutExpired:
                ending = f"was stopped, as the suite took more than {options.suite_timeout:g} s"
            finally:
                if process.poll() != 0:
                    stop_with_children(process)
        text = output.read_text("utf-8", "replace")
        found: dict[str, Any] = {
            "ran": 0,
            "failed": 0,
            "made": 0,
            "left out": {},
            "matched": [],
            "stale": [],
            "times": {},
        }
        if report.exists():
            found = json.loads(report.read_text("utf-8"))
        if process.returncode or not report.exists():
            found["failed"] += 1
            text += f"FAILED: the suite's process {ending}\n"
    counts = f"{found['ran']:3} run {found['failed']:3} failed {sum(found['left out'].values()):3} left out"
    if found["ran"] or found["failed"] or found["left out"]:
        seconds = time.monotonic() - began
        print(f"{suite.name:34} {counts} {found['made']:4} of those under test made {seconds:5.1f} s", flush=True)
    if found["failed"] or options.verbose:
        print("".join(f"    | {line}\n" for line in text.splitlines()), end="", flush=True)
    return found


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
        importlib.import_module("test.support")
    except ImportError as error:
        return [], [f"the package test with its suites: not shipped ({error})"]
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


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run CPython's own thread pool tests on ebbpool.")
    add = parser.add_argument
    add("-k", dest="pattern", metavar="PATTERN", help="only tests whose suite::Class.method matches")
    add("-v", "--verbose", action="store_true", help="name every test and print what the suites wrote")
    add("--control", action="store_true", help="run the standard library's own classes instead")
    add("--cluster", action="store_true", help="run the suites of executors on one over a Dask cluster")
    add("--timeout", type=float, default=120.0, metavar="S", help="seconds per test (120)")
    add("--suite-timeout", type=float, default=900.0, metavar="S", help="seconds per suite (900)")
    return parser.parse_args()


def print_list(title: str, lines: Iterable[str]) -> None:
    if lines := [f"  {line}" for line in lines]:
        print(f"\n{title}:", *lines, sep="\n")


def print_end(implementation: str, results: dict[str, dict[str, Any]], missing: list[str], whole: bool) -> int:
    """Print what was left out and why, what is not shipped, and the closing line; return how many failed."""
    reasons = Counter[str]()
    for result in results.values():
        reasons.update(result["left out"])
    print_list("left out", (f"{number:4}  {reason}" for reason, number in reasons.most_common()))
    times = [(took, f"{name}::{test}") for name, result in results.items() for test, took in result["times"].items()]
    lines = [f"{took:6.1f} s  {test}" for took, test in sorted(times, reverse=True) if took > LONG]
    print_list(f"took more than {LONG:g} s (was it a time-out that let them pass?)", lines)
    if whole:
        matched = {pattern for result in results.values() for pattern in result["matched"]}
        here = [entry.pattern for entry in NOT_APPLICABLE if entry.covers(sys.version_info[:3])]
        stale = [f"not_applicable.py: {pattern}" for pattern in here if pattern not in matched]
        stale += [f"suites.py: {name} {pattern}" for name, result in results.items() for pattern in result["stale"]]
        print_list("matched no test here (stale, if no other interpreter has one)", stale)
    print()
    for line in missing:
        print(f"*** {line} ***")
    ran, failed = (sum(int(result[what]) for result in results.values()) for what in ("ran", "failed"))
    verdict = "FAILED" if failed else "everything applicable passed" if ran else "nothing applicable"
    counted = f"{ran} run, {failed} failed, {reasons.total()} left out"
    print("; ".join([f"conformance: {implementation}: {counted}: {verdict}", *missing]))
    return failed


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
    with importlib.import_module("on_cluster").cluster() if options.cluster else contextlib.nullcontext():
        results = {suite.name: run_suite(suite, options) for suite in found}
    met = sum(one["ran"] + one["failed"] + len(one["left out"]) for one in results.values())
    if options.pattern and not missing and not met:
        print(f"conformance: no test matches {options.pattern!r}")
        return 2
    whole = not (options.pattern or missing or options.cluster)
    return 1 if print_end(implementation, results, missing, whole) else 0


if __name__ == "__main__":
    sys.exit(main())
