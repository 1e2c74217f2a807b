"""Every question on the sizes of `--quick`: it measures what its columns show, and what has no right answer fails."""

from __future__ import annotations

import asyncio
import math
import shutil
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest import mock

import pytest
from support.benchmark import importable
from support.common import TIMEOUT, Boom

import ebbpool
from benchmarks import loops, sizing, tcp, web
from benchmarks.engine.model import QUESTIONS, Settings, load_question
from benchmarks.peers import Unavailable, ways
from benchmarks.peers.peer import Peer
from benchmarks.peers.pools import FuturesPool, Offloaded, stdlib
from benchmarks.peers.table import PEERS, peer_named

PURE = "" if ebbpool.COMPILED else "-pure"
OTHERWISE: dict[str, dict[str, Any]] = {
    "server_sizes": {"seconds": 1.0},
    "slow_clients": {"slow": 5, "seconds": 1.0, "attacked_seconds": 1.0},
    "kill_child": {"period": 2.0, "fresh": 50.0, "kept rate": 20.0},
    "overload": {"clients": 4},
}
"""What a slow machine needs more time for than `--quick` gives, or less."""
OTHERS = {"offload": "batched", "blocked_tasks": "anyio", "loop_lag": "batched", "sizing": "stdlib"}
CASES = [
    (name, peer)
    for name in QUESTIONS
    for peer in [
        next(p for p in load_question(name).peers.split() if peer_named(p).core is (not PURE) or peer_named(p).core),
        OTHERS.get(name) or next((p for p in load_question(name).peers.split() if peer_named(p).side == "rival"), ""),
    ]
    if peer
]


def test_no_question_goes_untried() -> None:
    assert {peer for name in QUESTIONS for peer in load_question(name).peers.split()} == {peer.name for peer in PEERS}


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("name", "peer"), CASES)
def test_measures_what_its_columns_show(name: str, peer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    importable(peer)
    if name == "web_server" and shutil.which("ab") is None:
        pytest.skip("ab is not installed")
    monkeypatch.setattr(web, "DEATH_SECONDS", TIMEOUT)
    monkeypatch.setattr(tcp, "MOST_TIMES", 20.0)
    question = load_question(name)
    variant = question.cells(peer, Settings(quick=True, workers=(2,)))[0]
    if isinstance(variant.get("workers"), int):
        variant = variant | {"workers": min(8, variant["workers"])}
    try:
        samples = question.measure(
            peer_named(peer), {**question.sized(quick=True), **variant, **OTHERWISE.get(name, {})}
        )
    except Unavailable as reason:
        pytest.skip(str(reason))
    only_some = {"submit", "first", "cpu", "server", "memory", "useful", "burnt"}
    assert {column.metric for column in question.columns} - set(samples) <= only_some
    for metric, values in samples.items():
        assert values and all(math.isfinite(value) for value in values), metric
        assert metric in ("net", "more_threads", "memory") or min(values) >= 0
    for metric in ("errors", "unanswered", "refused", "elsewhere"):
        assert not any(samples.get(metric, []))


def test_sizes_that_would_deadlock_or_cannot_win_are_not_tried() -> None:
    found = sizing.variants("stdlib", Settings())
    assert min(cell["threads"] for cell in found if cell["load"] == "nested") > 40
    assert "nested" not in {cell["load"] for cell in sizing.variants("betapool", Settings())}
    cells = [
        {"peer": "stdlib", "variant": {"load": "tiny", "threads": size}, "samples": {"ms": {"1": [ms]}}}
        for size, ms in ((256, 10.0), (128, 40.0))
    ]
    assert sizing.skip(cells, "stdlib", {"load": "tiny", "threads": 64}) != ""
    assert sizing.skip(cells, "stdlib", {"load": "tiny", "threads": "untuned"}) == ""
    assert sizing.skip(cells[:1], "stdlib", {"load": "tiny", "threads": 64}) == ""


@pytest.mark.parametrize(("permits", "meets"), [(1000, True), (1, False)])
def test_who_does_not_exclude_is_found_out(permits: int, meets: bool) -> None:
    params = {"permits": 1, "pairs": 4, "contended": 4, "checked": 400, "repeats": 1}
    peer = Peer("made-up", "made up", semaphore=lambda _: threading.Semaphore(permits))
    (met,) = load_question("semaphore").measure(peer, params)["met"]
    assert (met > 0) is meets


def test_a_wrong_sum_is_a_failure() -> None:
    class Forgetful(FuturesPool):
        def each(self, fn: Callable[[int], object], items: Sequence[int]) -> list[Any]:
            return super().each(fn, items)[1:-1]

    peer = Peer("made-up", "made up", open=partial(Forgetful, stdlib))
    with pytest.raises(ArithmeticError, match="3 of 3 sums are wrong"):
        load_question("simple_sum").measure(peer, {"jobs": 20, "repeats": 2, "workers": 2})


@pytest.mark.parametrize("name", ["loop", "simplequeue", "stdlib", "multiprocessing", f"ebbpool{PURE}"])
def test_pools_give_every_result_and_leave_no_thread(name: str) -> None:
    build, before = peer_named(name).open, threading.active_count()
    with build(3, 10.0) as pool:
        assert pool.burst(lambda: 7, 20) == [7] * 20
        assert pool.one(lambda: 8) == 8
    with build(3, 10.0) as pool:
        mapped = pool.map(lambda item: item + 1, range(5))
        assert mapped == ([[1, 2, 3, 4, 5]] if name == "simplequeue" else [1, 2, 3, 4, 5])
    if name != "loop":
        with build(3, 10.0) as pool:
            assert sorted(pool.each(lambda item: item + 1, range(5))) == [1, 2, 3, 4, 5]
    with Offloaded(ways.run_in_executor(stdlib), 3, 10.0) as pool:
        assert pool.burst(lambda: 7, 20) == [7] * 20
    assert threading.active_count() <= before + 1  # the timekeeper of ebbpool may stay


@pytest.mark.parametrize("floor", [ways.bare_thread, ways.batched])
def test_a_floor_of_loops_gives_every_result_and_error(floor: ways.Offload) -> None:
    def fail() -> None:
        raise Boom

    async def go() -> list[Any]:
        async with floor(3) as call:
            calls = [call(lambda at=at: at) for at in range(200)]
            return [*await asyncio.gather(*calls), *await asyncio.gather(call(fail), return_exceptions=True)]

    *results, error = asyncio.run(asyncio.wait_for(go(), TIMEOUT))
    assert results == list(range(200))
    assert isinstance(error, Boom)


def test_lag_counts_every_moment_of_a_stall() -> None:
    now, loop = 100.0, mock.Mock()
    heart = loops.Heartbeat(loop, 1.0, clock=lambda: now)
    now = 101.25
    loop.call_later.call_args.args[1]()
    assert heart.lags == [0.25]
    assert loop.call_later.call_args.args[0] == 0.75
    now = 106.5
    loop.call_later.call_args.args[1]()
    assert heart.lags == [0.25, 4.5, 3.5, 2.5, 1.5, 0.5]
    now = 108.0
    assert heart.cut() == [0.25, 4.5, 3.5, 2.5, 1.5, 0.5, 1.0, 0.0]
    assert heart.cut() == []
