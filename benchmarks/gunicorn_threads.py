"""gunicorn with 40 and with 100 threads: what do they serve, started by need and fixed?"""

from __future__ import annotations

from benchmarks.engine.model import Column, Params, Question, Samples, Target, always
from benchmarks.load.http import Clients, answers
from benchmarks.load.serving import serving
from benchmarks.peers.peer import Peer
from benchmarks.servers.web import ASLEEP, ASLEEP_SECONDS, TRIVIAL, WORD

_SERVERS = {
    "gunicorn-gthread": "gunicorn --worker gthread",
    "gunicorn-pool": "gunicorn --worker ebbpool.gunicorn.AdaptiveThreadWorker",
    "granian": "granian",
}
_CLIENTS = 100
_HANDLERS = {"trivial": TRIVIAL, f"{ASLEEP_SECONDS * 1e3:g} ms": ASLEEP}
_WHERES = [{"handler": handler, "threads": threads} for handler in _HANDLERS for threads in (40, 100)]


def measure(peer: Peer, params: Params) -> Samples:
    target = _HANDLERS[params["handler"]]
    program = f"web {_SERVERS[peer.base]} --processes 1 --threads {params['threads']} --directory ."
    with (
        serving(program, ready=lambda port: answers(port, target, WORD)) as found,
        Clients(found.port, _CLIENTS, target, WORD) as clients,
    ):
        answered = clients.load(params["warm_up"], params["seconds"], lambda: found.cpu_seconds(family=True))
    return answered.served()


QUESTION = Question(
    title=f"gunicorn: {_CLIENTS} keep-alive clients, one worker process",
    method="the same WSGI application, worker class gthread or ebbpool's; the clients are one other process, each with "
    "one request under way; what they need of a processor is shown: near 100 they would be what is measured",
    columns=(
        Column("rate", "requests/s", 0, more=True),
        Column("p50", "p50, ms", 1, ratio=False),
        Column("p99", "p99, ms", 1),
        Column("cpu", "µs of a processor a request", 0),
        Column("errors", "wrong responses", 0, ratio=False, worst=True),
        Column("client", "% of a processor, client", 0, ratio=False),
    ),
    peers=tuple(_SERVERS),
    variants=always(*_WHERES),
    sizes=lambda quick: {"warm_up": 0.2 if quick else 1.0, "seconds": 0.3 if quick else 3.0},
    measure=measure,
    targets=(
        Target("no wrong response", "gunicorn-pool", "errors", 0),
        *(Target("ahead of gthread", "gunicorn-pool", "rate", 1.0, where, "gunicorn-gthread") for where in _WHERES),
    ),
    floor=f"40 threads asleep for {ASLEEP_SECONDS * 1e3:g} ms each give {40 / ASLEEP_SECONDS:,.0f} answers/s, 100 give "
    f"{100 / ASLEEP_SECONDS:,.0f}",
    limits="gunicorn's own Python, for each request; granian's server is Rust",
)
