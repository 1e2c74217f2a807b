"""ebbpool.testing: the help we give to users' tests has to notice what it is for."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from support.common import STACKS, TIMEOUT

from ebbpool import AdaptiveExecutor
from ebbpool.testing import no_thread_leaks, wait_idle


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """A gate that is opened at the latest when the test ends, so that nothing waits behind it."""
    event = threading.Event()
    yield event
    event.set()


def waiting_at(gate: threading.Event, name: str) -> threading.Thread:
    """Start a thread that stands at `gate`, and return it when it is there."""
    there = threading.Event()

    def stand_at_the_gate() -> None:
        there.set()
        gate.wait(TIMEOUT)

    thread = threading.Thread(target=stand_at_the_gate, name=name)
    thread.start()
    assert there.wait(TIMEOUT)
    return thread


def test_wait_idle_fails_with_the_stats(gate: threading.Event) -> None:
    with AdaptiveExecutor() as pool:
        started = threading.Event()
        pool.submit(lambda: (started.set(), gate.wait(TIMEOUT)))
        assert started.wait(TIMEOUT)
        with pytest.raises(AssertionError, match=r"not idle after 0\.01 s: PoolStats\(.*running=1") as caught:
            wait_idle(pool, timeout=0.01)
        assert "queued=0" in str(caught.value)
        gate.set()


def test_the_timekeeper_is_no_leak(gate: threading.Event) -> None:
    with no_thread_leaks(grace=0):
        waiting_at(gate, "ebbpool-timekeeper")


def test_a_leak_is_reported_with_its_name_and_stack(gate: threading.Event) -> None:
    with pytest.raises(AssertionError, match="left-behind") as caught, no_thread_leaks(grace=0):
        waiting_at(gate, "left-behind")
    assert ("stand_at_the_gate" if STACKS else "(no stack") in str(caught.value)
    assert "daemon=False" in str(caught.value)


def test_an_open_pool_is_a_leak() -> None:
    pool = AdaptiveExecutor(thread_name_prefix="open")
    try:
        with pytest.raises(AssertionError, match="open_0"), no_thread_leaks(grace=0):
            pool.submit(abs, 1).result(TIMEOUT)
    finally:
        pool.shutdown()


def test_ignored_names_may_stay(gate: threading.Event) -> None:
    with pytest.raises(AssertionError) as caught, no_thread_leaks(grace=0, ignore=["mine"]):
        waiting_at(gate, "mine")
        waiting_at(gate, "other")
    assert "other" in str(caught.value)
    assert "mine" not in str(caught.value)


def test_a_thread_that_ends_within_the_grace_is_no_leak(gate: threading.Event) -> None:
    asked = threading.Event()

    class Leaving(threading.Thread):
        def run(self) -> None:
            gate.wait(TIMEOUT)

        def join(self, timeout: float | None = None) -> None:
            asked.set()
            gate.set()
            super().join(timeout)

    with no_thread_leaks(grace=TIMEOUT):
        Leaving().start()
    assert asked.is_set()


def test_a_pool_forgotten_in_a_cycle_is_collected() -> None:
    class Holder:
        def __init__(self) -> None:
            self.me = self
            self.pool = AdaptiveExecutor()

    with no_thread_leaks(grace=TIMEOUT):
        Holder().pool.submit(abs, 1).result(TIMEOUT)


@pytest.mark.parametrize("grace", [-1, -0.001, float("nan")])
def test_a_bad_grace_is_named(grace: float) -> None:
    with pytest.raises(ValueError, match=f"grace .* not {grace!r}"), no_thread_leaks(grace=grace):
        pass
