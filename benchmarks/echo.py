"""Five clients, each with one message under way: how many messages a second does a server send back?"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks import processors
from benchmarks.engine.model import Column, Params, Question, Samples, Settings, Target, Variant
from benchmarks.load.echo import EchoClients
from benchmarks.load.serving import Server, serving
from benchmarks.peers.peer import Peer

_CLIENTS = 5
_SIZES = (1000, 4096, 65_536)
_SERVERS = {
    "echo-pool": "echo pool",
    "echo-pool-pure": "echo pool",
    "echo-threading": "echo threading",
    **{
        f"echo-{loop}-{kind}": f"echo {kind} --loop {loop}"
        for loop in ("asyncio", "uvloop")
        for kind in ("streams", "protocol", "buffered")
    },
    "echo-gevent": "echo gevent",
    "echo-go": "go echo",
}
_BEHIND = {
    "echo-uvloop-streams": "uvloop's streams",
    "echo-asyncio-streams": "asyncio's streams",
    "echo-asyncio-protocol": "asyncio's protocols",
    "echo-asyncio-buffered": "asyncio's buffered protocols",
}


@contextmanager
def _placed(peer: Peer, placement: str) -> Iterator[Server]:
    """Yields the server; if the two are to be kept apart, the first processor is this process's alone."""
    if placement != "apart":
        with serving(_SERVERS[peer.base]) as found:
            yield found
        return
    allowed = os.sched_getaffinity(0)
    own = {min(allowed)}
    try:
        os.sched_setaffinity(0, allowed - own)
        with serving(_SERVERS[peer.base]) as found:
            os.sched_setaffinity(0, own)
            yield found
    finally:
        os.sched_setaffinity(0, allowed)


def measure(peer: Peer, params: Params) -> Samples:
    with (
        _placed(peer, params["placement"]) as found,
        EchoClients(found.port, params["clients"], params["size"]) as clients,
    ):
        echoed = clients.load(params["warm_up"], params["seconds"], found.cpu_seconds)
    samples: Samples = {"rate": [echoed.messages / echoed.seconds]} | echoed.samples(echoed.messages)
    if echoed.watched_seconds:
        samples["server"] = [echoed.watched_seconds / echoed.seconds * 100]
    return samples


def variants(peer: str, settings: Settings) -> list[Variant]:
    placements = ("free", "apart") if settings.pin is None and len(processors()) > 1 else ("free",)
    return [{"size": size, "placement": placement} for placement in placements for size in _SIZES]


QUESTION = Question(
    title="An echo server: 5 clients, each with one message under way",
    method="the server sends back exactly what came and stops at end of file; the clients are one other process, which "
    "looks after its 5 connections in turn with blocking calls (two system calls a message), compares every byte with "
    "messages that differ in every byte, and looks that nothing follows the last; buffers of 64 KiB, TCP_NODELAY; "
    "placement: free leaves both processes to the system, which likes to put who talks on one processor (then the two "
    "shares add up to 100), apart keeps one processor for the client alone (a share near 100 there means that the "
    "client is what is measured)",
    columns=(
        Column("rate", "messages/s", 0, more=True),
        Column("cpu", "µs of a processor a message, server", 1),
        Column("server", "% of a processor, server", 0, ratio=False),
        Column("client", "% of a processor, client", 0, ratio=False),
    ),
    peers=tuple(_SERVERS),
    variants=variants,
    sizes=lambda quick: {"clients": _CLIENTS, "warm_up": 0.1 if quick else 0.2, "seconds": 0.2 if quick else 0.6},
    measure=measure,
    targets=(
        *(
            Target(f"ahead of {name}", "echo-pool echo-pool-pure", "rate", 1.0, rival=rival)
            for rival, name in _BEHIND.items()
        ),
    ),
    limits="two system calls a message; a thread for each client gives the GIL away around each of them and asks for "
    "it again, an event loop keeps it",
)
