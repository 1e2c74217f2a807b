"""64 clients ask a sync FastAPI endpoint that computes; one asks an `async def` /health: how long does it wait?"""

from __future__ import annotations

import statistics
import time

from benchmarks.engine.model import Column, Params, Question, Samples, Target, always, percentile
from benchmarks.load.http import Clients
from benchmarks.load.serving import Beside, serving
from benchmarks.load.work import turns_in
from benchmarks.peers.peer import Peer
from benchmarks.servers.fastapi import ASYNC, BODY, COMPUTING, ready, target

_SERVERS = {
    "fastapi": "fastapi stock",
    "fastapi-256": "fastapi stock --tokens 256",
    "fastapi-installed": "fastapi installed",
    "fastapi-installed-pure": "fastapi installed",
    "fastapi-own-loop": "fastapi own-loop",
}
_CLIENTS = 64
_PAUSE = 0.01
_OURS = "fastapi-installed fastapi-own-loop"


class _Health(Beside):
    """One client that asks for the health of the server, in a thread of its own."""

    def __init__(self, port: int) -> None:
        super().__init__(self._ask, "health")
        self._port, self.errors = port, 0
        self._asked: list[tuple[float, float]] = []

    def _ask(self) -> None:
        with Clients(self._port, 1, target(ASYNC), BODY) as client:
            while not self._over.wait(_PAUSE):
                begun = time.perf_counter()
                answered = client.burst(60.0)
                self._asked.append((begun, time.perf_counter() - begun))
                self.errors += answered.errors

    def latencies(self, since: float) -> list[float]:
        """Return how long each answer took that came after `since`, in seconds."""
        return [latency for begun, latency in self._asked if begun + latency >= since]


def measure(peer: Peer, params: Params) -> Samples:
    with (
        serving(_SERVERS[peer.base], "--turns", str(params["turns"]), ready=ready) as found,
        Clients(found.port, params["clients"], target(COMPUTING), BODY) as clients,
        _Health(found.port) as health,
    ):
        begun = time.perf_counter() + params["warm_up"]
        answered = clients.load(params["warm_up"], params["seconds"], found.cpu_seconds)
    latencies = health.latencies(begun)
    if not answered.latencies or not latencies:
        raise RuntimeError(f"not one right response, {answered.errors + health.errors} wrong ones")
    return {
        "p99": [percentile(latencies, 0.99) * 1e3],
        "p50": [statistics.median(latencies) * 1e3],
        "rate": [len(answered.latencies) / answered.seconds],
        "errors": [answered.errors + health.errors],
    }


QUESTION = Question(
    title="FastAPI: /health beside 64 clients that compute",
    method="uvicorn with uvloop and httptools in a process of its own; 64 clients, each with one request under way, "
    "ask a plain `def` endpoint that computes 5 ms of Python, counted in the parent and the same on all servers; one "
    "more asks an `async def` endpoint, 10 ms after each "
    "answer",
    columns=(
        Column("p99", "/health p99, ms", 1),
        Column("p50", "/health p50, ms", 1, ratio=False),
        Column("rate", "requests/s", 0, more=True),
        Column("errors", "wrong responses", 0, ratio=False, worst=True),
    ),
    peers=tuple(_SERVERS),
    variants=always({"clients": _CLIENTS}),
    sizes=lambda quick: {"turns": turns_in(0.005), "warm_up": 0.3 if quick else 1.0, "seconds": 1.0 if quick else 4.0},
    measure=measure,
    targets=(
        Target("/health p99 at most a tenth of stock's", _OURS, "p99", 0.1, rival="fastapi"),
        Target("at least 0.97 of stock's requests/s", _OURS, "rate", 0.97, rival="fastapi"),
        Target("every response right", _OURS, "errors", 0),
    ),
    floor="what uvicorn needs for a request",
    limits="the GIL: each wake-up of the loop waits for it several times, 5 ms each where a thread computes",
)
