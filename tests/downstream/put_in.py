"""A pytest plugin that puts ebbpool into somebody's test suite and writes down what became of each test.

It is loaded by ``-p put_in`` for the stock run, too: so both runs have the same tests with the same ids.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

TEXT = 4000
"""Characters of a failure that are kept, from its end."""

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
    """Writes one line of JSON per event; a process that dies leaves what it wrote."""

    def __init__(self, path: Path, pools: Pools | None) -> None:
        self.file = path.open("w", encoding="utf-8")
        self.pools = pools
        self.calls = 0
        self.reports: list[pytest.TestReport] = []

    def tell(self, event: str, **details: object) -> None:
        self.file.write(json.dumps({"event": event, **details}) + "\n")
        self.file.flush()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.tell("end", test=f"{report.nodeid} (collection)", outcome="failed", text=text_of(report), calls=0)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.reports = []
        self.tell("start", test=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports.append(report)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        bad = [report for report in self.reports if report.failed]
        skipped = [report for report in self.reports if report.skipped]
        outcome = "failed" if bad else "skipped" if skipped else "passed"
        before, self.calls = self.calls, self.pools.submitted() if self.pools else 0
        text = "\n".join(text_of(report) for report in bad)
        self.tell("end", test=nodeid, outcome=outcome, text=text, calls=self.calls - before)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        strangers = self.pools.strangers if self.pools else 0
        self.tell("finished", status=int(exitstatus), calls=self.calls, strangers=strangers)


def text_of(report: Any) -> str:
    return f"({getattr(report, 'when', 'collect')})\n{report.longreprtext}"[-TEXT:]


def loop_factories(ours: bool) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return a way to make a loop for each kind of loop that there is here."""
    makers: dict[str, Any] = {"asyncio": asyncio.new_event_loop}
    if UVLOOP:
        makers["uvloop"] = importlib.import_module("uvloop").new_event_loop
    if ours:
        from ebbpool import aio

        makers = {kind: aio.new_uvloop if kind == "uvloop" else aio.new_event_loop for kind in makers}
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
    group.addoption("--put-in-way", required=True, choices=("anyio", "anyio-limited", "pytest-asyncio", "uvloop"))
    group.addoption("--put-in-side", required=True, choices=("stock", "ebbpool"))
    group.addoption("--put-in-record", required=True, type=Path, metavar="FILE")


def pytest_configure(config: pytest.Config) -> None:
    way = config.getoption("--put-in-way")
    ours = config.getoption("--put-in-side") == "ebbpool"
    pools = Pools() if ours else None
    if ours and way in ("anyio", "anyio-limited"):
        import ebbpool
        from ebbpool.anyio import install

        pool = ebbpool.AdaptiveExecutor()
        cleaning = contextlib.ExitStack()
        cleaning.callback(pool.shutdown, timeout=30)
        cleaning.enter_context(install(pool, keep_default_limiter=way == "anyio-limited"))
        config.add_cleanup(cleaning.close)
    elif ours and way == "uvloop":
        replace_loops_of_uvloops_tests()
    elif way == "pytest-asyncio":
        config.pluginmanager.register(LoopsForPytestAsyncio(ours))
    config.pluginmanager.register(Recorder(config.getoption("--put-in-record"), pools))


@pytest.hookimpl(tryfirst=True)
def pytest_report_header(config: pytest.Config) -> str:
    if config.getoption("--put-in-side") == "stock":
        return "ebbpool: not put in"
    import ebbpool

    core = "compiled" if ebbpool.COMPILED else "plain"
    return f"ebbpool {ebbpool.__version__}, {core} core, put in by way of {config.getoption('--put-in-way')}"
