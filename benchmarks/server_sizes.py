"""A server that writes so many bytes and closes, 100 clients that reconnect for ever: how many replies a second?"""

from __future__ import annotations

from benchmarks.engine.model import Column, Params, Question, Samples, Target, always
from benchmarks.load.reconnecting import Reconnecting
from benchmarks.load.serving import Watch, serving
from benchmarks.peers.peer import Peer

SIZES = (0, 1024, 3072, 7168, 15360, 31744, 64512, 130048, 261120, 523264, 1047552, 2096128)
_SERVERS = {
    "tcp-sequential": "tcp sequential",
    "tcp-bare-thread": "tcp bare-thread",
    "tcp-ebbpool": "tcp adaptive",
    "tcp-ebbpool-pure": "tcp adaptive",
    "tcp-threading": "tcp threading",
    "tcp-executor": "tcp executor",
    "tcp-2008": "tcp rule-2008",
}
_OURS = "tcp-ebbpool"
_SMALL = 15_360
_OVER_FLOOR = {0: 1.4, _SMALL: 1.4, 523_264: 1.2}
_PATIENCE_SECONDS = 10.0


def measure(peer: Peer, params: Params) -> Samples:
    length = params["bytes"]
    with (
        serving(_SERVERS[peer.base], "--bytes", str(length)) as server,
        Reconnecting(server.port, params["clients"], length) as clients,
        Watch(server) as watch,
    ):
        replies = clients.load(params["warm_up"], params["seconds"], _PATIENCE_SECONDS, server.cpu_seconds)
    if not replies.count:
        raise RuntimeError(f"not one right reply: {dict(replies.errors)}, {replies.unanswered} unanswered")
    samples: Samples = {
        "rate": [replies.count / replies.seconds],
        "threads": [watch.threads],
        "errors": [replies.errors.total() + replies.unanswered],
    }
    return samples | replies.samples(replies.count)


QUESTION = Question(
    title="A TCP server that sends a reply and closes: 100 clients that reconnect",
    method="the server is a process of its own, with a backlog of 1024 and at most 200 workers; the clients are one "
    "other process, which reads to the end of the file, counts every byte and then closes with a reset, so that "
    "nothing stays in TIME_WAIT; what it needs of a processor is shown: near 100 it would be what is measured; "
    "threads: the most of a look every 50 ms, with the main one and one that waits for the parent's end",
    columns=(
        Column("rate", "replies/s", 0, more=True),
        Column("cpu", "µs of a processor a reply", 1),
        Column("threads", "threads at most", 0, ratio=False, worst=True),
        Column("errors", "wrong replies", 0, ratio=False, worst=True),
        Column("client", "% of a processor, client", 0, ratio=False),
    ),
    peers=tuple(_SERVERS),
    variants=always(*({"bytes": size} for size in SIZES)),
    sizes=lambda quick: {
        "clients": 100,
        "warm_up": 0.1 if quick else 0.2,
        "seconds": 0.3 if quick else 0.6,
    },
    measure=measure,
    targets=(
        Target("replies/s: no fewer than ThreadingMixIn", _OURS, "rate", 1.0, rival="tcp-threading"),
        Target("replies/s: no fewer than the rule of 2008", _OURS, "rate", 1.0, rival="tcp-2008"),
        Target("every reply right", _OURS, "errors", 0),
        *(
            Target("at most a quarter of ThreadingMixIn's processor time", _OURS, "cpu", 0.25, where, "tcp-threading")
            for where in [{"bytes": size} for size in SIZES if size <= _SMALL]
        ),
        *(
            Target(f"at most {times}x the processor time of no threads", _OURS, "cpu", times, where, "tcp-sequential")
            for where, times in [({"bytes": size}, times) for size, times in _OVER_FLOOR.items()]
        ),
    ),
    floor="a server without threads, one connection after another",
    limits="small answers: accept and close in the kernel, and the GIL; large ones: the copying of bytes, which is "
    "the same for all",
    quick_cells=2,
)
