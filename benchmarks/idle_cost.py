"""A pool after its load: how soon are its threads gone, how many stay, and does it ever wake up again?

The idle process is watched from outside, while its main thread blocks in a read: so that thread is counted
too, and watching adds nothing. Linux only; elsewhere only the threads are counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from benchmarks import ROOT
from benchmarks.engine.model import Column, Params, Question, Samples, Target, always
from benchmarks.peers.peer import Peer
from ebbpool._pool.timekeeper import NAME as TIMEKEEPER

_KEEP_ALIVE_SECONDS = 1.0
_OURS = "ebbpool ebbpool-pure"
_PROC = Path("/proc")
_PATIENCE_SECONDS = 1.0


def _switches(pid: int) -> dict[str, int]:
    """Context switches so far, voluntary and not, of every thread of process `pid`."""
    found = {}
    for task in (_PROC / str(pid) / "task").iterdir():
        lines = (task / "status").read_text().splitlines()
        found[task.name] = sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
    return found


def watch(pid: int, seconds: float) -> int:
    """Return the context switches of process `pid` in `seconds`; of a new thread, all it had."""
    time.sleep(0.2)
    before = _switches(pid)
    time.sleep(seconds)
    return sum(now - before.get(task, 0) for task, now in _switches(pid).items())


def _threads() -> int:
    """Threads of this process, ebbpool's timekeeper (one for all pools) aside."""
    own = _PROC / "self" / "task"
    count = len(os.listdir(own)) if own.exists() else threading.active_count()
    return count - sum(thread.name == TIMEKEEPER for thread in threading.enumerate())


def measure(peer: Peer, params: Params) -> Samples:
    assert peer.open is not None
    keep_alive, before = params["keep_alive"], _threads()
    samples: Samples = {}
    with peer.open(params["workers"], keep_alive) as pool:
        pool.burst(lambda: pool.sleep(0.02), params["tasks"])
        start = time.perf_counter()
        most = left = max(0, _threads() - before)
        while left and time.perf_counter() - start < keep_alive + _PATIENCE_SECONDS:
            time.sleep(0.01)
            if (now := max(0, _threads() - before)) < left:
                samples["shrunk"] = [time.perf_counter() - start]
            left = now
        samples |= {"most": [most], "left": [left]}
        if _PROC.exists():
            command = [sys.executable, "-m", "benchmarks.idle_cost", str(os.getpid()), str(params["idle"])]
            watched = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
            samples["switches"] = [json.loads(watched.stdout)]
    return samples


_PEERS = (
    "simplequeue", "ebbpool", "ebbpool-pure", "stdlib", "multiprocessing", "fastthreadpool", "ebbpool-fastthreadpool",
    "plus", "pebble", "gevent-threadpool",
)  # fmt: skip

QUESTION = Question(
    title="An idle pool",
    method="64 sleeps of 20 ms, then nobody calls the pool; keep_alive is 1 s where it can be set; watched "
    "for 2 s (quick: 1 s) from another process, once the threads have gone or 2 s have passed",
    columns=(
        Column("most", "threads under load", 0, ratio=False, worst=True),
        Column("shrunk", "s until the last left", 2, ratio=False, worst=True),
        Column("left", "threads left", 0, ratio=False, worst=True),
        Column("switches", "context switches", 0, ratio=False, worst=True),
    ),
    peers=_PEERS,
    variants=always({"workers": 32}),
    sizes=lambda quick: {
        "tasks": 64,
        "keep_alive": 0.3 if quick else _KEEP_ALIVE_SECONDS,
        "idle": 1.0 if quick else 2.0,
    },
    measure=measure,
    targets=(
        Target("back within keep_alive + 1 s", _OURS, "shrunk", _KEEP_ALIVE_SECONDS + 1),
        Target("back to min_workers (0)", _OURS, "left", 0),
        Target("no wake-up in 2 s", _OURS, "switches", 0),
    ),
    rounds_factor=1 / 3,
    floor="no thread and no wake-up",
    limits="keep_alive: threads stay that long on purpose",
)

if __name__ == "__main__":
    print(watch(int(sys.argv[1]), float(sys.argv[2])))
