"""What is made of samples, and whether README and docs say it: medians, ratios the right way round, marks."""

from __future__ import annotations

import contextlib
import json
import math
import random
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import pytest
from support.benchmark import ROOT, question_of, run_of

from benchmarks import __main__ as command
from benchmarks.__main__ import main
from benchmarks.engine.model import Column, percentile
from benchmarks.engine.results import Answers, Figure, Noise, Run, figure_of
from benchmarks.report import marks, pages, tables

WHERE = {"workers": 2}
US = Column("us", "µs")


def answers(cells: Mapping[str, Sequence[float]], column: Column = US) -> Answers:
    """Return what a run says in which each peer has one sample a round."""
    found = [
        {"peer": peer, "variant": WHERE, "samples": {column.metric: {str(at): [v] for at, v in enumerate(rounds, 1)}}}
        for peer, rounds in cells.items()
    ]
    return Answers(question_of(column), {"cells": found})


def test_a_figure_is_the_median_of_the_medians_of_its_rounds() -> None:
    samples = {"1": [1.0, 1.0, 9.0], "2": [3.0, 3.0, 0.0], "3": [2.0, 2.0, 2.0]}
    assert figure_of(samples, US) == Figure(2.0, 1.0, 3.0, {"1": 1.0, "2": 3.0, "3": 2.0})
    worst, least = Column("us", "µs", worst=True), Column("us", "µs", worst=True, more=True)
    assert [found.value for column in (worst, least) if (found := figure_of(samples, column))] == [9.0, 0.0]
    assert figure_of({}, US) is None


def test_percentile() -> None:
    hundred = range(1, 101)
    assert [percentile([3.0], 0.99), percentile([2, 1], 0.5), percentile([1, 2, 3], 0.0)] == [3.0, 1, 1]
    assert [percentile(hundred, 0.99), percentile(hundred, 1.0)] == [99, 100]


def test_the_interval_holds_the_true_ratio_as_often_as_it_says() -> None:
    rng = random.Random(8)
    for count in (2, 3):
        inside = 0
        for _ in range(1000):
            cells = [[times * rng.lognormvariate(0, 0.05) for _ in range(count)] for times in (1, 1.2, 3, 4, 5, 6)]
            noise = Noise.of(figure_of({str(at): [v] for at, v in enumerate(cell)}, US) for cell in [*cells, [7.0]])
            assert noise.freedom == 6 * (count - 1)
            old, new = (math.exp(sum(map(math.log, cell)) / count) for cell in cells[:2])
            low, high = noise.interval(new / old, count, count)
            inside += low <= 1.2 <= high
        assert 0.93 <= inside / 1000 <= 0.97
    assert Noise.of([None, figure_of({"1": [1.0]}, US)]).interval(2.0, 1, 1) == (2.0, 2.0)


RATE = Column("rate", "a second", more=True)


@pytest.mark.parametrize(
    ("column", "ours", "theirs", "ahead", "said"),
    [
        (US, (1.0, 1.01, 0.99), (2.0, 2.02, 1.98), "ebbpool (compiled)", "**ebbpool**"),
        (US, (2.0, 2.02, 1.98), (1.0, 1.01, 0.99), "ThreadPoolExecutor", "**ThreadPoolExecutor**"),
        (US, (1.0, 1.5, 0.7), (1.1, 1.4, 0.8), "", "within the noise"),
        (RATE, (820, 821, 822), (1000, 1001, 1002), "ThreadPoolExecutor", "**ThreadPoolExecutor**"),
        (US, (1.0,), (9.0,), "", "one round"),
    ],
)
def test_who_is_ahead_is_said_whoever_it_is(
    column: Column, ours: tuple[float, ...], theirs: tuple[float, ...], ahead: str, said: str
) -> None:
    worse = [value * (0.1 if column.more else 10) for value in theirs]
    found = answers({"ebbpool": ours, "stdlib": theirs, "pebble": worse}, column)
    (contest,) = found.contests()
    assert contest.winner == ahead
    ratio = median(theirs) / median(ours)
    assert contest.ratio == pytest.approx(1 / ratio if column.more else ratio)
    assert contest.judged is (len(ours) > 1)
    assert tables.contest_rows(found)[1][5] == said


@pytest.mark.parametrize(
    ("value", "label", "said"),
    [
        (6379.605, "ms until all are done", "6.38\u00a0s"),
        (0.0776, "µs per item", "0.0776\u00a0µs"),
        (3080.0, "CPU, µs per request", "3.08\u00a0ms"),
        (136.04, "kB per task", "136\u00a0kB"),
        (130691.0, "messages/s", "131,000"),
    ],
)
def test_a_quantity_has_three_digits_and_the_unit_that_suits_it(value: float, label: str, said: str) -> None:
    assert tables.quantity(value, Column("value", label)) == said


def test_a_case_is_told_in_words() -> None:
    assert tables.in_words({"workers": 1, "loop": "asyncio"}) == "1 worker, asyncio"
    assert (
        tables.in_words({"size": 4096, "placement": "free", "offered": 1.5})
        == "4,096 bytes, free placement, 1.5 offered"
    )


def test_a_floor_is_no_rival_and_the_plain_core_does_not_stand_in_for_the_compiled() -> None:
    peers = {"loop": 0.1, "ebbpool-pure": 0.5, "ebbpool@before": 0.2, "ebbpool": 1.0, "stdlib": 2.0, "gone": 0.1}
    cells = {peer: [value] * 3 for peer, value in peers.items()}
    (contest,) = answers(cells).contests()
    assert (contest.ours.label, contest.rival.label) == ("ebbpool (compiled)", "ThreadPoolExecutor")
    assert contest.floor is not None and contest.floor.label == "a plain loop (floor)"
    del cells["ebbpool"]
    (plain,) = answers(cells).contests()
    assert plain.ours.label == "ebbpool (plain)"


def test_what_is_free_to_a_rival_is_its_best() -> None:
    cells = [
        {"peer": peer, "variant": {"workers": count}, "samples": {"us": {"1": [value]}}}
        for peer, count, value in (("ebbpool", 64, 3.0), ("stdlib", 64, 9.0), ("stdlib", 2, 2.0))
    ]
    (contest,) = Answers(question_of(US, free="workers"), {"cells": cells}).contests()
    assert (contest.rival.label, contest.ratio) == ("ThreadPoolExecutor(2)", pytest.approx(2 / 3))


def test_what_has_no_figures_says_why() -> None:
    cells = [
        {"peer": "ebbpool", "variant": WHERE, "samples": {"us": {"1": [1.0], "2": [3.0]}}, "without": []},
        {"peer": "pebble", "variant": WHERE, "samples": {}, "without": [[1, "missing", "not installed"]]},
        {"peer": "stdlib", "variant": WHERE, "samples": {}, "without": [[1, "failed", "exit status 1\nBoom"]]},
    ]
    found = Answers(question_of(US), {"cells": cells})
    assert tables.figures(found)[1:] == [
        ["workers=2", "ebbpool (compiled)", "2.00 (1.00 to 3.00)"],
        ["workers=2", "pebble", "missing: not installed"],
        ["workers=2", "ThreadPoolExecutor", "failed: exit status 1"],
    ]
    assert found.broken() == ["FAILED made_up stdlib workers=2, round 1: exit status 1\nBoom"]


def test_wrong_answers_of_ours_fail_a_run_and_those_of_rivals_do_not() -> None:
    wrong = Column("errors", "wrong replies", worst=True, wrong=True)
    cells = {"ebbpool": (0, 2, 0), "ebbpool-pure": (0, 0, 0), "ebbpool@before": (0, 1, 0), "stdlib": (7, 7, 7)}
    assert answers(cells, wrong).broken() == ["WRONG made_up ebbpool workers=2: 2 wrong replies"]
    assert answers({"ebbpool": (1, 2, 3)}).broken() == []


def test_a_run_that_is_read_again_has_the_same_figures(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run.json", ebbpool=(1.0, 1.1, 0.9), stdlib=(8.0, 8.1, 7.9))
    found = run.answers["submit_collect"]
    figure = found.figure("ebbpool", {"workers": 4}, found.column("us"))
    assert figure is not None and (figure.value, figure.low, figure.high) == (1.0, 0.9, 1.1)
    with pytest.raises(ValueError, match="format 0"):
        Run("old", {"format": 0})
    (tmp_path / "old.json").write_text(json.dumps(run.document), encoding="utf-8")
    assert main(["show", str(tmp_path / "run.json")]) == 0
    with pytest.raises(ValueError, match="a run without a name"):
        main(["show", str(tmp_path / "old.json")])


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, Run]:
    slow = (8.0, 8.1, 7.9)
    return {
        "bench": run_of(tmp_path / "bench.json", ebbpool=(1.0, 1.01, 0.99), stdlib=slow, simplequeue=(0.5, 0.5, 0.5)),
        "pinned": run_of(tmp_path / "pinned.json", ebbpool=(3.0, 3.0, 3.0), stdlib=slow),
    }


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("submit_collect ebbpool us workers=4", "1.000"),
        ("submit_collect stdlib/ebbpool us workers=4", "8.00"),
        ("submit_collect stdlib/ebbpool us:0", "8"),
        ("@pinned submit_collect ebbpool us:1 'workers=4'", "3.0"),
    ],
)
def test_a_mark_is_looked_up(runs: dict[str, Run], asked: str, expected: str) -> None:
    text = f"| it costs | <!-- = {asked} -->{expected}<!-- / --> µs |\n"
    assert marks.put_in(text, runs) == (text, [], [])
    wrong = text.replace(f">{expected}<", ">0.123<")
    corrected, different, unknown = marks.put_in(wrong, runs)
    assert corrected == text
    assert (len(different), unknown) == (1, [])
    assert different[0].startswith(f"1: '0.123' is '{expected}'")


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ("submit_collect ebbpool us workers=5", "0 variants"),
        ("submit_collect ebbpool ms", "no metric 'ms'"),
        ("submit_collect ebbpool/stdlib/simplequeue us", "cannot divide 'ebbpool/stdlib/simplequeue': 1 / 8 / 0.5"),
        ("no_such ebbpool us", "no question 'no_such'"),
        ("@nowhere submit_collect ebbpool us", "no run 'nowhere'"),
        ("submit_collect 'ebbpool", "No closing quotation"),
        ("what", "neither a figure"),
        ("table nowhere", "no table 'nowhere'"),
        ("table pebble", "lacks pebble"),
        ("table echo", "no run has bench echo"),
        ("table single", "one round"),
        ("table close", "the noise"),
    ],
)
def test_a_mark_that_means_nothing_is_named_and_a_row_that_cannot_be_judged_not_quoted(
    runs: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, complaint: str
) -> None:
    runs["single"] = run_of(tmp_path / "single.json", ebbpool=(1.0,), stdlib=(8.0,))
    runs["close"] = run_of(tmp_path / "close.json", ebbpool=(1.0, 1.2, 0.8), stdlib=(1.1, 1.3, 0.9))
    row = marks.Row("a", "submit_collect", "us", {"workers": 4}, "ebbpool", "stdlib", "stdlib")
    of = {"pebble": {"rival": "pebble"}, "echo": {"question": "echo"}, "single": {"run": "single"}}
    for name, other in (of | {"close": {"run": "close"}}).items():
        monkeypatch.setitem(marks.TABLES, name, [row._replace(**other)])
    text = f"one\nit is <!-- = {asked} -->7<!-- / -->\n"
    same, different, (unknown,) = marks.put_in(text, runs)
    assert (same, different) == (text, [])
    assert unknown.startswith("2: ") and complaint in unknown


def test_a_table_of_quoted_figures_has_intervals_and_the_rival_that_wins_first(
    runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = ("submit_collect", "us", {"workers": 4}, "ebbpool")
    rows = [marks.Row("a task", *task, rival, rival) for rival in ("stdlib", "simplequeue")]
    monkeypatch.setitem(marks.TABLES, "few", rows)
    text, _, unknown = marks.put_in("one\n\n<!-- = table few --><!-- / -->\n", runs)
    assert not unknown
    assert marks.put_in(text, runs) == (text, [], [])
    first, second = re.findall(r"\| a task \| (.*?) \|\n", text)
    assert re.fullmatch(r"\*\*0\.5\*\*, simplequeue \| 1\.0 \| 0\.50 \(0\.4\d to 0\.5\d\)", first)
    assert re.fullmatch(r"8\.0, stdlib \| \*\*1\.0\*\* \| 8\.0 \(7\.\d to 8\.\d\)", second)


def test_a_mark_without_its_end_is_named_and_one_in_a_fence_is_left_alone(runs: dict[str, Run]) -> None:
    _, _, unknown = marks.put_in("It is <!-- = submit_collect ebbpool us -->1.07\n", runs)
    assert unknown == ["1: a mark without its end"]
    fenced = "```markdown\n<!-- = submit_collect nobody us -->1.07<!-- / -->\n```\n"
    assert marks.put_in(fenced, runs) == (fenced, [], [])


@pytest.fixture
def tree(tmp_path: Path, runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of its own: README, docs and the runs."""
    (tmp_path / "docs" / "evidence").mkdir(parents=True)
    for name, kept in (("bench", "bench"), ("pinned", pages.OTHERS)):
        (tmp_path / f"{name}.json").rename(tmp_path / "docs" / "evidence" / f"{kept}.json")
    text = "It takes <!-- = submit_collect ebbpool us:1 -->9.9<!-- / --> µs\n"
    (tmp_path / "README.md").write_text(text, encoding="utf-8")
    monkeypatch.setattr(marks, "ROOT", tmp_path)
    monkeypatch.setattr(pages, "EVIDENCE", tmp_path / "docs" / "evidence")
    monkeypatch.setattr(pages, "PERFORMANCE", tmp_path / "docs" / "performance.md")
    return tmp_path


def test_the_check_fails_until_the_figures_are_written(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figures", "--check"]) == 1
    told = capsys.readouterr().err
    assert "README.md:1: '9.9' is '1.0' in the run" in told and "performance.md: not what" in told
    assert main(["figures", "--write"]) == 1
    assert "benchmarks.md: no section '## Submit trivial tasks and collect'" in capsys.readouterr().err
    questions = tree / "docs" / "performance" / "benchmarks.md"
    questions.write_text("## Submit trivial tasks and collect\n\n<!-- = rows submit_collect -->\n<!-- / -->\n")
    assert main(["figures", "--write"]) == 0
    assert main(["figures", "--check"]) == 0
    assert "*Per task; less is better.*\n\n| case | ebbpool | best rival |" in questions.read_text(encoding="utf-8")
    assert "us:1 -->1.0<" in (tree / "README.md").read_text(encoding="utf-8")
    link = "[Submit trivial tasks and collect](performance/benchmarks.md#submit-trivial-tasks-and-collect)"
    assert link in (tree / "docs" / "performance.md").read_text(encoding="utf-8")
    # What was asked again stands in place of the main run.
    run_of(tree / "asked.json", ebbpool=(2.0, 2.0), stdlib=(8.0, 8.0))
    for name in (pages.AGAIN, "pinned"):
        assert main(["publish", str(tree / "asked.json"), "--name", name]) == 0
    assert sorted(pages.committed()) == ["bench", "bench-again", "pinned"]
    assert sorted(path.stem for path in pages.EVIDENCE.iterdir()) == ["bench", "bench-again", "others"]
    assert "us:1 -->2.0<" in (tree / "README.md").read_text(encoding="utf-8")
    assert "| 2\u00a0µs |" in (tree / "docs" / "performance.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("python", "bytecode", "refused"), [("3.14 free-threading build", False, True), ("3.14", False, False)]
)
def test_what_was_taken_without_a_gil_and_without_bytecode_is_not_published(
    tree: Path, python: str, bytecode: bool, refused: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tree / "asked.json"
    run_of(path)
    [(name, document)] = json.loads(path.read_text(encoding="utf-8")).items()
    document["machine"] |= {"python": python, "bytecode": bytecode}
    path.write_text(json.dumps({name: document}), encoding="utf-8")
    with pytest.raises(SystemExit) if refused else contextlib.nullcontext():
        main(["publish", str(path), "--name", "free"])
    assert ("was taken with PYTHONDONTWRITEBYTECODE set" in capsys.readouterr().err) is refused
    assert ("free" in pages.committed()) is not refused


def test_nothing_is_measured_without_a_gil_and_without_bytecode(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(command, "FREE_THREADED", True)
    with pytest.raises(SystemExit):
        main(["submit_collect"])
    assert "cannot be run with PYTHONDONTWRITEBYTECODE set" in capsys.readouterr().err


def test_readme_and_docs_say_what_the_committed_runs_say() -> None:
    if not pages.committed():
        pytest.skip("no run is committed")
    assert marks.check(write=False) == []
    assert (ROOT / "docs" / "evidence" / "bench.json").stat().st_size < 1_000_000
