"""Why a pool grew, or did not."""

from __future__ import annotations

import itertools
import re

import pytest
from support.common import LONG, Gate, eventually, wait_for_idle

from ebbpool import AdaptiveExecutor, Decision
from ebbpool._pool.decisions import KEPT, Decisions
from ebbpool._pool.sizing import CREW, TICK, Asleep, Sample, Sizing, WorkerBounds


def sample(**changes: object) -> Sample:
    """Return a look at a pool of one worker, which tasks wait for, beside idle processors."""
    usual = Sample(10, 0, 1, 0, 0, 0, TICK, 0.0, 0.0, 4)
    return usual._replace(**changes)  # type: ignore[arg-type]  # the test knows the fields


BOUNDS = WorkerBounds(0, 100, 0)


def test_a_pool_that_grows_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    # The clock of the wall may be set back.
    monkeypatch.setattr("ebbpool._pool.decisions.time", itertools.count().__next__)
    with AdaptiveExecutor(keep_alive=LONG) as pool, Gate() as gate:
        assert pool.decisions() == [] and pool.stats().last_decision == ""
        for _ in range(20):
            pool.submit(gate)
        gate.await_begun(20)
        grown = [decision for decision in pool.decisions() if decision.grown]
        assert sum(decision.grown for decision in grown) >= 10
        for decision in grown:
            assert re.match(rf"grew by {decision.grown}: \d+ waiting, processors \d+% used", decision.reason)
        assert [decision.at for decision in grown] == sorted(decision.at for decision in grown)
        assert pool.stats().last_decision == pool.decisions()[-1].reason


def test_a_pool_at_its_limit_says_so_once() -> None:
    with AdaptiveExecutor(1) as pool, Gate() as gate:
        gate.hold(pool)
        pool.submit(int)
        eventually(pool.decisions)
        (decision,) = pool.decisions()
        assert (decision.workers, decision.grown) == (1, 0)
        assert decision.reason == "stayed at 1: 1 waiting, max_workers reached"
        gate.open()
        wait_for_idle(pool)


@pytest.mark.parametrize(
    ("look", "text", "settled"),
    [
        (sample(cpu=0.3 * 4 * TICK), "processors 30% used", False),
        (sample(cpu=4 * TICK, workers=4 + CREW), f"processors 100% used, {4 + CREW} workers run", True),
        (sample(refused=True), "processors 0% used, the system refused the last thread", False),
        (
            sample(cpu=2.4 * TICK, workers=3, elapsed=0.1, late=0.0, asleep=Asleep(3, 2, 0)),
            "processors 1% used",
            False,
        ),
    ],
)
def test_the_reasons(look: Sample, text: str, settled: bool) -> None:
    sizing = Sizing()
    sizing.begin(1.0)
    sizing.decide(look, BOUNDS)
    assert sizing.why() == text
    assert sizing.settled == settled


def test_idle_workers_that_are_kept_ahead_are_a_reason() -> None:
    sizing = Sizing()
    sizing.begin(1.0)
    assert sizing.decide(sample(queued=0), WorkerBounds(0, 100, 2)) == 2
    assert sizing.why() == "processors 0% used, idle workers are kept ahead"


def test_only_the_last_decisions_are_kept() -> None:
    decisions = Decisions()
    assert decisions.last() == ""
    for count in range(2 * KEPT):
        decisions.note(count, 1, 5, lambda: "reasons")
    listed = decisions.listed()
    assert len(listed) == KEPT and listed[-1].workers == 2 * KEPT - 1
    assert decisions.last() == "grew by 1: 5 waiting, reasons"


def test_a_decision_not_to_grow_is_noted_once_for_each_size() -> None:
    decisions = Decisions()

    def unwanted() -> str:
        raise AssertionError("the reason is put into words although nothing is noted")

    decisions.note(8, 0, 5, lambda: "busy")
    decisions.note(8, 0, 6, unwanted)
    decisions.note(8, 1, 6, lambda: "idle")
    decisions.note(8, 0, 6, lambda: "busy")
    decisions.note(9, 0, 0, lambda: "busy")
    assert [decision.reason for decision in decisions.listed()] == [
        "stayed at 8: 5 waiting, busy",
        "grew by 1: 6 waiting, idle",
        "stayed at 8: 6 waiting, busy",
        "stayed at 9: busy",
    ]
    assert all(type(decision) is Decision for decision in decisions.listed())
