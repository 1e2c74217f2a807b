"""A thousand clients trickle a byte a second: how long do ordinary clients wait, and what do the slow ones hold?"""

from __future__ import annotations

import functools
import statistics
from dataclasses import dataclass

from benchmarks.engine.model import Column, Params, Question, Samples, Target, always, percentile
from benchmarks.load import http
from benchmarks.load.serving import Server, Watch, serving
from benchmarks.load.trickle import trickling
from benchmarks.peers.peer import Peer
from benchmarks.servers.slow import PAGE

_KINDS = ("adaptive", "plain-front", "threads", "fixed-20", "fixed-200", "gevent")
_CLIENTS = 10
_LONG_WAIT_SECONDS = 1.0
_WATCH_SECONDS = 0.25
_VARIANTS = (
    {"trickle": "heads", "connections": "kept"},
    {"trickle": "heads", "connections": "new"},
    {"trickle": "bodies", "connections": "new"},
    {"trickle": "large bodies", "connections": "new"},
)
_GUARDS = "slow-adaptive slow-plain-front"


answers = functools.partial(http.answers, target="/", expected=PAGE)


@dataclass(frozen=True, slots=True)
class Ordinary:
    """How the ordinary clients fared: answers a second, seconds until an answer, wrong responses.

    A client that has waited for over a second at the end, unanswered, counts with what it has waited so far.
    """

    rate: float
    latencies: list[float]
    errors: int
    threads: int
    memory: int


def ordinary(server: Server, connections: str, warm_up: float, seconds: float) -> Ordinary:
    """Has the ordinary clients ask for so long, and looks at the server meanwhile."""
    kind = http.FreshClient if connections == "new" else http.Client
    with (
        http.Clients(server.port, _CLIENTS, "/", PAGE, kind) as clients,
        Watch(server, period=_WATCH_SECONDS) as watch,
    ):
        answered = clients.load(warm_up, seconds)
        unanswered = [wait for wait in clients.waits() if wait > _LONG_WAIT_SECONDS]
    rate = len(answered.latencies) / answered.seconds
    return Ordinary(rate, answered.latencies + unanswered, answered.errors, watch.threads, watch.memory)


def measure(peer: Peer, params: Params) -> Samples:
    warm_up, connections = params["warm_up"], params["connections"]
    with serving(peer.base.replace("-", " ", 1), ready=answers) as server:
        alone = ordinary(server, connections, warm_up, params["seconds"])
        bound = 2 * (warm_up + params["attacked_seconds"]) + 10.0
        with trickling(server.port, params["slow"], params["trickle"], bound) as attack:
            attacked = ordinary(server, connections, warm_up, params["attacked_seconds"])
    if not alone.latencies:
        raise RuntimeError("no answer, without any slow client")
    p99, p99_attacked = percentile(alone.latencies, 0.99), percentile(attacked.latencies, 0.99)
    return {
        "rate": [alone.rate],
        "rate_attacked": [attacked.rate],
        "p50": [statistics.median(alone.latencies) * 1e3],
        "p50_attacked": [statistics.median(attacked.latencies) * 1e3],
        "p99": [p99 * 1e3],
        "p99_attacked": [p99_attacked * 1e3],
        "times": [p99_attacked / p99],
        "threads": [alone.threads],
        "threads_attacked": [attacked.threads],
        "more_threads": [attacked.threads - alone.threads],
        "memory": [(attacked.memory - alone.memory) / 1024],
        "open": [attack.open],
        "dropped": [attack.dropped],
        "errors": [alone.errors + attacked.errors],
    }


QUESTION = Question(
    title="1,000 slow clients beside 10 ordinary ones",
    method="ordinary clients ask for a page of 0.8 kB one request after another, on kept or on new connections, first "
    "alone and then beside slow clients, each of which sends a byte a second and connects anew when it is dropped; "
    "server, ordinary and slow clients are a process each, and all servers have a backlog of 1,024; bodies say that "
    "they have 50 kB, large ones 1 MB; times: p99 beside the slow clients over p99 alone; who is not answered within "
    "the time counts with what it has waited",
    columns=(
        Column("rate", "requests/s alone", 0, ratio=False, more=True),
        Column("rate_attacked", "attacked", 0, ratio=False, more=True),
        Column("p50", "p50 alone, ms", 2, ratio=False),
        Column("p50_attacked", "attacked", 2, ratio=False),
        Column("p99", "p99 alone, ms", 2, ratio=False),
        Column("p99_attacked", "attacked", 2, ratio=False),
        Column("times", "times", 2, ratio=False),
        Column("threads", "threads alone", 0, ratio=False),
        Column("threads_attacked", "attacked", 0, ratio=False),
        Column("more_threads", "more", 0, ratio=False),
        Column("memory", "more memory, MB", 1, ratio=False),
        Column("open", "slow ones connected", 0, ratio=False),
        Column("dropped", "slow ones dropped", 0, ratio=False),
        Column("errors", "wrong responses", 0, ratio=False, worst=True),
    ),
    peers=tuple(f"slow-{kind}" for kind in _KINDS),
    variants=always(*_VARIANTS),
    sizes=lambda quick: {
        "slow": 200 if quick else 1000,
        "warm_up": 0.2 if quick else 0.3,
        "seconds": 0.5 if quick else 1.0,
        "attacked_seconds": 0.5 if quick else 2.0,
    },
    measure=measure,
    targets=(
        Target("p99 at most twice that without slow clients", _GUARDS, "times", 2.0),
        Target("slow clients hold no worker", _GUARDS, "more_threads", _CLIENTS),
        Target("every response right", _GUARDS, "errors", 0),
    ),
    rounds_factor=1 / 3,
    floor="what the same server does without slow clients",
    limits="a server that reads a request in a worker holds a thread for each slow client; one that reads it in a "
    "selector or in a loop holds none",
)
