"""Whether README and docs say what the samples say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.benchmark import ROOT, run_of

from benchmarks.__main__ import main
from benchmarks.engine.results import Run
from benchmarks.report import marks, pages, quoted


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
        ("submit_collect ebbpool us:1", "1.0"),
        ("submit_collect stdlib/ebbpool us workers=4", "8.00"),
        ("submit_collect stdlib/ebbpool us:0", "8"),
        ("submit_collect ebbpool/stdlib us:3 above=simplequeue workers=4", "0.067"),
        ("submit_collect ebbpool us above=simplequeue", "0.500"),
        ("submit_collect ebbpool/stdlib us:3 over:workers=4", "0.125"),
        ("@pinned submit_collect ebbpool us:1 'workers=4'", "3.0"),
        ("machine python", ""),
    ],
)
def test_a_mark_is_looked_up(runs: dict[str, Run], asked: str, expected: str) -> None:
    if "machine" in asked:
        expected = runs["bench"].document["machine"]["python"].split()[0]
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
        ("submit_collect nobody us", "0 variants"),
        ("submit_collect ebbpool ms", "no metric 'ms'"),
        ("submit_collect ebbpool us above=nothing", "0 variants of 'nothing'"),
        ("submit_collect ebbpool/stdlib us workers=4 over:workers=5", "0 variants of 'stdlib'"),
        ("submit_collect ebbpool us over:workers=4", "divided"),
        ("submit_collect ebbpool/stdlib us above=simplequeue over:workers=4", "divided"),
        ("no_such ebbpool us", "no question 'no_such'"),
        ("@nowhere submit_collect ebbpool us", "no run 'nowhere'"),
        ("machine colour", "nothing is known of 'colour'"),
        ("submit_collect 'ebbpool", "No closing quotation"),
        ("what", "neither a figure"),
    ],
)
def test_a_mark_that_means_nothing_is_named(runs: dict[str, Run], asked: str, complaint: str) -> None:
    text = f"one\nit is <!-- = {asked} -->7<!-- / -->\n"
    same, different, (unknown,) = marks.put_in(text, runs)
    assert (same, different) == (text, [])
    assert unknown.startswith("2: ") and complaint in unknown


@pytest.mark.parametrize("before", ["", "  ", "- ", "3. ", "> * "])
def test_a_line_that_begins_with_a_mark_is_named(runs: dict[str, Run], before: str) -> None:
    text = f"one\n{before}<!-- = submit_collect ebbpool us -->1.000<!-- / --> µs\n"
    assert marks.put_in(text, runs) == (text, [], ["2: a line of text that begins with a mark"])
    fenced = f"```markdown\n{text}```\n"
    assert marks.put_in(fenced, runs) == (fenced, [], [])


def test_a_table_of_contests_may_stand_between_two_lines(runs: dict[str, Run]) -> None:
    text, _, unknown = marks.put_in("one\n\n<!-- = contests submit_collect --><!-- / -->\n", runs)
    assert not unknown
    assert marks.put_in(text, runs) == (text, [], [])


def test_a_table_of_quoted_figures_has_intervals_and_the_rival_that_wins_first(
    runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = ("submit_collect", "us", {"workers": 4}, "ebbpool")
    rows = [quoted.Row("a task", *task, rival, rival) for rival in ("stdlib", "simplequeue")]
    monkeypatch.setitem(quoted.TABLES, "few", rows)
    text, _, unknown = marks.put_in("one\n\n<!-- = table few --><!-- / -->\n", runs)
    assert not unknown
    assert marks.put_in(text, runs) == (text, [], [])
    first, second = re.findall(r"\| a task \| (.*?) \|\n", text)
    assert re.fullmatch(r"\*\*0\.5\*\*, simplequeue \| 1\.0 \| 0\.50 \(0\.4\d to 0\.5\d\)", first)
    assert re.fullmatch(r"8\.0, stdlib \| \*\*1\.0\*\* \| 8\.0 \(7\.\d to 8\.\d\)", second)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (quoted.Row("a", "submit_collect", "us", {"workers": 4}, "ebbpool", "pebble", "pebble"), "lacks pebble"),
        (quoted.Row("a", "echo", "us", {}, "ebbpool", "stdlib", "stdlib"), "no run has bench echo"),
        (quoted.Row("a", "submit_collect", "us", {"workers": 4}, "ebbpool", "stdlib", "stdlib", "single"), "one round"),
    ],
)
def test_a_figure_that_cannot_be_judged_is_not_quoted(
    runs: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: quoted.Row, complaint: str
) -> None:
    runs["single"] = run_of(tmp_path / "single.json", ebbpool=(1.0,), stdlib=(8.0,))
    monkeypatch.setitem(quoted.TABLES, "few", [row])
    _, _, (unknown,) = marks.put_in("It is <!-- = table few --><!-- / -->\n", runs)
    assert complaint in unknown


def test_a_figure_below_its_floor_is_not_divided(runs: dict[str, Run]) -> None:
    asked = "submit_collect simplequeue/stdlib us above=ebbpool"
    _, _, (unknown,) = marks.put_in(f"It is <!-- = {asked} -->1<!-- / -->.\n", runs)
    assert unknown == "1: cannot divide 'simplequeue/stdlib': -0.5 / 7"


def test_a_mark_without_its_end_is_named_and_one_in_a_fence_is_left_alone(runs: dict[str, Run]) -> None:
    _, _, unknown = marks.put_in("It is <!-- = submit_collect ebbpool us -->1.07\n", runs)
    assert unknown == ["1: a mark without its end"]
    fenced = "```markdown\n<!-- = submit_collect nobody us -->1.07<!-- / -->\n```\n"
    assert marks.put_in(fenced, runs) == (fenced, [], [])


@pytest.fixture
def tree(tmp_path: Path, runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of its own: README, docs and the runs."""
    (tmp_path / "docs" / "evidence").mkdir(parents=True)
    for name in runs:
        (tmp_path / f"{name}.json").rename(tmp_path / "docs" / "evidence" / f"{name}.json")
    text = "It takes <!-- = submit_collect ebbpool us:1 -->9.9<!-- / --> µs\n"
    (tmp_path / "README.md").write_text(text, encoding="utf-8")
    monkeypatch.setattr(marks, "ROOT", tmp_path)
    monkeypatch.setattr(pages, "EVIDENCE", tmp_path / "docs" / "evidence")
    monkeypatch.setattr(pages, "PERFORMANCE", tmp_path / "docs" / "performance.md")
    return tmp_path


def test_the_check_fails_until_the_figures_are_written(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figures", "--check"]) == 1
    told = capsys.readouterr().err
    assert "README.md:1: '9.9' is '1.0' in the run" in told and "docs/performance.md: not what" in told
    assert main(["figures", "--write"]) == 0
    assert main(["figures", "--check"]) == 0
    assert (
        (tree / "README.md")
        .read_text(encoding="utf-8")
        .startswith("It takes <!-- = submit_collect ebbpool us:1 -->1.0<")
    )
    assert "Submit trivial tasks" in (tree / "docs" / "performance.md").read_text(encoding="utf-8")


def test_what_is_published_is_what_was_measured(tree: Path) -> None:
    kept = tree / "docs" / "evidence" / "bench.json"
    before = kept.read_bytes()
    assert main(["publish", str(kept)]) == 0
    assert kept.read_bytes() == before
    assert main(["figures", "--check"]) == 0


def test_readme_and_docs_say_what_the_committed_runs_say() -> None:
    if not pages.committed():
        pytest.skip("no run is committed")
    assert marks.check(write=False) == []
    assert (ROOT / "docs" / "evidence" / "bench.json").stat().st_size < 1_000_000
