"""ebbpool's plugin for pytest: the fixture `adaptive_executor` and the option ``--ebbpool-leaks``.

It is no part of the package, because pytest imports the plugins of all installed packages in every run, before plugins
that measure coverage begin. `ebbpool` itself is imported by a test that uses the fixture, or by the tested program.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Generator
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import pytest

if TYPE_CHECKING:
    from ebbpool import AdaptiveExecutor
    from ebbpool._leaks import Leaks

GRACE = 5.0
MAY_LEAK = "ebbpool_may_leak"


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, at least 0, not {text!r}")
    return seconds


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ebbpool")
    group.addoption(
        "--ebbpool-leaks",
        action="store_true",
        help="fail a test that leaves a pool of ebbpool open, or a task of one running",
    )
    group.addoption(
        "--ebbpool-grace",
        type=_seconds,
        default=GRACE,
        metavar="SECONDS",
        help="how long pools and tasks may take to end after a test (default: %(default)g)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MAY_LEAK}: what this test leaves behind is no fault to --ebbpool-leaks")
    if config.getoption("--ebbpool-leaks"):
        config.pluginmanager.register(LeakCheck(config.option.ebbpool_grace), "ebbpool-leaks")


@pytest.fixture
def adaptive_executor(pytestconfig: pytest.Config) -> Generator[AdaptiveExecutor, None, None]:
    """A pool for one test, shut down at its end. A task that does not end fails the test."""
    from ebbpool import AdaptiveExecutor
    from ebbpool._interpreter import daemon_threads

    # A daemon, where there are such: pytest itself can end when a task does not.
    pool = AdaptiveExecutor(thread_name_prefix="adaptive_executor", daemon=daemon_threads())
    yield pool
    try:
        pool.shutdown(timeout=pytestconfig.getoption("--ebbpool-grace"))
    except TimeoutError as error:
        pool.shutdown(wait=False, cancel_futures=True)
        pytest.fail(f"adaptive_executor could not be shut down: {error}", pytrace=False)


def _leaks() -> Leaks | None:
    """Return what finds leaks, or None if nothing has imported ebbpool so far: there is no pool then."""
    if "ebbpool._pool.lifecycle" not in sys.modules:
        return None
    from ebbpool._leaks import leaks

    return leaks


class LeakCheck:
    """What ``--ebbpool-leaks`` does before and after each test.

    A pool that was there before the test, or that a fixture of a wider scope makes, is not the test's; when such a
    fixture ends, its pools have to end too.
    """

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._failed = False
        self._of_fixtures: dict[Any, WeakSet[Any]] = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        self._failed = False
        if leaks := _leaks():
            leaks.spare()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        try:
            return (yield)
        finally:
            if request.scope != "function" and (leaks := _leaks()):
                self._of_fixtures.setdefault(fixturedef, WeakSet()).update(leaks.spare())

    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        if leaks := _leaks():
            leaks.blame(self._of_fixtures.pop(fixturedef, ()))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Note whether the test has failed: its traceback may hold pools, and one failure is enough."""
        report = yield
        self._failed = self._failed or report.failed
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """Fail the test if it has left something behind, when all fixtures that end with it have ended."""
        result = yield
        if not self._failed and item.get_closest_marker(MAY_LEAK) is None and (leaks := _leaks()):
            if found := leaks.find(self._grace):
                pytest.fail(f"{item.nodeid} left this behind:\n{found}", pytrace=False)
        return result
