"""Whose turn it is: threads beside a pool, callers in overload."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from itertools import repeat
from typing import Any

from benchmarks.engine.model import Column, Params, Question, Samples, nothing, percentile
from benchmarks.load.serving import Beside
from benchmarks.peers import package
from benchmarks.peers.peer import Peer
from benchmarks.peers.pools import adaptive, stdlib

_BOTH = "ebbpool ebbpool-pure"
_SLOWER = 10
"""How many times fewer tasks where each costs some ten times as much."""
_LOADS = ("functions", "built-ins", "map", "run", "submit", "lane")


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
    """Submit `fn` so often, and something that ends the call returned when all of them have run."""
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
    """Return what has the tasks run that are there, or makes them and has them run."""
    if load == "run":
        return lambda: asyncio.run(_calls(pool, count))
    if load == "submit":
        # No bytecode of the submitter's: what runs here is the pool's `submit`, again and again.
        return lambda: (deque(map(pool.submit, repeat(nothing, count)), 0), _tasks(pool, nothing, (), 0)())
    if load == "map":
        return lambda: deque(pool.map(abs, range(count)), 0)
    executor = pool.lane("measured", limit=4) if load == "lane" else pool
    return _tasks(executor, nothing, (), count) if load == "functions" else _tasks(executor, abs, (-1,), count)


@Question(
    title="A thread beside a queue of tiny tasks",
    columns=(
        Column("most", "longest wait, ms", 1, worst=True),
        Column("p999", "p99.9, ms", 1),
        Column("us", "µs per task", 3),
    ),
    peers=f"{_BOTH} stdlib",
    variants=lambda peer, settings: [{"load": load} for load in (_LOADS[:-1] if peer == "stdlib" else _LOADS)],
    sizes={"tasks": 750_000, "nap": 0.0005},
)
def fairness(peer: Peer, params: Params) -> Samples:
    """A pool drains a queue of tiny tasks: how long does a thread beside it wait for its turn?"""
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


_CLIENTS, _CONNECTIONS, _PATIENCE = (100, 300, 1000), 15, 5.0
_OFFERED, _PLACES, _TAKES, _CALLER = (0.5, 1, 2, 3), 8, 0.05, 1.0
_LEAVERS, _STAYS = 64, 0.05
_LONGEST = 30.0
"""Seconds after which a client that is not answered has given up, too."""
_Call = Callable[[Callable[[], Any]], Awaitable[Any]]


@asynccontextmanager
async def _way(peer: str, max_wait: float | None) -> AsyncIterator[_Call]:
    """Yield what hands a call to a thread, and leaves it there if its await is cancelled."""
    if peer == "stdlib-default":
        loop = asyncio.get_running_loop()
        yield lambda fn: loop.run_in_executor(None, fn)
        return
    run_sync = partial(package("anyio.to_thread").run_sync, abandon_on_cancel=True)
    if peer == "anyio":
        yield run_sync
        return
    with package("ebbpool").AdaptiveExecutor(max_wait=max_wait) as pool, package("ebbpool.anyio").install(pool):
        yield run_sync


def _leave(tasks: Iterable[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()


async def _freeze(call: _Call, params: Params) -> Samples:
    """Have clients at once, whose sessions take a connection with the query: begin, query, give back."""
    places, gave_up = threading.Semaphore(_CONNECTIONS), 0

    def query() -> bool:
        return places.acquire(timeout=_PATIENCE) and not time.sleep(0.005)

    async def request() -> None:
        nonlocal gave_up
        await call(nothing)
        if await call(query):
            await call(places.release)
        else:
            gave_up += 1

    begun = time.perf_counter()
    tasks = [asyncio.create_task(request()) for _ in range(params["clients"])]
    _, waiting = await asyncio.wait(tasks, timeout=_LONGEST)
    seconds = time.perf_counter() - begun
    _leave(tasks)
    return {"gave_up": [gave_up + len(waiting)], "seconds": [seconds]}


async def _goodput(call: _Call, params: Params) -> Samples:
    """Offer calls at a rate, whatever becomes of them; count those answered in time in the last part."""
    places, good = threading.Semaphore(_PLACES), list[float]()

    def handler() -> None:
        with places:
            time.sleep(_TAKES)

    async def one() -> None:
        asked = time.perf_counter()
        try:
            await call(handler)
        except RuntimeError:
            return
        if time.perf_counter() - asked <= _CALLER:
            good.append(time.perf_counter() - begun)

    rate, seconds = params["offered"] * _PLACES / _TAKES, params["seconds"]
    begun, tasks = time.perf_counter(), list[asyncio.Task[None]]()
    while (now := time.perf_counter() - begun) < seconds:
        tasks += [asyncio.create_task(one()) for _ in range(round(now * rate) - len(tasks))]
        await asyncio.sleep(0.005)
    _leave(tasks)
    last = seconds * 3 / 8
    return {"useful": [sum(seconds - last < at <= seconds for at in good) / last]}


async def _burn(call: _Call, params: Params) -> Samples:
    """Have callers leave after a moment; add up how long their calls run after that, in seconds of thread."""
    cancelled = package("ebbpool").cancelled
    lock, left, burnt = threading.Lock(), time.perf_counter() + _STAYS, [0.0]
    ends = left + params["burns"]

    def work() -> None:
        steps = 0
        while time.perf_counter() < ends and not cancelled():
            steps += sum(range(1000))
        with lock:
            burnt[0] += max(0.0, min(time.perf_counter(), ends) - left)

    tasks = [asyncio.ensure_future(call(work)) for _ in range(_LEAVERS)]
    await asyncio.wait(tasks, timeout=_STAYS)
    _leave(tasks)
    await asyncio.sleep(params["burns"] + 0.5)
    return {"burnt": [burnt[0]]}


_ASKED = {"clients": _freeze, "offered": _goodput, "leave": _burn}


async def _overloaded(peer: Peer, params: Params) -> Samples:
    what = next(key for key in _ASKED if key in params)
    async with _way(peer.base, _CALLER if what == "offered" else None) as call:
        return await _ASKED[what](call, params)


@Question(
    title="Overload",
    columns=(
        Column("gave_up", "clients that gave up", 0),
        Column("seconds", "seconds until the last was answered", 2, ratio=False),
        Column("useful", "useful answers/s", 0, more=True),
        Column("burnt", "thread seconds burnt", 1),
    ),
    peers="anyio-installed anyio stdlib-default",
    variants=(
        *({"clients": clients} for clients in _CLIENTS),
        *({"offered": offered} for offered in _OFFERED),
        {"leave": _LEAVERS},
    ),
    sizes={"seconds": 8.0, "burns": 10.0},
    rounds_factor=1 / 3,
)
def overload(peer: Peer, params: Params) -> Samples:
    """Overload: who gives up, how many answers are useful, and how much work goes on after clients have left?"""
    return asyncio.run(_overloaded(peer, params))
