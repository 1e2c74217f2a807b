"""Runs one suite in a process of its own, and writes what came of it to a file.

A process per suite keeps what is put in for one suite out of the next, and lets a hang end that suite alone.
`run.py` starts it; it is not meant to be started by hand.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import faulthandler
import functools
import importlib
import inspect
import json
import sys
import threading
import time
import types
import unittest
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import not_applicable
from put_in import Counts, imported, put_in_executor, put_in_future, put_in_servers, seed
from suites import ASYNCIO, Suite


class Reporter(unittest.TextTestResult):
    """Holds more against a test than it does itself, and turns a hang into a dump and an exit.

    A test fails as well if it leaves threads behind, if a thread of its dies of an exception, or if
    it was to be run with our executor and never made one.
    """

    def __init__(self, *args: Any, counts: Counts, every_test_meets_ours: bool, timeout: float, **others: Any) -> None:
        super().__init__(*args, **others)
        self._counts = counts
        self._every_test_meets_ours = every_test_meets_ours
        self._timeout = timeout
        self._support: Any = importlib.import_module("test.support")
        self._test: Any = None
        self.times: dict[str, float] = {}

    def trouble(self, text: str) -> None:
        """Hold something against the test that runs."""
        self.failures.append((self._test, text))

    def _told(self) -> int:
        return len(self.failures) + len(self.errors) + len(self.skipped) + len(self.unexpectedSuccesses)

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._test = test
        self._before = self._counts.total(), self._counts.strays, self._told()
        self._began = time.monotonic()
        faulthandler.dump_traceback_later(self._timeout, exit=True)

    def stopTest(self, test: unittest.TestCase) -> None:
        faulthandler.cancel_dump_traceback_later()
        self.times[short_id(test)] = time.monotonic() - self._began
        made, strays, told = self._before
        if self._support.environment_altered:
            self._support.environment_altered = False
            self.trouble("left threads or processes behind")
        if self._told() == told and self._every_test_meets_ours and self._counts.total() == made:
            self.trouble("never made the executor, the future or the server under test")
        if self._counts.strays > strays:
            self.trouble("made an executor or a server of the standard library's, not the one under test")
        super().stopTest(test)


def short_id(test: unittest.TestCase) -> str:
    """Return ``Class.method``, which is the same whether CPython keeps its tests in a module or a package."""
    return f"{type(test).__qualname__}.{getattr(test, '_testMethodName', '?')}"


def names_a_future(test: unittest.TestCase) -> bool:
    """Tell whether the test's own code makes a future or uses one of the ready-made ones."""
    method = inspect.unwrap(getattr(type(test), getattr(test, "_testMethodName")))  # noqa: B009
    codes: list[types.CodeType] = [method.__code__]
    while codes:
        code = codes.pop()
        if any(name in {"Future", "create_future"} or name.endswith("_FUTURE") for name in code.co_names):
            return True
        codes += [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return False


def belongs(suite: Suite, test: unittest.TestCase) -> bool:
    """Tell whether `test` of the suite's module is one of the suite's own."""
    if not any(fnmatchcase(short_id(test), pattern) for pattern in suite.select):
        return False
    if suite.servers or suite.module.startswith(ASYNCIO):
        return True
    if suite.future:
        if suite.executor and not hasattr(test, "executor_type"):
            return False
        return not hasattr(test, "ctx") and names_a_future(test)
    return not type(test).__name__.startswith("FutureTest")


def flatten(tests: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for test in tests:
        if isinstance(test, unittest.TestSuite):
            yield from flatten(test)
        else:
            yield test


@contextlib.contextmanager
def dying_threads_told_to(reporter: Reporter) -> Iterator[None]:
    """Hold exceptions that nobody catches, in threads and in destructors, against the test that runs."""
    hooks = threading.excepthook, sys.unraisablehook

    def in_thread(args: threading.ExceptHookArgs) -> None:
        reporter.trouble(f"thread {args.thread} died of {args.exc_type.__name__}: {args.exc_value}")
        hooks[0](args)

    def unraisable(args: Any) -> None:
        what = f"{args.exc_type.__name__}: {args.exc_value}"
        reporter.trouble(f"unraisable {what} ({args.err_msg or 'in'} {args.object!r})")
        hooks[1](args)

    threading.excepthook, sys.unraisablehook = in_thread, unraisable
    try:
        yield
    finally:
        threading.excepthook, sys.unraisablehook = hooks


def classes_under_test(*, control: bool, cluster: bool) -> tuple[Any, Any]:
    """Return the executor and the future under test: ours, or for the control the standard library's."""
    if control:
        return concurrent.futures.ThreadPoolExecutor, concurrent.futures.Future
    ebbpool = importlib.import_module("ebbpool")
    if cluster:
        on_cluster = importlib.import_module("on_cluster")
        # Here, and not in the first test: its threads are none that a test has left behind.
        on_cluster.client()
        return on_cluster.OnCluster, ebbpool.Future
    return ebbpool.AdaptiveExecutor, ebbpool.Future


def load(suite: Suite, counts: Counts, task: dict[str, Any]) -> list[unittest.TestCase]:
    """Put in what the suite is about, import its module, and return the tests."""
    executor_type, future_type = classes_under_test(control=task["control"], cluster=task["cluster"])
    if suite.servers:
        put_in_servers(suite.servers, counts, control=task["control"])
    if suite.executor:
        put_in_executor(executor_type, counts)
    module = imported(suite.module, put_in_future(future_type, counts) if suite.future else None)
    tests = list(flatten(unittest.defaultTestLoader.loadTestsFromModule(module)))
    for case in {type(test) for test in tests if suite.seeded}:
        seed(case)  # type: ignore[arg-type]
    return tests


def main(task: dict[str, Any]) -> None:
    """Run one suite as `run.py` describes it; write what came of it to `report`."""
    suite = Suite(**task["suite"])
    counts = Counts(Path(task["scripts"]))
    names: list[str] = []
    chosen: list[unittest.TestCase] = []
    left_out: Counter[str] = Counter()
    matched: set[str] = set()
    try:
        tests = load(suite, counts, task)
    except unittest.SkipTest as skip:
        tests = []
        left_out[f"skipped by CPython itself: {skip}"] += 1
    for test in tests:
        name = short_id(test)
        if not belongs(suite, test) or not fnmatchcase(f"{suite.name}::{name}", f"*{task['pattern'] or ''}*"):
            continue
        names.append(name)
        if entry := not_applicable.find(name, cluster=task["cluster"]):
            left_out[f"not applicable: {entry.reason}"] += 1
            matched.add(entry.pattern)
        else:
            chosen.append(test)
    make = functools.partial(
        Reporter,
        counts=counts,
        every_test_meets_ours=suite.executor or bool(suite.servers),
        timeout=task["timeout"],
    )
    runner = unittest.TextTestRunner(sys.stdout, verbosity=2, resultclass=make)
    reporter: Any = runner._makeResult()
    with dying_threads_told_to(reporter):
        unittest.TestSuite(chosen).run(reporter)
    if importlib.import_module("test.support").environment_altered:
        reporter.trouble("left threads or processes behind")
    skipped = {short_id(test): reason for test, reason in reporter.skipped}
    left_out.update(f"skipped by CPython itself: {reason}" for reason in skipped.values())
    for test in chosen:
        if short_id(test) not in {*reporter.times, *skipped}:
            reporter.failures.append((test, "it was chosen, but did not run"))
    if {*reporter.times} - {*skipped} and not counts.total():
        reporter.trouble("nothing of what is under test was made in all of the suite")
    reporter.printErrors()
    wrong = [test for test, _ in reporter.failures + reporter.errors] + reporter.unexpectedSuccesses
    report = {
        "ran": len({*reporter.times} - {*skipped}),
        "failed": len({str(test) for test in wrong}),
        "left out": left_out,
        "made": counts.total(),
        "matched": [*matched],
        "stale": [pattern for pattern in suite.select if not any(fnmatchcase(name, pattern) for name in names)],
        "times": reporter.times,
    }
    Path(task["report"]).write_text(json.dumps(report), "utf-8")
    if task["cluster"] and not task["control"]:
        importlib.import_module("on_cluster").client().close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
