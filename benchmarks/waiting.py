"""A dummy web server whose handler sleeps: 200 connections at once, then `ab -n 2000 -c 200`."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.engine.model import Column, Params, Question, Samples, Target, always
from benchmarks.load.ab import Ab, ab
from benchmarks.load.reconnecting import Reconnecting
from benchmarks.load.serving import Server, Watch, serving
from benchmarks.peers.peer import Peer
from benchmarks.servers.tcp import BODY, REQUEST, RESPONSE

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
    """All clients come to a cold server at the same time, and again when they are answered."""
    count, total = params["clients"], params["requests"]
    least = total * seconds / count
    before = server.memory()
    with (
        Reconnecting(server.port, count, len(RESPONSE), REQUEST, RESPONSE[:12]) as clients,
        Watch(server, period=params["period"]) as watch,
    ):
        replies = clients.ask(total, params["most_times"] * least, server.cpu_seconds)
    if not replies.count:
        raise RuntimeError(f"not one right reply: {dict(replies.errors)}, {replies.unanswered} unanswered")
    rate = replies.count / replies.seconds
    return {
        "rate": [rate],
        "share": [rate * seconds / count * 100],
        "threads": [watch.threads],
        "memory": [(watch.memory - before) / count],
        "errors": [replies.errors.total()],
        "unanswered": [replies.unanswered],
        "client": [replies.cpu_seconds / replies.seconds * 100],
    }


def again_and_again(server: Server, params: Params) -> Samples:
    """`ab` several times: the first time the server is cold."""

    def load() -> Ab:
        requests, clients = params["ab_requests"], params["clients"]
        return ab(server.port, "/", requests=requests, concurrency=clients, timeout=_PATIENCE_SECONDS)

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


def targets(workers: Sequence[int]) -> list[Target]:
    found = [
        Target("at least 95% of gevent's rate", _OURS, "rate", 0.95, _LONG, rival="tcp-gevent"),
        Target("at least 95% of the arithmetic limit", _OURS, "share", 95.0, _LONG),
    ]
    for where in (_SHORT, _NONE):
        found.append(Target("ab: at least gevent's rate", _OURS, "rate", 1.0, where, rival="tcp-gevent"))
        found.append(Target("ab, first run: at least gevent's rate", _OURS, "first", 1.0, where, rival="tcp-gevent"))
    for where in (_LONG, _SHORT, _NONE):
        found.append(Target("every reply right", _OURS, "errors", 0, where))
        found.append(Target("every request answered", _OURS, "unanswered", 0, where))
    return found


QUESTION = Question(
    name="waiting",
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
        "clients": _CLIENTS,
        "requests": 200,
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
    targets=targets,
    floor="what 200 clients can ask for at most: 200 divided by what the handler sleeps",
    limits="5 s: nothing but the handler; 10 ms: switching between threads that share a GIL, where greenlets switch "
    "within one thread and need no stack of the system",
    quick_cells=2,
)
