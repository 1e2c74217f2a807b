"""Executors over a Dask cluster."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections import Counter
from concurrent.futures import Executor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.engine.model import Column, Params, Question, Samples
from benchmarks.load.serving import wait_for
from benchmarks.peers import package
from benchmarks.peers.peer import Peer

_BEGIN_SECONDS = 30.0
_LIMIT_SECONDS = 60.0


def _call(path: str, number: int) -> int:
    with Path(path).open("a") as file:
        file.write(f"{number}\n")
    time.sleep(0.02)
    return number


def _executor(name: str, client: Any, stack: ExitStack) -> Executor:
    if name == "cluster-distributed":
        theirs: Executor = stack.enter_context(client.get_executor())
        return theirs
    ours: Executor = package("ebbpool.dask").ClusterExecutor(client, rerun=name == "cluster-rerun")
    return stack.enter_context(ours)


@Question(
    title="kill -9 of a Dask worker with calls under way",
    columns=(
        Column("right", "right results", 0, ratio=False, more=True, worst=True),
        Column("lost", "errors", 0, ratio=False, worst=True),
        Column("twice", "begun twice", 0, ratio=False, worst=True),
    ),
    peers="cluster cluster-rerun cluster-distributed",
    variants=({},),
    sizes={"calls": 200},
)
def lost_worker(peer: Peer, params: Params) -> Samples:
    """A worker of a Dask cluster is killed while calls are under way: what becomes of them, is any begun twice?"""
    distributed = package("distributed")
    calls = params["calls"]
    with ExitStack() as stack:
        notes = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "begun"
        notes.touch()
        cluster = stack.enter_context(
            distributed.LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=None)
        )
        client = stack.enter_context(distributed.Client(cluster))
        pool = _executor(peer.name, client, stack)
        futures = [pool.submit(_call, str(notes), number) for number in range(calls)]
        wait_for(lambda: len(notes.read_text().split()) >= calls // 4, _BEGIN_SECONDS, "a quarter of the calls begun")
        processes = client.run(os.getpid)
        os.kill(next(iter(processes.values())), signal.SIGKILL)
        errors = [future.exception(_LIMIT_SECONDS) for future in futures]
        right = sum(
            error is None and future.result() == number
            for number, (error, future) in enumerate(zip(errors, futures, strict=True))
        )
        begun = Counter(notes.read_text().split())
    return {
        "right": [right],
        "lost": [sum(error is not None for error in errors)],
        "twice": [sum(times > 1 for times in begun.values())],
    }
