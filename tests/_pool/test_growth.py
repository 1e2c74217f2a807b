"""What a crew tells the rules of growth of each look at its pool."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from support.common import Gate, wait_for_idle
from support.timekeeper import Nobody

from ebbpool import AdaptiveExecutor
from ebbpool._pool.crew import CEILING_TICK
from ebbpool._pool.sizing import MEMORY, TICK, Sample, Sizing, WorkerBounds
from ebbpool._pool.timekeeper import Tick


class Recorded(Sizing):
    """Notes what it is told, and never grows."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[float] = []
        self.samples: list[Sample] = []

    def begin(self, rest: float) -> None:
        self.begun.append(rest)

    def decide(self, sample: Sample, bounds: WorkerBounds) -> int:
        self.samples.append(sample)
        return 0


def tick(now: float, cpu: float = 0.0) -> Tick:
    return Tick(now, cpu, 0.0)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[AdaptiveExecutor]:
    monkeypatch.setattr("ebbpool._pool.crew.timekeeper", Nobody())
    with AdaptiveExecutor(4) as pool:
        pool._crew._sizing = Recorded()
        yield pool


def told(pool: AdaptiveExecutor) -> Recorded:
    sizing = pool._crew._sizing
    assert isinstance(sizing, Recorded)
    return sizing


def test_the_first_look_is_compared_with_the_beginning_of_the_spell(pool: AdaptiveExecutor) -> None:
    for _ in range(3):
        pool.submit(int).result()
    wait_for_idle(pool)
    pool._crew.begin(tick(1000.0, cpu=5.0))
    for _ in range(2):
        pool.submit(int).result()
    with Gate() as gate:
        gate.hold(pool)
        pool.submit(int)
        assert pool._crew.tick(tick(1000.0 + TICK, cpu=5.5)) == TICK
        sample = told(pool).samples[-1]
        assert (sample.taken, sample.workers, sample.queued) == (3, 1, 1)
        assert (sample.elapsed, sample.cpu) == pytest.approx((TICK, 0.5))
    assert told(pool).begun == [float("inf")]


def test_the_beginning_of_a_spell_is_told_how_long_none_waited(pool: AdaptiveExecutor) -> None:
    pool._crew.begin(tick(1000.0))
    assert pool._crew.tick(tick(1001.0)) is None
    pool._crew.begin(tick(1001.0 + MEMORY))
    assert told(pool).begun == pytest.approx([float("inf"), MEMORY])


def test_a_spell_that_begins_anew_at_the_ceiling_is_the_same_one(pool: AdaptiveExecutor) -> None:
    pool.resize(max_workers=1)
    with Gate() as gate:
        gate.hold(pool)
        pool.submit(int)
        pool._crew.begin(tick(1000.0))
        assert pool._crew.tick(tick(1001.0)) == CEILING_TICK
        pool.resize(max_workers=4)
        pool._crew.begin(tick(1001.0 + TICK))
    assert told(pool).begun[-1] == pytest.approx(TICK)


def test_who_is_asleep_is_counted_only_when_it_is_asked_for(pool: AdaptiveExecutor) -> None:
    with Gate() as gate:
        gate.hold(pool)
        pool.submit(int)
        pool._crew.begin(tick(1000.0))
        for number, asks in enumerate((False, True, False), 1):
            told(pool).asks = asks
            pool._crew.tick(tick(1000.0 + 0.03 * number, cpu=0.01 * number))
    first, second, third = (sample.asleep for sample in told(pool).samples)
    assert first is third is None
    assert (second is None) == (sys.platform != "linux")
    assert second is None or second.counted == 1
