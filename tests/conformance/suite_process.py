"""Runs one suite in a process of its own and reports each test, line by line, to a file.

A process per suite keeps what is put in for one suite out of the next, and lets a hang end that suite alone.
`run.py` starts it; it is not meant to be started by hand.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import faulthandler
import importlib
import inspect
import json
import os
import sys
import threading
import time
import types
import unittest
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Any

import not_applicable
from put_in import Counts, ServerSubstitution, Substitution
from suites import ASYNCIO, Suite


class Reporter(unittest.TestResult):
    """Writes what happens to each test as one JSON object per line, and turns a hang into a dump and an exit.

    A test fails as well if it leaves threads behind, if a thread of its dies of an exception, or if
    it was to be run with our executor and never made one.
    """

    def __init__(self, report: IO[str], counts: Counts, *, every_test_meets_ours: bool, timeout: float):
        super().__init__()
        self._report = report
        self._counts = counts
        self._every_test_meets_ours = every_test_meets_ours
        self._timeout = timeout
        self._problems: list[tuple[str, str]] = []
        self._support: Any = importlib.import_module("test.support")

    def tell(self, event: str, **details: object) -> None:
        """Write one line to the report, at once: a process that dies must not take it along."""
        self._report.write(json.dumps({"event": event, **details}) + "\n")
        self._report.flush()

    def trouble(self, text: str, outcome: str = "failed") -> None:
        """Hold something against the test that runs."""
        self._problems.append((outcome, text))

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._problems = []
        self._before = self._counts.total()
        self._strays = self._counts.strays
        self.tell("start", test=short_id(test))
        self._began = time.monotonic()
        faulthandler.dump_traceback_later(self._timeout, exit=True)

    def stopTest(self, test: unittest.TestCase) -> None:
        faulthandler.cancel_dump_traceback_later()
        took = time.monotonic() - self._began
        made = self._counts.total() - self._before
        if self._support.environment_altered:
            self._support.environment_altered = False
            self.trouble("left threads or processes behind (see its output)")
        if not self._problems and self._every_test_meets_ours and not made:
            self.trouble("never made the executor, the future or the server under test")
        if self._counts.strays > self._strays:
            self.trouble("made an executor or a server of the standard library's, not the one under test")
        kinds = [kind for kind, _ in self._problems]
        outcome = "failed" if "failed" in kinds else "skipped" if kinds else "passed"
        text = "\n".join(text for kind, text in self._problems if kind == outcome)
        self.tell("end", test=short_id(test), outcome=outcome, text=text, made=made, took=took)
        super().stopTest(test)

    def addError(self, test: Any, err: Any) -> None:
        super().addError(test, err)
        self._note(test, "failed", self.errors[-1][1])

    def addFailure(self, test: Any, err: Any) -> None:
        super().addFailure(test, err)
        self.trouble(self.failures[-1][1])

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.trouble(f"{subtest}\n{(self.failures + self.errors)[-1][1]}")

    def addSkip(self, test: Any, reason: str) -> None:
        super().addSkip(test, reason)
        self._note(test, "skipped", reason)

    def _note(self, test: Any, outcome: str, text: str) -> None:
        """Note an outcome of the test; one outside any test (setUpModule) is reported as a test of its own."""
        if isinstance(test, unittest.TestCase):
            self.trouble(text, outcome)
        else:
            self.tell("end", test=str(test), outcome=outcome, text=text)

    def addUnexpectedSuccess(self, test: Any) -> None:
        super().addUnexpectedSuccess(test)
        self.trouble("unexpected success")


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


def load(suite: Suite, substitution: Substitution | ServerSubstitution) -> list[unittest.TestCase]:
    """Import the suite's module with the substitution in force and return its tests."""
    with substitution.while_importing():
        module = importlib.import_module(suite.module)
    substitution.put_into(module)
    tests = list(flatten(unittest.defaultTestLoader.loadTestsFromModule(module)))
    if suite.seeded:
        assert isinstance(substitution, Substitution)
        for case in {type(test) for test in tests}:
            substitution.seed(case)  # type: ignore[arg-type]
    return tests


def main(task: dict[str, Any]) -> None:
    """Run one suite as `run.py` describes it."""
    suite = Suite(**task["suite"])
    counts = Counts(Path(task["scripts"]))
    if task["lib"]:
        importlib.import_module("test").__path__.append(os.path.join(task["lib"], "test"))
    executor_type, future_type = classes_under_test(control=task["control"], cluster=task["cluster"])
    substitution: Substitution | ServerSubstitution = Substitution(
        executor_type if suite.executor else None, future_type if suite.future else None, counts
    )
    if suite.servers:
        substitution = ServerSubstitution(suite.servers, counts, control=task["control"])
    report = open(task["report"], "w", encoding="utf-8")  # noqa: SIM115
    every = suite.executor or bool(suite.servers)
    reporter = Reporter(report, counts, every_test_meets_ours=every, timeout=task["timeout"])
    try:
        tests = load(suite, substitution)
    except unittest.SkipTest as skip:
        reporter.tell("end", test=suite.module, outcome="skipped", text=str(skip))
        reporter.tell("finished")
        return
    reporter.tell("loaded", made=counts.total())
    chosen: list[unittest.TestCase] = []
    for test in tests:
        name = short_id(test)
        if not belongs(suite, test) or not fnmatchcase(f"{suite.name}::{name}", f"*{task['pattern'] or ''}*"):
            continue
        entry = not_applicable.find(name, cluster=task["cluster"])
        if entry is not None:
            reporter.tell("end", test=name, outcome="not applicable", text=entry.reason, pattern=entry.pattern)
        elif name not in task["done"]:
            reporter.tell("end", test=name, outcome="chosen")
            chosen.append(test)
    with dying_threads_told_to(reporter):
        unittest.TestSuite(chosen).run(reporter)
    if importlib.import_module("test.support").environment_altered:
        reporter.tell("end", test="tearDownModule", outcome="failed", text="left threads or processes behind")
    reporter.tell("finished")
    if task["cluster"] and not task["control"]:
        importlib.import_module("on_cluster").client().close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
