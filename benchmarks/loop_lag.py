"""10,000 calls finish at once: how long do the loop's other callbacks wait meanwhile?

Lag is what a callback that is due at a given moment waits until it runs. Moments are 1 ms apart, on a fixed
grid; a loop that is held up for 100 ms is late for a hundred of them, by 100, 99, 98, ... ms, and all of these
count: were only the callbacks that ran counted, the worse the stall, the fewer of the samples would show it.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import threading
import time
from collections.abc import Callable

from benchmarks.engine.model import Column, Params, Question, Samples, Target, always, nothing, on_loop, percentile
from benchmarks.peers.peer import Peer
from benchmarks.peers.ways import Call

_PEERS = (
    "batched", "run", "run-pure", "ebbpool", "own-loop", "own-loop-to-thread", "stdlib", "to-thread", "anyio",
    "anyio-installed",
)  # fmt: skip
_WORKERS = 4
_WHERES = [{"loop": loop, "workers": _WORKERS} for loop in ("asyncio", "uvloop")]
_CHUNK = 100
_SETTLE_SECONDS = 0.1


class Heartbeat:
    """A callback that is due every `period` seconds, and what each of its moments waited.

    `lags` are in seconds. While it waits for a moment it leaves the loop idle.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, period: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._loop, self._period, self._clock, self.lags = loop, period, clock, list[float]()
        self._due = clock() + period
        self._handle: asyncio.Handle = loop.call_later(period, self._beat)

    def _beat(self) -> None:
        self._book(self._clock())
        self._handle = self._loop.call_later(max(0.0, self._due - self._clock()), self._beat)

    def _book(self, now: float) -> None:
        while self._due <= now:
            self.lags.append(now - self._due)
            self._due += self._period

    def cut(self) -> list[float]:
        """Returns the lags so far, moments that are due and not yet run among them, and starts anew."""
        self._book(self._clock())
        lags, self.lags = self.lags, []
        return lags

    def stop(self) -> None:
        self._handle.cancel()


async def _queue(call: Call, count: int) -> tuple[threading.Event, list[asyncio.Future[object]]]:
    """Queues `count` calls behind workers that wait for the event returned; the loop gets its turn meanwhile."""
    gate = threading.Event()
    pending: list[asyncio.Future[object]] = [asyncio.ensure_future(call(gate.wait)) for _ in range(_WORKERS)]
    await asyncio.sleep(_SETTLE_SECONDS)
    while len(pending) < count + _WORKERS:
        pending += [asyncio.ensure_future(call(nothing)) for _ in range(min(_CHUNK, count + _WORKERS - len(pending)))]
        await asyncio.sleep(0)
    return gate, pending


async def _load(peer: Peer, params: Params) -> Samples:
    assert peer.offload is not None
    samples: Samples = {"p50": [], "p99": [], "most": [], "took": [], "idle": []}
    async with peer.offload(params["workers"]) as call:
        for repeat in range(params["repeats"] + 1):
            gate, pending = await _queue(call, params["calls"])
            everything = asyncio.gather(*pending)
            gc.collect()
            await asyncio.sleep(_SETTLE_SECONDS)
            heart = Heartbeat(asyncio.get_running_loop(), params["period"])
            await asyncio.sleep(_SETTLE_SECONDS)
            idle = heart.cut()
            start = time.perf_counter()
            gate.set()
            await everything
            took = time.perf_counter() - start
            lags = heart.cut() or [0.0]
            heart.stop()
            if repeat:
                samples["p50"].append(statistics.median(lags) * 1e3)
                samples["p99"].append(percentile(lags, 0.99) * 1e3)
                samples["most"].append(max(lags) * 1e3)
                samples["took"].append(took * 1e3)
                samples["idle"].append(percentile(idle, 0.99) * 1e3)
            del everything, pending
    return samples


QUESTION = Question(
    title="The loop's lag while 10,000 calls finish",
    method="calls queued behind workers that wait for a gate, all gathered beforehand; from the gate's opening to "
    "the last result, one moment every ms, late ones counted each for itself; idle: the same loop before the gate "
    "opens (timers have about 1 ms of their own)",
    columns=(
        Column("p50", "lag p50, ms", 2, ratio=False),
        Column("p99", "lag p99, ms", 2),
        Column("most", "most, ms", 2, ratio=False, worst=True),
        Column("took", "ms for all", 1, ratio=False),
        Column("idle", "idle p99, ms", 2, ratio=False),
    ),
    peers=_PEERS,
    variants=always(*_WHERES),
    sizes=lambda quick: {"calls": 1_000 if quick else 10_000, "period": 0.001, "repeats": 1 if quick else 2},
    measure=on_loop(_load),
    targets=(Target("p99 of the lag: under 10 ms", "run own-loop", "p99", 10.0),),
    floor="the lag of the same loop before the gate opens",
    limits="how many results the loop takes in at one wake-up before it looks at its timers, and the GIL",
)
