"""Running questions: a process a cell, the peers in turn, what fails and what is late; and the command line."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from support.benchmark import ROOT, question_of

from benchmarks.__main__ import main
from benchmarks.engine import runner
from benchmarks.engine.model import QUESTIONS, Column, Settings
from benchmarks.peers.peer import Peer
from benchmarks.peers.table import peer_named

BROKEN = """
import os, threading
from benchmarks.engine.model import Column, Question

@Question(
    title="A broken question", peers="loop stdlib pebble",
    columns=(Column("processors", "processors"),), variants=({"workers": 1},),
)
def broken(peer, params):
    if peer.name == "loop":
        raise ArithmeticError("broken on purpose")
    if peer.name == "simplequeue":
        threading.Event().wait()
    return {"processors": [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1]}
"""
OK = {"status": "ok", "samples": {"us": [1.0]}, "version": "1", "gil": True}


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What every cell finds first: a pebble that cannot be imported, a question that fails."""
    (tmp_path / "pebble.py").write_text("raise ImportError('kept away by the test')\n")
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "import benchmarks.engine.model\nbenchmarks.engine.model.QUESTIONS['broken'] = 'broken'\n"
        f"benchmarks.__path__.append({str(tmp_path)!r})\n"
    )
    (tmp_path / "broken.py").write_text(BROKEN)
    inherited = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *([inherited] if inherited else [])]))
    import benchmarks

    monkeypatch.setattr(benchmarks, "__path__", [*benchmarks.__path__, str(tmp_path)])
    monkeypatch.setitem(QUESTIONS, "broken", "broken")
    monkeypatch.delitem(sys.modules, "benchmarks.broken", raising=False)


def bench(out: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    status = main([*arguments, "--out", str(out)])
    (written,) = out.glob("*.json")
    (found,) = json.loads(written.read_text(encoding="utf-8")).values()
    return status, found


def cell(found: dict[str, Any], question: str, peer: str) -> dict[str, Any]:
    (one,) = [cell for cell in found["questions"][question]["cells"] if cell["peer"] == peer]
    return dict(one)


def test_a_failing_cell_is_reported_and_the_rest_goes_on(
    tmp_path: Path, broken: None, capsys: pytest.CaptureFixture[str]
) -> None:
    status, found = bench(tmp_path / "out", "broken", "--rounds", "2")
    assert status == 1
    failed = cell(found, "broken", "loop")["without"]
    assert [why[:2] for why in failed] == [[1, "failed"], [2, "failed"]]
    assert failed[0][2].endswith("ArithmeticError: broken on purpose")
    assert list(cell(found, "broken", "stdlib")["samples"]["processors"]) == ["1", "2"]
    assert cell(found, "broken", "pebble")["without"] == [[1, "missing", "not installed: kept away by the test"]]
    assert found["versions"]["pebble"] == "not installed: kept away by the test"
    assert "ArithmeticError: broken on purpose" in capsys.readouterr().out


def test_a_cell_out_of_time_is_ended(broken: None) -> None:
    answer = runner.run_cell("broken", peer_named("simplequeue"), {"workers": 1}, None, timeout=0.5)
    assert answer["status"] == "timeout"
    assert "0.5 s" in answer["reason"]


def test_peers_take_turns_and_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {"loop": "missing", "simplequeue": "timeout", "multiprocessing": "failed"}
    asked: list[str] = []

    def run_cell(question: str, peer: Peer, *_: object) -> dict[str, Any]:
        asked.append(peer.name)
        return {"status": broken[peer.name], "reason": "scripted"} if peer.name in broken else OK

    monkeypatch.setattr(runner, "run_cell", run_cell)
    names = ("loop", "simplequeue", "stdlib", "multiprocessing")
    announced: list[str] = []
    list(runner.run([question_of(Column("us", "µs"))], Settings(rounds=2, peers=names), announced.append, 1e9))
    assert sorted(asked[:4]) == sorted(names)
    assert sorted(asked[4:]) == ["multiprocessing", "stdlib"]
    assert asked[0] != asked[4]
    assert len(announced) == 2 * len(names)


def test_another_checkout_is_asked_in_turn_with_this(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "earlier"
    shutil.copytree(
        ROOT / "src" / "ebbpool", other / "src" / "ebbpool", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    (other / "src" / "ebbpool" / "_version.py").write_text('__version__ = "0.0.earlier"\n')
    helpers = tmp_path / "helpers"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(helpers), str(ROOT / "src")]))
    asked = ["submit_collect", "--quick", "--workers", "2", "--peers", "ebbpool-pure,stdlib", "--beside"]
    status, found = bench(tmp_path / "out", *asked, str(other))
    assert status == 0
    assert str(tmp_path) not in json.dumps(found["settings"]), "where it is must not be kept"
    for peer in ("ebbpool-pure", "ebbpool-pure@earlier"):
        assert cell(found, "submit_collect", peer)["samples"]["us"]["1"]
    assert found["versions"]["ebbpool-pure@earlier"] == "0.0.earlier"
    assert found["versions"]["ebbpool-pure"] != "0.0.earlier"
    peers = [cell["peer"] for cell in found["questions"]["submit_collect"]["cells"]]
    assert sorted(peers) == ["ebbpool-pure", "ebbpool-pure@earlier", "stdlib"]
    assert peer_named("ebbpool-pure@earlier").label == "ebbpool (plain), earlier"
    assert peer_named("ebbpool-pure").of_checkout(other).env == {
        "EBBPOOL_PURE": "1",
        "PYTHONPATH": os.pathsep.join(map(str, (other / "src", helpers, ROOT / "src"))),
    }
