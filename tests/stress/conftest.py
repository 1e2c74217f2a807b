"""Fixtures of the stress tests: an extreme switch interval, a watchdog, and a check that no thread is left.

The folder runs only when it is named: ``pytest tests/stress``. ``EBBPOOL_STRESS_SECONDS`` says how long each
test keeps the pressure up, ``EBBPOOL_STRESS_PATIENCE`` how long a wait may take before it counts as a hang,
``EBBPOOL_STRESS_SEED`` repeats a run's choices, ``EBBPOOL_STRESS_BARRIERS`` is the number of barriers of
`test_starvation`.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.common import tight_switching

from ebbpool.testing import no_thread_leaks

HERE = Path(__file__).parent
pytest.register_assert_rewrite("stress_harness")

import stress_harness as harness  # noqa: E402  (its assertions have to be rewritten first)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "hard_limit(seconds): when the watchdog ends the run, if not as usual")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the time limit to the watchdog below, which needs no lock of the interpreter's to do its work."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(0))


def pytest_report_header() -> str:
    return f"stress: seconds={harness.SECONDS} patience={harness.PATIENCE} seed={harness.SEED}"


@pytest.fixture(scope="session", autouse=True)
def real_stderr(pytestconfig: pytest.Config) -> Iterator[None]:
    """Give the harness the process's own standard error, which outlives pytest's capture."""
    with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        harness.stderr_fd = os.dup(2)
    yield
    faulthandler.cancel_dump_traceback_later()
    os.close(harness.stderr_fd)
    harness.stderr_fd = 2


@pytest.fixture(autouse=True)
def every_window() -> Iterator[None]:
    with tight_switching():
        yield


@pytest.fixture(autouse=True)
def watchdog(request: pytest.FixtureRequest, real_stderr: None) -> Iterator[None]:
    """End the run, with every thread's stack, if a test outlives all of its own time limits."""
    marker = request.node.get_closest_marker("hard_limit")
    limit = marker.args[0] if marker else harness.SECONDS + 8 * harness.PATIENCE + 60.0
    faulthandler.dump_traceback_later(limit, exit=True, file=harness.stderr_fd)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def no_thread_left_behind() -> Iterator[None]:
    with no_thread_leaks(grace=harness.PATIENCE):
        yield


@pytest.fixture(autouse=True)
def nothing_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """What workers have to log is an error of the pool: none may be met by what was not meant for it."""
    yield
    logged = [record.getMessage() for record in caplog.get_records("call") if record.name == "concurrent.futures"]
    assert not logged, logged
