"""A pool drains a queue of tiny tasks: how long does a thread beside it wait for its turn?"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import repeat
from typing import Any

from benchmarks.engine.model import Column, Params, Question, Samples, Settings, Target, Variant, nothing, percentile
from benchmarks.load.serving import Beside
from benchmarks.peers.peer import Peer
from benchmarks.peers.pools import adaptive, stdlib

_OURS = ("ebbpool", "ebbpool-pure")
_SLOWER = 10
"""How many times fewer tasks where each costs some ten times as much."""
_LANE_LIMIT = 4


class Sleeper(Beside):
    """A thread that sleeps for `nap` seconds at a time, and what each of its sleeps took beyond that (`waits`)."""

    def __init__(self, nap: float) -> None:
        super().__init__(self._sleep, "sleeper")
        self.waits: list[float] = []
        self._nap = nap

    def _sleep(self) -> None:
        while not (self._over.is_set() and self.waits):
            began = time.perf_counter()
            time.sleep(self._nap)
            self.waits.append(max(0.0, time.perf_counter() - began - self._nap))


def _tasks(executor: Any, fn: Callable[..., object], args: tuple[object, ...], count: int) -> Callable[[], object]:
    """Submits `fn` so often, and something that ends the call returned when all of them have run."""
    over = threading.Event()
    for _ in range(count):
        executor.submit(fn, *args)
    executor.submit(over.set)
    return over.wait


async def _calls(pool: Any, count: int) -> None:
    loop = asyncio.get_running_loop()
    run = getattr(pool, "run", None) or (lambda *call: loop.run_in_executor(pool, *call))
    await asyncio.gather(*[run(abs, -1) for _ in range(count)])


def _work(pool: Any, load: str, count: int) -> Callable[[], object]:
    """Returns what has the tasks run that are there, or makes them and has them run."""
    if load == "run":
        return lambda: asyncio.run(_calls(pool, count))
    if load == "submit":
        # No bytecode of the submitter's: what runs here is the pool's `submit`, again and again.
        return lambda: (deque(map(pool.submit, repeat(nothing, count)), 0), _tasks(pool, nothing, (), 0)())
    if load == "map":
        return lambda: deque(pool.map(abs, range(count)), 0)
    executor = pool.lane("measured", limit=_LANE_LIMIT) if load == "lane" else pool
    return _tasks(executor, *((nothing, ()) if load == "functions" else (abs, (-1,))), count)


def measure(peer: Peer, params: Params) -> Samples:
    ours, load = peer.name != "stdlib", params["load"]
    count = params["tasks"] // (_SLOWER if load == "run" or not ours else 1)
    sleeper, gate = Sleeper(params["nap"]), threading.Event()
    gc.collect()
    gc.disable()
    try:
        with (adaptive if ours else stdlib)(1, 10.0) as pool:
            pool.submit(gate.wait)
            work = _work(pool, load, count)
            with sleeper:
                began = time.perf_counter()
                gate.set()
                work()
                taken = time.perf_counter() - began
    finally:
        gc.enable()
    return {
        "most": [max(sleeper.waits) * 1e3],
        "p999": [percentile(sleeper.waits, 0.999) * 1e3],
        "us": [taken / count * 1e6],
    }


_LOADS = ("functions", "built-ins", "map", "run", "submit", "lane")


def variants(peer: str, settings: Settings) -> list[Variant]:
    return [{"load": load} for load in (_LOADS if peer in _OURS else _LOADS[:-1])]


QUESTION = Question(
    title="A thread beside a queue of tiny tasks",
    method="one worker, the queue filled beforehand (run, submit: meanwhile); beside it a thread sleeps 0.5 ms at a "
    f"time; waits: what its sleeps took beyond that; ThreadPoolExecutor, and run, have {_SLOWER} times fewer tasks; "
    "the garbage collector is off",
    columns=(
        Column("most", "longest wait, ms", 1, worst=True),
        Column("p999", "p99.9, ms", 1),
        Column("us", "µs a task", 3),
    ),
    peers=(*_OURS, "stdlib"),
    variants=variants,
    sizes=lambda quick: {"tasks": 100_000 if quick else 750_000, "nap": 0.0005},
    measure=measure,
    targets=(
        *(
            Target(text, "ebbpool ebbpool-pure", "most", 2.0, {"load": load}, "stdlib", {"load": like}, gil=True)
            for text in ["longest wait within 2x of ThreadPoolExecutor's"]
            for load, like in zip(_LOADS, (*_LOADS[:-1], "built-ins"), strict=True)
        ),
    ),
    floor="the timer of the system, and one switch of the GIL",
    limits="the GIL, which a worker with a queue keeps for its switch interval",
)
