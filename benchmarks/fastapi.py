"""FastAPI with endpoints that block or compute, stock and with ebbpool installed."""

from __future__ import annotations

import time

from benchmarks.engine.model import Column, Params, Question, Samples, spread
from benchmarks.load.http import WRONG, Clients, served_columns
from benchmarks.load.serving import Beside, serving
from benchmarks.peers.peer import Peer
from benchmarks.servers.fastapi import ASYNC, BODY, COMPUTING, ready, target

_PEERS = "fastapi fastapi-installed fastapi-installed-pure fastapi-own-loop"
_CLIENTS = {"clients": 64}


@Question(
    title="FastAPI: 200 clients at once, a sync endpoint that sleeps 100 ms",
    columns=(Column("first", "ms for all, first burst", 0), Column("later", "ms for all, later", 0), WRONG),
    peers=f"{_PEERS} fastapi-256",
    variants=({"clients": 200},),
    sizes={"repeats": 3},
)
def fastapi_burst(peer: Peer, params: Params) -> Samples:
    """200 clients at once ask a FastAPI endpoint that sleeps 100 ms: when is the last of them answered?"""
    samples: Samples = {"first": [], "later": [], "errors": []}
    with serving(peer.program, ready=ready) as found:
        for repeat in range(params["repeats"] + 1):
            with Clients(found.port, params["clients"], target("100 ms"), BODY) as clients:
                answered = clients.burst(30.0)
            samples["later" if repeat else "first"].append(answered.seconds * 1e3)
            samples["errors"].append(answered.errors)
    return samples


@Question(
    title="FastAPI: 64 keep-alive clients, a sync endpoint",
    columns=served_columns(2),
    peers=_PEERS,
    variants=[{"endpoint": endpoint} | _CLIENTS for endpoint in ("trivial", "5 ms", ASYNC)],
    sizes={"warm_up": 0.5, "seconds": 2.0},
)
def fastapi_rate(peer: Peer, params: Params) -> Samples:
    """64 clients ask a sync FastAPI endpoint again and again: how many requests a second, how late are the slowest?"""
    with (
        serving(peer.program, ready=ready) as found,
        Clients(found.port, params["clients"], target(params["endpoint"]), BODY) as clients,
    ):
        return clients.load(params["warm_up"], params["seconds"], found.cpu_seconds).served()


class _Health(Beside):
    """One client that asks for the health of the server, in a thread of its own."""

    def __init__(self, port: int) -> None:
        super().__init__(self._ask, "health")
        self._port, self.errors = port, 0
        self._asked: list[tuple[float, float]] = []

    def _ask(self) -> None:
        with Clients(self._port, 1, target(ASYNC), BODY) as client:
            while not self._over.wait(0.01):
                begun = time.perf_counter()
                answered = client.burst(60.0)
                self._asked.append((begun, time.perf_counter() - begun))
                self.errors += answered.errors

    def latencies(self, since: float) -> list[float]:
        """Return how long each answer took that came after `since`, in seconds."""
        return [latency for begun, latency in self._asked if begun + latency >= since]


@Question(
    title="FastAPI: /health beside 64 clients that compute",
    columns=(
        Column("p99", "/health p99, ms", 1),
        Column("p50", "/health p50, ms", 1, ratio=False),
        Column("rate", "requests/s", 0, more=True),
        WRONG,
    ),
    peers=f"{_PEERS} fastapi-256",
    variants=(_CLIENTS,),
    sizes={"warm_up": 1.0, "seconds": 4.0},
    turns=0.005,
)
def health_beside(peer: Peer, params: Params) -> Samples:
    """64 clients ask a sync FastAPI endpoint that computes; one asks an `async def` /health: how long does it wait?"""
    with (
        serving(peer.program, "--turns", str(params["turns"]), ready=ready) as found,
        Clients(found.port, params["clients"], target(COMPUTING), BODY) as clients,
        _Health(found.port) as health,
    ):
        begun = time.perf_counter() + params["warm_up"]
        answered = clients.load(params["warm_up"], params["seconds"], found.cpu_seconds)
    latencies, errors = health.latencies(begun), answered.errors + health.errors
    if not answered.latencies or not latencies:
        raise RuntimeError(f"not one right response, {errors} wrong ones")
    return spread(latencies) | {"rate": [len(answered.latencies) / answered.seconds], "errors": [errors]}
