"""What every test gets: a check for threads left behind, both cores, a header that says which core runs."""

from __future__ import annotations

import gc
import math
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, ModuleType

import hypothesis
import pytest
from hypothesis import strategies
from support import seams

import ebbpool
from ebbpool.testing import no_thread_leaks

# The time of one example says more about the machine than about the code.
hypothesis.settings.register_profile("local", deadline=None, database=None)
hypothesis.settings.register_profile("ci", deadline=None, database=None, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell has its background jobs ignore it, and so would the programs that tests start and interrupt.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "counts_references: it rests on the last reference freeing an object at once")
    if seams.REQUIRE_EXT and not ebbpool.COMPILED:
        raise pytest.UsageError("EBBPOOL_REQUIRE_EXT is set, but the compiled core is not what runs")
    if seams.FREE_THREADED and seams.gil_enabled() and os.environ.get("PYTHON_GIL") != "1":
        raise pytest.UsageError(
            "an extension module turned the GIL on: this run would prove nothing about free threading "
            "(PYTHON_GIL=0 keeps it off, PYTHON_GIL=1 says that it is meant)"
        )


def pytest_runtest_setup(item: pytest.Item) -> None:
    if sys.implementation.name != "cpython" and item.get_closest_marker("counts_references"):
        pytest.skip("references are not counted here: an object is freed when the collector comes by")


def pytest_collection_finish() -> None:
    """Spare the many collections that tests ask for a look at everything that was imported.

    Hypothesis makes its source of chance with the first example and asks the collector who refers to it, which does
    not see what is frozen: it has one example before.
    """
    hypothesis.given(strategies.none())(lambda _: None)()
    gc.collect()
    if hasattr(gc, "freeze"):
        gc.freeze()


def pytest_report_header() -> str:
    core = "compiled" if ebbpool.COMPILED else "plain"
    return f"ebbpool {ebbpool.__version__}: {core} core on {seams.interpreter()}"


@pytest.fixture(params=["plain", "compiled"])
def core(request: pytest.FixtureRequest) -> ModuleType:
    """The core's module of futures as plain Python and, where it was built, as the extension."""
    module = seams.core(request.param, "future")
    if module is None:
        pytest.skip("the extension is not built")
    return module


@pytest.fixture(autouse=True)
def no_thread_left_behind() -> Iterator[None]:
    """Fail a test whose threads outlive it."""
    with no_thread_leaks():
        yield


@pytest.fixture(autouse=True)
def no_loops_of_before() -> Iterator[None]:
    """Let pools show how late the loops of this test are, and no others."""
    with seams.no_loops():
        yield


@pytest.fixture
def no_turns() -> Iterator[None]:
    """Let tasks that go first do so however long the others have waited: a machine may be slow."""
    with seams.setting(overtaken=math.inf):
        yield


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose path leaves room for the name of a socket, of which a system takes some hundred bytes."""
    with tempfile.TemporaryDirectory(prefix="ebb-", dir="/tmp" if os.path.isdir("/tmp") else None) as folder:
        yield Path(folder)


@pytest.fixture
def one_interrupt() -> Iterator[Callable[[BaseException], None]]:
    """Interrupt the main thread with an error, once."""
    left: list[BaseException] = []

    def handler(number: int, frame: FrameType | None) -> None:
        if left:
            raise left.pop()

    before = signal.signal(signal.SIGUSR1, handler)
    main = threading.main_thread().ident
    assert main is not None

    def interrupt(error: BaseException) -> None:
        left.append(error)
        # A signal that comes before the thread sleeps does not wake it: hence again and again.
        tick = threading.Event()
        while left:
            signal.pthread_kill(main, signal.SIGUSR1)
            tick.wait(0.01)

    yield interrupt
    signal.signal(signal.SIGUSR1, before)
