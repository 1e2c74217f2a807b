"""The machinery of `benchmarks/` on tiny sizes: what it measures and reports, what it does with failures."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import ebbpool  # noqa: E402
from benchmarks import _report, _runner  # noqa: E402
from benchmarks.__main__ import main  # noqa: E402
from benchmarks._cell import gil_enabled  # noqa: E402
from benchmarks._model import CORE_QUESTIONS, Column, Question, Settings, Target, load_question  # noqa: E402
from benchmarks._peers import BY_NAME, PEERS, Peer  # noqa: E402

OURS = "ebbpool" if ebbpool.COMPILED else "ebbpool-pure"
TINY: dict[str, dict[str, Any]] = {
    "submit_collect": {"tasks": 20, "repeats": 2},
    "round_trip": {"trips": 5, "repeats": 2},
    "map_items": {"items": 20, "repeats": 2},
    "cold_burst": {"tasks": 4, "sleep": 0.0},
    "computing": {"tasks": 4, "turns": 10},
    "offload": {"gathered": 10, "single": 5, "repeats": 2},
    "memory": {"tasks": 50},
    "idle_cost": {"tasks": 4, "keep_alive": 0.05, "idle": 0.05},
}
BROKEN = """
import os
from benchmarks._model import Column, Question

def measure(peer, params):
    if peer.name == "loop":
        raise ArithmeticError("broken on purpose")
    if peer.name == "simplequeue":
        import threading
        threading.Event().wait()
    return {"processors": [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1]}

QUESTION = Question(
    module=__name__, title="A broken question", method="for the tests",
    columns=(Column("processors", "processors"),),
    variants=lambda peer, settings: [{"workers": 1}], sizes=lambda quick: {}, measure=measure,
)
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What every cell finds first: a pebble that cannot be imported, a question that fails."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "pebble.py").write_text("raise ImportError('kept away by the test')\n")
    (folder / "extra").mkdir()
    (folder / "extra" / "broken.py").write_text(BROKEN)
    inherited = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *([inherited] if inherited else [])]))
    monkeypatch.syspath_prepend(str(folder))
    return folder


def bench(out: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Returns the exit status, the JSON and the text of a run."""
    status = main([*arguments, "--out", str(out)])
    (written,) = out.glob("*.json")
    found: dict[str, Any] = json.loads(written.read_text(encoding="utf-8"))
    return status, found, written.with_suffix(".txt").read_text(encoding="utf-8")


def cells(found: dict[str, Any], question: str, peer: str) -> list[dict[str, Any]]:
    return [cell for cell in found["questions"][question]["cells"] if cell["peer"] == peer]


@pytest.mark.parametrize("name", CORE_QUESTIONS)
def test_every_peer_has_cells_or_a_reason(name: str) -> None:
    question = load_question(f"benchmarks.{name}")
    settings = Settings()
    assert question.name == name
    for peer in PEERS:
        chosen = question.variants(peer, settings)
        assert chosen, f"{peer.name} would vanish from {name}"
        if not isinstance(chosen, str):
            assert peer.offload if name == "offload" else peer.open
    for target in question.targets(settings):
        assert target.metric in {column.metric for column in question.columns}
        for peer_name, where in ((target.peer, target.where), (target.rival, target.rival_where)):
            if peer_name is not None:
                assert (target.where if where is None else where) in question.variants(BY_NAME[peer_name], settings)


def test_peers_are_named_once() -> None:
    assert len(BY_NAME) == len(PEERS) == len({peer.label for peer in PEERS})


@pytest.mark.parametrize("peer", ["loop", "simplequeue", "stdlib", "multiprocessing", OURS])
def test_pools_give_every_result(peer: str) -> None:
    build = BY_NAME[peer].open
    assert build is not None
    with build(3, 10.0) as pool:
        assert pool.burst(lambda: 7, 5) == [7] * 5
        assert pool.one(lambda: 8) == 8
        mapped = pool.map(lambda item: item + 1, range(5))
        assert mapped == ([[1, 2, 3, 4, 5]] if peer == "simplequeue" else [1, 2, 3, 4, 5])
        most = {"loop": 0, "multiprocessing": 3 + 3}.get(peer, 3)
        assert (0 if peer == "loop" else 1) <= pool.threads() <= most


@pytest.mark.parametrize("peer", ["stdlib", OURS])
@pytest.mark.parametrize("name", CORE_QUESTIONS)
def test_measures_what_its_columns_show(name: str, peer: str) -> None:
    question = load_question(f"benchmarks.{name}")
    variants = question.variants(BY_NAME[peer], Settings(workers=(2,)))
    assert not isinstance(variants, str)
    variant = variants[0] | {"workers": min(8, variants[0]["workers"])}
    samples = question.measure(BY_NAME[peer], TINY[name] | variant)
    never_leaves = {"shrunk"} if peer == "stdlib" else set()
    not_on_linux = set() if Path("/proc").exists() else {"switches"}
    assert set(samples) | never_leaves | not_on_linux >= {column.metric for column in question.columns}
    for metric, values in samples.items():
        assert values, metric
        assert all(math.isfinite(value) and value >= 0 for value in values), metric
        assert len(values) in (1, TINY[name].get("repeats"))


def test_quick_round(tmp_path: Path, modules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    peers = ("stdlib", "ebbpool", "ebbpool-pure", "pebble", "asgiref")
    status, found, text = bench(
        tmp_path / "out", "submit_collect", "--quick", "--workers", "2", "--peers", ",".join(peers)
    )
    assert status == 0
    printed = capsys.readouterr().out

    assert cells(found, "submit_collect", "ebbpool-pure")[0]["status"] == "ok"
    assert cells(found, "submit_collect", OURS)[0]["status"] == "ok"
    assert found["versions"]["ebbpool-pure"] == ebbpool.__version__
    assert "plain" in found["core"]
    for facts in ("python", "gil", "cpu_count"):
        assert facts in found["machine"]
    assert found["machine"]["gil"] is gil_enabled()

    (missing,) = cells(found, "submit_collect", "pebble")
    assert missing["status"] == "missing"
    assert missing["reason"] == found["versions"]["pebble"] == "not installed: kept away by the test"
    (senseless,) = cells(found, "submit_collect", "asgiref")
    assert senseless["status"] == "n/a"
    for reason in (missing["reason"], senseless["reason"]):
        assert reason in text
        assert reason in printed

    table = found["questions"]["submit_collect"]["table"]
    rows = {row[1]: row for row in table["rows"]}
    samples = cells(found, "submit_collect", "stdlib")[0]["samples"]
    assert rows["ThreadPoolExecutor"] == [
        "workers=2",
        "ThreadPoolExecutor",
        f"{samples['us'][0]:.3f}",
        "1.00",
        f"{samples['threads'][0]:.0f}",
    ]
    ours = cells(found, "submit_collect", "ebbpool-pure")[0]["samples"]
    assert rows["ebbpool (plain)"][3] == f"{samples['us'][0] / ours['us'][0]:.2f}"
    assert rows["pebble"][2:] == [missing["reason"]]
    assert _report.plain(_report.Table(**table)) in text


def test_a_failing_cell_is_reported_and_the_rest_goes_on(tmp_path: Path, modules: Path) -> None:
    status, found, text = bench(
        tmp_path / "out", "extra.broken", "--rounds", "2", "--peers", "loop,stdlib,multiprocessing"
    )
    assert status == 1
    failed = cells(found, "broken", "loop")
    assert [cell["status"] for cell in failed] == ["failed", "failed"]
    assert failed[0]["reason"].endswith("ArithmeticError: broken on purpose")
    assert "FAILED loop workers=1, round 2" in text
    assert "failed: ArithmeticError: broken on purpose" in text
    for peer in ("stdlib", "multiprocessing"):
        assert [cell["status"] for cell in cells(found, "broken", peer)] == ["ok", "ok"]


def test_a_cell_out_of_time_is_ended(modules: Path) -> None:
    question = load_question("extra.broken")
    answer = _runner.run_cell(question, BY_NAME["simplequeue"], {"workers": 1}, None, timeout=0.5)
    assert answer["status"] == "timeout"
    assert "0.5 s" in answer["reason"]


def test_pin(tmp_path: Path, modules: Path) -> None:
    status, found, _ = bench(tmp_path / "out", "extra.broken", "--rounds", "1", "--peers", "stdlib", "--pin")
    assert status == 0
    if _runner.pinning_available():
        assert found["settings"]["pin"] in _runner.processors()
        assert found["settings"]["pinned"].startswith("every cell held to processor")
        assert cells(found, "broken", "stdlib")[0]["samples"] == {"processors": [1]}
    else:
        assert found["settings"]["pinned"] == "not available"


def question_of(*columns: Column, **others: Any) -> Question:
    def unused(peer: Peer, params: object) -> dict[str, list[float]]:
        raise AssertionError("a cell was measured here")

    return Question(
        module="somewhere.made_up",
        title="Made up",
        method="by hand",
        columns=columns,
        variants=lambda peer, settings: [{"workers": 2}] if peer.open else "no pool",
        sizes=lambda quick: {"tasks": 1},
        measure=unused,
        **others,
    )


def test_peers_take_turns_and_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def scripted(question: Question, peer: Peer, params: dict[str, Any], *_: object) -> dict[str, Any]:
        assert params == {"tasks": 1, "workers": 2}
        asked.append(peer.name)
        broken = {"loop": "missing", "simplequeue": "timeout", "multiprocessing": "failed"}
        if peer.name in broken:
            return {"status": broken[peer.name], "reason": "scripted"}
        return {"status": "ok", "samples": {"us": [1.0]}, "version": "1", "gil": True}

    monkeypatch.setattr(_runner, "run_cell", scripted)
    names = ("loop", "simplequeue", "stdlib", "multiprocessing", "to-thread")
    settings = Settings(rounds=2, peers=names)
    plan = _runner.Plan.of(question_of(Column("us", "µs")), settings)
    announced: list[str] = []
    outcomes = list(_runner.run(plan, settings, announced.append))

    assert sorted(asked[:4]) == sorted(names[:4])
    assert sorted(asked[4:]) == ["multiprocessing", "stdlib"]
    assert asked[0] != asked[4] or asked[1] != asked[5]
    assert len(announced) == len(plan.cells) * plan.rounds
    assert [found.status for found in outcomes if found.peer == "to-thread"] == ["n/a"]
    assert sum(found.broken for found in outcomes) == 3


def outcome(peer: str, number: int, *samples: float, metric: str = "us", **others: Any) -> _runner.Outcome:
    return _runner.Outcome(peer, {"workers": 2}, number, "ok", samples={metric: list(samples)}, **others)


def answers_of(question: Question, outcomes: list[_runner.Outcome], pin: int | None = None) -> _report.Answers:
    settings = Settings(rounds=3, pin=pin)
    return _report.Answers(_runner.Plan.of(question, settings), settings, outcomes)


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
            Target("the other build", "ebbpool", "us", 9, where, gil=not gil_enabled()),
            Target("no rival", "ebbpool", "us", 9, where, rival="stdlib"),
            Target("none of ours", "ebbpool-pure", "us", 9, where),
        ),
    )
    outcomes = [outcome("ebbpool", 1, 1.0)]
    verdicts = [found.verdict for found in answers_of(question, outcomes).verdicts()]
    assert verdicts == ["not asked", "not asked", "not measured", "not measured"]
    assert answers_of(question, outcomes, pin=0).verdicts()[0].verdict == "holds"


def test_table_shows_spread_ratio_and_gaps() -> None:
    columns = (Column("us", "µs", 1), Column("left", "left", 0, ratio=False, empty="none left"))
    outcomes = [outcome("stdlib", number, value) for number, value in enumerate((8.0, 10.0, 12.0))]
    outcomes += [outcome("loop", 1, 2.0, gil=True)]
    table = _report.table(answers_of(question_of(*columns), outcomes))
    assert table.headers == ["variant", "peer", "µs", "x TPE", "left"]
    assert ["workers=2", "ThreadPoolExecutor", "10.0 (8.0 to 12.0)", "1.00", "none left"] in table.rows
    assert ["workers=2", "a plain loop (floor)", "2.0", "5.00", "none left"] in table.rows
    assert any("GIL was switched back on" in note for note in table.notes) is not gil_enabled()
    lines = _report.plain(table).splitlines()
    assert len({line.index(cell) for line in lines for cell in ("10.0 (", "2.0  ") if cell in line}) == 1


@pytest.mark.parametrize(("load", "warned"), [(None, False), (0.1, False), (9.0, True)])
def test_busy_machine(load: float | None, warned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_report, "load_average", lambda: load)
    monkeypatch.setattr(_report, "processors", lambda: [0, 1])
    assert ("load average 9.0 on 2 processors" in _report.busy()) is warned


@pytest.mark.parametrize(
    "arguments",
    [("no_such_question",), ("--peers", "stdlib,nobody"), ("--workers", "0"), ("--rounds", "0")],
)
def test_bad_arguments(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert arguments[-1].rpartition(",")[2] in capsys.readouterr().err
