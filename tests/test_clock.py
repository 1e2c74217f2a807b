"""A clock that a test freezes stops no pool, whether it is frozen before ebbpool is imported or later."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from support.common import TIMEOUT, output_of

import ebbpool
from ebbpool import AdaptiveExecutor

CLOCKS = ("monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns")
FREEZE = """
import time
for name in {clocks!r}:
    setattr(time, name, lambda: 1326499200)
"""


@pytest.fixture(params=[1.0, 1e12], ids=["past", "future"])
def frozen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Do what freezegun does: put a clock that stands in the place of each one that a module of ebbpool has."""
    real = {id(getattr(time, name)): name for name in CLOCKS}
    for name, module in list(sys.modules.items()):
        if name == "time" or name.partition(".")[0] == "ebbpool":
            for key, value in list(vars(module).items()):
                if id(value) in real:
                    monkeypatch.setattr(module, key, lambda: request.param)
    yield
    # Before others use it: pytest waits, too.
    monkeypatch.undo()


@pytest.mark.usefixtures("frozen")
def test_calls_that_have_to_meet_do_meet_and_a_delayed_call_comes() -> None:
    with AdaptiveExecutor(8) as pool:
        meeting = threading.Barrier(5)
        for future in [pool.submit(meeting.wait, TIMEOUT) for _ in range(5)]:
            future.result(TIMEOUT)
        assert pool.submit_later(0.01, str, "came").result(TIMEOUT) == "came"


@pytest.mark.usefixtures("frozen")
def test_a_deadline_passes() -> None:
    struck = threading.Event()

    def call() -> tuple[float | None, bool]:
        with ebbpool.on_cancel(struck.set):
            left = ebbpool.time_left()
            return left, struck.wait(TIMEOUT)

    with AdaptiveExecutor(2) as pool:
        left, told = pool.within(deadline=0.5).submit(call).result(TIMEOUT)
    assert left is not None
    assert 0.0 <= left <= 0.5
    assert told


@pytest.mark.parametrize(
    "check",
    [
        "barrier = threading.Barrier(5); [each.result() for each in [pool.submit(barrier.wait) for _ in range(5)]]",
        "pool.submit_later(0.01, int).result()",
        "event = threading.Event(); pool.schedule(0.01, event.set); event.wait()",
        "pool.wait_idle(0.01)",
    ],
)
def test_what_is_imported_while_the_clock_is_frozen_has_another(check: str) -> None:
    script = FREEZE.format(clocks=CLOCKS) + "import threading\nfrom ebbpool import AdaptiveExecutor\n"
    script += f"frozen = time.monotonic, time.perf_counter\npool = AdaptiveExecutor(8)\n{check}\npool.shutdown()\n"
    # What was replaced stays so: PyPy makes the module anew.
    assert output_of(script + "print((time.monotonic, time.perf_counter) == frozen, time.monotonic())\n") == [
        "True 1326499200"
    ]


def test_nothing_of_ebbpool_refers_to_a_clock_that_a_tool_would_replace() -> None:
    clocks: list[Callable[[], float]] = [time.monotonic, time.perf_counter, time.monotonic_ns, time.perf_counter_ns]
    found = [
        (name, key)
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] == "ebbpool"
        for key, value in vars(module).items()
        if any(value is clock for clock in clocks)
    ]
    assert found == []
