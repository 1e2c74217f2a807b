"""What a crew tells the rules of growth of each look at its pool, and what they say of their decisions."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import pytest
from support import rules, seams
from support.common import LONG, Gate, eventually, wait_for_idle
from support.loops import given_up
from support.rules import CREW, TICK, Asleep, Decisions, Load, Sizing, Snapshot, Tick

from ebbpool import AdaptiveExecutor


class Recorded(Sizing):
    """Notes what it is told, and never grows."""

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        self.begun: list[float] = []
        self.seen: list[tuple[Snapshot, Asleep | None]] = []
        self.most = 0

    def begin(self, rest: float) -> None:
        super().begin(rest)
        self.begun.append(rest)

    def decide(self, seen: Snapshot, asleep: Asleep | None, refused: bool, least: int, most: int, spare: int) -> int:
        self.seen.append((seen, asleep))
        self.most = most
        return 0


@pytest.fixture
def pool() -> Iterator[AdaptiveExecutor]:
    with seams.watched_by(seams.Nobody()), AdaptiveExecutor(4) as pool:
        yield pool


@pytest.fixture
def told(pool: AdaptiveExecutor) -> Recorded:
    sizing = Recorded(seams.load_of(pool))
    seams.follow(pool, sizing=sizing)
    return sizing


def test_the_first_look_is_compared_with_the_beginning_of_the_spell(pool: AdaptiveExecutor, told: Recorded) -> None:
    for _ in range(3):
        pool.submit(int).result()
    wait_for_idle(pool)
    seams.begin_looks(pool, 1000.0, cpu=5.0)
    for _ in range(2):
        pool.submit(int).result()
    with Gate() as gate:
        gate.hold(pool)
        pool.submit(int)
        assert seams.look_at(pool, 1000.0 + TICK, cpu=5.5) == TICK
        seen, _ = told.seen[-1]
        assert (seen.workers, seen.queued) == (1, 1)
        load = seams.load_of(pool)
        assert (load.used, load.moved) == pytest.approx((0.5 / TICK, 1000.0 + TICK))
    assert told.begun == [float("inf")]


def test_the_beginning_of_a_spell_is_told_how_long_none_waited(pool: AdaptiveExecutor, told: Recorded) -> None:
    seams.begin_looks(pool, 1000.0)
    assert seams.look_at(pool, 1001.0) is None
    seams.begin_looks(pool, 1001.0 + rules.MEMORY)
    assert told.begun == pytest.approx([float("inf"), rules.MEMORY])
    # One that begins anew at the ceiling is the same one.
    pool.resize(max_workers=1)
    with Gate() as gate:
        gate.hold(pool)
        pool.submit(int)
        assert seams.look_at(pool, 1002.0) == rules.HORIZON
        pool.resize(max_workers=4)
        seams.look_at(pool, 1002.0 + rules.HORIZON)
        seams.begin_looks(pool, 1002.0 + TICK)
    assert told.begun[-1] == pytest.approx(TICK)


def test_sleeping_workers_are_counted_only_when_asked_for(pool: AdaptiveExecutor, told: Recorded) -> None:
    with Gate() as gate:
        gate.hold(pool)
        pool.submit(int)
        seams.begin_looks(pool, 1000.0)
        for number, asks in enumerate((False, True, False), 1):
            told.asks = asks
            seams.look_at(pool, 1000.0 + 0.03 * number, cpu=0.01 * number)
    first, second, third = (asleep for _, asleep in told.seen)
    assert first is third is None
    assert (second is None) == (sys.platform != "linux")
    assert second is None or second.counted == 1


def test_threads_of_abandoned_calls_count_as_workers_that_may_sleep(pool: AdaptiveExecutor, told: Recorded) -> None:
    """Others may be started for them all the same, beyond the ceiling."""
    with Gate() as gate:
        for _ in range(2):
            given_up(gate.hold(pool))
        gate.hold(pool)
        pool.submit(int)
        seams.begin_looks(pool, 1000.0)
        seams.look_at(pool, 1000.0 + TICK)
        seen, _ = told.seen[-1]
        assert (seen.workers, seen.blocked, told.most) == (3, 0, 6)


# What is kept of the reasons.


@pytest.mark.parametrize(
    ("workers", "used", "refused", "asleep", "text", "settled"),
    [
        (1, 0.3, False, None, "processors 30% used", False),
        (4 + CREW, 1.0, False, None, f"processors 100% used, {4 + CREW} workers compute", True),
        (1, 0.0, True, None, "processors 0% used, the system refused to start a thread", False),
        (3, 0.01, False, Asleep(3, 2, 0), "processors 1% used", False),
    ],
)
def test_the_reasons(workers: int, used: float, refused: bool, asleep: Asleep | None, text: str, settled: bool) -> None:
    load = Load(True)
    sizing = Sizing(load)
    load.begin(Tick(1000.0, 5.0, 0.0), 0)
    sizing.begin(1.0)
    load.see(Tick(1000.0 + TICK, 5.0 + used * 4 * TICK, 0.0), 4, 0)
    sizing.decide(
        Snapshot(True, 10, 0, workers, 0, 0, 0, 0, 100, False, False, 0, False, None), asleep, refused, 0, 100, 0
    )
    assert sizing.why() == text
    assert sizing.settled == settled


def test_only_the_last_decisions_are_kept_and_one_not_to_grow_once_for_each_size() -> None:
    decisions = Decisions()
    assert decisions.last() == ""
    for count in range(2 * rules.KEPT):
        decisions.note(count, 1, 5, lambda: "reasons")
    assert len(decisions.noted) == rules.KEPT and decisions.noted[-1][1] == 2 * rules.KEPT - 1
    assert decisions.last() == "grew by 1: 5 waiting, reasons"

    def unwanted() -> str:
        raise AssertionError("the reason is put into words although nothing is noted")

    decisions.note(8, 0, 5, lambda: "busy")
    decisions.note(8, 0, 6, unwanted)
    decisions.note(8, 1, 6, lambda: "idle")
    decisions.note(8, 0, 6, lambda: "busy")
    decisions.note(9, 0, 0, lambda: "busy")
    assert [reason for _, _, _, reason in decisions.noted[-4:]] == [
        "stayed at 8: 5 waiting, busy",
        "grew by 1: 6 waiting, idle",
        "stayed at 8: 6 waiting, busy",
        "stayed at 9: busy",
    ]


# As a user sees it.


def test_a_pool_that_grows_says_why() -> None:
    with AdaptiveExecutor(keep_alive=LONG) as pool, Gate() as gate:
        assert pool.decisions() == [] and pool.stats().last_decision == ""
        gate.hold(pool, 20)
        grown = [decision for decision in pool.decisions() if decision.grown]
        assert sum(decision.grown for decision in grown) >= 10
        for decision in grown:
            assert re.match(rf"grew by {decision.grown}: \d+ waiting, processors \d+% used", decision.reason)
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
