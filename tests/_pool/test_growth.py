"""What a crew tells the rules of growth of each look at its pool, and what they say of their decisions."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import pytest
from support import rules, seams
from support.common import LONG, Gate, eventually, wait_for_idle
from support.loops import given_up
from support.rules import CREW, TICK, Asleep, Decisions, Sample, Sizing

from ebbpool import AdaptiveExecutor


class Recorded(Sizing):
    """Notes what it is told, and never grows."""

    def __init__(self) -> None:
        self.begun: list[float] = []
        self.samples: list[Sample] = []
        self.most = 0
        super().__init__()
        self.begun.clear()

    def begin(self, rest: float) -> None:
        super().begin(rest)
        self.begun.append(rest)

    def decide(self, sample: Sample, min_workers: int, max_workers: int, min_spare_workers: int) -> int:
        self.samples.append(sample)
        self.most = max_workers
        return 0


@pytest.fixture
def told() -> Recorded:
    return Recorded()


@pytest.fixture
def pool(told: Recorded) -> Iterator[AdaptiveExecutor]:
    with seams.watched_by(seams.Nobody()), AdaptiveExecutor(4) as pool:
        seams.follow(pool, sizing=told)
        yield pool


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
        sample = told.samples[-1]
        assert (sample.taken, sample.workers, sample.queued) == (3, 1, 1)
        assert (sample.elapsed, sample.cpu) == pytest.approx((TICK, 0.5))
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
        assert seams.look_at(pool, 1002.0) == rules.CEILING_TICK
        pool.resize(max_workers=4)
        seams.look_at(pool, 1002.0 + rules.CEILING_TICK)
        assert told.samples[-1].elapsed == pytest.approx(TICK), "a look after the ceiling is not late"
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
    first, second, third = (sample.asleep for sample in told.samples)
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
        assert (told.samples[-1].workers, told.samples[-1].blocked, told.most) == (3, 0, 6)


# What is kept of the reasons.


def sample(**changes: object) -> Sample:
    """Return a look at a pool of one worker, which tasks wait for, beside idle processors."""
    usual = Sample(10, 0, 1, 0, 0, 0, TICK, 0.0, 0.0, 4)
    return usual._replace(**changes)  # type: ignore[arg-type]  # the test knows the fields


@pytest.mark.parametrize(
    ("look", "text", "settled"),
    [
        (sample(cpu=0.3 * 4 * TICK), "processors 30% used", False),
        (sample(cpu=4 * TICK, workers=4 + CREW), f"processors 100% used, {4 + CREW} workers compute", True),
        (sample(refused=True), "processors 0% used, the system refused to start a thread", False),
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
    sizing.decide(look, 0, 100, 0)
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
