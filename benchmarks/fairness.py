"""A pool drains a queue of tiny tasks: how long does a thread beside it wait for its turn?"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import repeat
from typing import Any, Self

from benchmarks.engine.model import Column, Params, Question, Samples, Settings, Target, Variant, nothing, percentile
from benchmarks.peers.peer import Peer
from benchmarks.peers.pools import adaptive, stdlib

_OURS = ("ebbpool", "ebbpool-pure")
_SLOWER = 10
"""How many times fewer tasks where each costs some ten times as much."""
_LANE_LIMIT = 4


class Sleeper:
    """A thread that sleeps for `nap` seconds at a time, and what each of its sleeps took beyond that (`waits`)."""

    def __init__(self, nap: float) -> None:
        self.waits: list[float] = []
        self._nap = nap
        self._over = False
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while True:
            began = time.perf_counter()
            time.sleep(self._nap)
            self.waits.append(max(0.0, time.perf_counter() - began - self._nap))
            if self._over:
                return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over = True
        self._thread.join()


def _behind_a_gate(pool: Any, sleeper: Sleeper, fill: Callable[[], Callable[[], object]]) -> float:
    """Returns the seconds from the moment in which the pool's one worker is let go until the call from `fill` ends."""
    gate = threading.Event()
    pool.submit(gate.wait)
    finish = fill()
    with sleeper:
        began = time.perf_counter()
        gate.set()
        finish()
        return time.perf_counter() - began


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


def measure(peer: Peer, params: Params) -> Samples:
    ours, load = peer.name != "stdlib", params["load"]
    count = params["tasks"] // (_SLOWER if load == "run" or not ours else 1)
    pool: Any = (adaptive if ours else stdlib)(1, 10.0)
    sleeper = Sleeper(params["nap"])
    gc.collect()
    gc.disable()
    try:
        if load == "run":
            with sleeper:
                began = time.perf_counter()
                asyncio.run(_calls(pool, count))
                taken = time.perf_counter() - began
        elif load == "submit":
            with sleeper:
                began = time.perf_counter()
                # No bytecode of the submitter's: what runs here is the pool's `submit`, again and again.
                deque(map(pool.submit, repeat(nothing, count)), 0)
                _tasks(pool, nothing, (), 0)()
                taken = time.perf_counter() - began
        elif load == "map":
            taken = _behind_a_gate(pool, sleeper, lambda: lambda: deque(pool.map(abs, range(count)), 0))
        else:
            fn, args = (nothing, ()) if load == "functions" else (abs, (-1,))
            executor = pool.lane("measured", limit=_LANE_LIMIT) if load == "lane" else pool
            taken = _behind_a_gate(pool, sleeper, lambda: _tasks(executor, fn, args, count))
    finally:
        gc.enable()
        pool.shutdown()
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
