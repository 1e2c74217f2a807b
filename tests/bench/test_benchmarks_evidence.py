"""What a run is quoted by: what moved, who is ahead, and whether README and docs say what the samples say."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from support.benchmark import ROOT

from benchmarks import beyond
from benchmarks.__main__ import main
from benchmarks.engine.cell import gil_enabled
from benchmarks.engine.model import Settings, load_question
from benchmarks.engine.runner import Outcome, Plan
from benchmarks.native import java_version
from benchmarks.peers.table import BY_NAME
from benchmarks.report import compare, figures, pages, report, store

WHERE = {"workers": 4}


def outcomes(peer: str, *rounds: float, metric: str = "us") -> list[Outcome]:
    return [
        Outcome(peer, WHERE, at, "ok", samples={metric: [value]}, version="1") for at, value in enumerate(rounds, 1)
    ]


def run_of(folder: Path, *found: list[Outcome], name: str = "bench", asked: str = "submit_collect") -> store.Run:
    """A run of one question that was written and read again."""
    question = load_question(f"benchmarks.{asked}")
    flat = [each for group in found for each in group]
    cells = [(BY_NAME[peer], WHERE) for peer in dict.fromkeys(each.peer for each in flat)]
    settings = Settings(workers=(4,))
    answers = report.Answers(Plan(question, {"tasks": 1}, cells, [], 3), settings, flat)
    path = folder / f"{name}.json"
    store.save(path, store.document(store.machine(), settings, [answers], "no"))
    return store.read(path)


@pytest.mark.parametrize(
    ("t", "freedom", "p"),
    [(2.776445, 4, 0.05), (2.228139, 10, 0.05), (12.7062, 1, 0.05), (0, 3, 1), (4.604095, 4, 0.01)],
)
def test_students_t_is_that_of_the_tables(t: float, freedom: float, p: float) -> None:
    assert compare.two_sided(t, freedom) == pytest.approx(p, rel=1e-4)
    if 0 < p < 1:
        assert compare.quantile(freedom, p) == pytest.approx(t, rel=1e-4)


def test_the_interval_has_the_true_ratio_in_it_as_often_as_it_says() -> None:
    rng = random.Random(7)
    inside = 0
    for _ in range(1000):
        old = [rng.lognormvariate(0, 0.05) for _ in range(3)]
        new = [1.2 * rng.lognormvariate(0, 0.05) for _ in range(3)]
        found = compare.ratio_of(new, old)
        assert found is not None
        inside += found.low <= 1.2 <= found.high
    assert 0.93 <= inside / 1000 <= 0.99


def test_the_noise_of_all_cells_holds_the_true_ratio_as_often_as_it_says() -> None:
    rng = random.Random(8)
    inside = 0
    for _ in range(1000):
        old, new, *others = [[times * rng.lognormvariate(0, 0.05) for _ in range(2)] for times in (1, 1.2, 3, 4, 5, 6)]
        noise = compare.Noise.of([old, new, *others, [7.0]])
        assert noise is not None and noise.freedom == 6
        low, high = noise.interval(math.prod(new) ** 0.5 / math.prod(old) ** 0.5, 2, 2)
        inside += low <= 1.2 <= high
    assert 0.93 <= inside / 1000 <= 0.97
    assert compare.Noise.of([[1.0], [2.0]]) is None


@pytest.mark.parametrize(("own", "other"), [([1.0], [2.0, 3.0]), ([0.0, 1.0], [1.0, 2.0]), ([1.0, 2.0], [3.0])])
def test_what_cannot_be_told_from_noise_is_not_judged(own: list[float], other: list[float]) -> None:
    assert compare.ratio_of(own, other) is None


def test_figures_without_any_spread_are_compared_as_they_are() -> None:
    same, twice = compare.ratio_of([160.0] * 3, [160.0] * 3), compare.ratio_of([160.0] * 3, [80.0] * 3)
    assert same is not None and (same.value, same.p) == (1.0, 1.0)
    assert twice is not None and (twice.low, twice.value, twice.high, twice.p) == (2.0, 2.0, 2.0, 0.0)


def test_of_many_figures_without_a_change_hardly_one_moves() -> None:
    assert compare.discoveries([0.04, 0.5, 0.6, 0.9]) == -1.0
    assert compare.discoveries([0.001, 0.02, 0.6, 0.9]) == 0.02
    rng = random.Random(3)
    ps = [rng.random() for _ in range(1000)]
    assert sum(p <= compare.discoveries(ps) for p in ps) == 0
    assert sum(p <= compare.discoveries([*ps, *[1e-6] * 50]) for p in ps) <= 5


def test_compare_says_what_moved_and_how_the_machine_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_of(tmp_path, outcomes("ebbpool", 1.0, 1.01, 0.99), outcomes("stdlib", 8.0, 8.1, 7.9), name="old")
    run_of(tmp_path, outcomes("ebbpool", 2.0, 2.01, 1.99), outcomes("stdlib", 8.1, 7.9, 8.0), name="new")
    assert main(["compare", str(tmp_path / "old.json"), str(tmp_path / "new.json")]) == 0
    told = capsys.readouterr().out
    assert "2 figures in both runs, 2 of them with rounds to judge by; 1 moved" in told
    assert "what is not ebbpool got worse 1.000 times" in told
    (moved,) = [line for line in told.splitlines() if line.startswith(("WORSE", "better"))]
    assert moved.startswith("WORSE   2.000") and "ebbpool (compiled): µs a task 1 -> 2" in moved


def test_a_run_that_is_read_again_has_the_same_figures_and_verdicts(tmp_path: Path) -> None:
    run = run_of(tmp_path, outcomes("ebbpool", 1.0, 1.1, 0.9), outcomes("stdlib", 8.0, 8.1, 7.9))
    again = run.answers["submit_collect"]
    column = again.question.columns[0]
    figure = again.figure("ebbpool", WHERE, column)
    assert figure is not None and (figure.value, figure.low, figure.high) == (1.0, 0.9, 1.1)
    # 14 times was asked for, and 8 times was reached; of the floor there is no figure, and it is asked of a GIL alone.
    other = "not measured" if gil_enabled() else "not asked"
    assert [verdict.verdict for verdict in again.verdicts()] == ["MISSED", other]
    assert store.read(tmp_path / "bench.json").answers["submit_collect"].verdicts() == again.verdicts()


def test_a_run_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"format": 0}))
    with pytest.raises(ValueError, match="format 0"):
        store.read(path)


@pytest.mark.parametrize(
    ("ours", "theirs", "ahead", "said"),
    [
        ((1.0, 1.01, 0.99), (2.0, 2.02, 1.98), "ebbpool (compiled)", "**ebbpool** is ahead in 1 of 1"),
        ((2.0, 2.02, 1.98), (1.0, 1.01, 0.99), "ThreadPoolExecutor", "**ThreadPoolExecutor** is ahead (workers=4"),
        ((1.0, 1.5, 0.7), (1.1, 1.4, 0.8), "", "1 is within the noise"),
    ],
)
def test_who_is_ahead_is_said_whoever_it_is(
    tmp_path: Path, ours: tuple[float, ...], theirs: tuple[float, ...], ahead: str, said: str
) -> None:
    run = run_of(tmp_path, outcomes("ebbpool", *ours), outcomes("stdlib", *theirs), outcomes("pebble", 9.0, 9.0, 9.1))
    answers = run.answers["submit_collect"]
    (contest,) = answers.contests()
    assert contest.winner == ahead
    assert contest.ratio == pytest.approx(theirs[0] / ours[0])
    assert said in pages.lead(answers)
    assert ("takes 2.00 times as much" in pages.lead(answers)) is (ahead == "ThreadPoolExecutor")
    assert f"**{ahead and ahead.removesuffix(' (compiled)')}**" in pages.contest_table(answers) or not ahead


def test_a_rate_is_better_when_it_is_more(tmp_path: Path) -> None:
    where = {"handler": "sleeps 10 ms"}
    question = load_question("benchmarks.waiting")
    cells = [(BY_NAME["tcp-ebbpool"], where), (BY_NAME["tcp-gevent"], where)]
    found = [
        Outcome(peer, where, at, "ok", samples={"rate": [value * (1 + at / 1000)]})
        for peer, value in (("tcp-ebbpool", 820.0), ("tcp-gevent", 1000.0))
        for at in range(3)
    ]
    answers = report.Answers(Plan(question, {}, cells, [], 3), Settings(), found)
    (contest,) = answers.contests()
    assert contest.ratio == pytest.approx(0.82)
    assert contest.winner == "gevent StreamServer (a greenlet a connection)"
    assert "ebbpool reaches 0.82 of it" in pages.lead(answers)


def test_a_floor_is_no_rival_and_the_plain_core_does_not_stand_in_for_the_compiled(tmp_path: Path) -> None:
    run = run_of(
        tmp_path,
        outcomes("loop", 0.1, 0.1, 0.1),
        outcomes("ebbpool-pure", 0.5, 0.5, 0.5),
        outcomes("ebbpool", 1.0, 1.0, 1.0),
        outcomes("stdlib", 2.0, 2.0, 2.0),
    )
    (contest,) = run.answers["submit_collect"].contests()
    assert (contest.ours.label, contest.rival.label) == ("ebbpool (compiled)", "ThreadPoolExecutor")
    assert contest.floor is not None and contest.floor.label == "a plain loop (floor)"


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, store.Run]:
    slow = outcomes("stdlib", 8.0, 8.1, 7.9)
    return {
        "bench": run_of(tmp_path, outcomes("ebbpool", 1.0, 1.01, 0.99), slow, outcomes("simplequeue", 0.5, 0.5, 0.5)),
        "pinned": run_of(tmp_path, outcomes("ebbpool", 3.0, 3.0, 3.0), slow, name="pinned"),
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
def test_a_mark_is_looked_up(runs: dict[str, store.Run], asked: str, expected: str) -> None:
    if "machine" in asked:
        expected = runs["bench"].machine["python"].split()[0]
    text = f"| it costs | <!-- = {asked} -->{expected}<!-- / --> µs |\n"
    assert figures.put_in(text, runs) == (text, [], [])
    wrong = text.replace(f">{expected}<", ">0.123<")
    corrected, different, unknown = figures.put_in(wrong, runs)
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
def test_a_mark_that_means_nothing_is_named(runs: dict[str, store.Run], asked: str, complaint: str) -> None:
    text = f"one\nit is <!-- = {asked} -->7<!-- / -->\n"
    same, different, (unknown,) = figures.put_in(text, runs)
    assert (same, different) == (text, [])
    assert unknown.startswith("2: ") and complaint in unknown


@pytest.mark.parametrize("before", ["", "  ", "- ", "3. ", "> * "])
def test_a_line_that_begins_with_a_mark_is_named(runs: dict[str, store.Run], before: str) -> None:
    text = f"one\n{before}<!-- = submit_collect ebbpool us -->1.000<!-- / --> µs\n"
    assert figures.put_in(text, runs) == (text, [], ["2: a line of text that begins with a mark"])
    fenced = f"```markdown\n{text}```\n"
    assert figures.put_in(fenced, runs) == (fenced, [], [])


def test_a_table_of_contests_may_stand_between_two_lines(runs: dict[str, store.Run]) -> None:
    text, _, unknown = figures.put_in("one\n\n<!-- = contests submit_collect --><!-- / -->\n", runs)
    assert not unknown
    assert figures.put_in(text, runs) == (text, [], [])


def test_a_figure_below_its_floor_is_not_divided(runs: dict[str, store.Run]) -> None:
    asked = "submit_collect simplequeue/stdlib us above=ebbpool"
    _, _, (unknown,) = figures.put_in(f"It is <!-- = {asked} -->1<!-- / -->.\n", runs)
    assert unknown == "1: cannot divide 'simplequeue/stdlib': -0.5 / 7"


def test_a_mark_without_its_end_is_named_and_one_in_a_fence_is_left_alone(runs: dict[str, store.Run]) -> None:
    _, _, unknown = figures.put_in("It is <!-- = submit_collect ebbpool us -->1.07\n", runs)
    assert unknown == ["1: a mark without its end"]
    fenced = "```markdown\n<!-- = submit_collect nobody us -->1.07<!-- / -->\n```\n"
    assert figures.put_in(fenced, runs) == (fenced, [], [])


@pytest.fixture
def tree(tmp_path: Path, runs: dict[str, store.Run], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of its own: README, docs and the runs."""
    (tmp_path / "docs" / "evidence").mkdir(parents=True)
    for name in runs:
        (tmp_path / f"{name}.json").rename(tmp_path / "docs" / "evidence" / f"{name}.json")
    text = "It takes <!-- = submit_collect ebbpool us:1 -->9.9<!-- / --> µs\n"
    (tmp_path / "README.md").write_text(text, encoding="utf-8")
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(pages, "EVIDENCE", tmp_path / "docs" / "evidence")
    monkeypatch.setattr(pages, "PERFORMANCE", tmp_path / "docs" / "performance.md")
    return tmp_path


def test_the_check_fails_until_the_figures_are_written(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figures", "--check"]) == 1
    told = capsys.readouterr().err
    assert "README.md:1: '9.9' is '1.0' in the run" in told and "docs/performance.md:1: not what" in told
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
    page = (tree / "docs" / "evidence" / "bench.html").read_text(encoding="utf-8")
    assert "ThreadPoolExecutor" in page and "http://" not in page.replace("http://www.w3.org", "")
    assert main(["figures", "--check"]) == 0


def test_readme_and_docs_say_what_the_committed_runs_say() -> None:
    if not pages.committed():
        pytest.skip("no run is committed")
    assert figures.check(write=False) == []
    assert (ROOT / "docs" / "evidence" / "bench.json").stat().st_size < 1_000_000


@pytest.mark.parametrize(
    ("text", "version"),
    [('openjdk version "17.0.15"', 17), ("javac 21.0.2", 21), ('java version "1.8.0_1"', 8), ("?", 0)],
)
def test_the_version_of_a_java(text: str, version: int) -> None:
    assert java_version(text) == version


def test_a_question_is_found_by_how_its_name_begins(capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.__main__ import arguments

    asked: Any = arguments(["submit", "map"])
    assert asked.modules == ["benchmarks.submit_collect", "benchmarks.map_items"]
    with pytest.raises(SystemExit):
        arguments(["fast"])
    assert "could be fastapi_burst, fastapi_rate" in capsys.readouterr().err


@pytest.mark.parametrize("kind", beyond.SERVICES)
def test_services_of_every_kind_have_one_mean(kind: str) -> None:
    rng = random.Random(5)
    taken = sorted(beyond.service(kind, 2.0, rng) for _ in range(200_000))
    # The few longest of Pareto's have no finite variance: what is compared is the rest, by its own arithmetic.
    expected = {"Pareto": 2.0 - 3 * (2 / 3) * 0.001 ** (1 / 3)}.get(kind, 2.0)
    kept = taken[: round(len(taken) * 0.999)] if kind == "Pareto" else taken
    assert sum(kept) / len(taken) == pytest.approx(expected, rel=0.02)


def test_the_simulated_pool_meets_littles_law() -> None:
    params = {"rate": 1000, "threads": 64, "service": "constant", "processors": 8, "checked": False, "here": 2}
    samples = beyond.measure(BY_NAME["simulation"], params | {"least": 1.0, "most": 100})
    assert 0.7 * 64 <= samples["threads"][0] <= 64
    assert samples["p50"][0] < 1.0


def test_a_quick_run_asks_the_first_and_the_last() -> None:
    question = load_question("benchmarks.offload")
    cells = question.variants(BY_NAME["stdlib"], Settings(quick=True))
    assert question.chosen(BY_NAME["stdlib"], Settings(quick=True)) == [cells[0], cells[-1]]
    assert question.chosen(BY_NAME["stdlib"], Settings()) == cells
