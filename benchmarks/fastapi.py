"""FastAPI with endpoints that block or compute, stock and with ebbpool installed."""

from __future__ import annotations

import time
from functools import partial
from tempfile import TemporaryDirectory

from benchmarks.engine.model import Column, Params, Question, Samples, spread
from benchmarks.load.http import WRONG, Clients, answers, served_columns
from benchmarks.load.serving import Beside, serving
from benchmarks.peers import package
from benchmarks.peers.peer import Peer
from benchmarks.servers.fastapi import ASYNC, BODY, COMPUTING, ready, target

_PEERS = "fastapi fastapi-installed fastapi-installed-pure fastapi-own-loop"
_CLIENTS = {"clients": 64}


def _bursts(port: int, asked: str, expected: bytes, params: Params) -> Samples:
    """Have all clients ask at once, again and again; say how long it took until the last was answered, in ms."""
    samples: Samples = {"first": [], "later": [], "errors": []}
    for repeat in range(params["repeats"] + 1):
        with Clients(port, params["clients"], asked, expected) as clients:
            answered = clients.burst(30.0)
        samples["later" if repeat else "first"].append(answered.seconds * 1e3)
        samples["errors"].append(answered.errors)
    return samples


@Question(
    title="FastAPI: 200 clients at once, a sync endpoint that sleeps 100 ms",
    columns=(
        Column("first", "ms until the last answer, first burst", 0),
        Column("later", "ms until the last answer, later", 0),
        WRONG,
    ),
    peers=f"{_PEERS} fastapi-256",
    variants=({"clients": 200},),
    sizes={"repeats": 3},
)
def fastapi_burst(peer: Peer, params: Params) -> Samples:
    """200 clients at once ask a FastAPI endpoint that sleeps 100 ms: when is the last of them answered?"""
    with serving(peer.program, ready=ready) as found:
        return _bursts(found.port, target("100 ms"), BODY, params)


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

    def __init__(self, port: int, target: str, expected: bytes = BODY) -> None:
        super().__init__(self._ask, "health")
        self._client = port, 1, target, expected
        self.errors = 0
        self._asked: list[tuple[float, float]] = []

    def _ask(self) -> None:
        with Clients(*self._client) as client:
            while not self._over.wait(0.01):
                begun = time.perf_counter()
                answered = client.burst(30.0)
                self._asked.append((begun, time.perf_counter() - begun))
                self.errors += answered.errors

    def latencies(self, since: float = 0.0) -> list[float]:
        """Return how long each answer took that came after `since`, in seconds."""
        return [latency for begun, latency in self._asked if begun + latency >= since]


_BESIDE = {64: COMPUTING, 400: "300 ms"}
"""What so many clients ask."""


@Question(
    title="FastAPI: /health beside 64 clients that compute, or 400 that sleep",
    columns=(
        Column("p99", "/health p99, ms", 1),
        Column("p50", "/health p50, ms", 1, ratio=False),
        Column("sync", "p99 as a def, ms", 1),
        Column("rate", "requests/s", 0, more=True),
        WRONG,
    ),
    peers=f"{_PEERS} fastapi-256",
    variants=[{"clients": clients} for clients in _BESIDE],
    sizes={"warm_up": 1.0, "seconds": 4.0},
    turns=0.005,
)
def health_beside(peer: Peer, params: Params) -> Samples:
    """Clients ask a sync FastAPI endpoint that computes or sleeps: how long do an `async` and a sync /health wait?"""
    with (
        serving(peer.program, "--turns", str(params["turns"]), ready=ready) as found,
        Clients(found.port, params["clients"], target(_BESIDE[params["clients"]]), BODY) as clients,
        _Health(found.port, target(ASYNC)) as health,
        _Health(found.port, target("trivial")) as sync,
    ):
        begun = time.perf_counter() + params["warm_up"]
        answered = clients.load(params["warm_up"], params["seconds"], found.cpu_seconds)
    return spread(health.latencies(begun)) | {
        "sync": spread(sync.latencies(begun))["p99"],
        "rate": answered.rate()["rate"],
        "errors": [answered.errors + health.errors + sync.errors],
    }


_ALIVE, _ITEM = b'{"status":"alive"}', b'{"id":1,"name":"first"}'


@Question(
    title="FastAPI with SQLAlchemy: clients at once, 15 connections, a query of 50 ms",
    columns=(
        Column("later", "ms until the last answer, later", 0),
        Column("first", "ms until the last answer, first burst", 0),
        Column("health", "sync /health p99, ms", 0),
        Column("answered", "right responses", 0, ratio=False, more=True),
        WRONG,
    ),
    peers="fastapi fastapi-256 fastapi-installed fastapi-installed-pure",
    variants=[
        {"endpoint": endpoint, "clients": clients}
        for endpoint in ("plain", "model", "plain commit", "model commit")
        for clients in (100, 400, 1000)
    ],
    sizes={"repeats": 1},
    rounds_factor=1 / 3,
)
def connections(peer: Peer, params: Params) -> Samples:
    """Clients at once, twice, ask for what takes one of SQLAlchemy's 15 connections for 50 ms: who gets an error?"""
    package("sqlalchemy")
    alive = partial(answers, target="/health", expected=_ALIVE)
    with (
        TemporaryDirectory() as folder,
        serving(peer.program, "--database", f"sqlite:///{folder}/items.db", ready=alive) as found,
        _Health(found.port, "/health", _ALIVE) as health,
    ):
        samples = _bursts(found.port, target(params["endpoint"]), _ITEM, params)
    wrong = sum(samples["errors"])
    counted = {"errors": [wrong], "answered": [2 * params["clients"] - wrong]}
    return samples | counted | {"health": spread(health.latencies())["p99"]}
