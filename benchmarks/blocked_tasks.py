"""So many tasks that wait 50 ms, handed to each pool as its documentation recommends: when is the last one done?"""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.engine.model import Column, Params, Question, Samples, Settings, Variant
from benchmarks.peers.peer import Peer

_SOME, _MANY = {"tasks": 200}, {"tasks": 2000}
_FEW_THREADS = (
    "stdlib-default",
    "to-thread",
    "to-thread-uvloop",
    "asgiref",
    "multiprocessing",
    "plus",
    "pebble",
    "gevent-threadpool",
)
_PROC = Path("/proc/self/status")


def _status(*names: str) -> list[int]:
    """The numbers after these names in /proc/self/status; none where there is none."""
    if not _PROC.exists():
        return []
    lines = dict(line.split(":", 1) for line in _PROC.read_text().splitlines())
    return [int(lines[name].split()[0]) for name in names]


def measure(peer: Peer, params: Params) -> Samples:
    assert peer.blocked is not None
    count, seconds = params["tasks"], params["sleep"]
    before = _status("VmRSS")
    start = time.perf_counter()
    told = peer.blocked(count, seconds)
    taken = time.perf_counter() - start
    if told is not None:
        # A program of its own has its own clock and its own memory.
        return {"ms": [told["ms"]], "memory": [told["kB"] / count]}
    samples: Samples = {"ms": [taken * 1e3]}
    if before:
        samples["memory"] = [max(0, _status("VmHWM")[0] - before[0]) / count]
    return samples


def variants(peer: Peer, settings: Settings) -> list[Variant] | str:
    if peer.blocked is None:
        return "see cold_burst"
    return [_SOME] if peer.name in _FEW_THREADS else [_SOME, _MANY]


QUESTION = Question(
    module="benchmarks.blocked_tasks",
    title="Tasks that wait, each pool as it comes",
    method="from building the pool to the last result, once a process; every pool has the ceiling that it has by "
    "default, or the one it is named with; 2,000 tasks take a pool of few threads ten times as long as 200 do, by "
    "arithmetic, and it is not asked; anyio and trio: forty tokens; asyncio.to_thread: the loop's default executor; "
    "greenlets, goroutines and virtual threads wait without a thread of the system; Go and Java are programs of their "
    "own, which take the time themselves, without their start; kB: by how much resident memory grew at most, a task",
    columns=(
        Column("ms", "ms for all", 1),
        Column("memory", "kB a task", 1),
    ),
    variants=variants,
    sizes=lambda quick: {"sleep": 0.05},
    measure=measure,
    rival=("stdlib-256", "x TPE(256)"),
    floor="the 50 ms that each task waits",
    limits="up to 256 tasks the time to start a thread for each, some 60 µs; beyond that the ceiling: 2,000 tasks "
    "take eight turns of 256 threads. Greenlets, goroutines and virtual threads start no thread of the "
    "system, but all that blocks has to be written for them",
)
