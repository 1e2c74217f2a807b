"""The guard: what it makes of counts. What counts them, valgrind, is not tried here."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.benchmark import ROOT  # what can be imported from there comes first

import ebbpool
from benchmarks import guard

CORES = ("compiled", "plain") if ebbpool.COMPILED else ("plain",)


def test_what_does_not_depend_on_the_number_cancels_out() -> None:
    totals = [number for load in guard.LOADS.values() for number in (999, 70 + 3 * load.count, 70 + 6 * load.count)]
    assert guard.differences(totals, guard.LOADS) == dict.fromkeys(guard.LOADS, 3.0)
    with pytest.raises(ValueError):
        guard.differences(totals[3:], guard.LOADS)
    assert guard.total("# callgrind format\nevents: Ir\nsummary: 12\n\nfn=(1)\n0 12\ntotals: 12\n") == 12
    with pytest.raises(ValueError, match="no total"):
        guard.total("events: Ir\n")


def test_more_instructions_than_were_kept_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guard.KEPT.is_relative_to(ROOT)
    counts = dict.fromkeys(guard.LOADS, 1_000.0)
    monkeypatch.setattr(guard, "KEPT", tmp_path / "figures.json")
    monkeypatch.setattr(guard, "available", lambda: True)
    monkeypatch.setattr(guard, "instructions", lambda core, loads: {load: counts[load] for load in loads})
    assert guard.main([]) == 0
    assert "no figures are kept" in capsys.readouterr().out
    assert guard.main(["--update"]) == 0
    assert set(guard.kept()) == {f"{core} core, {guard.interpreter()}" for core in CORES}
    assert guard.main([]) == 0
    counts |= {"submit": 1_031.0, "http": 1_029.0, "run": 500.0}
    capsys.readouterr()
    assert guard.main([]) == 1
    told = capsys.readouterr()
    assert told.out.count("submit, run, collect: 1,031 instructions, +3.1% of 1,000") == len(CORES)
    assert told.out.count("TOO MANY: 31 more; 3% is the most it may be") == len(CORES)
    assert told.out.count("TOO MANY") == len(CORES)
    assert f"{len(CORES)} counts exceed" in told.err
    assert guard.main(["--update"]) == 0
    assert guard.main([]) == 0


@pytest.mark.parametrize("name", guard.LOADS)
def test_every_load_runs(name: str) -> None:
    """What a load asks of the package is there: nothing is raised."""
    with guard.LOADS[name].script() as work:
        for count in (1, 3):
            work(count)
