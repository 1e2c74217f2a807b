"""64 clients ask a sync FastAPI endpoint again and again: how many requests a second, how late are the slowest?"""

from __future__ import annotations

from benchmarks.engine.model import Column, Params, Question, Samples, Target, always
from benchmarks.load.http import Clients
from benchmarks.load.serving import serving
from benchmarks.peers.peer import Peer
from benchmarks.servers.fastapi import ASYNC, BODY, ready, target

_SERVERS = {
    "fastapi": "fastapi stock",
    "fastapi-installed": "fastapi installed",
    "fastapi-installed-pure": "fastapi installed",
    "fastapi-own-loop": "fastapi own-loop",
}
_OURS = "fastapi-installed fastapi-own-loop"
_CLIENTS = 64
_LEAST = {"trivial": 1.6, "5 ms": 1.3}
_WHERES = [{"endpoint": endpoint, "clients": _CLIENTS} for endpoint in _LEAST]
_FLOOR = {"endpoint": ASYNC, "clients": _CLIENTS}


def measure(peer: Peer, params: Params) -> Samples:
    endpoint = target(params["endpoint"])
    with (
        serving(_SERVERS[peer.base], ready=ready) as found,
        Clients(found.port, params["clients"], endpoint, BODY) as clients,
    ):
        answered = clients.load(params["warm_up"], params["seconds"], found.cpu_seconds)
    return answered.served()


QUESTION = Question(
    title="FastAPI: 64 keep-alive clients, a sync endpoint",
    method="uvicorn with uvloop and httptools in a process of its own; the clients are one other process, each with "
    "one request under way; what they need of a processor is shown: near 100 they would be what is measured; µs of a "
    "processor: the server's; the floor is an `async def` endpoint; gc.freeze() after the start on all sides, for p99 "
    "would be that of Python's full collections of what FastAPI is made of",
    columns=(
        Column("rate", "requests/s", 0, more=True),
        Column("p50", "p50, ms", 2, ratio=False),
        Column("p99", "p99, ms", 2),
        Column("cpu", "µs of a processor a request", 0),
        Column("errors", "wrong responses", 0, ratio=False, worst=True),
        Column("client", "% of a processor, client", 0, ratio=False),
    ),
    peers=tuple(_SERVERS),
    variants=always(*_WHERES, _FLOOR),
    sizes=lambda quick: {"warm_up": 0.3 if quick else 0.5, "seconds": 0.5 if quick else 2.0},
    measure=measure,
    targets=(
        *(
            Target(f"at least {times}x stock's requests/s", _OURS, "rate", times, {"endpoint": endpoint}, "fastapi")
            for endpoint, times in _LEAST.items()
        ),
        *(Target("p99 no worse than stock's", _OURS, "p99", 1.0, {"endpoint": each}, "fastapi") for each in _LEAST),
        Target("at least 0.9 of the floor's requests/s", _OURS, "rate", 0.9, _WHERES[0], "", _FLOOR),
        Target("p99 at most 1.15x the floor's", _OURS, "p99", 1.15, _WHERES[0], "", _FLOOR),
        Target("every response right", _OURS, "errors", 0),
    ),
    floor="the time of a processor that uvicorn, Starlette and FastAPI need for a request without any thread",
    limits="FastAPI and the GIL; the pool is the smaller part of a request",
    quick_cells=2,
)
