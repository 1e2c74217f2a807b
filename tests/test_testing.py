"""ebbpool.testing: the help we give to users' tests has to notice what it is for."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator

import pytest
from support.common import STACKS, TIMEOUT, Gate

from ebbpool import AdaptiveExecutor
from ebbpool.testing import no_thread_leaks


@pytest.fixture
def gate() -> Iterator[Gate]:
    with Gate() as gate:
        yield gate


def test_a_leak_is_reported_with_its_name_and_stack_and_the_timekeeper_and_ignored_names_may_stay(gate: Gate) -> None:
    with pytest.raises(AssertionError, match="left-behind") as caught, no_thread_leaks(grace=0, ignore=["mine"]):
        for name in ("mine", "ebbpool-timekeeper", "left-behind"):
            threading.Thread(target=gate, name=name).start()
            gate.await_begun()
    told = str(caught.value)
    assert ("_open.wait" if STACKS else "(no stack") in told and "daemon=False" in told
    assert "mine" not in told and "timekeeper" not in told


def test_an_open_pool_is_a_leak() -> None:
    pool = AdaptiveExecutor(thread_name_prefix="open")
    try:
        with pytest.raises(AssertionError, match="open_0"), no_thread_leaks(grace=0):
            pool.submit(abs, 1).result(TIMEOUT)
    finally:
        pool.shutdown()


def test_a_thread_that_ends_within_the_grace_is_no_leak(gate: Gate) -> None:
    class Leaving(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            gate.open()
            super().join(timeout)

    with no_thread_leaks(grace=TIMEOUT):
        thread = Leaving(target=gate)
        thread.start()
    assert not thread.is_alive()


def test_a_pool_forgotten_in_a_cycle_is_collected() -> None:
    class Holder:
        def __init__(self) -> None:
            self.me = self
            self.pool = AdaptiveExecutor()

    with no_thread_leaks(grace=TIMEOUT):
        holder = Holder()
        holder.pool.submit(abs, 1).result(TIMEOUT)
        reference = weakref.ref(holder)
        del holder
    assert reference() is None


@pytest.mark.parametrize("grace", [-1, -0.001, float("nan")])
def test_a_bad_grace_is_named(grace: float) -> None:
    with pytest.raises(ValueError, match=f"grace .* not {grace!r}"), no_thread_leaks(grace=grace):
        pass
