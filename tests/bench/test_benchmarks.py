"""The machinery of `benchmarks/` on tiny sizes: what it measures and reports, what it does with failures."""

from __future__ import annotations

import asyncio
import html
import json
import math
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.benchmark import ROOT, importable, question_of
from support.common import TIMEOUT, Boom

import ebbpool
from benchmarks import loop_lag
from benchmarks.__main__ import main
from benchmarks.engine import runner
from benchmarks.engine.cell import gil_enabled
from benchmarks.engine.model import (
    POOL_QUESTIONS,
    QUESTIONS,
    SERVER_QUESTIONS,
    Column,
    Question,
    Settings,
    load_question,
    percentile,
)
from benchmarks.peers import Unavailable
from benchmarks.peers.floor import BareThread, BatchedWorkers
from benchmarks.peers.peer import Peer
from benchmarks.peers.pools import BareQueue, ExecutorPool, PingPong, Pool, stdlib
from benchmarks.peers.table import BY_NAME, PEERS
from benchmarks.report import report, store

OURS = "ebbpool" if ebbpool.COMPILED else "ebbpool-pure"
PEERS_OF = dict.fromkeys(POOL_QUESTIONS, ("stdlib", OURS)) | {
    "offload": ("stdlib", OURS, "batched", "run", "own-loop", "own-loop-to-thread", "anyio", "anyio-ebbpool"),
    "anyio_tasks": ("anyio", "anyio-ebbpool", "anyio-installed"),
    "loop_lag": ("stdlib", "batched", "run"),
    "loop_beside": ("stdlib", "run", "anyio-installed"),
    "fastapi_burst": ("fastapi", "fastapi-installed"),
    "fastapi_rate": ("fastapi", "fastapi-own-loop"),
    "health_beside": ("fastapi", "fastapi-installed"),
    "simple_sum": ("stdlib", OURS, "fastthreadpool", "ebbpool-fastthreadpool"),
    "cold_map": ("stdlib", OURS),
    "semaphore": ("lock", "semaphore", "ebbpool-semaphore"),
    "timers": ("timer", OURS),
    "lanes": ("stdlib", OURS),
    "fairness": ("stdlib", OURS),
    "watching": (OURS,),
    "blocked_tasks": ("stdlib-64", "to-thread", "anyio", "gevent", "go", OURS),
    "beyond": ("simulation", "ebbpool"),
}
NEEDS = dict.fromkeys((*POOL_QUESTIONS, "simple_sum", "cold_map"), "open") | {
    "offload": "offload",
    "anyio_tasks": "offload",
    "loop_lag": "offload",
    "loop_beside": "offload",
    "semaphore": "semaphore",
    "blocked_tasks": "blocked",
}
TINY: dict[str, dict[str, Any]] = {
    "submit_collect": {"tasks": 20, "repeats": 2},
    "with_argument": {"tasks": 20, "repeats": 2},
    "round_trip": {"trips": 5, "repeats": 2},
    "map_items": {"trivial": 20, "computing": 20, "turns": 10, "repeats": 2},
    "cold_burst": {"tasks": 4, "sleep": 0.0},
    "computing": {"tasks": 4, "turns": 10},
    "sizing": {"turns": 10, "share": 0.001, "repeats": 2},
    "offload": {"gathered": 10, "single": 5, "repeats": 2},
    "anyio_tasks": {"tasks": 10, "repeats": 2},
    "loop_lag": {"calls": 150, "period": 0.001, "repeats": 1},
    "fastapi_burst": {"clients": 4, "repeats": 1},
    "loop_beside": {"turns": 10, "clients": 3, "seconds": 0.2},
    "fastapi_rate": {"clients": 3, "warm_up": 0.05, "seconds": 0.5},
    "health_beside": {"clients": 3, "warm_up": 0.05, "seconds": 0.5},
    "memory": {"tasks": 50},
    "simple_sum": {"jobs": 20, "repeats": 2},
    "cold_map": {"tasks": 4, "sleep": 0.0},
    "semaphore": {"pairs": 20, "contended": 20, "checked": 20, "repeats": 2},
    "timers": {"divisor": 100, "shots": 5, "spacing": 0.001},
    "lanes": {"slow": 10, "sleep": 0.0, "quick": 3, "pause": 0.0, "seconds": 1.0},
    "fairness": {"tasks": 200, "nap": 0.0001},
    "watching": {"waiting": 50, "looks": 3, "scrapes": 2, "repeats": 2},
    "idle_cost": {"tasks": 4, "keep_alive": 1.0, "idle": 0.05},
    "blocked_tasks": {"tasks": 4, "sleep": 0.001},
    "beyond": {"least": 0.02, "most": 100, "here": 2},
}
BROKEN = """
import os
from benchmarks.engine.model import Column, Question

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
    """Returns the exit status, the JSON and the text of the HTML report of a run."""
    status = main([*arguments, "--out", str(out)])
    (written,) = out.glob("*.json")
    found: dict[str, Any] = json.loads(written.read_text(encoding="utf-8"))
    return status, found, html.unescape(written.with_suffix(".html").read_text(encoding="utf-8"))


def cells(found: dict[str, Any], question: str, peer: str) -> list[dict[str, Any]]:
    return [cell for cell in found["questions"][question]["cells"] if cell["peer"] == peer]


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_peer_has_cells_or_a_reason(name: str) -> None:
    question = load_question(f"benchmarks.{name}")
    settings = Settings()
    assert question.name == name
    for peer in PEERS:
        chosen = question.variants(peer, settings)
        assert chosen, f"{peer.name} would vanish from {name}"
        if not isinstance(chosen, str):
            assert name not in NEEDS or getattr(peer, NEEDS[name]) is not None
    for target in question.targets(settings):
        assert {target.metric, target.rival_metric or target.metric} <= {column.metric for column in question.columns}
        sides = ((target.peer, target.where), (target.rival, target.rival_where), (target.above, target.above_where))
        for peer_name, where in sides:
            if peer_name is not None:
                assert (target.where if where is None else where) in question.variants(BY_NAME[peer_name], settings)
    assert not isinstance(question.variants(BY_NAME[question.rival[0]], settings), str)


def test_no_question_goes_untried() -> None:
    assert set(PEERS_OF) == set(TINY) == set(QUESTIONS) - set(SERVER_QUESTIONS)


def test_peers_are_named_once() -> None:
    assert len(BY_NAME) == len(PEERS) == len({peer.label for peer in PEERS})


class NoSemaphore:
    """Lets everybody in."""

    def acquire(self) -> None:
        pass

    release = acquire


@pytest.mark.parametrize(("make", "meets"), [(NoSemaphore, True), (threading.Semaphore, False)])
def test_who_does_not_exclude_is_found_out(make: Callable[[], Any], meets: bool) -> None:
    params = {"permits": 1, "pairs": 4, "contended": 4, "checked": 400, "repeats": 1}
    peer = Peer("made-up", "made up", semaphore=lambda permits: make())
    (met,) = load_question("benchmarks.semaphore").measure(peer, params)["met"]
    assert (met > 0) is meets


def test_a_wrong_sum_is_a_failure() -> None:
    class Forgetful(ExecutorPool):
        def each(self, fn: Callable[[int], object], items: Sequence[int]) -> list[Any]:
            return super().each(fn, items)[1:-1]

    peer = Peer("made-up", "made up", open=partial(Forgetful, stdlib))
    with pytest.raises(ArithmeticError, match="3 of 3 sums are wrong"):
        load_question("benchmarks.simple_sum").measure(peer, {"jobs": 20, "repeats": 2, "workers": 2})


@pytest.mark.parametrize("peer", ["loop", "simplequeue", "stdlib", "multiprocessing", OURS])
def test_pools_give_every_result(peer: str) -> None:
    build = BY_NAME[peer].open
    assert build is not None
    with build(3, 10.0) as pool:
        assert pool.burst(lambda: 7, 5) == [7] * 5
        assert pool.one(lambda: 8) == 8
        if peer != "loop":
            assert sorted(pool.each(lambda item: item + 1, range(5))) == [1, 2, 3, 4, 5]
        mapped = pool.map(lambda item: item + 1, range(5))
        assert mapped == ([[1, 2, 3, 4, 5]] if peer == "simplequeue" else [1, 2, 3, 4, 5])
        most = {"loop": 0, "multiprocessing": 3 + 3}.get(peer, 3)
        assert (0 if peer == "loop" else 1) <= pool.threads() <= most


@pytest.mark.parametrize(("name", "peer"), [(name, peer) for name in PEERS_OF for peer in PEERS_OF[name]])
def test_measures_what_its_columns_show(name: str, peer: str) -> None:
    importable(BY_NAME[peer])
    question = load_question(f"benchmarks.{name}")
    variants = question.variants(BY_NAME[peer], Settings(workers=(2,), peers=(peer,)))
    assert not isinstance(variants, str)
    variant = variants[0] | ({"workers": min(8, variants[0]["workers"])} if "workers" in variants[0] else {})
    try:
        samples = question.measure(BY_NAME[peer], variant | TINY[name])
    except Unavailable as reason:
        pytest.skip(str(reason))
    never_leaves = {"stdlib": {"shrunk"}, "timer": {"submit"}}.get(peer, set())
    not_everywhere = {"cpu"} if Path("/proc").exists() else {"cpu", "switches"}
    assert set(samples) | never_leaves | not_everywhere >= {column.metric for column in question.columns}
    for metric, values in samples.items():
        assert values, metric
        assert all(math.isfinite(value) for value in values), metric
        assert metric == "net" or min(values) >= 0
    if "errors" in samples:
        assert not any(samples["errors"])


@pytest.mark.parametrize("look", ["lane.stats()", "a scrape", "a scrape with histograms", "a scrape as text"])
def test_every_look_is_taken(look: str) -> None:
    pytest.importorskip("prometheus_client")
    assert (
        len(load_question("benchmarks.watching").measure(BY_NAME[OURS], TINY["watching"] | {"look": look})["us"]) == 2
    )


@pytest.mark.parametrize("load", ["functions", "built-ins", "map", "run", "submit", "lane"])
def test_every_load_comes_to_its_end(load: str) -> None:
    samples = load_question("benchmarks.fairness").measure(BY_NAME[OURS], TINY["fairness"] | {"load": load})
    assert all(values and min(values) >= 0 for values in samples.values())


@pytest.mark.timeout(150)
@pytest.mark.parametrize("loop", ["uvloop", "trio"])
def test_other_loops(loop: str) -> None:
    pytest.importorskip(loop)
    pytest.importorskip("anyio")
    for name, peer in (("offload", "anyio"), ("anyio_tasks", "anyio"), ("loop_lag", "stdlib")):
        if loop in BY_NAME[peer].loops:
            # In a process of its own: trio keeps its threads for a while.
            params = TINY[name] | {"loop": loop, "workers": 2}
            answer = runner.run_cell(load_question(f"benchmarks.{name}"), BY_NAME[peer], params, None, 4 * TIMEOUT)
            assert answer["status"] == "ok", answer
            assert all(answer["samples"].values())


def test_the_floors_that_take_one_at_a_time_give_every_result() -> None:
    async def main() -> list[object]:
        floor = BareThread(asyncio.get_running_loop())
        try:
            return [await floor.call(lambda at=at: at) for at in range(20)]  # type: ignore[misc]
        finally:
            floor.close()

    assert asyncio.run(asyncio.wait_for(main(), TIMEOUT)) == list(range(20))
    with PingPong(1, 10.0) as pool:
        assert [pool.one(lambda at=at: at) for at in range(20)] == list(range(20))  # type: ignore[misc]


@pytest.mark.parametrize("pool", [BareQueue, PingPong])
def test_a_floor_raises_what_a_function_raises(pool: Callable[[int, float], Pool]) -> None:
    def fail(*given: int) -> None:
        raise Boom

    with pool(2, 10.0) as each, pytest.raises(Boom):
        each.one(fail)
    if pool is BareQueue:
        with pool(2, 10.0) as each, pytest.raises(Boom):
            each.burst(fail, 20)
        with pool(2, 10.0) as each, pytest.raises(Boom):
            each.each(fail, range(20))
        with pool(2, 10.0) as each, pytest.raises(Boom):
            each.map(fail, range(2000))


def test_the_floor_of_bare_workers_takes_items_and_calls() -> None:
    with BareQueue(3, 10.0) as pool:
        assert pool.burst(lambda: 7, 20) == [7] * 20
        for _ in range(2):
            assert sorted(pool.each(lambda item: item + 1, range(200))) == list(range(1, 201))
        assert pool.threads() == 3


def test_the_floor_of_one_call_at_a_time_raises_what_a_function_raises() -> None:
    def fail() -> None:
        raise Boom

    async def main() -> object:
        floor = BareThread(asyncio.get_running_loop())
        try:
            with pytest.raises(Boom):
                await floor.call(fail)
            return await floor.call(lambda: 1)
        finally:
            floor.close()

    assert asyncio.run(asyncio.wait_for(main(), TIMEOUT)) == 1


def test_another_checkout_is_asked_in_turn_with_this(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "earlier"
    shutil.copytree(
        ROOT / "src" / "ebbpool", other / "src" / "ebbpool", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    (other / "src" / "ebbpool" / "_version.py").write_text('__version__ = "0.0.earlier"\n')
    helpers = tmp_path / "helpers"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(helpers), str(ROOT / "src")]))
    status, found, _ = bench(
        tmp_path / "out", "submit_collect", "--quick", "--workers", "2", "--beside", str(other),
        "--peers", "ebbpool-pure,stdlib",
    )  # fmt: skip
    assert status == 0
    assert str(tmp_path) not in json.dumps(found["settings"]), "where it is must not be kept"
    for peer in ("ebbpool-pure", "ebbpool-pure@earlier"):
        (cell,) = cells(found, "submit_collect", peer)
        assert cell["samples"]["us"]["1"]
    assert found["versions"]["ebbpool-pure@earlier"] == "0.0.earlier"
    assert found["versions"]["ebbpool-pure"] != "0.0.earlier"
    assert found["labels"]["ebbpool-pure@earlier"] == "ebbpool (plain), earlier"
    assert not cells(found, "submit_collect", "stdlib@earlier")
    (written,) = (tmp_path / "out").glob("*.json")
    (verdict,) = store.read(written).answers["submit_collect"].verdicts()
    assert verdict.peer == "ebbpool (plain)"
    cell_env = BY_NAME["ebbpool-pure"].of_checkout(other).env
    assert cell_env == {
        "EBBPOOL_PURE": "1",
        "PYTHONPATH": os.pathsep.join(map(str, (other / "src", helpers, ROOT / "src"))),
    }
    monkeypatch.delenv("PYTHONPATH")
    assert BY_NAME["ebbpool"].of_checkout(other).env == {"PYTHONPATH": str(other / "src")}


def test_a_checkout_that_is_none_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--beside", str(tmp_path)])
    assert f"no checkout of ebbpool: {tmp_path}" in capsys.readouterr().err


def test_the_floor_gives_every_result_and_error() -> None:
    def fail() -> None:
        raise Boom

    async def main() -> list[Any]:
        floor = BatchedWorkers(asyncio.get_running_loop(), 3)
        try:
            calls = [floor.call(lambda at=at: at) for at in range(200)]  # type: ignore[misc]
            return [*await asyncio.gather(*calls), *await asyncio.gather(floor.call(fail), return_exceptions=True)]
        finally:
            floor.close()

    *results, error = asyncio.run(asyncio.wait_for(main(), TIMEOUT))
    assert results == list(range(200))
    assert isinstance(error, Boom)


def test_the_floor_wakes_the_loop_once_for_many() -> None:
    woken, last = list[Any](), threading.Event()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        wake = loop.call_soon_threadsafe

        def counted(callback: Callable[[], object]) -> Any:
            woken.append(callback)
            return wake(callback)

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign,assignment]
        floor = BatchedWorkers(loop, 1)
        try:
            calls = [floor.call(lambda: None) for _ in range(100)] + [floor.call(last.set)]
            assert last.wait(TIMEOUT)  # the loop is held up until all have run
            await asyncio.gather(*calls)
        finally:
            floor.close()

    asyncio.run(main())
    assert 1 <= len(woken) <= 2


class ScriptedLoop:
    """Notes what is to be called later, and when."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:
        self.calls.append((delay, callback))
        return self

    def cancel(self) -> None:
        self.calls.clear()


def test_lag_counts_every_moment_of_a_stall() -> None:
    now, loop = 100.0, ScriptedLoop()
    heart = loop_lag.Heartbeat(loop, 1.0, clock=lambda: now)  # type: ignore[arg-type]
    assert [delay for delay, _ in loop.calls] == [1.0]
    now = 101.25
    loop.calls.pop()[1]()
    assert heart.lags == [0.25]
    assert loop.calls[0][0] == 0.75
    now = 106.5
    loop.calls.pop()[1]()
    assert heart.lags == [0.25, 4.5, 3.5, 2.5, 1.5, 0.5]
    assert loop.calls[0][0] == 0.5
    now = 108.0
    assert heart.cut() == [0.25, 4.5, 3.5, 2.5, 1.5, 0.5, 1.0, 0.0]
    assert heart.cut() == []
    heart.stop()
    assert not loop.calls


@pytest.mark.parametrize(
    ("samples", "share", "expected"),
    [([3.0], 0.99, 3.0), (range(1, 101), 0.99, 99), (range(1, 101), 1.0, 100), ([2, 1], 0.5, 1), ([1, 2, 3], 0.0, 1)],
)
def test_percentile(samples: list[float], share: float, expected: float) -> None:
    assert percentile(samples, share) == expected


def test_quick_round(tmp_path: Path, modules: Path) -> None:
    peers = ("stdlib", "ebbpool", "ebbpool-pure", "pebble", "asgiref")
    status, found, text = bench(
        tmp_path / "out", "submit_collect", "--quick", "--workers", "2", "--peers", ",".join(peers)
    )
    assert status == 0
    assert "plain" in found["core"]
    assert found["machine"]["gil"] is gil_enabled()
    (missing,) = cells(found, "submit_collect", "pebble")
    reason = "not installed: kept away by the test"
    assert missing["without"] == [[1, "missing", reason]]
    assert found["versions"]["pebble"] == reason and reason in text
    assert found["questions"]["submit_collect"]["not_asked"] == {"a way into another's pool: see offload": ["asgiref"]}
    run = store.read(next((tmp_path / "out").glob("*.json")))
    answers = run.answers["submit_collect"]
    rows = {row[1]: row for row in report.table(answers).rows}
    (stock,), (ours,) = (
        cells(found, "submit_collect", peer)[0]["samples"]["us"]["1"] for peer in ("stdlib", "ebbpool-pure")
    )
    assert rows["ThreadPoolExecutor"][2:4] == [f"{stock:.3f}", "1.00"]
    assert rows["ebbpool (plain)"][3] == f"{stock / ours:.2f}"
    assert f"{stock:.3f}" in text


def test_a_failing_cell_is_reported_and_the_rest_goes_on(tmp_path: Path, modules: Path) -> None:
    status, found, text = bench(
        tmp_path / "out", "extra.broken", "--rounds", "2", "--peers", "loop,stdlib,multiprocessing"
    )
    assert status == 1
    failed = cells(found, "broken", "loop")
    assert [why[:2] for why in failed[0]["without"]] == [[1, "failed"], [2, "failed"]]
    assert failed[0]["without"][0][2].endswith("ArithmeticError: broken on purpose")
    assert "loop workers=1: ArithmeticError: broken on purpose" in text
    assert "failed: ArithmeticError: broken on purpose" in text
    for peer in ("stdlib", "multiprocessing"):
        assert list(cells(found, "broken", peer)[0]["samples"]["processors"]) == ["1", "2"]


def test_a_cell_out_of_time_is_ended(modules: Path) -> None:
    question = load_question("extra.broken")
    answer = runner.run_cell(question, BY_NAME["simplequeue"], {"workers": 1}, None, timeout=0.5)
    assert answer["status"] == "timeout"
    assert "0.5 s" in answer["reason"]


def test_pin(tmp_path: Path, modules: Path) -> None:
    status, found, _ = bench(tmp_path / "out", "extra.broken", "--rounds", "1", "--peers", "stdlib", "--pin")
    assert status == 0
    if runner.pinning_available():
        assert found["settings"]["pin"] in runner.processors()
        assert found["settings"]["pinned"].startswith("every cell held to processor")
        assert cells(found, "broken", "stdlib")[0]["samples"] == {"processors": {"1": [1]}}
    else:
        assert found["settings"]["pinned"] == "not available"


def test_peers_take_turns_and_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def scripted(question: Question, peer: Peer, params: dict[str, Any], *_: object) -> dict[str, Any]:
        assert params == {"tasks": 1, "workers": 2}
        asked.append(peer.name)
        broken = {"loop": "missing", "simplequeue": "timeout", "multiprocessing": "failed"}
        if peer.name in broken:
            return {"status": broken[peer.name], "reason": "scripted"}
        return {"status": "ok", "samples": {"us": [1.0]}, "version": "1", "gil": True}

    monkeypatch.setattr(runner, "run_cell", scripted)
    names = ("loop", "simplequeue", "stdlib", "multiprocessing", "to-thread")
    settings = Settings(rounds=2, peers=names)
    plan = runner.Plan.of(question_of(Column("us", "µs")), settings)
    announced: list[str] = []
    *_, (_, outcomes) = runner.run([plan], settings, announced.append)

    assert sorted(asked[:4]) == sorted(names[:4])
    assert sorted(asked[4:]) == ["multiprocessing", "stdlib"]
    assert asked[0] != asked[4] or asked[1] != asked[5]
    assert len(announced) == len(plan.cells) * plan.rounds
    assert [found.status for found in outcomes if found.peer == "to-thread"] == ["n/a"]
    assert sum(found.broken for found in outcomes) == 3


def test_rounds_that_would_end_too_late_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def scripted(question: Question, peer: Peer, *_: object) -> dict[str, Any]:
        nonlocal now
        now += 10.0 if question.name == "slow" else 1.0
        return {"status": "ok", "samples": {"us": [1.0]}, "version": "1", "gil": True}

    monkeypatch.setattr(runner, "run_cell", scripted)
    settings = Settings(rounds=3, peers=("stdlib",))
    slow, quick = (
        runner.Plan.of(replace(question_of(Column("us", "µs")), module=f"made_up.{name}"), settings)
        for name in ("slow", "quick")
    )
    asked = runner.run([slow, quick], settings, lambda text: None, seconds=14.0, clock=lambda: now)
    rounds = [(plan.question.name, outcomes[-1].round) for plan, outcomes in asked]
    assert rounds == [("slow", 1), ("quick", 1), ("quick", 2), ("quick", 3)]


def test_the_plain_core_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def scripted(question: Question, peer: Peer, *_: object) -> dict[str, Any]:
        asked.append(peer.name)
        return {"status": "ok", "samples": {"us": [1.0]}, "version": "1", "gil": True}

    monkeypatch.setattr(runner, "run_cell", scripted)
    plan = runner.Plan.of(question_of(Column("us", "µs")), Settings(rounds=3))
    list(runner.run([plan], Settings(rounds=3), lambda text: None))
    assert (asked.count("ebbpool"), asked.count("ebbpool-pure")) == (3, 1)


@pytest.mark.parametrize(
    "arguments",
    [
        ("no_such_question",),
        ("s",),
        ("--peers", "stdlib,nobody"),
        ("--workers", "0"),
        ("--rounds", "0"),
    ],
)
def test_bad_arguments(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert arguments[-1].rpartition(",")[2] in capsys.readouterr().err
