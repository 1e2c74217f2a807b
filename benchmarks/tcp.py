"""TCP and HTTP servers under many connections: how many answers a second, how many threads, what of slow clients?"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks import processors
from benchmarks.engine.model import Column, Params, Question, Samples, Settings, Variant, percentile
from benchmarks.load import http
from benchmarks.load.ab import Ab, ab
from benchmarks.load.http import CLIENT, WRONG, Clients, Reconnecting
from benchmarks.load.serving import Server, Watch, serving
from benchmarks.load.tcp import EchoClients, trickling
from benchmarks.peers.peer import Peer
from benchmarks.servers.tcp import BODY
from benchmarks.servers.web import SMALL, SMALL_PAGE

_THREADS = Column("threads", "most threads", 0, ratio=False, worst=True)
_PATIENCE_SECONDS = 60.0
_SIZES = (0, 1024, 3072, 7168, 15360, 31744, 64512, 130048, 261120, 523264, 1047552, 2096128)


@Question(
    title="A TCP server that sends a reply and closes: 100 clients that reconnect",
    columns=(
        Column("rate", "replies/s", 0, more=True),
        Column("cpu", "CPU, µs per reply", 1),
        _THREADS,
        Column("errors", "wrong replies", 0, ratio=False, worst=True, wrong=True),
        CLIENT,
    ),
    peers="tcp-sequential tcp-bare-thread tcp-ebbpool tcp-ebbpool-pure tcp-threading tcp-executor tcp-2008",
    variants=[{"bytes": size} for size in _SIZES],
    sizes={"clients": 100, "warm_up": 0.2, "seconds": 0.6},
)
def server_sizes(peer: Peer, params: Params) -> Samples:
    """A server that writes so many bytes and closes, 100 clients that reconnect for ever: how many replies a second?"""
    length = params["bytes"]
    with (
        serving(peer.program, "--answer", "bytes", "--size", str(length)) as server,
        Reconnecting(server.port, params["clients"], length) as clients,
        Watch(server) as watch,
    ):
        answered = clients.load(params["warm_up"], params["seconds"], server.cpu_seconds)
        clients.finish(answered, 10.0)
    return answered.rate() | {"threads": [watch.threads], "errors": [answered.errors + answered.unanswered]}


_CLIENTS = 200
_HANDLERS = {"sleeps 5 s": 5.0, "sleeps 10 ms": 0.01, "answers at once": 0.0}
MOST_TIMES = 3.0
"""How many times what they need at least clients that come at once may take."""


def _at_once(server: Server, params: Params, seconds: float) -> Samples:
    """All clients come to a cold server at the same time, and ask; the time counts from the first connection on."""
    before, start = server.status("VmRSS"), time.perf_counter()
    with Watch(server, period=params["period"]) as watch, Clients(server.port, _CLIENTS, "/", BODY) as clients:
        answered = clients.burst(MOST_TIMES * seconds)
        taken = time.perf_counter() - start
    right = _CLIENTS - answered.errors
    if not right:
        raise RuntimeError("not one right reply")
    unanswered = _CLIENTS - len(answered.latencies)
    return {
        "rate": [right / taken],
        "threads": [watch.threads],
        "memory": [(watch.memory - before) / _CLIENTS],
        "errors": [answered.errors - unanswered],
        "unanswered": [unanswered],
        "client": [answered.cpu_seconds / answered.seconds * 100],
    }


def _again_and_again(server: Server, params: Params) -> Samples:
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
        "threads": [watch.threads],
        "cpu": [spent / sum(found.complete for found in later) * 1e6],
        "errors": [sum(found.errors(len(BODY)) for found in [first, *later])],
        "unanswered": [params["ab_requests"] * (len(later) + 1) - sum(found.complete for found in [first, *later])],
        "client": [sum(found.cpu_seconds for found in later) / sum(found.seconds for found in later) * 100],
    }


@Question(
    title="A web server whose handler sleeps: 200 clients",
    columns=(
        Column("rate", "requests/s", 1, more=True),
        Column("first", "requests/s, first run", 0, more=True),
        Column("cpu", "CPU, µs per request", 0),
        Column("memory", "kB resident per connection", 1),
        _THREADS,
        Column("errors", "wrong replies", 0, ratio=False, worst=True, wrong=True),
        Column("unanswered", "unanswered", 0, ratio=False, worst=True, wrong=True),
        CLIENT,
    ),
    peers="tcp-ebbpool tcp-ebbpool-pure tcp-threading tcp-executor tcp-executor-20 tcp-2008 tcp-gevent",
    variants=[{"handler": name} for name in _HANDLERS],
    sizes={"long": 5.0, "ab_requests": 2000, "repeats": 3, "period": 0.05},
)
def waiting(peer: Peer, params: Params) -> Samples:
    """A dummy web server whose handler sleeps: 200 connections at once, then `ab -n 2000 -c 200`."""
    seconds = min(_HANDLERS[params["handler"]], params["long"])
    most = () if peer.core is None else ("--workers", "256")
    with serving(peer.program, "--answer", "sleep", "--size", str(seconds), *most) as server:
        return _at_once(server, params, seconds) if seconds > 1 else _again_and_again(server, params)


ORDINARY_CLIENTS = 10
LONG_WAIT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Ordinary:
    """How the ordinary clients fared: seconds until an answer, wrong responses, and the most of the server.

    A client that has waited for over a second at the end, unanswered, counts with what it has waited so far.
    """

    latencies: list[float]
    errors: int
    threads: int
    memory: int


def ordinary(server: Server, connections: str, warm_up: float, seconds: float) -> Ordinary:
    """Have the ordinary clients ask for so long, and look at the server meanwhile."""
    kind = http.FreshClient if connections == "new" else http.Client
    with (
        Clients(server.port, ORDINARY_CLIENTS, SMALL, SMALL_PAGE, kind) as clients,
        Watch(server, period=0.25) as watch,
    ):
        answered = clients.load(warm_up, seconds)
        unanswered = [wait for wait in clients.waits() if wait > min(LONG_WAIT_SECONDS, seconds)]
    return Ordinary(answered.latencies + unanswered, answered.errors, watch.threads, watch.memory)


@Question(
    title="1,000 slow clients beside 10 ordinary ones",
    columns=(
        Column("p99", "p99 alone, ms", 2, ratio=False),
        Column("p99_attacked", "attacked", 2, ratio=False),
        Column("more_threads", "more threads", 0, ratio=False),
        Column("memory", "more memory, MB", 1, ratio=False),
        Column("open", "slow ones connected", 0, ratio=False),
        Column("dropped", "slow ones dropped", 0, ratio=False),
        WRONG,
    ),
    peers="slow-adaptive slow-threads slow-gevent",
    variants=(
        {"trickle": "heads", "connections": "kept"},
        {"trickle": "heads", "connections": "new"},
        {"trickle": "bodies", "connections": "new"},
        {"trickle": "large bodies", "connections": "new"},
    ),
    sizes={"slow": 1000, "warm_up": 0.3, "seconds": 1.0, "attacked_seconds": 2.0},
    rounds_factor=1 / 3,
)
def slow_clients(peer: Peer, params: Params) -> Samples:
    """A thousand clients trickle a byte a second: how long do ordinary clients wait, and what do the slow ones hold?"""
    warm_up, connections = params["warm_up"], params["connections"]
    ready = functools.partial(http.answers, target=SMALL, expected=SMALL_PAGE)
    with serving(peer.program, ready=ready) as server:
        alone = ordinary(server, connections, warm_up, params["seconds"])
        bound = 2 * (warm_up + params["attacked_seconds"]) + 10.0
        with trickling(server.port, params["slow"], params["trickle"], bound) as attack:
            attacked = ordinary(server, connections, warm_up, params["attacked_seconds"])
    if not alone.latencies:
        raise RuntimeError("no answer, without any slow client")
    return {
        "p99": [percentile(alone.latencies, 0.99) * 1e3],
        "p99_attacked": [percentile(attacked.latencies, 0.99) * 1e3],
        "more_threads": [attacked.threads - alone.threads],
        "memory": [(attacked.memory - alone.memory) / 1024],
        "open": [attack.open],
        "dropped": [attack.dropped],
        "errors": [alone.errors + attacked.errors],
    }


@contextmanager
def _placed(program: str, placement: str) -> Iterator[Server]:
    """Yield the server; if the two are to be kept apart, the first processor is this process's alone."""
    if placement != "apart":
        with serving(program) as found:
            yield found
        return
    allowed = os.sched_getaffinity(0)
    own = {min(allowed)}
    try:
        os.sched_setaffinity(0, allowed - own)
        with serving(program) as found:
            os.sched_setaffinity(0, own)
            yield found
    finally:
        os.sched_setaffinity(0, allowed)


def _placements(peer: str, settings: Settings) -> list[Variant]:
    placements = ("free", "apart") if settings.pin is None and len(processors()) > 1 else ("free",)
    return [{"size": size, "placement": placement} for placement in placements for size in (1000, 4096, 65_536)]


@Question(
    title="An echo server: 5 clients, each with one message under way",
    columns=(
        Column("rate", "messages/s", 0, more=True),
        Column("cpu", "server CPU, µs per message", 1),
        Column("server", "% of a CPU, server", 0, ratio=False),
        CLIENT,
    ),
    peers="echo-pool echo-pool-pure echo-threading echo-asyncio-streams echo-asyncio-protocol echo-asyncio-buffered "
    "echo-uvloop-streams echo-uvloop-protocol echo-uvloop-buffered echo-gevent",
    variants=_placements,
    sizes={"clients": 5, "warm_up": 0.2, "seconds": 0.6},
)
def echo(peer: Peer, params: Params) -> Samples:
    """Five clients, each with one message under way: how many messages a second does a server send back?"""
    with (
        _placed(peer.program, params["placement"]) as found,
        EchoClients(found.port, params["clients"], params["size"]) as clients,
    ):
        answered, messages = clients.load(params["warm_up"], params["seconds"], found.cpu_seconds)
    share = {"server": [answered.watched_seconds / answered.seconds * 100]} if answered.watched_seconds else {}
    return answered.rate(messages) | share
