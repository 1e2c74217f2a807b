"""What `benchmarks/` makes of its samples: ratios, verdicts on targets, tables and bars."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.benchmark import question_of

from benchmarks.engine import runner
from benchmarks.engine.cell import gil_enabled
from benchmarks.engine.model import Column, Question, Settings, Target
from benchmarks.report import report, store


def outcome(peer: str, number: int, *samples: float, metric: str = "us", **others: Any) -> runner.Outcome:
    return runner.Outcome(peer, {"workers": 2}, number, "ok", samples={metric: list(samples)}, **others)


def answers_of(question: Question, outcomes: list[runner.Outcome], pin: int | None = None) -> report.Answers:
    settings = Settings(rounds=3, pin=pin)
    return report.Answers(runner.Plan.of(question, settings), settings, outcomes)


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [((5.0, 5.0, 6.0), "holds"), ((5.5, 5.4, 4.0), "within the noise"), ((6.0, 6.1, 5.9), "MISSED")],
)
def test_verdict_on_a_ratio(ours: tuple[float, ...], verdict: str) -> None:
    target = Target("half", "ebbpool", "us", 0.5, {"workers": 2}, rival="stdlib")
    question = question_of(Column("us", "µs"), targets=lambda settings: (target,))
    outcomes = [outcome("ebbpool", number, value, value, 99.0) for number, value in enumerate(ours)]
    outcomes += [outcome("stdlib", number, 10.0) for number in range(3)]
    (found,) = answers_of(question, outcomes).verdicts()
    assert found.verdict == verdict
    assert found.question == "made_up"


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [((16.0, 17.0, 15.0), "holds"), ((15.0, 15.5, 17.0), "within the noise"), ((15.0, 15.9, 15.5), "MISSED")],
)
@pytest.mark.parametrize("rival", ["stdlib", None])
def test_verdict_where_more_is_better(ours: tuple[float, ...], verdict: str, rival: str | None) -> None:
    target = Target("more", "ebbpool", "rate", 1.6 if rival else 16, {"workers": 2}, rival=rival)
    column = Column("rate", "a second", more=True)
    question = question_of(column, targets=lambda settings: (target,))
    outcomes = [outcome("ebbpool", number, value, metric="rate") for number, value in enumerate(ours)]
    outcomes += [outcome("stdlib", number, 10.0, metric="rate") for number in range(3)]
    answers = answers_of(question, outcomes)
    (found,) = answers.verdicts()
    assert found.verdict == verdict
    ratio = answers.ratio("ebbpool", {"workers": 2}, column)
    assert ratio == pytest.approx(sorted(ours)[1] / 10)


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [((5.0, 5.0, 6.0), "holds"), ((5.5, 5.4, 5.0), "within the noise"), ((6.0, 6.1, 5.9), "MISSED")],
)
def test_verdict_above_a_floor(ours: tuple[float, ...], verdict: str) -> None:
    target = Target("a quarter", "ebbpool", "us", 0.25, {"workers": 2}, rival="stdlib", above="loop")
    question = question_of(Column("us", "µs"), targets=lambda settings: (target,))
    outcomes = [outcome("ebbpool", number, value) for number, value in enumerate(ours)]
    outcomes += [outcome("stdlib", number, 12.0) for number in range(3)]
    (found,) = answers_of(question, outcomes).verdicts()
    assert (found.verdict, found.measured) == ("not measured", "no figure of loop")
    (found,) = answers_of(question, [*outcomes, *(outcome("loop", number, 2.75) for number in range(3))]).verdicts()
    assert found.verdict == verdict
    (found,) = answers_of(question, [*outcomes, *(outcome("loop", number, 12.0) for number in range(3))]).verdicts()
    assert (found.verdict, found.measured) == ("not measured", "stdlib is not above loop")


@pytest.mark.parametrize(
    ("ours", "verdict", "measured"),
    [
        ((2.0, 1.0, 6.0), "within the noise", "no share: 2 of 3 rounds not above loop"),
        ((3.0, 3.0, 3.0), "within the noise", "no share: 3 of 3 rounds not above loop"),
        (
            (5.0, 2.0, 4.0),
            "holds",
            "0.111 of it (0.111 to 0.222 by round), 9.00x; 1 of 3 rounds not above loop",
        ),
        (
            (9.0, 2.0, 8.0),
            "MISSED",
            "0.556 of it (0.556 to 0.667 by round), 1.80x; 1 of 3 rounds not above loop",
        ),
    ],
)
def test_a_round_below_the_floor_has_no_share(ours: tuple[float, ...], verdict: str, measured: str) -> None:
    target = Target("a quarter", "ebbpool", "us", 0.25, {"workers": 2}, rival="stdlib", above="loop")
    question = question_of(Column("us", "µs"), targets=lambda settings: (target,))
    outcomes = [outcome("ebbpool", number, value) for number, value in enumerate(ours)]
    outcomes += [
        outcome(name, number, value) for name, value in (("stdlib", 12.0), ("loop", 3.0)) for number in range(3)
    ]
    (found,) = answers_of(question, outcomes).verdicts()
    assert (found.verdict, found.measured) == (verdict, measured)


def test_verdict_on_another_metric_of_the_same_peer() -> None:
    target = Target("twice", "ebbpool", "us", 2.0, {"workers": 2}, rival="ebbpool", rival_metric="other")
    question = question_of(Column("us", "µs"), Column("other", "µs"), targets=lambda settings: (target,))
    found = runner.Outcome("ebbpool", {"workers": 2}, 1, "ok", samples={"us": [3.0], "other": [2.0]})
    (verdict,) = answers_of(question, [found]).verdicts()
    assert verdict.measured.startswith("1.500 of it")


def test_ratios_are_to_the_rival_of_the_question() -> None:
    asked = ("loop", "multiprocessing")
    question = replace(
        question_of(Column("us", "µs"), rival=("multiprocessing", "x mp")),
        variants=lambda peer, settings: [{"workers": 2}] if peer.name in asked else "not asked",
    )
    outcomes = [outcome("loop", 1, 4.0), outcome("multiprocessing", 1, 8.0)]
    table = report.table(answers_of(question, outcomes))
    assert table.headers[-1] == "x mp"
    ratios = {row[1]: row[-1] for row in table.rows}
    assert ratios == {"a plain loop (floor)": "2.00", "multiprocessing ThreadPool": "1.00"}


@pytest.mark.parametrize(("most", "verdict"), [(4.0, "holds"), (5.0, "MISSED")])
def test_verdict_on_the_worst_sample(most: float, verdict: str) -> None:
    target = Target("at most 4", "ebbpool", "threads", 4, {"workers": 2})
    question = question_of(Column("threads", "threads", 0, worst=True), targets=lambda settings: (target,))
    outcomes = [outcome("ebbpool", number, count, metric="threads") for number, count in enumerate((1, most, 1))]
    (found,) = answers_of(question, outcomes).verdicts()
    assert (found.verdict, found.measured) == (verdict, f"{most:.0f}")


def test_targets_that_are_not_asked() -> None:
    where = {"workers": 2}
    question = question_of(
        Column("us", "µs"),
        targets=lambda settings: (
            Target("pinned", "ebbpool", "us", 9, where, pinned=True),
            Target("free", "ebbpool", "us", 9, where, pinned=False),
            Target("the other build", "ebbpool", "us", 9, where, gil=not gil_enabled()),
            Target("no rival", "ebbpool", "us", 9, where, rival="stdlib"),
            Target("none of ours", "ebbpool-pure", "us", 9, where),
        ),
    )
    outcomes = [outcome("ebbpool", 1, 1.0)]
    verdicts = [found.verdict for found in answers_of(question, outcomes).verdicts()]
    assert verdicts == ["not asked", "holds", "not asked", "not measured", "not measured"]
    pinned = [found.verdict for found in answers_of(question, outcomes, pin=0).verdicts()]
    assert pinned[:2] == ["holds", "not asked"]


@pytest.mark.parametrize(
    ("ran", "core"),
    [
        ((), "none"),
        (("stdlib",), "none"),
        (("run",), "compiled"),
        (("fastapi-installed-pure",), "plain"),
        (("ebbpool-pure", "run", "stdlib"), "compiled and plain"),
    ],
)
def test_core_that_was_measured(ran: tuple[str, ...], core: str) -> None:
    outcomes = [outcome(peer, 1, 1.0) for peer in ran] + [runner.Outcome("ebbpool", {"workers": 2}, 1, "missing", "?")]
    assert store.core([answers_of(question_of(Column("us", "µs")), outcomes)]) == core


def test_table_shows_spread_ratio_and_gaps() -> None:
    columns = (Column("us", "µs", 1), Column("left", "left", 0, ratio=False, empty="none left"))
    outcomes = [outcome("stdlib", number, value) for number, value in enumerate((8.0, 10.0, 12.0))]
    outcomes += [outcome("loop", 1, 2.0, gil=True)]
    table = report.table(answers_of(question_of(*columns), outcomes))
    assert table.headers == ["variant", "peer", "µs", "x TPE", "left"]
    assert ["workers=2", "ThreadPoolExecutor", "10.0 (8.0 to 12.0)", "1.00", "none left"] in table.rows
    assert ["workers=2", "a plain loop (floor)", "2.0", "5.00", "none left"] in table.rows
    assert any("GIL was switched back on" in note for note in table.notes) is not gil_enabled()
    lines = report.plain(table).splitlines()
    assert len({line.index(cell) for line in lines for cell in ("10.0 (", "2.0  ") if cell in line}) == 1


@pytest.mark.parametrize(("load", "warned"), [(None, False), (0.1, False), (9.0, True)])
def test_busy_machine(load: float | None, warned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "load_average", lambda: load)
    monkeypatch.setattr(store, "processors", lambda: [0, 1])
    assert ("load average 9.0 on 2 processors" in store.busy()) is warned
