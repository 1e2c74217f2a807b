"""A pytest plugin that puts ebbpool into somebody's test suite and holds what becomes of each test against a stock run.

It is loaded by ``-p put_in`` for the stock run, too: so both runs have the same tests with the same ids.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from suites import EXPECTED, SUITES, Expected, Suite

DEFAULTS = ("asyncio", "uvloop")
"""The thread name prefixes of the executors that loops make for themselves."""

UVLOOP = importlib.util.find_spec("uvloop") is not None


class Pools:
    """All pools of ebbpool's that were made from now on.

    And `strangers`: worker threads of anyio's, and default executors that loops made of the standard library's kind.
    """

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.strangers = 0
        from ebbpool import AdaptiveExecutor

        after_init(AdaptiveExecutor, self.made.append)
        after_init(ThreadPoolExecutor, self.count_default)
        if importlib.util.find_spec("anyio") is not None:
            from anyio._backends._asyncio import WorkerThread

            after_init(WorkerThread, self.count)

    def count(self, stranger: object) -> None:
        self.strangers += 1

    def count_default(self, executor: ThreadPoolExecutor) -> None:
        if executor._thread_name_prefix in DEFAULTS:
            self.count(executor)

    def submitted(self) -> int:
        """Return how many calls all of them have taken on so far."""
        return sum(pool.stats().submitted for pool in [*self.made])


def after_init(kind: type, tell: Callable[[Any], None]) -> None:
    """Have `tell` called with every object of this kind that is made from now on."""
    original = vars(kind)["__init__"]

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        tell(self)

    setattr(kind, "__init__", __init__)  # noqa: B010


class Recorder:
    """Notes what became of each test: of the stock run in a file, which the run with ebbpool is compared with.

    What fails stock may fail, and what `suites.py` expects must fail, as pytest's own strict xfail. Of all others,
    none may be skipped or missing that was not before. What is wrong with the suite as a whole are `problems`.
    """

    def __init__(self, suite: Suite, path: Path, pools: Pools | None, whole: bool) -> None:
        self.suite = suite
        self.path = path
        self.pools = pools
        self.whole = whole
        self.outcomes: dict[str, str] = {}
        self.wanted: dict[str, str] = {} if pools is None else json.loads(path.read_text("utf-8"))
        self.problems: list[str] = []
        self.calls = 0
        self.reached: Counter[str] = Counter()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.pools is None:
            return
        entries = [entry for entry in EXPECTED if fnmatchcase(self.suite.name, entry.suites)]
        matched: set[Expected] = set()
        for item in items:
            found = [entry for entry in entries if fnmatchcase(item.nodeid, entry.pattern.replace("[", "[[]"))]
            matched.update(found)
            stock = self.wanted.get(item.nodeid)
            if stock == "failed":
                del self.wanted[item.nodeid]
                item.add_marker(pytest.mark.xfail(reason="not ours: it fails stock", strict=False), append=False)
            elif found and stock == "passed":
                self.wanted[item.nodeid] = "xfailed"
                item.add_marker(pytest.mark.xfail(reason=found[0].reason, strict=True), append=False)
        if self.whole:
            self.problems += [f"suites.py: {entry.pattern} matches no test" for entry in {*entries} - matched]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome = "xfailed" if report.skipped and hasattr(report, "wasxfail") else report.outcome
        if outcome != "passed" and self.outcomes.get(report.nodeid) != "failed":
            self.outcomes[report.nodeid] = outcome
        self.outcomes.setdefault(report.nodeid, "passed")

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        before, self.calls = self.calls, self.pools.submitted() if self.pools else 0
        # ``test_x[asyncio-1]`` is of the variants asyncio and 1.
        variants = {*nodeid.partition("[")[2].removesuffix("]").split("-")} & {*self.suite.variants}
        for variant in variants if self.outcomes[nodeid] == "passed" else ():
            self.reached[variant] += self.calls - before

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.pools is None:
            self.path.write_text(json.dumps(self.outcomes), "utf-8")
            return
        for test, stock in self.wanted.items():
            now = self.outcomes.get(test, "missing")
            if now != stock and (now != "passed" or stock == "xfailed"):
                self.problems.append(f"{test}: {now}; stock it was, or by suites.py it is to be, {stock}")
        if self.whole:
            self.problems += ["no call reached a pool of ebbpool's"] * (not self.calls)
            self.problems += [f"{n} threads or pools took the place of ebbpool's" for n in [self.pools.strangers] if n]
            for variant, calls in self.reached.items():
                self.problems += [f"no call of a test with {variant} reached a pool of ebbpool's"] * (not calls)
        if self.problems:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for problem in self.problems:
            terminalreporter.write_line(f"PROBLEM {problem}")
        terminalreporter.write_line(f"{self.calls} calls reached a pool of ebbpool's: {dict(self.reached)}")


def loop_factories(ours: bool) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return a way to make a loop for each kind of loop that there is here."""
    makers: dict[str, Any] = {"asyncio": asyncio.SelectorEventLoop}
    if UVLOOP:
        makers["uvloop"] = importlib.import_module("uvloop").Loop
    if ours:
        from ebbpool import aio

        makers = {kind: aio.new_loop_factory(loop_class) for kind, loop_class in makers.items()}
    return makers


class LoopsForPytestAsyncio:
    def __init__(self, ours: bool) -> None:
        self.factories = loop_factories(ours)

    def pytest_asyncio_loop_factories(self) -> dict[str, Any]:
        return self.factories


def replace_loops_of_uvloops_tests() -> None:
    from uvloop import _testbase

    for case, kind in ((_testbase.AIOTestCase, "asyncio"), (_testbase.UVTestCase, "uvloop")):
        factory = loop_factories(ours=True)[kind]
        setattr(case, "new_loop", lambda self, factory=factory: factory())  # noqa: B010


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ebbpool")
    group.addoption("--put-in-suite", required=True, choices=[suite.name for suite in SUITES])
    group.addoption("--put-in-side", required=True, choices=("stock", "ebbpool"))
    group.addoption("--put-in-record", required=True, type=Path, metavar="FILE")
    group.addoption("--put-in-part", action="store_true", help="not all of the suite is run")


def pytest_configure(config: pytest.Config) -> None:
    (suite,) = [suite for suite in SUITES if suite.name == config.getoption("--put-in-suite")]
    ours = config.getoption("--put-in-side") == "ebbpool"
    pools = Pools() if ours else None
    if ours and suite.way in ("anyio", "anyio-limited"):
        import ebbpool
        from ebbpool.anyio import install

        pool = ebbpool.AdaptiveExecutor()
        cleaning = contextlib.ExitStack()
        cleaning.callback(pool.shutdown, timeout=30)
        cleaning.enter_context(install(pool, keep_default_limiter=suite.way == "anyio-limited"))
        config.add_cleanup(cleaning.close)
    elif ours and suite.way == "uvloop":
        replace_loops_of_uvloops_tests()
    elif suite.way == "pytest-asyncio":
        config.pluginmanager.register(LoopsForPytestAsyncio(ours))
    whole = not config.getoption("--put-in-part")
    config.pluginmanager.register(Recorder(suite, config.getoption("--put-in-record"), pools, whole))


@pytest.hookimpl(tryfirst=True)
def pytest_report_header(config: pytest.Config) -> str:
    if config.getoption("--put-in-side") == "stock":
        return "ebbpool: not put in"
    import ebbpool

    core = "compiled" if ebbpool.COMPILED else "plain"
    return f"ebbpool {ebbpool.__version__}, {core} core, put into {config.getoption('--put-in-suite')}"
