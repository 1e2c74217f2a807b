"""The guard: what it makes of counts. What counts them, valgrind, is not tried here."""

from __future__ import annotations

from pathlib import Path

import pytest

import ebbpool
from benchmarks.guard import __main__ as guard
from benchmarks.guard import counting, figures, script
from benchmarks.guard.figures import FLOORS, LOADS, Figures, Verdict

CORES = ("compiled", "plain") if ebbpool.COMPILED else ("plain",)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file without figures, in place of the repository's own."""
    path = tmp_path / "figures.json"
    monkeypatch.setattr(figures, "KEPT", path)
    return path


@pytest.fixture
def counted(kept: Path, monkeypatch: pytest.MonkeyPatch) -> Figures:
    """What is counted; to be changed."""
    counts = dict.fromkeys(LOADS, 1_000.0)
    monkeypatch.setattr(counting, "available", lambda: True)
    monkeypatch.setattr(counting, "instructions", lambda core, loads=LOADS: {load: counts[load] for load in loads})
    return counts


def test_what_does_not_depend_on_the_number_cancels_out() -> None:
    totals = [number for load in LOADS.values() for number in (999, 70 + 3 * load.count, 70 + 6 * load.count)]
    assert figures.differences(totals) == dict.fromkeys(LOADS, 3.0)
    with pytest.raises(ValueError, match=f"{len(totals)} pieces, not {len(totals) - 1}"):
        figures.differences(totals[1:])


@pytest.mark.parametrize(
    ("count", "before", "change", "exceeds"),
    [
        (1_000.0, 1_000.0, 0.0, False),
        (1_029.0, 1_000.0, 0.029, False),
        (1_031.0, 1_000.0, 0.031, True),
        (500.0, 1_000.0, -0.5, False),
        (500.0, None, 0.0, False),
    ],
)
def test_tolerance(count: float, before: float | None, change: float, exceeds: bool) -> None:
    verdict = Verdict("submit", count, before)
    assert LOADS["submit"].tolerance == 0.03
    assert verdict.change == pytest.approx(change)
    assert verdict.exceeds is exceeds


def test_more_instructions_than_were_kept_fail(counted: Figures, capsys: pytest.CaptureFixture[str]) -> None:
    assert guard.main(["--update"]) == 0
    assert set(figures.kept()) == {figures.interpreter()}
    assert guard.main([]) == 0
    counted["submit"] += 31
    counted["http"] += 29
    capsys.readouterr()
    assert guard.main([]) == 1
    told = capsys.readouterr()
    assert told.out.count("TOO MANY: submit, run, collect takes 31 instructions more, +3.1%; 3% is the most") == len(
        CORES
    )
    assert told.out.count("TOO MANY") == len(CORES)
    assert f"{len(CORES)} counts exceed" in told.err
    assert guard.main(["--update"]) == 0
    assert guard.main([]) == 0


def test_total_of_a_part() -> None:
    assert counting.total("# callgrind format\nevents: Ir\nsummary: 12\n\nfn=(1)\n0 12\ntotals: 12\n") == 12
    with pytest.raises(ValueError, match="no total"):
        counting.total("events: Ir\n")


@pytest.mark.parametrize("name", LOADS | FLOORS)
def test_every_load_runs(name: str) -> None:
    with script.SCRIPTS[name]() as work:
        for count in (1, 3):
            work(count)
