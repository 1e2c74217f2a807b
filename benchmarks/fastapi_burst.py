"""200 clients at once ask a FastAPI endpoint that sleeps 100 ms: when is the last of them answered?"""

from __future__ import annotations

from benchmarks.engine.model import Column, Params, Question, Samples, Target, always
from benchmarks.load.http import Clients
from benchmarks.load.serving import serving
from benchmarks.peers.peer import Peer
from benchmarks.servers.fastapi import BODY, ready, target

_SERVERS = {
    "fastapi": "fastapi stock",
    "fastapi-256": "fastapi stock --tokens 256",
    "fastapi-installed": "fastapi installed",
    "fastapi-installed-pure": "fastapi installed",
    "fastapi-own-loop": "fastapi own-loop",
}
_OURS = "fastapi-installed fastapi-installed-pure fastapi-own-loop"
_LIMIT_MS = 200.0
_PATIENCE_SECONDS = 30.0


def measure(peer: Peer, params: Params) -> Samples:
    samples: Samples = {"first": [], "later": [], "errors": []}
    with serving(_SERVERS[peer.base], ready=ready) as found:
        for repeat in range(params["repeats"] + 1):
            with Clients(found.port, params["clients"], target("100 ms"), BODY) as clients:
                answered = clients.burst(_PATIENCE_SECONDS)
            samples["later" if repeat else "first"].append(answered.seconds * 1e3)
            samples["errors"].append(answered.errors)
    return samples


QUESTION = Question(
    title="FastAPI: 200 clients at once, a sync endpoint that sleeps 100 ms",
    method="uvicorn with uvloop and httptools in a process of its own, nothing else configured; connections are "
    "open beforehand; from the first request to the last response; first: no thread has been started yet",
    columns=(
        Column("first", "ms for all, first burst", 0),
        Column("later", "ms for all, later", 0),
        Column("errors", "wrong responses", 0, ratio=False, worst=True),
    ),
    peers=tuple(_SERVERS),
    variants=always({"clients": 200}),
    sizes=lambda quick: {"repeats": 1 if quick else 3},
    measure=measure,
    targets=(
        Target("first burst: all answered in under 200 ms", _OURS, "first", _LIMIT_MS),
        Target("later bursts: all answered in under 200 ms", _OURS, "later", _LIMIT_MS),
        Target("every response right", _OURS, "errors", 0),
    ),
    floor="the 100 ms that the endpoint sleeps",
    limits="stock: forty tokens, so that 200 requests take five turns; ebbpool: the start of 200 threads, the first "
    "time",
)
