"""Overload: who gives up, how many answers are useful, and how much work goes on after clients have left?"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from benchmarks.engine.model import Column, Params, Question, Samples, Target, always
from benchmarks.peers import package
from benchmarks.peers.peer import Peer

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
    ours = package("ebbpool")
    # Another checkout may not know how to limit a wait.
    limit = {"max_wait": max_wait} if max_wait and hasattr(ours, "QueueTimeout") else {}
    with ours.AdaptiveExecutor(**limit) as pool, package("ebbpool.anyio").install(pool):
        yield run_sync


def _leave(tasks: Iterable[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()


async def _freeze(call: _Call, params: Params) -> Samples:
    """Have clients at once, each of which gets a connection, uses it and gives it back: three calls."""
    places, gave_up = threading.Semaphore(_CONNECTIONS), 0

    async def request() -> None:
        nonlocal gave_up
        if await call(lambda: places.acquire(timeout=_PATIENCE)):
            await call(lambda: time.sleep(0.005))
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
    cancelled = getattr(package("ebbpool"), "cancelled", bool)
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


async def _measure(peer: Peer, params: Params) -> Samples:
    what = next(key for key in _ASKED if key in params)
    async with _way(peer.base, _CALLER if what == "offered" else None) as call:
        return await _ASKED[what](call, params)


def measure(peer: Peer, params: Params) -> Samples:
    return asyncio.run(_measure(peer, params))


_OURS = "anyio-installed"
QUESTION = Question(
    name="overload",
    title="Overload",
    method="a loop hands calls to threads. *clients*: so many requests at once, of three calls each: get one of "
    f"{_CONNECTIONS} connections (it gives up after {_PATIENCE:g} s), use it for 5 ms, give it back; who is not "
    f"answered after {_LONGEST:g} s has given up, too. *offered*: calls of {_TAKES * 1e3:g} ms behind {_PLACES} "
    "places, at this multiple of what they can do, "
    f"whose callers wait {_CALLER:g} s; ebbpool has that as `max_wait`. *leave*: so many callers leave after "
    f"{_STAYS * 1e3:g} ms of a call that computes for 10 s and asks `ebbpool.cancelled()`",
    columns=(
        Column("gave_up", "clients that gave up", 0),
        Column("seconds", "seconds until the last was answered", 2, ratio=False),
        Column("useful", "useful answers/s", 0, more=True),
        Column("burnt", "seconds of thread burnt", 1),
    ),
    peers=("anyio-installed", "anyio", "stdlib-default"),
    variants=always(
        *({"clients": clients} for clients in _CLIENTS),
        *({"offered": offered} for offered in _OFFERED),
        {"leave": _LEAVERS},
    ),
    sizes=lambda quick: {"seconds": 1.0 if quick else 8.0, "burns": 1.0 if quick else 10.0},
    measure=measure,
    targets=(
        *(Target("nobody gives up", _OURS, "gave_up", 0, {"clients": clients}) for clients in _CLIENTS),
        Target("at least 150 useful answers/s at twice the load", _OURS, "useful", 150, {"offered": 2}),
        Target("under a second burnt", _OURS, "burnt", 1.0, {"leave": _LEAVERS}),
    ),
    rounds_factor=1 / 3,
    floor="100 clients of 5 ms each over 15 connections need 0.04 s; 8 places of 50 ms give 160 answers/s",
)
