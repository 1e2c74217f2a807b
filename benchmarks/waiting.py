"""A dummy web server whose handler sleeps: 200 connections at once, then `ab -n 2000 -c 200`."""

from __future__ import annotations

import time

from benchmarks.engine.model import Column, Params, Question, Samples, Target, always
from benchmarks.load.ab import Ab, ab
from benchmarks.load.http import Clients
from benchmarks.load.serving import Server, Watch, serving
from benchmarks.peers.peer import Peer
from benchmarks.servers.tcp import BODY

_CLIENTS = 200
_LONG = {"handler": "sleeps 5 s"}
_SHORT = {"handler": "sleeps 10 ms"}
_NONE = {"handler": "answers at once"}
_SERVERS = {
    "tcp-ebbpool": "tcp adaptive --workers 256",
    "tcp-ebbpool-pure": "tcp adaptive --workers 256",
    "tcp-threading": "tcp threading",
    "tcp-executor": "tcp executor",
    "tcp-executor-20": "tcp executor --workers 20",
    "tcp-2008": "tcp rule-2008",
    "tcp-gevent": "tcp gevent",
}
_OURS = "tcp-ebbpool"
_PATIENCE_SECONDS = 60.0


def at_once(server: Server, params: Params, seconds: float) -> Samples:
    """All clients come to a cold server at the same time, and ask; the time counts from the first connection on."""
    before, start = server.memory(), time.perf_counter()
    with Watch(server, period=params["period"]) as watch, Clients(server.port, _CLIENTS, "/", BODY) as clients:
        answered = clients.burst(params["most_times"] * seconds)
        taken = time.perf_counter() - start
    right = _CLIENTS - answered.errors
    if not right:
        raise RuntimeError("not one right reply")
    rate = right / taken
    unanswered = _CLIENTS - len(answered.latencies)
    return {
        "rate": [rate],
        "share": [rate * seconds / _CLIENTS * 100],
        "threads": [watch.threads],
        "memory": [(watch.memory - before) / _CLIENTS],
        "errors": [answered.errors - unanswered],
        "unanswered": [unanswered],
        "client": [answered.cpu_seconds / answered.seconds * 100],
    }


def again_and_again(server: Server, params: Params) -> Samples:
    """`ab` several times: the first time the server is cold."""

    def load() -> Ab:
        return ab(server.port, "/", requests=params["ab_requests"], concurrency=_CLIENTS, timeout=_PATIENCE_SECONDS)

    with Watch(server, period=params["period"]) as watch:
        first = load()
        before = server.cpu_seconds()
        later = [load() for _ in range(params["repeats"])]
        spent = server.cpu_seconds() - before
    return {
        "rate": [found.rate for found in later],
        "first": [first.rate],
        "p99": [found.percentiles[99] for found in later],
        "threads": [watch.threads],
        "cpu": [spent / sum(found.complete for found in later) * 1e6],
        "errors": [sum(found.errors(len(BODY)) for found in [first, *later])],
        "unanswered": [params["ab_requests"] * (len(later) + 1) - sum(found.complete for found in [first, *later])],
        "client": [sum(found.cpu_seconds for found in later) / sum(found.seconds for found in later) * 100],
    }


def measure(peer: Peer, params: Params) -> Samples:
    seconds = params["seconds"][params["handler"]]
    with serving(_SERVERS[peer.base], "--sleep", str(seconds)) as server:
        long = params["handler"] == _LONG["handler"]
        return at_once(server, params, seconds) if long else again_and_again(server, params)


QUESTION = Question(
    title="A web server whose handler sleeps: 200 clients",
    method="one handler for all: it reads up to the blank line, sleeps, answers and closes; adaptive: at most 256 "
    "workers, none at first; sleeps 5 s (quick: 0.5 s): 200 connections at once to a cold server, a request each; "
    "given up after three times as long as they need at least; kB: by how much resident memory grew, at most, for "
    "each of the 200; the others: `ab -n 2000 -c 200`, first: on the cold server; µs of a processor: the "
    "server's, without the first run; what the client needs of a processor is shown: near 100 it would be what is "
    "measured",
    columns=(
        Column("rate", "requests/s", 1, more=True),
        Column("share", "% of the limit", 1, ratio=False, more=True),
        Column("first", "requests/s, first run", 0, more=True),
        Column("p99", "p99, ms", 0, ratio=False),
        Column("cpu", "µs of a processor a request", 0),
        Column("memory", "kB resident a connection", 1),
        Column("threads", "threads at most", 0, ratio=False, worst=True),
        Column("errors", "wrong replies", 0, ratio=False, worst=True),
        Column("unanswered", "unanswered", 0, ratio=False, worst=True),
        Column("client", "% of a processor, client", 0, ratio=False),
    ),
    peers=tuple(_SERVERS),
    variants=always(_LONG, _SHORT, _NONE),
    sizes=lambda quick: {
        "most_times": 3.0,
        "seconds": {
            _LONG["handler"]: 0.5 if quick else 5.0,
            _SHORT["handler"]: 0.01,
            _NONE["handler"]: 0.0,
        },
        "ab_requests": 2000,
        "repeats": 1 if quick else 3,
        "period": 0.05,
    },
    measure=measure,
    targets=(
        Target("at least 95% of gevent's rate", _OURS, "rate", 0.95, _LONG, "tcp-gevent"),
        Target("at least 95% of the arithmetic limit", _OURS, "share", 95.0, _LONG),
        *(Target("ab: at least gevent's rate", _OURS, "rate", 1.0, each, "tcp-gevent") for each in (_SHORT, _NONE)),
        *(Target("ab, first run: the same", _OURS, "first", 1.0, each, "tcp-gevent") for each in (_SHORT, _NONE)),
        Target("every reply right", _OURS, "errors", 0),
        Target("every request answered", _OURS, "unanswered", 0),
    ),
    floor="what 200 clients can ask for at most: 200 divided by what the handler sleeps",
    limits="5 s: nothing but the handler; 10 ms: switching between threads that share a GIL, where greenlets switch "
    "within one thread and need no stack of the system",
    quick_cells=2,
)
