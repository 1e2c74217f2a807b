"""Who goes first: requests of several calls share threads and 15 connections; `simulation` has it without a thread."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from functools import partial
from typing import Any, NamedTuple

from benchmarks.engine.model import Column, Params, Question, Samples, percentile
from benchmarks.peers.peer import Peer
from benchmarks.peers.pools import adaptive, stdlib

CONNECTIONS, PATIENCE = 15, 5.0
SECONDS = {"take": 0.005, "give": 0.0002, "commit": 0.02, ".": 0.0002, "slow": 0.2}
"""What each call takes. `take` waits for a connection before, which `give` and `commit` return at their end."""
CHECK = "."
FIRST, PLAIN, COMMIT = "take . give", ". take give", ". take . commit"
LATE, LONG = ". . . take give", ". . take . . give"
LOADS = {
    "slow calls and a check": ["slow"] * 9 + [CHECK],
    "the first call connects": [FIRST],
    "the second call connects": [PLAIN],
    "with a response model": [". take . give"],
    "commits": [COMMIT],
    "late and early": [PLAIN, LATE],
    "six kinds": [FIRST, PLAIN, LATE, LONG, COMMIT, CHECK],
}
LONGEST = 30.0
"""Seconds after which a request that is not answered has given up, too."""
WORKERS = (40, 256)


def requests(load: str, count: int) -> list[list[str]]:
    """Return the calls of so many requests, in random order."""
    plans = [plan.split() for plan, _ in zip(itertools.cycle(LOADS[load]), range(count), strict=False)]
    random.Random(3).shuffle(plans)
    return plans


class Outcome(NamedTuple):
    """What became of a load; `check` is the 99th percentile of how long a request of a single `CHECK` waits."""

    gave_up: int
    seconds: float
    check: float


class _Connections:
    """What the calls do on the pool itself, each in a function of its own."""

    def __init__(self) -> None:
        self._free = threading.Semaphore(CONNECTIONS)
        self.calls = {
            "take": self._take,
            "give": self._give,
            "commit": self._commit,
            ".": self._pass,
            "slow": self._slow,
        }

    def _take(self) -> None:
        if not self._free.acquire(timeout=PATIENCE):
            raise TimeoutError
        time.sleep(SECONDS["take"])

    def _give(self) -> None:
        time.sleep(SECONDS["give"])
        self._free.release()

    def _commit(self) -> None:
        time.sleep(SECONDS["commit"])
        self._free.release()

    def _pass(self) -> None:
        time.sleep(SECONDS[CHECK])

    def _slow(self) -> None:
        time.sleep(SECONDS["slow"])


async def _ask(pool: Any, plans: list[list[str]]) -> Outcome:
    loop, calls, waits = asyncio.get_running_loop(), _Connections().calls, list[float]()
    run = getattr(pool, "run", None) or partial(loop.run_in_executor, pool)

    async def request(plan: list[str]) -> None:
        begun = time.perf_counter()
        for name in plan:
            await run(calls[name])
        if plan == [CHECK]:
            waits.append(time.perf_counter() - begun)

    begun = time.perf_counter()
    tasks = [asyncio.create_task(request(plan)) for plan in plans]
    _, left = await asyncio.wait(tasks, timeout=LONGEST)
    seconds = time.perf_counter() - begun
    gave_up = [task for task in tasks if task in left or isinstance(task.exception(), TimeoutError)]
    return Outcome(len(gave_up), seconds, percentile(waits, 0.99) if waits else 0.0)


@Question(
    title="More requests than connections",
    columns=(
        Column("gave_up", "requests that gave up", 0, worst=True),
        Column("cold", "s until the last answer", 2),
        Column("warm", "s the second time", 2),
        Column("check", "a check's wait p99, ms", 1),
    ),
    peers="ebbpool ebbpool-pure stdlib",
    variants=[{"load": load, "workers": workers} for load in LOADS for workers in WORKERS],
    sizes={"requests": 1000},
    rounds_factor=1 / 3,
)
def more_requests(peer: Peer, params: Params) -> Samples:
    """1,000 requests at once share 15 connections: does anybody give up, and does a check get through?"""
    plans = requests(params["load"], params["requests"])
    with (stdlib if peer.name == "stdlib" else adaptive)(params["workers"], 10.0) as pool:
        cold, warm = (asyncio.run(_ask(pool, plans)) for _ in range(2))
    samples: Samples = {"gave_up": [cold.gave_up, warm.gave_up], "cold": [cold.seconds], "warm": [warm.seconds]}
    return samples | ({"check": [cold.check * 1e3, warm.check * 1e3]} if cold.check else {})
